"""Graphs larger than memory: a folder of plain arrays that are memory-mapped, not read.

The folder holds `graph.json` (counts, names) and arrays in NumPy's own format: the labels, the in-neighbour lists, the
features, dense or sparse, the split, and attributes such as ids. Training reads the rows it needs; the operating system
caches what is used often. Nothing in a folder is executed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from evergraph.core.settings import PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.attributes import Attribute
from evergraph.data.graph import Graph
from evergraph.data.targets import ClassName
from evergraph.errors import EvergraphError, first_line
from evergraph.persistence.files import file_hash
from evergraph.persistence.reading import DAMAGE, content_hash, read_record, regular_file, write_record

HEADER = "graph.json"
PARTS_HEADER = "parts.json"
ROWS_AT_ONCE = 2**22  # entries of neighbour lists sorted at once

HASHED_WHOLE = 2**28  # arrays of up to this many bytes are compared with their hash whenever they are opened


class Described(TypedDict):
    """Description of an array in a header."""

    type: str
    shape: list[int]
    sha256: str


class Known(TypedDict, total=False):
    """Optional entries of a header; folders of earlier versions have none of them."""

    directed: bool
    feature_names: list[str]
    attributes: list[str]  # names; the values of the third are in the array `attribute-2`, …


class Header(Known):
    """Contents of `graph.json`."""

    name: str
    class_names: list[str | int]
    num_features: PositiveInt
    arrays: dict[str, Described]


EdgeBlocks = Callable[[], Iterable[np.ndarray]]
"""Function that returns the same (2, number of edges) blocks, sources above targets, every time it is called."""


def not_convertible(name: str) -> EvergraphError:
    """Return the error for a graph that has other examples than nodes, or other targets than classes."""
    return EvergraphError(f"{name}: only graphs whose examples are nodes with one class each can be converted")


def write_mapped(graph: Graph, folder: str | Path) -> Path:
    """Write a graph that is in memory to a folder of mapped arrays; its examples must be nodes with classes."""
    if graph.level != "node" or not graph.has_classes:
        raise not_convertible(graph.name)
    with new_folder(folder) as path:
        arrays: dict[str, Tensor] = {"indptr": graph.adjacency.indptr, "indices": graph.adjacency.indices}
        if bool((graph.adjacency.values != 1).any()):
            arrays["weights"] = graph.adjacency.values
        if isinstance(graph.x, SparseMatrix):
            arrays |= {"x_indptr": graph.x.indptr, "x_indices": graph.x.indices, "x_values": graph.x.values}
        else:
            arrays["x"] = graph.x
        if graph.splits is not None:
            arrays["splits"] = graph.splits
        for number, known in enumerate(graph.attributes.values()):
            arrays[f"attribute-{number}"] = known.values
            if known.names is not None:
                arrays[f"attribute-{number}-names"] = _text_as_array(known.names)
        for name, array in {**arrays, "y": graph.y}.items():
            np.save(path / f"{name}.npy", array.contiguous().numpy())
        extra: dict[str, Any] = {"directed": graph.directed, "attributes": list(graph.attributes)}
        if graph.feature_names is not None:
            extra["feature_names"] = graph.feature_names
        _write_header(path, graph.name, graph.class_names, graph.num_features, **extra)
    return Path(folder)


def _text_as_array(names: list[str]) -> Tensor:
    """Encode names as the bytes of a JSON list; there can be one per node, too many for the header."""
    return torch.frombuffer(bytearray(json.dumps(names).encode()), dtype=torch.uint8)


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
    """Write a graph that is never in memory as a whole, block by block.

    Args:
        folder: target folder; it must not exist.
        features: dense blocks of rows, from the first node to the last.
        edges: the edges in blocks, iterated over twice; each is taken in both directions, duplicates and
            self-loops are dropped.
        y: labels as positions in `class_names`.
        num_features: number of features of a node.
        class_names: names of the classes.
        name: name of the graph.
    """
    with new_folder(folder) as path:
        np.save(path / "y.npy", y.astype(np.int64))
        x = np.lib.format.open_memmap(path / "x.npy", "w+", np.float32, (y.size, num_features))
        start = 0
        for block in features:
            if not np.isfinite(block).all():
                raise EvergraphError(f"{name}: features contain NaN or infinite values; clean or impute them first")
            x[start : start + len(block)] = block
            start += len(block)
        if start != y.size:
            raise EvergraphError(f"{name}: {start} rows of features but {y.size} labels; give one label per node")
        x.flush()
        _write_neighbours(path, edges, y.size)
        _write_header(path, name, class_names, num_features)
    return Path(folder)


def _write_neighbours(path: Path, edges: EdgeBlocks, num_nodes: int) -> None:
    """Write in-neighbour lists by a counting sort on disk: count, scatter, then sort each list and drop duplicates."""
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
    np.save(path / "indptr.npy", indptr)  # no row points to the unused tail of `indices` left by dropped duplicates


def _both_ways(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    source, target = (np.asarray(side, dtype=np.int64) for side in block)
    kept = source != target
    source, target = source[kept], target[kept]
    return np.concatenate([source, target]), np.concatenate([target, source])


def is_mapped(folder: str | Path) -> bool:
    """Whether a folder holds a mapped graph."""
    return os.path.isfile(Path(folder) / HEADER)  # raises no error for a name that is too long


def is_parts(folder: str | Path) -> bool:
    """Whether a folder is a graph in parts (`evergraph.data.parts`)."""
    return os.path.isfile(Path(folder) / PARTS_HEADER)


def read_mapped(folder: str | Path) -> Graph:
    """Read the graph in a folder; its arrays stay on disk until they are used."""
    path = Path(folder)
    header = read_record(path / HEADER, Header, "convert again")
    try:
        arrays = {name: map_array(path, name, described) for name, described in header["arrays"].items()}
        names, num_features = list(header["class_names"]), header["num_features"]
        y = arrays["y"]
        if y.dim() != 1 or not y.numel() or not -1 <= int(y.min()) <= int(y.max()) < len(names):
            raise ValueError("labels are out of range")
        nnz = check_rows(arrays["indptr"], arrays["indices"], y.numel(), y.numel())
        # if all edge weights are 1: a single number, expanded
        weights = arrays.get("weights", torch.ones(1).expand(nnz))
        if weights.shape != (nnz,) or not weights.is_floating_point():
            raise ValueError("the edges' weights do not fit the edges")
        adjacency = SparseMatrix(arrays["indptr"], arrays["indices"][:nnz], weights, y.numel())
        if "x" in arrays:
            x: Any = arrays["x"]
        else:
            check_rows(arrays["x_indptr"], arrays["x_indices"], y.numel(), num_features)
            x = SparseMatrix(arrays["x_indptr"], arrays["x_indices"], arrays["x_values"], num_features)
        if tuple(x.shape) != (y.numel(), num_features):
            raise ValueError("the arrays do not fit together")
        splits = arrays.get("splits")
        if splits is not None and (splits.dim() != 2 or splits.size(0) != y.numel() or splits.dtype != torch.int64):
            raise ValueError("the split does not fit the nodes")
        columns = header.get("feature_names")
        if columns is not None and len(columns) != num_features:
            raise ValueError("the features' names do not fit the features")
        attributes = {
            name: _attribute(arrays, f"attribute-{number}", y.numel())
            for number, name in enumerate(header.get("attributes", ()))
        }
    except DAMAGE as error:
        raise EvergraphError(f"{path}: damaged or not a converted graph ({first_line(error)}); convert again") from None
    mark = content_hash(header["arrays"])
    return Graph(
        x,
        adjacency,
        y,
        names,
        header["name"],
        on_disk=True,
        mark=mark,
        directed=header.get("directed", False),
        attributes=attributes,
        splits=splits,
        feature_names=columns,
        reopen=partial(_reopen, path.absolute(), mark),
    )


def _reopen(path: Path, mark: str) -> Graph:
    """Read the graph in a folder again; raise if it is another one by now."""
    graph = read_mapped(path)
    if graph.mark != mark:
        raise EvergraphError(f"{path} holds another graph than it did when this one was pickled or copied")
    return graph


def _attribute(arrays: dict[str, Tensor], place: str, count: int) -> Attribute:
    values, text = arrays[place], arrays.get(f"{place}-names")
    names = None if text is None else json.loads(text.numpy().tobytes())
    if values.shape != (count,) or (names is not None and not 0 <= int(values.min()) <= int(values.max()) < len(names)):
        raise ValueError("an attribute does not fit the nodes")
    return Attribute(values, names)


def map_array(path: Path, name: str, described: Described) -> Tensor:
    """Map an array written by `convert`; check its type, shape and layout, and its content if it is small."""
    file = regular_file(path / f"{Path(name).name}.npy")
    # copy on write: torch wants writable arrays, but the file is never written to
    array = np.load(file, mmap_mode="c", allow_pickle=False)
    if (array.dtype.str, list(array.shape)) != (described["type"], described["shape"]):
        raise ValueError(f"{name}.npy is of another type or shape than was written")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}.npy is laid out by columns")
    if array.nbytes <= HASHED_WHOLE and file_hash(file) != described["sha256"]:
        raise ValueError(f"the hash of {name}.npy is not the one that was written")
    return torch.from_numpy(array)


def check_rows(indptr: Tensor, indices: Tensor, rows: int, columns: int) -> int:
    """Check that row pointers never decrease and that columns are in range; return the number of entries."""
    if indptr.numel() != rows + 1 or int(indptr[0]) != 0 or not bool((indptr[1:] >= indptr[:-1]).all()):
        raise ValueError("the rows' begins are not in order")
    entries = int(indptr[-1])
    if entries > indices.numel():
        raise ValueError("entries are missing")
    if entries and not 0 <= int(indices[:entries].min()) <= int(indices[:entries].max()) < columns:
        raise ValueError("an entry is outside")
    return entries


def _write_header(path: Path, name: str, class_names: list[ClassName], num_features: int, **extra: Any) -> None:
    arrays: dict[str, Described] = {}
    for file in sorted(path.glob("*.npy")):
        array = np.load(file, mmap_mode="r")
        arrays[file.stem] = {"type": array.dtype.str, "shape": list(array.shape), "sha256": file_hash(file)}
    header = {"name": name, "class_names": class_names, "num_features": num_features, "arrays": arrays}
    write_record(path / HEADER, {**header, **extra})


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """Provide a scratch folder beside the target, renamed to the target once it is complete."""
    folder = Path(folder)
    if os.path.lexists(folder):
        raise EvergraphError(f"{folder} exists; name a folder that does not")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = folder.parent / f".{folder.name}-{secrets.token_hex(8)}"
        scratch.mkdir()  # with the permissions of any new folder; one of tempfile's would be its owner's alone
    except OSError as error:
        raise EvergraphError(f"cannot write to {folder} ({first_line(error)}); name another folder") from None
    try:
        yield scratch
        scratch.rename(folder)
    except OSError as error:
        raise EvergraphError(f"cannot write to {folder} ({first_line(error)}); name another folder") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
