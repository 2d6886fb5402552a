"""A task: what arrives at one step of a stream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from evergraph.core.settings import NonNegativeInt, NotEmpty, Seed, checked
from evergraph.core.sparse import Features, SparseMatrix
from evergraph.data.arrangement import split_what_can_be
from evergraph.data.files import as_graph
from evergraph.data.graph import ClassName, Graph
from evergraph.errors import EvergraphError, unknown

Part = Literal["train", "val", "test"]


@dataclass(eq=False)
class Task:
    """What arrives at one step: a graph, its new classes, and nodes to train on, to choose by, to test on.

    Args:
        index: position in the stream, from 0.
        class_positions: the task's classes, as positions in `graph.class_names`.
        graph: the task's graph; `graph.y` holds positions in `graph.class_names`.
        train: nodes to train on; `val` and `test` likewise.
        num_classes: classes of the whole stream, so that the output layer can have its final size.
        so_far: gives all tasks up to this one as a single task, where the stream still has them. For methods that
            declare access to all data, such as joint training; anybody else leaves it alone.
    """

    index: int
    class_positions: list[int]
    graph: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    num_classes: int
    so_far: Callable[[], Task] | None = field(default=None, repr=False)
    _mark: str = field(default="", init=False, repr=False)

    @property
    def class_names(self) -> list[ClassName]:
        """The user's names of the task's classes."""
        return [self.graph.class_names[position] for position in self.class_positions]

    def __repr__(self) -> str:
        sizes = f"train={self.train.numel()}, val={self.val.numel()}, test={self.test.numel()}"
        return f"Task({self.index}, classes={self.class_names}, nodes={self.graph.num_nodes}, {sizes})"

    @classmethod
    @checked
    def of(
        cls,
        graph: Graph | Any,
        classes: Annotated[Sequence[ClassName], NotEmpty()] | None = None,
        *,
        hold_out: bool = True,
        seed: Seed = 0,
        index: NonNegativeInt = 0,
    ) -> Task:
        """A task made of the labelled nodes of a graph; all its nodes and edges are there to read from.

        Args:
            graph: a `Graph`, a PyG `Data` object or the path of a graph file.
            classes: learn the nodes of these classes alone, by name; all classes with nodes by default.
            hold_out: split 60/20/20 within each class, but train on all nodes of a class with fewer than five;
                otherwise train on every node, and test on none.
            seed: of the split.
            index: the task's number, for messages.
        """
        graph = as_graph(graph)
        present = torch.unique(graph.y[graph.y >= 0]).tolist()
        if not present:
            raise EvergraphError(f"{graph.name}: no node has a label; there is nothing to learn")
        if classes is not None:
            position_of = {str(graph.class_names[position]): position for position in present}
            for name in classes:
                if str(name) not in position_of:
                    raise unknown(f"class with labelled nodes in {graph.name}", str(name), position_of)
            present = list(dict.fromkeys(position_of[str(name)] for name in classes))
        if hold_out:
            train, val, test = split_what_can_be(graph, present, seed)
        else:
            train = torch.nonzero(torch.isin(graph.y, torch.tensor(present))).reshape(-1)
            val = test = train[:0]
        return cls(index, present, graph, train, val, test, graph.num_classes)

    def mark(self) -> str:
        """What the task is, as a hash: so that it is known again, and one left in the middle is not mixed with another.

        Of a graph on disk the features are not read for it.
        """
        if self._mark:
            return self._mark
        names = [self.class_names, self.graph.num_features, self.graph.num_edges]
        digest = hashlib.sha256(json.dumps(names).encode())
        x, edges = self.graph.x, self.graph.adjacency
        read = [] if self.graph.on_disk else [*(_parts(x) if isinstance(x, SparseMatrix) else [x]), *_parts(edges)]
        for part in (self.train, self.val, self.test, self.graph.y, *read):
            digest.update(part.cpu().contiguous().numpy().tobytes())
        self._mark = digest.hexdigest()
        return self._mark

    def pack(self) -> dict[str, Any]:
        """The task as plain values and tensors, for those who keep it; `unpack` makes it whole again."""
        x = self.graph.x
        features = {"x": x} if not isinstance(x, SparseMatrix) else {"x_sparse": _pack(x)}
        plain = {"index": self.index, "class_positions": self.class_positions, "num_classes": self.num_classes}
        parts = {"train": self.train, "val": self.val, "test": self.test, "y": self.graph.y}
        names = {"class_names": self.graph.class_names, "name": self.graph.name}
        return {**plain, **parts, **names, **features, "adjacency": _pack(self.graph.adjacency)}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Task:
        """The task that `pack` took apart."""
        x = packed["x"] if "x" in packed else _unpack(packed["x_sparse"])
        tensors = {key: packed[key].cpu() for key in ("train", "val", "test", "y")}
        graph = Graph(
            x.to("cpu"), _unpack(packed["adjacency"]), tensors.pop("y"), list(packed["class_names"]), packed["name"]
        )
        return cls(
            packed["index"], list(packed["class_positions"]), graph, num_classes=packed["num_classes"], **tensors
        )


def _parts(matrix: SparseMatrix) -> list[Tensor]:
    return [matrix.indptr, matrix.indices, matrix.values]


def _pack(matrix: SparseMatrix) -> dict[str, Any]:
    parts = {"indptr": matrix.indptr, "indices": matrix.indices, "values": matrix.values}
    return {**parts, "num_columns": matrix.num_columns}


def _unpack(packed: dict[str, Any]) -> SparseMatrix:
    return SparseMatrix(**packed).to("cpu")


def union(tasks: Sequence[Task]) -> Task:
    """Several tasks as one: their graphs side by side, their classes matched by name."""
    names = list(dict.fromkeys(name for task in tasks for name in task.graph.class_names))
    position = {name: number for number, name in enumerate(names)}
    starts = torch.tensor([0, *(task.graph.num_nodes for task in tasks)]).cumsum(0).tolist()
    labels = []
    for task in tasks:
        lookup = torch.tensor([*(position[name] for name in task.graph.class_names), -1])  # the last is for «no label»
        labels.append(lookup[task.graph.y])
    graph = Graph(
        _stack([task.graph.x for task in tasks]),
        _block_diagonal([task.graph.adjacency for task in tasks]),
        torch.cat(labels),
        names,
        tasks[-1].graph.name,
    )
    train, val, test = (
        torch.cat([getattr(task, part) + start for task, start in zip(tasks, starts)])
        for part in ("train", "val", "test")
    )
    classes = list(dict.fromkeys(position[name] for task in tasks for name in task.class_names))
    num_classes = max(task.num_classes for task in tasks)
    return Task(tasks[-1].index, classes, graph, train, val, test, num_classes)


def _stack(features: Sequence[Features]) -> Features:
    """Feature matrices one below the other; sparse if the first is."""
    first = features[0]
    if not isinstance(first, SparseMatrix):
        return torch.cat([rows.dense() if isinstance(rows, SparseMatrix) else rows for rows in features])
    sparse = [rows if isinstance(rows, SparseMatrix) else SparseMatrix.from_dense(rows) for rows in features]
    return SparseMatrix.stack(sparse, first.num_columns)


def _block_diagonal(matrices: Sequence[SparseMatrix]) -> SparseMatrix:
    """Square matrices along the diagonal of one."""
    shifted, start = [], 0
    for matrix in matrices:
        shifted.append(SparseMatrix(matrix.indptr, matrix.indices + start, matrix.values, 0))
        start += matrix.num_rows
    return SparseMatrix.stack(shifted, start)
