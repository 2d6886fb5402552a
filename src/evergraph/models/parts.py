"""Features from inputs that are propagated once: of a graph in parts, or of one whose features take too much memory.

Propagation reads rows from the processes that hold the neighbours, if there are several.

Processes on one machine share some columns of their rows in shared memory. Between machines rows are sent in turns: in
turn r a process sends the process r ranks ahead the rows that it needs, and receives the rows that it needs itself
from the process r ranks back, while it adds up those of the previous turn. So a process never holds more than its own
rows, their sums, and some columns of what it reads from two other processes; memory decreases with the number of
processes even if neighbours are anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.features import Features, as_dense, take_rows
from evergraph.core.shared_memory import Board
from evergraph.core.sparse import SparseMatrix
from evergraph.core.workers import ALONE
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.data.parts import Rows
from evergraph.errors import EvergraphError
from evergraph.models.feature_blocks import over_others, unit_rows
from evergraph.models.input_scaling import InputScaling

if TYPE_CHECKING:
    from evergraph.models.base import GraphModel

COLUMNS_AT_ONCE = 16  # columns exchanged at once, to save memory: a cache line of float32
COLUMNS_SHOWN = 32  # columns shared at once by processes of one machine, which have a single copy of them
ROWS_AT_ONCE = 2**16  # rows of a product computed at once and added to the sums


@dataclass(eq=False)
class Piece:
    """The edges from another process's nodes (or those of this machine) to this process's nodes.

    Args:
        turn: number of ranks back to the process that owns the sources; 0 for this machine's.
        matrix: this process's nodes by sources.
        wanted: rows of this process that the process as many ranks ahead needs.
    """

    turn: int
    matrix: SparseMatrix
    wanted: Tensor

    def add_product(self, dense: Tensor, total: Tensor) -> None:
        """Add A X to `total`, some rows at a time."""
        indptr, indices, values = self.matrix.indptr, self.matrix.indices, self.matrix.values
        for first in range(0, self.matrix.num_rows if self.matrix.nnz else 0, ROWS_AT_ONCE):
            starts = indptr[first : first + ROWS_AT_ONCE + 1]
            entries = slice(int(starts[0]), int(starts[-1]))
            block = SparseMatrix(starts - starts[0], indices[entries], values[entries], self.matrix.num_columns)
            total[first : first + ROWS_AT_ONCE] += block.multiply(dense)


class Exchange:
    """Products with A + I over the rows of all processes, each of which holds its own.

    Args:
        adjacency: in-neighbours of this process's nodes, numbered over all processes.
        rows: assignment of rows to processes.
        dtype: type of the products.
        num_columns: largest number of columns to multiply.
    """

    def __init__(self, adjacency: SparseMatrix, rows: Rows, dtype: torch.dtype, num_columns: int) -> None:
        self.group = rows.group
        self.bytes_sent = 0
        one = torch.ones(1, dtype=dtype)
        ones = adjacency.all_ones()
        adjacency = adjacency.with_values(one.expand(adjacency.nnz)) if ones else adjacency.to(dtype)

        def width(machines: int) -> int:
            most = COLUMNS_SHOWN if machines == 1 else COLUMNS_AT_ONCE
            return num_columns if self.group.size == 1 else min(num_columns, most)

        self.board = Board(self.group, rows.starts, dtype, width)
        self.pieces = list(self._pieces(adjacency, rows))
        sent = max(piece.wanted.numel() for piece in self.pieces)
        read = max((piece.matrix.num_columns for piece in self.pieces[len(self.board.ranks) > 1 :]), default=0)
        # buffers to send from, and two to receive into and read in turn: reusing memory is faster than allocating it
        numbers = (sent, read, read if len(self.pieces) > 1 else 0)
        self._space = [torch.empty(number * self.board.width, dtype=dtype) for number in numbers]
        sums = adjacency.counts().to(dtype) if ones else adjacency.row_sums()
        self.degree = sums.add_(1).unsqueeze(1)

    def _pieces(self, adjacency: SparseMatrix, rows: Rows) -> Iterator[Piece]:
        matrix = _compact(adjacency)
        if len(self.board.machines) == 1:
            yield Piece(0, matrix, matrix.indices[:0])
            return
        for turn, (indptr, sources, values) in enumerate(_by_turn(matrix, rows, self.board)):
            to, back = self._at(turn)
            wanted, num_columns = sources.new_empty(0), self.board.num_rows
            if turn:
                needed, sources = _distinct(sources, rows.starts[back + 1] - rows.starts[back])
                wanted, num_columns = self.group.swap(needed, to=back, back=to), needed.numel()
            else:
                sources = sources.clone()  # so that the other turns' entries can be freed
            yield Piece(turn, SparseMatrix(indptr, sources, values, num_columns), wanted)

    def _at(self, turn: int) -> tuple[int, int]:
        """Return the processes `turn` ranks ahead and back."""
        return (self.group.rank + turn) % self.group.size, (self.group.rank - turn) % self.group.size

    def step(self, values: Tensor, balances: Sequence[float | None]) -> list[Tensor]:
        """Return P_b H = D^(b−1) (A + I) D^(−b) H for each b, and D⁻¹ A H for None, from one exchange of rows.

        With a single b, rows are scaled before they are sent; with several, they are sent once and scaled on arrival.
        """
        alone = len(balances) == 1
        before = self.degree ** -balances[0] if alone and balances[0] is not None else None
        arriving = () if alone else self._arriving(self.degree, None)
        degrees = {piece.turn: rows.clone() for _, piece, rows in arriving if piece.turn}
        totals = [torch.zeros_like(values) if b is None else values * self.degree**-b for b in balances]
        for columns, piece, rows in self._arriving(values, before):
            for balance, total in zip(balances, totals):
                if not piece.turn:  # added first: except for None, the sums still equal the scaled rows
                    dense = self.board.show((values if balance is None else total)[:, columns], rows)
                else:
                    dense = rows if alone or balance is None else rows * degrees[piece.turn] ** -balance
                piece.add_product(dense, total[:, columns])
                del dense
        for balance, total in zip(balances, totals):
            if balance != 1:
                total *= over_others(self.degree) if balance is None else self.degree ** (balance - 1)
        return totals

    def _arriving(self, values: Tensor, scale: Tensor | None) -> Iterator[tuple[slice, Piece, Tensor]]:
        """Yield some columns of the rows that a piece reads, piece by piece, while the next ones are in transit.

        For the first piece, whose rows are on this machine, yield the space for them.
        """
        width = self.board.width
        order = list(product((slice(i, i + width) for i in range(0, values.size(1), width)), self.pieces))
        coming = [self._begin(values, scale, self._space[1], *order[0])]
        for number, (columns, piece) in enumerate(order):
            rows = coming.pop()()
            if number + 1 < len(order):  # into the buffer whose rows have been read
                coming.append(self._begin(values, scale, self._space[1 + (number + 1) % 2], *order[number + 1]))
            yield columns, piece, rows

    def _begin(
        self, values: Tensor, scale: Tensor | None, space: Tensor, columns: slice, piece: Piece
    ) -> Callable[[], Tensor]:
        """Begin to exchange rows; the returned function waits for those that arrive in `space`."""
        source = values[:, columns]
        if not piece.turn:
            return lambda: space
        sent = self._space[0][: piece.wanted.numel() * source.size(1)].view(-1, source.size(1))
        torch.index_select(source, 0, piece.wanted, out=sent)
        if scale is not None:
            sent *= scale.index_select(0, piece.wanted)
        self.bytes_sent += sent.numel() * sent.element_size()
        received = space[: piece.matrix.num_columns * source.size(1)].view(-1, source.size(1))
        to, back = self._at(piece.turn)
        return self.group.begin_swap(sent, to=to, back=back, received=received)


def _by_turn(matrix: SparseMatrix, rows: Rows, board: Board) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the row pointers, columns and values of the entries of each turn, by one counting sort.

    Columns are rows of the board for this machine's processes, and the owner's rows, from 0 on, for others.
    """
    small, size = matrix.indices.dtype, rows.group.size
    owners = torch.bucketize(matrix.indices, torch.tensor(rows.starts[1:-1], dtype=small), right=True, out_int32=True)
    here = [owner in board.ranks for owner in range(size)]
    begin = torch.tensor([rows.starts[i] - (board.start_of(i) if here[i] else 0) for i in range(size)], dtype=small)
    turn_of = torch.tensor([0 if here[i] else (rows.group.rank - i) % size for i in range(size)], dtype=torch.int32)
    sources = begin.index_select(0, owners).neg_().add_(matrix.indices)
    turns = turn_of.index_select(0, owners).numpy()
    del owners

    def sorted_by_turn(entries: Tensor) -> sp.csc_matrix:
        return sp.csr_matrix((entries.numpy(), turns, matrix.indptr.numpy()), shape=(matrix.num_rows, size)).tocsc()

    columns = sorted_by_turn(sources)
    del sources
    values = None if matrix.all_ones() else sorted_by_turn(matrix.values)
    for turn in range(size):
        entries = slice(columns.indptr[turn], columns.indptr[turn + 1])
        of_rows = torch.from_numpy(columns.indices[entries])
        indptr = torch.zeros(matrix.num_rows + 1, dtype=of_rows.dtype)
        torch.cumsum(torch.bincount(of_rows, minlength=matrix.num_rows), 0, dtype=of_rows.dtype, out=indptr[1:])
        weights = torch.ones(1, dtype=matrix.dtype).expand(of_rows.numel())
        weights = weights if values is None else torch.from_numpy(values.data[entries]).clone()
        yield indptr, torch.from_numpy(columns.data[entries]), weights


