"""Products on a GPU with a sparse matrix of which a few columns have most of the entries: those by its tensor cores.

Of Coauthor-CS's 6,805 words a tenth has 70 % of a task's entries. An entry that is read by itself costs as much as some
hundred numbers of a dense product, so columns with an entry in more than one row of a hundred are one dense block, and
the others stay as they are. Tensor cores round factors to ten bits, as they do for inputs that are dense altogether
(the shortcut `tf32`): counts are exact, weights are right to three digits, and sums are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.core.row_pieces import Flags, RowPieces
from evergraph.core.shortcuts import rounded_products

if TYPE_CHECKING:
    from evergraph.core.sparse import SparseMatrix  # which has these

SHARE = 0.01  # of the rows that a frequent column has entries in, at least
FEWEST = 128  # frequent columns, for fewer of which a block is not worth its kernels; blocks are multiples of it
NARROWEST = 512  # columns of the dense factor: a product of fewer leaves most of a GPU idle


@dataclass(eq=False)
class FrequentColumns:
    """A matrix as a dense block, its frequent columns, and the others; or the transpose of such a matrix.

    Args:
        block: the frequent columns, `(rows, frequent)`; of a transpose, its frequent rows.
        where: which they are.
        rest: the pieces of the matrix without them.
        values: its entries.
        flipped: whether it is a transpose.
    """

    block: Tensor
    where: Tensor
    rest: RowPieces
    values: Tensor
    flipped: bool = False

    def suits(self, dense: Tensor) -> bool:
        """Whether this is a factor whose product is the tensor cores' to compute: float32, wide, within a step."""
        wide = dense.dtype == torch.float32 and dense.size(1) >= NARROWEST
        return dense.is_cuda and wide and rounded_products()

    def multiply(self, dense: Tensor, needed: Flags = (None, None)) -> Tensor:
        """The product with a dense matrix; rows that are not needed may be anything."""
        out = self.rest.multiply(self.values, dense, needed)
        if self.flipped:
            return out.index_copy_(0, self.where, self.block @ dense)
        return out.addmm_(self.block, dense.index_select(0, self.where))


def frequent_columns(
    matrix: SparseMatrix, flipped: SparseMatrix
) -> tuple[FrequentColumns, FrequentColumns] | tuple[None, None]:
    """A matrix and its transpose with frequent columns apart; None where there are too few."""
    counts = flipped.counts()
    number = int((counts >= SHARE * matrix.num_rows).sum()) // FEWEST * FEWEST
    if not number:
        return None, None
    where = counts.topk(number).indices.sort().values
    place = torch.full_like(counts, -1).index_copy_(0, where, torch.arange(number, device=where.device).to(counts))
    column = place.index_select(0, matrix.indices)
    row, inside = matrix.row_of_entry(), column >= 0
    block = matrix.values.new_zeros(matrix.num_rows, number)
    block.index_put_((row[inside], column[inside].long()), matrix.values[inside], accumulate=True)
    frequent = place.index_select(0, flipped.row_of_entry()) >= 0
    return (
        FrequentColumns(block, where, *_without(matrix, inside)),
        FrequentColumns(block.t(), where, *_without(flipped, frequent), flipped=True),
    )


def _without(matrix: SparseMatrix, left_out: Tensor) -> tuple[RowPieces, Tensor]:
    """The pieces of a matrix without some entries, and the values of the others."""
    kept = ~left_out
    before = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(0)])  # entries kept up to each
    return RowPieces.of(before.index_select(0, matrix.indptr), matrix.indices[kept]), matrix.values[kept]
