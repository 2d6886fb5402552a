"""Products on a GPU with a sparse matrix that serves many steps: its rows are cut once into pieces of similar length.

Row v of A W is a weighted sum of rows of W, so each row of A can be added up independently, without atomic sums, in an
order that never changes. But rows differ in length: a column of ones, transposed, has an entry per node. So a row is
cut into pieces of at most `LONGEST` entries, and if there are several, their sums are added up in a second pass.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.shortcuts import fast
from evergraph.errors import first_line

Flags = tuple[Tensor | None, Tensor | None]
"""Flags of the needed rows of a product, and of its dense factor: `(rows, networks)`, nonzero if needed; None for
all."""

LONGEST = 64  # entries in a piece
SHORTEST, PIECES = 16, 2**11  # pieces are shorter, down to `SHORTEST`, if there would be fewer than `PIECES`


@dataclass(eq=False)
class RowPieces:
    """The pieces of a sparse matrix's rows.

    Args:
        indices: the column of each entry.
        starts: the first entry of each piece.
        ends: one past its last entry.
        rows: the row that each piece belongs to.
        targets: where its sum goes: to the row, if it is the row's only piece, else to a place after all rows.
        long_rows: rows with several pieces.
        long_starts: for each such row, the place of its first piece's sum.
        long_ends: one past the place of its last piece's sum.
        num_rows: number of rows of the matrix.
        places: number of rows and of places after them.
    """

    indices: Tensor
    starts: Tensor
    ends: Tensor
    rows: Tensor
    targets: Tensor
    long_rows: Tensor
    long_starts: Tensor
    long_ends: Tensor
    num_rows: int
    places: int

    @classmethod
    def of(cls, indptr: Tensor, indices: Tensor, longest: int | None = None) -> RowPieces:
        """Cut rows that start at `indptr` into pieces; an empty row has one empty piece."""
        longest = longest or min(LONGEST, max(SHORTEST, indices.numel() // PIECES))
        device, num_rows = indptr.device, indptr.numel() - 1
        indptr = indptr.long()
        pieces = ((indptr[1:] - indptr[:-1] + longest - 1) // longest).clamp(min=1)
        row = torch.repeat_interleave(torch.arange(num_rows, device=device), pieces)
        before = pieces.cumsum(0) - pieces
        starts = indptr[row] + longest * (torch.arange(row.numel(), device=device) - before[row])
        ends = torch.minimum(starts + longest, indptr[row + 1])
        several = pieces[row] > 1
        targets = torch.where(several, num_rows + several.cumsum(0) - 1, row)
        long_rows = torch.nonzero(pieces > 1).reshape(-1)
        long_ends = num_rows + pieces[long_rows].cumsum(0)
        long_starts = long_ends - pieces[long_rows]
        return cls(
            indices.int(), starts.int(), ends.int(), row.int(), targets.int(), long_rows.int(), long_starts.int(),
            long_ends.int(), num_rows, num_rows + int(several.sum()),
        )  # fmt: skip

    def multiply(self, values: Tensor, dense: Tensor, needed: Flags = (None, None)) -> Tensor:
        """Return Σ values[e] · dense[indices[e]] over each row's entries e.

        Args:
            values: values of all entries.
            dense: the factor; its columns are those of one network after the other.
            needed: flags of the needed rows of the product, whose other rows are zero, and of the factor, whose other
                rows are known to be zero.
        """
        dense, values = dense.detach().contiguous(), values.contiguous()
        kernel = row_kernel() if dense.is_cuda else None
        if kernel is None:
            return _kept(self._bags(values, dense), needed[0])
        if not _apart(dense.size(1), needed):
            needed = None, None
        out = dense.new_empty(self.places, dense.size(1))
        kernel(out, dense, (self.starts, self.ends, self.targets), (self.indices, values), self.rows, needed)
        if self.long_rows.numel():
            long = self.long_starts, self.long_ends, self.long_rows
            kernel(out, out, long, None, self.long_rows, (needed[0], None))
        return out[: self.num_rows]

    def _bags(self, values: Tensor, dense: Tensor) -> Tensor:
        """Like `multiply`, by embedding bags, if there is no Triton: pieces follow one another without gaps."""
        offsets, targets, order, firsts, long_rows = self._tables
        sums = F.embedding_bag(
            self.indices, dense, offsets, mode="sum", per_sample_weights=values, include_last_offset=True
        )  # fmt: skip
        if not long_rows.numel():
            return sums
        out = dense.new_empty(self.places, dense.size(1)).index_copy_(0, targets, sums)
        added = F.embedding_bag(order, out[self.num_rows :], firsts, mode="sum", include_last_offset=True)
        return out.index_copy_(0, long_rows, added)[: self.num_rows]

    @functools.cached_property
    def _tables(self) -> tuple[Tensor, ...]:
        """Inputs of the bags: where pieces start, where their sums go, and the same for the sums of long rows."""
        offsets = torch.cat([self.starts, self.ends[-1:]])
        firsts = torch.cat([self.long_starts, self.long_ends[-1:]]).long() - self.num_rows
        order = torch.arange(self.places - self.num_rows, device=offsets.device)
        return offsets, self.targets.long(), order, firsts, self.long_rows.long()


def _apart(columns: int, needed: Flags) -> bool:
    """Return whether a program adds up columns of one network only, so that flags can tell whether it is needed."""
    from evergraph.core.row_kernel import columns_at_once

    networks = next((flags.size(1) for flags in needed if flags is not None), 1)
    return networks == 1 or columns // networks % columns_at_once(columns) == 0


def _kept(product: Tensor, flags: Tensor | None) -> Tensor:
    """Return the product with zeros in rows that are not needed."""
    if flags is None:
        return product
    return (product.unflatten(1, (flags.size(1), -1)) * (flags != 0).unsqueeze(2)).flatten(1)


@functools.cache
def row_kernel() -> Callable[..., Any] | None:
    """Return the Triton kernel; None, with a warning, if Triton or the compiler that it needs is missing."""
    try:
        from evergraph.core.row_kernel import launch

        one = torch.ones(1, 1, device="cuda")
        place = torch.zeros(1, dtype=torch.int32, device="cuda")
        launch(out := torch.empty_like(one), one, (place, place + 1, place), (place, one[0]))
        if float(out) != 1:
            raise RuntimeError("a product of ones is not one")
    except Exception as error:
        warnings.warn(f"Triton's kernels do not work here ({first_line(error)}); torch's are used", stacklevel=2)
        return None
    return launch


def fused_kernels(device: torch.device) -> bool:
    """Return whether Triton kernels compute on this device what the shortcut `fused` covers."""
    return device.type == "cuda" and fast("fused") and row_kernel() is not None