def _distinct(numbers: Tensor, below: int) -> tuple[Tensor, Tensor]:
    """Return the distinct numbers in order, and the index of each number among them, without sorting."""
    met = np.zeros(below, dtype=bool)
    met[numbers.numpy()] = True
    places = np.cumsum(met, dtype=numbers.numpy().dtype) - 1
    return torch.from_numpy(np.flatnonzero(met)).to(numbers.dtype), torch.from_numpy(places[numbers.numpy()])


def _compact(matrix: SparseMatrix) -> SparseMatrix:
    """Use 32-bit indices if they suffice, since most memory is taken by the edges."""
    small = torch.int32 if max(matrix.nnz, matrix.num_columns) < 2**31 else torch.int64
    return SparseMatrix(matrix.indptr.to(small), matrix.indices.to(small), matrix.values, matrix.num_columns)


class PartNeighbourhoods(Neighbourhoods):
    """Batches of a process's own nodes of a graph in parts (else of all nodes), from inputs that are propagated once.

    `num_hops` is the model's depth; the batches themselves contain no neighbours.
    """

    def __init__(self, model: GraphModel, graph: Graph, y: Tensor, dtype: torch.dtype) -> None:
        inputs, features_from = capable(model, "propagated_inputs"), capable(model, "features_from")
        if inputs is None or features_from is None:
            raise EvergraphError(
                f"{graph.name} is in parts, and {type(model).__name__} cannot be computed on parts; use --method "
                "analytic with its own model"
            )
        scaling = capable(model, "input_scaling")
        self._features_from = features_from
        self._parts = propagated(graph, inputs(), dtype, scaling() if scaling is not None else InputScaling())
        empty = torch.zeros(graph.num_nodes + 1, dtype=torch.long)
        nowhere = SparseMatrix(empty, empty[:0], torch.empty(0, dtype=dtype), graph.num_nodes)
        super().__init__(graph.x, nowhere, y, max(depth for depth, _ in inputs()))

    def batch(self, examples: Tensor, generator: torch.Generator | None = None) -> Batch:
        """Return the features of some of this process's nodes."""
        x = self._features_from([take_rows(part, examples) for part in self._parts])
        nothing = SparseMatrix(examples.new_zeros(examples.numel() + 1), examples[:0], x.new_empty(0), examples.numel())
        return Batch(x, nothing, (examples.numel(),), examples, self.y[examples], self)

    def twin(self) -> Neighbourhoods:
        """Return the object itself: batches need no work space."""
        return self


