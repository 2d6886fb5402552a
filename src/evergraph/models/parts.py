"""Features of a graph in parts: propagation by exchanging rows with the processes that hold the neighbours.

Rows travel in turns: in turn r a process gives the process r places further the rows that it needs, and gets the rows
that it needs itself from the process r places back. So it never holds more than its own rows, their sums, and what it
reads of one other process; memory falls with the number of processes even where neighbours are anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.sparse import Features, SparseMatrix, as_dense, take_rows
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.data.parts import Rows
from evergraph.errors import EvergraphError
from evergraph.models.feature_blocks import unit_rows

if TYPE_CHECKING:
    from evergraph.models.base import GraphModel

COLUMNS_AT_ONCE = 16  # of the rows that are exchanged, so that they take little memory: a cache line of float32


@dataclass(eq=False)
class Piece:
    """The edges from another process's nodes (or the own ones) to the own nodes.

    Args:
        owner: whose the sources are.
        matrix: own nodes by sources.
        wanted: the own rows that the process at the same distance on the other side needs of this one.
    """

    owner: int
    matrix: SparseMatrix
    wanted: Tensor


class Exchange:
    """A + I over the rows of all processes, of which this one holds its own.

    Args:
        adjacency: the own nodes' in-neighbours, numbered over all processes.
        rows: whose rows are whose.
        dtype: of the products.
    """

    def __init__(self, adjacency: SparseMatrix, rows: Rows, dtype: torch.dtype) -> None:
        self.group, self.dtype = rows.group, dtype
        self.bytes_sent = 0  # so far
        self.pieces = list(self._pieces(adjacency, rows))
        ones = torch.ones(adjacency.num_rows, 1, dtype=dtype)
        self.degree = self._sums(ones) + ones

    def _pieces(self, adjacency: SparseMatrix, rows: Rows) -> Iterator[Piece]:
        indices, counts = adjacency.indices, adjacency.counts()
        for turn in range(self.group.size):
            owner = (self.group.rank - turn) % self.group.size
            first, last = rows.starts[owner], rows.starts[owner + 1]
            inside = (indices >= first) & (indices < last) if self.group.size > 1 else slice(None)
            columns, values = indices[inside] - first, adjacency.values[inside].to(self.dtype)
            if self.group.size == 1:
                indptr = adjacency.indptr
            else:
                per_row = torch.zeros(adjacency.num_rows, dtype=torch.long)
                step = max(1, adjacency.num_rows // 16)
                for begin in range(0, adjacency.num_rows, step):  # some rows at a time: this is all that is large here
                    end = min(begin + step, adjacency.num_rows)
                    of_row = torch.repeat_interleave(torch.arange(end - begin), counts[begin:end])
                    there = inside[int(adjacency.indptr[begin]) : int(adjacency.indptr[end])]  # type: ignore[index]
                    per_row[begin:end] = torch.bincount(of_row[there], minlength=end - begin)
                indptr = torch.cat([per_row.new_zeros(1), per_row.cumsum(0)])
            if not turn:
                yield Piece(owner, _compact(indptr, columns, values, last - first), torch.empty(0, dtype=torch.long))
                continue
            needed, place = _distinct(columns, last - first)
            to, back = (self.group.rank + turn) % self.group.size, owner
            wanted = self.group.swap(needed.long(), to=back, back=to)
            yield Piece(owner, _compact(indptr, place, values, needed.numel()), wanted)

    def _sums(self, values: Tensor) -> Tensor:
        """A times a matrix whose rows are divided as the nodes are."""
        total = self.pieces[0].matrix.multiply(values)
        for turn, piece in enumerate(self.pieces[1:], start=1):
            to = (self.group.rank + turn) % self.group.size
            for some, sums in zip(values.split(COLUMNS_AT_ONCE, 1), total.split(COLUMNS_AT_ONCE, 1)):
                sent = some[piece.wanted]
                self.bytes_sent += sent.numel() * sent.element_size()
                received = self.group.swap(sent, to=to, back=piece.owner, number=piece.matrix.num_columns)
                del sent
                sums += piece.matrix.multiply(received)
        return total

    def step(self, values: Tensor, balance: float) -> Tensor:
        """P_b H = D^(b−1) (A + I) D^(−b) H."""
        scaled = values * self.degree**-balance
        return self._sums(scaled).add_(scaled).mul_(self.degree ** (balance - 1))


def _distinct(numbers: Tensor, below: int) -> tuple[Tensor, Tensor]:
    """The different ones of many numbers, in order, and the place of each number among them; nothing is sorted."""
    met = torch.zeros(below, dtype=torch.bool)
    met[numbers] = True
    return torch.nonzero(met).reshape(-1), (met.cumsum(0, dtype=torch.int32) - 1)[numbers]


def _compact(indptr: Tensor, columns: Tensor, values: Tensor, num_columns: int) -> SparseMatrix:
    """In 32 bits where they suffice: the pieces are what takes the memory."""
    small = torch.int32 if max(columns.numel(), num_columns) < 2**31 else torch.int64
    return SparseMatrix(indptr.to(small), columns.to(small), values.contiguous(), num_columns)


class PartNeighbourhoods(Neighbourhoods):
    """Batches of a process's own nodes of a graph in parts: their features, from inputs that are propagated once.

    `num_hops` is the model's, since no neighbour is at hand; the batches themselves read no more.
    """

    def __init__(self, model: GraphModel, graph: Graph, y: Tensor, dtype: torch.dtype) -> None:
        inputs, features_from = capable(model, "propagated_inputs"), capable(model, "features_from")
        if inputs is None or features_from is None:
            raise EvergraphError(
                f"{graph.name} is in parts, and {type(model).__name__} cannot be computed on parts; use --method "
                "analytic with its own model"
            )
        assert graph.rows is not None
        self._features_from, self._parts = features_from, propagated(graph, inputs(), dtype)
        empty = torch.zeros(graph.num_nodes + 1, dtype=torch.long)
        self._nowhere = SparseMatrix(empty, empty[:0], torch.empty(0, dtype=dtype), graph.num_nodes)
        super().__init__(graph.x, self._nowhere, y, max(depth for depth, _ in inputs()))

    def batch(self, examples: Tensor, generator: torch.Generator | None = None) -> Batch:
        """The features of some own nodes."""
        x = self._features_from([take_rows(part, examples) for part in self._parts])
        nothing = SparseMatrix(examples.new_zeros(examples.numel() + 1), examples[:0], x.new_empty(0), examples.numel())
        return Batch(x, nothing, (examples.numel(),), examples, self.y[examples], self)


@torch.no_grad()
def propagated(graph: Graph, inputs: list[tuple[int, float]], dtype: torch.dtype) -> list[Features]:
    """P_b^k X̂ for each pair (k, b): what is propagated before it is projected, since both are linear."""
    assert graph.rows is not None
    key = f"propagated {dtype} {inputs}"
    if key not in graph.cache:
        x = unit_rows(graph.x.to(dtype))
        exchange = Exchange(graph.adjacency, graph.rows, dtype)
        found: dict[tuple[int, float], Features] = {}
        for balance in dict.fromkeys(balance for _, balance in inputs):
            depths = {depth for depth, other in inputs if other == balance}
            h: Features = x
            for depth in range(max(depths) + 1):
                if depth:
                    h = exchange.step(as_dense(h), balance)
                if depth in depths:
                    found[depth, balance] = h
        graph.cache[key] = [found[pair] for pair in inputs]
        graph.cache["bytes_sent"] = exchange.bytes_sent
    kept: list[Features] = graph.cache[key]
    return kept
