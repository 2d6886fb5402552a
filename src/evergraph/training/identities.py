"""Recognizing the same examples in several tasks: by ids, by number in a stream, or row by row in graphs that grew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from evergraph.core.sparse import SparseMatrix
from evergraph.data import Graph, Task
from evergraph.data.outline import KINDS, row_hashes, tells_apart
from evergraph.training.inputs import example_ids

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class Identities:
    """Examples of several tasks, numbered so that the same example has the same number in all of them.

    Two tasks whose graphs both have distinct ids share the examples with the same id; two tasks of one stream, those
    with the same number in the stream's graph. In other graphs, examples are the same row by row if one graph begins
    with the nodes of the other, by their features, or if the graphs are equal.

    Args:
        tasks: the tasks, as their data were given.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._ids_of: dict[int, list[str] | None] = {}
        self._rows_of: dict[int, Hashes | None] = {}
        self._strange: set[tuple[int, int]] = set()
        starts = np.cumsum([0, *(task.graph.num_examples for task in tasks)])
        named, size = self._named(starts)
        left, right = map(np.concatenate, zip(*named, *self._begun_alike(starts)))
        linked = coo_array((np.ones(left.size, dtype=bool), (left, right)), shape=(size, size))
        numbers = torch.as_tensor(connected_components(linked, directed=False)[1].astype(np.int64))
        self.numbers = [numbers[start:end] for start, end in pairwise(starts)]

    def _named(self, starts: Numbers) -> tuple[list[tuple[Numbers, Numbers]], int]:
        """Pairs of an example, counted over all tasks, and the number of what names it; and how many numbers there are.

        Names are ids, and numbers in a stream. Every example is paired with itself, too.
        """
        keys: dict[Any, int] = {}
        pairs = []
        for start, task in zip(starts, self._tasks):
            own = np.arange(start, start + task.graph.num_examples)
            pairs.append((own, own))
            ids, origin = self._ids(task.graph), task.origin
            for names in (ids, None if origin is None else [(origin[0], number) for number in origin[1].tolist()]):
                if names is not None:
                    places = [keys.setdefault(name, len(keys)) for name in names]
                    pairs.append((own, starts[-1] + np.array(places, dtype=np.int64)))
        return pairs, int(starts[-1]) + len(keys)

    def _begun_alike(self, starts: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
        """Pairs of the same examples of graphs that begin alike; keeps which tasks nothing tells apart."""
        for j in range(len(self._tasks)):
            for i in range(j):
                same = self._same_rows(i, j)
                if same is None:
                    self._strange |= {(i, j), (j, i)}
                else:
                    yield np.arange(starts[i], starts[i] + same), np.arange(starts[j], starts[j] + same)

    def tell_apart(self, one: int, other: int) -> bool:
        """Whether it is known which examples of a task are which of another one, and which are in only one of them."""
        return (one, other) not in self._strange

    def _same_rows(self, i: int, j: int) -> int | None:
        """Number of first rows that are the same in two graphs; 0 if ids or a stream tell, None if nothing does."""
        one, other = self._tasks[i], self._tasks[j]
        ids, more_ids = self._ids(one.graph), self._ids(other.graph)
        of_one_stream = one.origin is not None and other.origin is not None and one.origin[0] == other.origin[0]
        if of_one_stream or (ids is not None and more_ids is not None):
            return 0
        fewer = min(one.graph.num_examples, other.graph.num_examples)
        return fewer if _same_graph(one.graph, other.graph) or self._begins_alike(one.graph, other.graph) else None

    def _begins_alike(self, one: Graph, other: Graph) -> bool:
        """Whether one graph begins with all nodes of the other: with enough different ones that this is no chance."""
        rows = [self._rows(graph) for graph in (one, other)]
        if rows[0] is None or rows[1] is None or one.num_features != other.num_features:
            return False
        fewer = min(rows[0].size, rows[1].size)
        first, second = rows[0][:fewer], rows[1][:fewer]
        return fewer >= KINDS and tells_apart(first) and np.array_equal(first, second)

    def _ids(self, graph: Graph) -> list[str] | None:
        """Distinct ids of a graph's examples, if it has them."""
        if id(graph) not in self._ids_of:
            self._ids_of[id(graph)] = unique_ids(graph)
        return self._ids_of[id(graph)]

    def _rows(self, graph: Graph) -> Hashes | None:
        """Hashes of the features of a graph's nodes; None if its examples are others."""
        if id(graph) not in self._rows_of:
            nodes = graph.level == "node" and graph.rows is None
            self._rows_of[id(graph)] = row_hashes(graph.x) if nodes else None
        return self._rows_of[id(graph)]


def unique_ids(graph: Graph) -> list[str] | None:
    """Ids of the examples, as strings; None if they have no ids, or some share one."""
    ids = example_ids(graph)
    names = None if ids is None else [str(name) for name in ids]
    return names if names is not None and len(set(names)) == len(names) else None


def _same_graph(one: Graph, other: Graph) -> bool:
    """Whether two graphs have the same nodes, edges and examples; nodes may be labelled in batches."""
    if one is other:
        return True
    if one.level != other.level or one.num_examples != other.num_examples or one.x.shape != other.x.shape:
        return False
    pairs = list(zip(_arrays(one), _arrays(other)))
    if one.level != "node":
        pairs.append((one.y, other.y))
    return len(_arrays(one)) == len(_arrays(other)) and all(torch.equal(*pair) for pair in pairs)


def _arrays(graph: Graph) -> list[Tensor]:
    """The edges and features of a graph; the ends of links instead of edges, since these include training links."""
    x = list(graph.x.parts()) if isinstance(graph.x, SparseMatrix) else [graph.x]
    matrix = graph.members if graph.level == "link" and graph.members is not None else graph.adjacency
    return [*matrix.parts(), *x]