@torch.no_grad()
def propagated(
    graph: Graph, inputs: list[tuple[int, float | None]], dtype: torch.dtype, scaling: InputScaling
) -> list[Features]:
    """Return P_b^k X̂ for each pair (k, b), None for `others`; it is projected afterwards, as both steps are linear."""
    key = f"propagated {dtype} {inputs} {scaling}"
    if key not in graph.cache:
        x = unit_rows(scaling.apply(graph.x.to(dtype)))
        rows = graph.rows or Rows([0, graph.num_nodes], ALONE, "", lambda: graph.adjacency)
        exchange = Exchange(rows.edges(), rows, dtype, x.size(1))
        found: dict[tuple[int, float | None], Features] = {pair: x for pair in inputs if not pair[0]}
        deepest = {balance: max(depth for depth, other in inputs if other == balance) for _, balance in inputs}
        balances = [balance for balance, depth in deepest.items() if depth]
        firsts = exchange.step(as_dense(x), balances) if balances else []
        for balance in balances:
            h = firsts.pop(0)
            for depth in range(1, deepest[balance] + 1):
                if depth > 1:
                    h = exchange.step(h, [balance])[0]
                if (depth, balance) in inputs:
                    found[depth, balance] = h
        graph.cache[key] = [found[pair] for pair in inputs]
        graph.cache["bytes_sent"] = exchange.bytes_sent
    kept: list[Features] = graph.cache[key]
    return kept
