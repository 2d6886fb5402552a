"""Propagation steps over a graph, or over the neighbourhoods of a batch, shared by blocks of features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergraph.core.features import Features, sparse_product
from evergraph.core.sparse import SparseMatrix
from evergraph.models.feature_blocks import Block

PIECE = 128  # columns of a projection that are propagated at once on a CPU
FULL = 0.1  # share of non-zero entries above which a sparse matrix is converted to a dense one


class Steps:
    """P of each block, from the nodes within some distance to those within one step less.

    Args:
        degree: row sums of A + I, `(nodes, 1)`.
        operators: A + I from the nodes within k + 1 steps to those within k.
        sizes: number of nodes within k steps, which come first.
    """

    def __init__(self, degree: Tensor, operators: Sequence[SparseMatrix], sizes: Sequence[int]) -> None:
        self.degree, self.operators, self.sizes = degree, operators, sizes
        self._known: dict[tuple[float | None, int, int], SparseMatrix] = {}

    def of(self, block: Block, near: int) -> SparseMatrix:
        """Return P from the nodes within `near` + 1 steps to those within `near`."""
        key = (block.balance, self.sizes[near], self.sizes[near + 1])
        if key not in self._known:
            self._known[key] = block.operator(self.operators[near], self.degree[: self.sizes[near + 1]])
        return self._known[key]


class WordsWithin:
    """P^k X̂ at the nodes within some distance, cached for other blocks.

    Args:
        x: X̂.
        steps: the steps of propagation.
    """

    def __init__(self, x: Features, steps: Steps) -> None:
        self.x, self.steps = x, steps
        self._known: dict[tuple[int, float | None, int], Features] = {}

    def of(self, block: Block, near: int) -> Features:
        """Return P^k X̂ of a block, at the nodes within `near` steps."""
        size = self.steps.sizes[near]
        if not block.depth:
            return first_rows(self.x, size)
        key = (block.depth, block.balance, size)
        if key not in self._known:
            before = Block(block.depth - 1, block.balance, linear=True)
            moved = sparse_product(self.steps.of(block, near), self.of(before, near + 1))
            if isinstance(moved, SparseMatrix) and moved.nnz > FULL * moved.num_rows * moved.num_columns:
                moved = moved.dense()
            self._known[key] = moved
        return self._known[key]


def pieces_of(columns: slice, device: torch.device) -> list[slice]:
    """Split the columns of a projection so that, on a CPU, the rows of a sparse product stay in the cache."""
    step = PIECE if device.type == "cpu" else columns.stop - columns.start
    return [slice(start, min(start + step, columns.stop)) for start in range(columns.start, columns.stop, step)]


def column(x: Features, number: int) -> Tensor:
    """Return one column of a feature matrix, `(rows, 1)`."""
    if not isinstance(x, SparseMatrix):
        return x[:, number : number + 1]
    unit = torch.zeros(x.num_columns, 1, dtype=x.dtype, device=x.device)
    unit[number] = 1
    return x @ unit


def first_rows(x: Features, number: int) -> Features:
    """Return the first rows of a feature matrix."""
    return x.top(number) if isinstance(x, SparseMatrix) else x[:number]


def first_columns(x: Features, number: int) -> Features:
    """Return the first columns of a feature matrix."""
    if not isinstance(x, SparseMatrix):
        return x[:, :number]
    if x.num_columns == number:
        return x
    own = x.indices < number
    indptr = torch.cat([own.new_zeros(1, dtype=torch.long), own.cumsum(0)])[x.indptr]
    return SparseMatrix(indptr, x.indices[own], x.values[own], number)
