"""Graphs larger than one machine, stored as blocks of rows in separate folders; each process reads its share.

A folder of parts holds `parts.json` (names, counts, where each part begins) and a folder for each part with plain
arrays: the features, labels, in-neighbours and the split of its nodes. Nothing in a folder is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from evergraph.core.settings import PositiveInt, checked
from evergraph.core.sparse import SparseMatrix
from evergraph.core.workers import Workers, share_of, workers
from evergraph.data.arrangement import chosen_positions, given_split, split_what_can_be, trained_classes
from evergraph.data.graph import Graph
from evergraph.data.mapped import PARTS_HEADER as HEADER
from evergraph.data.mapped import Described, Known, check_rows, map_array, new_folder, not_convertible
from evergraph.data.targets import ClassName
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError, first_line
from evergraph.persistence.files import file_hash
from evergraph.persistence.reading import DAMAGE, content_hash, read_record, write_record

PART = "part.json"
EDGES = ("indptr", "indices", "weights")  # arrays of a part that only propagation reads


class PartsHeader(Known):
    """Contents of `parts.json`."""

    name: str
    class_names: list[str | int]
    num_features: PositiveInt
    starts: list[int]  # first row of each part, then the total number of rows
    parts: list[str]  # hash of each part


class PartHeader(TypedDict):
    """Contents of a part's `part.json`."""

    arrays: dict[str, Described]


class Rows:
    """Assignment of the rows of a graph in parts to processes.

    Args:
        starts: first row of each process, then the total number of rows.
        group: the processes.
        mark: hash of the whole graph.
        edges: reads the in-neighbours of this process's nodes, numbered over all processes; they are needed once and
            not kept.
    """

    def __init__(self, starts: list[int], group: Workers, mark: str, edges: Callable[[], SparseMatrix]) -> None:
        self.starts, self.group, self.mark, self.edges = starts, group, mark, edges

    @property
    def start(self) -> int:
        """This process's first row."""
        return self.starts[self.group.rank]


@checked
def write_parts(graph: Graph, folder: str | Path, parts: PositiveInt, seed: int = 0) -> Path:
    """Write a graph as consecutive blocks of rows, each with its split into training, validation and test.

    Args:
        graph: a graph in memory or mapped (`evergraph.data.mapped`) whose examples are nodes with classes.
        folder: target folder; it must not exist.
        parts: number of blocks; processes that share the graph divide them among themselves.
        seed: seed of the split, if the data has none of its own.
    """
    if graph.level != "node" or not graph.has_classes:
        raise not_convertible(graph.name)
    if parts > graph.num_nodes:
        raise EvergraphError(f"{graph.name}: --parts {parts} is more than its {graph.num_nodes} nodes")
    split = _split(graph, seed)
    shares = [share_of(graph.num_nodes, number, parts) for number in range(parts)]
    weighted = bool((graph.adjacency.values != 1).any())
    with new_folder(folder) as path:
        for number, rows in enumerate(shares):
            arrays = {"y": graph.y[rows], "split": split[rows], **_sparse(graph.adjacency, rows, "", weighted)}
            if isinstance(graph.x, SparseMatrix):
                arrays |= _sparse(graph.x, rows, "x_", True)
            else:
                arrays["x"] = graph.x[rows]
            write_part(path, number, {name: array.numpy() for name, array in arrays.items()})
        starts = [share.start for share in shares]
        write_parts_header(path, graph.name, graph.class_names, graph.num_features, starts, graph.feature_names)
    return Path(folder)


