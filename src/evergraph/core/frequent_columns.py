"""Products on a GPU with a sparse matrix in which a few columns have most entries: those columns use tensor cores.

A sixth of Coauthor-CS's 6,805 words have three quarters of a task's entries. Reading a single entry costs as much as a
hundred numbers of a dense product, so columns with entries in at least a hundredth of the rows form one dense block,
and the others stay sparse. The block is bfloat16, which represents word counts exactly. Its dense factor is the sum of
two bfloat16 numbers, the number rounded to 8 bits and the remainder: accurate to 16 bits, while tensor cores round
float32 numbers to 10 bits and take longer. Sums are float32.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.core.row_pieces import Flags, RowPieces, row_kernel
from evergraph.core.shortcuts import rounded_products

if TYPE_CHECKING:
    from evergraph.core.sparse import SparseMatrix  # which imports this module

SHARE = 0.01  # smallest share of the rows in which a frequent column has entries
FEWEST = 128  # frequent columns below which a block is not worth its kernels; block widths are multiples of it
SMALLEST = 2**20  # numbers at all rows below which the block's kernels take as long as they save


@dataclass(eq=False)
class FrequentColumns:
    """A matrix as a dense block of its frequent columns and a sparse rest; or the transpose of such a matrix.

    Args:
        block: the frequent columns twice, `(rows, 2 · frequent)`, since the factor comes in two halves; for a
            transpose, its frequent rows, `(frequent, 2 · columns)`.
        where: indices of the frequent columns, or rows.
        rest: the row pieces of the rest.
        values: the entries of the rest.
        flipped: whether it is a transpose.
    """

    block: Tensor
    where: Tensor
    rest: RowPieces
    values: Tensor
    flipped: bool = False

    def suits(self, dense: Tensor) -> bool:
        """Return whether tensor cores should compute the product with `dense`: float32, large, within a step."""
        rows = dense.size(0) if self.flipped else self.block.size(0)
        large = dense.dtype == torch.float32 and rows * dense.size(1) >= SMALLEST
        return dense.is_cuda and large and rounded_products()

    def multiply(self, dense: Tensor, needed: Flags = (None, None)) -> Tensor:
        """Return the product with a dense matrix; rows that are not needed are undefined."""
        dense = dense.detach().contiguous()
        out = self.rest.multiply(self.values, dense, needed)
        if self.flipped:
            return out.index_copy_(0, self.where, _product(self.block, in_halves(dense, None)))
        return _added(out, self.block, in_halves(dense, self.where))


def _added(out: Tensor, block: Tensor, halves: Tensor) -> Tensor:
    """Add the product of bfloat16 matrices to a float32 one, in place."""
    if out.is_cuda:
        return torch.addmm(out, block, halves, out_dtype=torch.float32, out=out)
    return out.add_(_product(block, halves))


def _product(block: Tensor, halves: Tensor) -> Tensor:
    """Return the product of bfloat16 matrices in float32; on a CPU in float64."""
    if block.is_cuda:
        return torch.mm(block, halves, out_dtype=torch.float32)
    return block.double() @ halves.double()


def in_halves(dense: Tensor, rows: Tensor | None) -> Tensor:
    """Return the given rows of a matrix (None for all) rounded to bfloat16 and, below them, their remainders."""
    if dense.is_cuda and row_kernel() is not None:
        from evergraph.core.row_kernel import halve

        return halve(dense, rows)
    picked = dense if rows is None else dense.index_select(0, rows)
    rounded = picked.bfloat16()
    return torch.cat([rounded, (picked - rounded.to(picked.dtype)).bfloat16()])


@functools.cache
def _tensor_cores_add() -> bool:
    """Return whether products of bfloat16 matrices can be added to a float32 one; tested before any capture."""
    ones = torch.ones(8, 8, dtype=torch.bfloat16, device="cuda")
    try:
        out = _added(torch.ones(8, 8, device="cuda"), ones, ones)
    except (RuntimeError, TypeError):  # not by this GPU, or by this torch
        return False
    return bool((out == 9).all())


def frequent_columns(
    matrix: SparseMatrix, flipped: SparseMatrix
) -> tuple[FrequentColumns, FrequentColumns] | tuple[None, None]:
    """Split off the frequent columns of a matrix and its transpose; None if too few, or not exact in bfloat16."""
    counts = flipped.counts()
    if counts.is_cuda and not _tensor_cores_add():
        return None, None
    number = int((counts >= SHARE * matrix.num_rows).sum()) // FEWEST * FEWEST
    if not number:
        return None, None
    where = counts.topk(number).indices.sort().values
    place = torch.full_like(counts, -1).index_copy_(0, where, torch.arange(number, device=where.device).to(counts))
    column = place.index_select(0, matrix.indices)
    row, inside = matrix.row_of_entry(), column >= 0
    entries = matrix.values[inside]
    if not torch.equal(entries.bfloat16().to(entries.dtype), entries):
        return None, None
    block = entries.new_zeros(matrix.num_rows, number)
    block.index_put_((row[inside], column[inside].long()), entries, accumulate=True)
    block, frequent = block.bfloat16(), place.index_select(0, flipped.row_of_entry()) >= 0
    return (
        FrequentColumns(torch.cat([block, block], 1), where, *_without(matrix, inside)),
        FrequentColumns(torch.cat([block, block]).t(), where, *_without(flipped, frequent), flipped=True),
    )


def _without(matrix: SparseMatrix, left_out: Tensor) -> tuple[RowPieces, Tensor]:
    """Return the row pieces of a matrix without the masked entries, and the values of the others."""
    kept = ~left_out
    before = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(0)])  # number of entries kept before each
    return RowPieces.of(before.index_select(0, matrix.indptr), matrix.indices[kept]), matrix.values[kept]
