"""Outlines by which a task's nodes are recognized in another order, with other labels or another split, or among more.

A sum of hashes does not depend on the order of what is added. Only a digest of such sums is kept: two sums would differ
by the hash of a node that is missing in one of them. So an outline tells nothing about one node to anyone who does not
have all the others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from evergraph.core.features import Features
from evergraph.core.sparse import SparseMatrix
from evergraph.data.tasks import Task
from evergraph.persistence.reading import content_hash

Hashes = npt.NDArray[np.uint64]

KINDS = 8
"""Nodes with fewer kinds of features are recognized only if no two are alike: others may be as many by chance."""
ROWS = 512  # hashed at once


class Outline:
    """Sums over the first nodes of a task's graph, for each number of nodes: features, edges, and which are examples.

    Labels do not enter. Everything is computed modulo 2^64.
    """

    def __init__(self, task: Task) -> None:
        rows = _mixed(_row_hashes(task.graph.x))
        own = np.zeros(rows.size, dtype=np.uint64)
        own[torch.cat([task.train, task.val, task.test]).cpu().numpy()] = 1
        kinds = np.unique(rows[own == 1]).size
        self.usable = 0 < min(KINDS, int(own.sum())) <= kinds
        self._sums = [_from_none(terms) for terms in (rows, _edge_hashes(task.graph.adjacency, rows), own * rows)]
        self._examples = _from_none(own)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph."""
        return self._examples.size - 1

    def upto(self, nodes: int) -> list[int | str]:
        """Outline of the first nodes as plain values: their number, that of the examples among them, and a digest."""
        counts = [nodes, int(self._examples[nodes])]
        return [*counts, content_hash([*counts, *(int(sums[nodes]) for sums in self._sums)])]

    def whole(self) -> list[int | str]:
        """Outline of all nodes, whatever their order."""
        return self.upto(self.num_nodes)

    def begins_with(self, other: list[int | str]) -> bool:
        """Whether the first nodes, or all of them in any order, have the given outline."""
        return self.usable and int(other[0]) <= self.num_nodes and self.upto(int(other[0])) == other


def outline(task: Task) -> Outline | None:
    """Outline a task; None if its examples are not nodes with classes, or if its graph does not fit into memory."""
    graph = task.graph
    in_memory = not graph.on_disk and graph.rows is None
    return Outline(task) if graph.level == "node" and graph.has_classes and in_memory else None


def _from_none(terms: Hashes) -> Hashes:
    """Cumulative sums that begin with that of no terms."""
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])


def _mixed(numbers: Hashes) -> Hashes:
    """A one-to-one map of 64-bit numbers under which sums have no structure (the last steps of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _bits(values: npt.NDArray[np.float32]) -> Hashes:
    """The bits of float32 numbers; both zeros have none."""
    return (values + np.float32(0)).view(np.uint32).astype(np.uint64)


def _row_hashes(x: Features) -> Hashes:
    """A hash of each row, the same for a sparse matrix and a dense one."""
    keys = _mixed(np.arange(1, x.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
    if isinstance(x, SparseMatrix):
        starts, columns, values = (part.cpu().numpy() for part in x.parts())
        ends = _from_none(_bits(values.astype(np.float32)) * keys[columns])
        return ends[starts[1:]] - ends[starts[:-1]]
    pieces = [_bits(piece.detach().float().cpu().numpy()) @ keys for piece in x.split(ROWS)]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.uint64)


def _edge_hashes(adjacency: SparseMatrix, rows: Hashes) -> Hashes:
    """For each node, the sum of the hashes of its edges with nodes before it."""
    starts, targets, weights = (part.cpu().numpy() for part in adjacency.parts())
    sources = np.repeat(np.arange(rows.size), np.diff(starts))
    ends = rows[sources] * np.uint64(3) + rows[targets] * np.uint64(5) + _bits(weights.astype(np.float32))
    sums = np.zeros(rows.size, np.uint64)
    np.add.at(sums, np.maximum(sources, targets), _mixed(ends))
    return sums
