"""Outlines by which a task's nodes are recognized in another order, with other labels or another split, or among more.

A sum of hashes does not depend on the order of what is added. Only a digest of such sums is kept: two sums would differ
by the hash of a node that is missing in one of them. So an outline tells nothing about one node to anyone who does not
have all the others.
"""

from __future__ import annotations

from collections.abc import Sequence

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
OUTLINE = 4
"""Number of entries of an outline; earlier versions had others."""
ROWS = 512  # hashed at once


class Outline:
    """Sums over the first nodes of a task's graph, for each number of nodes: features, edges, and which are examples.

    Labels do not enter. Everything is computed modulo 2^64.
    """

    def __init__(self, task: Task) -> None:
        rows = _mixed(row_hashes(task.graph.x))
        own = np.zeros(rows.size, dtype=np.uint64)
        own[torch.cat([task.train, task.val, task.test]).cpu().numpy()] = 1
        self._rows, self._own = rows, own == 1
        self._sums = [_from_none(terms) for terms in (rows, _edge_hashes(task.graph.adjacency, rows), own * rows)]
        self._examples = _from_none(own)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph."""
        return self._examples.size - 1

    def upto(self, nodes: int) -> list[int | str]:
        """Outline of the first nodes as plain values: their number, that of the examples among them, and two digests.

        The second is without edges.
        """
        counts = [nodes, int(self._examples[nodes])]
        whole = content_hash([*counts, *(int(sums[nodes]) for sums in self._sums)])
        return [*counts, whole, self._nodes(0, nodes)]

    def _nodes(self, start: int, end: int) -> str:
        """Digest of some nodes, without their edges."""
        sums = [self._sums[0], self._sums[2], self._examples]
        return content_hash([end - start, *(int(one[end] - one[start]) for one in sums)])

    def whole(self) -> list[int | str]:
        """Outline of all nodes, whatever their order."""
        return self.upto(self.num_nodes)

    def begins_with(self, other: list[int | str]) -> bool:
        """Whether the first nodes, or all of them in any order, have the given outline."""
        end = int(other[0])
        return self._usable(0, end) and self.upto(end)[:3] == other[:3]

    def _usable(self, start: int, end: int) -> bool:
        """Whether there are such nodes, and their features tell them apart."""
        return end <= self.num_nodes and tells_apart(self._rows[start:end][self._own[start:end]])

    def made_of(self, others: Sequence[list[int | str]]) -> tuple[list[int], int]:
        """Find which outlines' nodes, whatever their edges, come one after another from the first node on.

        Returns the places of those outlines, and the number of these nodes.
        """
        found: list[int] = []
        start = 0
        while True:
            ends = {place: start + int(other[0]) for place, other in enumerate(others)}
            next_ = [
                n for n, end in ends.items() if self._usable(start, end) and self._nodes(start, end) == others[n][3]
            ]
            if not next_:
                return found, start
            found, start = [*found, *next_], max(ends[place] for place in next_)


def outline(task: Task) -> Outline | None:
    """Outline a task; None if its examples are not nodes with classes, or if its graph does not fit into memory."""
    graph = task.graph
    in_memory = not graph.on_disk and graph.rows is None
    return Outline(task) if graph.level == "node" and graph.has_classes and in_memory else None


def tells_apart(rows: Hashes) -> bool:
    """Whether rows differ enough that the same ones, as many, are the same nodes and no others."""
    return 0 < min(KINDS, rows.size) <= np.unique(rows).size


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


def row_hashes(x: Features) -> Hashes:
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