def write_part(folder: Path, number: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Write one block: `y`, `split`, `indptr`, `indices` (over all nodes), optional `weights`; `x` or sparse `x_…`."""
    place = folder / f"part-{number:05d}"
    place.mkdir()
    described: dict[str, Any] = {}
    for name, array in arrays.items():
        file = place / f"{name}.npy"
        np.save(file, np.ascontiguousarray(array))
        described[name] = {"type": array.dtype.str, "shape": list(array.shape), "sha256": file_hash(file)}
    write_record(place / PART, {"arrays": described})


def write_parts_header(
    folder: Path,
    name: str,
    class_names: list[ClassName],
    num_features: int,
    starts: list[int],
    feature_names: list[str] | None = None,
) -> None:
    """Write `parts.json` once all parts are written; `starts` holds their first rows."""
    headers = [read_record(folder / f"part-{number:05d}" / PART, PartHeader) for number in range(len(starts))]
    total = starts[-1] + headers[-1]["arrays"]["y"]["shape"][0]
    header = {"name": name, "class_names": class_names, "num_features": num_features, "starts": [*starts, total]}
    if feature_names is not None:
        header["feature_names"] = feature_names
    write_record(folder / HEADER, {**header, "parts": [content_hash(part) for part in headers]})


def read_parts(folder: str | Path) -> tuple[Graph, list[int]]:
    """Return this process's share of a graph in parts, and the numbers of its parts.

    The graph holds only the process's own nodes, and no edges: `graph.rows.edges()` reads them.
    """
    path, group = Path(folder), workers()
    header = read_record(path / HEADER, PartsHeader, "convert again")
    starts, count = header["starts"], len(header["parts"])
    if count < group.size:
        raise EvergraphError(f"{path} has {count} parts for {group.size} processes; convert with --parts {group.size}")
    own = range(*share_of(count, group.rank, group.size).indices(count))
    number, num_features = starts[own.stop] - starts[own.start], header["num_features"]
    with _undamaged(path):
        joined = _read_own(path, header["parts"], own, lambda name: name not in EDGES)
        x = joined["x"] if "x" in joined else _matrix(joined, "x_", number, num_features)
        y = joined["y"]
        if (x.size(0), x.size(1), y.numel()) != (number, num_features, number):
            raise ValueError("the arrays do not fit together")
        if number and not -1 <= int(y.min()) <= int(y.max()) < len(header["class_names"]):
            raise ValueError("labels are out of range")

    def edges() -> SparseMatrix:
        with _undamaged(path):
            return _matrix(_read_own(path, header["parts"], own, EDGES.__contains__), "", number, starts[-1])

    firsts = [starts[share_of(count, rank, group.size).start] for rank in range(group.size)]
    rows = Rows([*firsts, starts[-1]], group, content_hash(header), edges)
    nowhere = torch.zeros(1, dtype=torch.long).expand(number + 1)
    none = SparseMatrix(nowhere, nowhere[:0], torch.ones(0), number)
    graph = Graph(x, none, y.long(), list(header["class_names"]), header["name"], on_disk=True)
    splits = joined["split"].long().unsqueeze(1)
    return graph.altered(splits=splits, rows=rows, feature_names=header.get("feature_names")), list(own)


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise EvergraphError(f"{path}: damaged or not a graph in parts ({first_line(error)}); convert again") from None


def part_sizes(folder: str | Path) -> list[int]:
    """Number of nodes in each part."""
    starts = read_record(Path(folder) / HEADER, PartsHeader, "convert again")["starts"]
    return [last - first for first, last in pairwise(starts)]


def task_of_parts(graph: Graph, classes: Sequence[ClassName] | None = None, index: int = 0) -> Task:
    """Return the task of a graph in parts, with this process's training, validation and test nodes.

    Args:
        graph: this process's share.
        classes: learn only the nodes of these classes; all classes with nodes by default.
        index: the task's number.
    """
    assert graph.rows is not None
    assert graph.splits is not None
    counts = graph.rows.group.sum([torch.bincount(graph.y[graph.y >= 0], minlength=graph.num_classes)])[0]
    present = chosen_positions(graph, torch.nonzero(counts).reshape(-1).tolist(), classes)
    chosen, part = torch.isin(graph.y, torch.tensor(present, dtype=torch.long)), graph.splits[:, 0]
    train, val, test = (torch.nonzero(chosen & (part == number)).reshape(-1) for number in range(3))
    sizes = graph.rows.group.sum([torch.bincount(graph.y[train], minlength=graph.num_classes)])[0]
    if not int(sizes.sum()):
        raise EvergraphError(f"{graph.name}: no training nodes; convert it anew with some in its split")
    present = trained_classes(graph, present, sizes)
    val = val[torch.isin(graph.y[val], torch.tensor(present, dtype=torch.long))]
    task = Task(index, present, graph, train, val, test, graph.num_classes)
    task._mark = content_hash([graph.rows.mark, present])  # the same in every process
    return task


def _split(graph: Graph, seed: int) -> Tensor:
    given = given_split(graph, seed)
    if given is not None:
        return given.to(torch.int8)
    split = torch.full((graph.num_nodes,), -1, dtype=torch.int8)
    present = torch.unique(graph.y[graph.y >= 0]).tolist()
    for number, nodes in enumerate(split_what_can_be(graph, present, seed)):
        split[nodes] = number
    return split


def _sparse(matrix: SparseMatrix, rows: slice, prefix: str, with_values: bool) -> dict[str, Tensor]:
    """Return some rows of a sparse matrix as arrays, with 32-bit column indices where they fit."""
    first, last = int(matrix.indptr[rows.start]), int(matrix.indptr[rows.stop])
    small = torch.int32 if matrix.num_columns < 2**31 else torch.int64
    arrays = {f"{prefix}indptr": matrix.indptr[rows.start : rows.stop + 1] - first}
    arrays[f"{prefix}indices"] = matrix.indices[first:last].to(small)
    if with_values:
        arrays["weights" if not prefix else f"{prefix}values"] = matrix.values[first:last]
    return arrays


def _read_own(path: Path, marks: list[str], own: range, chosen: Callable[[str], bool]) -> dict[str, Tensor]:
    """Read the chosen arrays of consecutive parts and join them."""
    loaded = [_read_part(path / f"part-{number:05d}", marks[number], chosen) for number in own]
    return {name: _joined(name, [arrays[name] for arrays in loaded]) for name in loaded[0]}


def _read_part(place: Path, known: str, chosen: Callable[[str], bool]) -> dict[str, Tensor]:
    header = read_record(place / PART, PartHeader, "convert again")
    if content_hash(header) != known:
        raise ValueError(f"{place.name} is another graph's")
    return {name: map_array(place, name, described) for name, described in header["arrays"].items() if chosen(name)}


def _joined(name: str, arrays: list[Tensor]) -> Tensor:
    """Concatenate an array over consecutive parts; row pointers continue from the end of the part before."""
    if len(arrays) == 1:
        return arrays[0]
    if not name.endswith("indptr"):
        return torch.cat(arrays)
    ends = torch.tensor([0, *(int(array[-1]) for array in arrays[:-1])]).cumsum(0)
    return torch.cat([arrays[0][:1], *(array[1:] + end for array, end in zip(arrays, ends))])


def _matrix(arrays: dict[str, Tensor], prefix: str, num_rows: int, num_columns: int) -> SparseMatrix:
    """Return a matrix of arrays that fit together; those too large for their hash to be compared may be damaged."""
    indptr, indices = arrays[f"{prefix}indptr"], arrays[f"{prefix}indices"]
    values = arrays.get("weights" if not prefix else f"{prefix}values")
    values = torch.ones(1).expand(indices.numel()) if values is None else values
    if not check_rows(indptr, indices, num_rows, num_columns) == indices.numel() == values.numel():
        raise ValueError("entries are missing")
    return SparseMatrix(indptr, indices, values, num_columns)
