"""Graphs larger than memory: a folder of plain arrays that are mapped, not read.

The folder holds `graph.json` (counts, class names) and arrays in numpy's own format: the labels, the
in-neighbour lists, and the features, dense or sparse. Training reads the rows it needs; the operating
system keeps what is used often. Nothing in a folder is executed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergraph.core.sparse import SparseMatrix
from evergraph.data.graph import ClassName, Graph
from evergraph.errors import EvergraphError, first_line

HEADER = "graph.json"
ROWS_AT_ONCE = 2**22  # entries sorted at once when neighbour lists are put in order

EdgeBlocks = Callable[[], Iterable[np.ndarray]]
"""Gives the same (2, number of edges) blocks, sources above targets, every time it is called."""


def write_mapped(graph: Graph, folder: str | Path) -> Path:
    """Write a graph that is in memory to a folder of mapped arrays; its examples are nodes with classes."""
    if graph.level != "node" or not graph.has_classes:
        raise EvergraphError(f"{graph.name}: only graphs whose examples are nodes with one class each can be mapped")
    with _new_folder(folder) as path:
        arrays: dict[str, Tensor] = {"indptr": graph.adjacency.indptr, "indices": graph.adjacency.indices}
        if isinstance(graph.x, SparseMatrix):
            arrays |= {"x_indptr": graph.x.indptr, "x_indices": graph.x.indices, "x_values": graph.x.values}
        else:
            arrays["x"] = graph.x
        for name, array in {**arrays, "y": graph.y}.items():
            np.save(path / f"{name}.npy", array.numpy())
        _write_header(path, graph.name, graph.class_names, graph.num_features)
    return Path(folder)


def write_mapped_blocks(
    folder: str | Path,
    *,
    features: Iterable[np.ndarray],
    edges: EdgeBlocks,
    y: np.ndarray,
    num_features: int,
    class_names: list[ClassName],
    name: str = "graph",
) -> Path:
    """Write a graph that was never in memory, block by block.

    Args:
        folder: where to; it must not exist.
        features: dense blocks of rows, from the first node to the last.
        edges: the edges in blocks, to be gone through twice; each is taken in both directions, duplicates and
            self-loops are dropped.
        y: labels as positions in `class_names`.
        num_features: features of a node.
        class_names: the names of the classes.
        name: what to call the graph.
    """
    with _new_folder(folder) as path:
        np.save(path / "y.npy", y.astype(np.int64))
        x = np.lib.format.open_memmap(path / "x.npy", "w+", np.float32, (y.size, num_features))
        start = 0
        for block in features:
            x[start : start + len(block)] = block
            start += len(block)
        if start != y.size:
            raise EvergraphError(f"{name}: {start} rows of features but {y.size} labels; give one label per node")
        x.flush()
        _write_neighbours(path, edges, y.size)
        _write_header(path, name, class_names, num_features)
    return Path(folder)


def _write_neighbours(path: Path, edges: EdgeBlocks, num_nodes: int) -> None:
    """In-neighbour lists by a counting sort on disk: count, put in place, then sort each list and drop duplicates."""
    counts = np.zeros(num_nodes, dtype=np.int64)
    for block in edges():
        counts += np.bincount(_both_ways(block)[1], minlength=num_nodes)
    start = np.concatenate([[0], np.cumsum(counts)])
    unsorted = np.lib.format.open_memmap(path / "unsorted.npy", "w+", np.int32, (max(int(start[-1]), 1),))
    place = start[:-1].copy()
    for block in edges():
        source, target = _both_ways(block)
        order = np.argsort(target, kind="stable")
        sorted_target = target[order]
        rank = np.arange(order.size) - np.searchsorted(sorted_target, sorted_target)  # within one target
        unsorted[place[sorted_target] + rank] = source[order]
        place += np.bincount(target, minlength=num_nodes)
    indices = np.lib.format.open_memmap(path / "indices.npy", "w+", np.int64, (max(int(start[-1]), 1),))
    indptr, filled, first = np.zeros(num_nodes + 1, dtype=np.int64), 0, 0
    while first < num_nodes:
        last = max(first + 1, int(np.searchsorted(start, start[first] + ROWS_AT_ONCE, side="right")) - 1)
        row = np.repeat(np.arange(first, last), counts[first:last])
        pair = np.unique(row * np.int64(num_nodes) + unsorted[start[first] : start[last]])
        indices[filled : filled + pair.size] = pair % num_nodes
        indptr[first + 1 : last + 1] = filled + np.cumsum(
            np.bincount(pair // num_nodes - first, minlength=last - first)
        )
        filled, first = filled + pair.size, last
    indices.flush()
    del unsorted, indices
    (path / "unsorted.npy").unlink()
    np.save(path / "indptr.npy", indptr)  # the tail of `indices` that duplicates left free is not pointed to


def _both_ways(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    source, target = (np.asarray(side, dtype=np.int64) for side in block)
    kept = source != target
    source, target = source[kept], target[kept]
    return np.concatenate([source, target]), np.concatenate([target, source])


def is_mapped(folder: str | Path) -> bool:
    """Whether a folder is one of these."""
    return (Path(folder) / HEADER).is_file()


def read_mapped(folder: str | Path) -> Graph:
    """The graph in a folder; its arrays stay on disk until they are used."""
    path = Path(folder)
    try:
        header = json.loads((path / HEADER).read_text())
        names, num_features = list(header["class_names"]), int(header["num_features"])
        # edge weights are all one: a single number, seen from every place
        y, indptr, indices = _map(path, "y"), _map(path, "indptr"), _map(path, "indices")
        nnz = int(indptr[-1])
        adjacency = SparseMatrix(indptr, indices[:nnz], torch.ones(1).expand(nnz), y.numel())
        if (path / "x.npy").exists():
            x: Any = _map(path, "x")
        else:
            x = SparseMatrix(_map(path, "x_indptr"), _map(path, "x_indices"), _map(path, "x_values"), num_features)
        fits = x.size(0) == y.numel() == indptr.numel() - 1 and x.size(1) == num_features and indices.numel() >= nnz
        if not fits or int(y.max()) >= len(names):
            raise ValueError("the arrays do not fit together")
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        raise EvergraphError(f"{path}: damaged or not a converted graph ({first_line(error)}); convert again") from None
    return Graph(x, adjacency, y, names, str(header["name"]), on_disk=True)


def _map(path: Path, name: str) -> Tensor:
    # copy on write: torch wants arrays that could be written to, the file never is
    return torch.from_numpy(np.load(path / f"{name}.npy", mmap_mode="c", allow_pickle=False))


def _write_header(path: Path, name: str, class_names: list[ClassName], num_features: int) -> None:
    header = {"name": name, "class_names": class_names, "num_features": num_features}
    (path / HEADER).write_text(json.dumps(header))


@contextmanager
def _new_folder(folder: str | Path) -> Iterator[Path]:
    """A folder under another name beside the one wanted; it gets its own name when it is whole."""
    folder = Path(folder)
    if folder.exists():
        raise EvergraphError(f"{folder} exists; name a folder that does not")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise EvergraphError(f"cannot write to {folder} ({first_line(error)}); name another folder") from None
    try:
        yield scratch
        scratch.rename(folder)
    except OSError as error:
        raise EvergraphError(f"cannot write to {folder} ({first_line(error)}); name another folder") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
