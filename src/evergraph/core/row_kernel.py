"""Sums of weighted rows on a GPU, one program for each piece of a sparse matrix's row: the Triton kernel.

Imported where Triton is at hand; `evergraph.core.row_pieces` says what it computes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ENTRIES, COLUMNS = 32, 64  # a tile: so many entries of a row, and so many columns of the dense factor


@triton.jit
def add_up(  # type: ignore[no-untyped-def]
    out, dense, starts, ends, targets, indices, values, columns,
    weighted: tl.constexpr, entries: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """out[target] = Σ values[e] · dense[indices[e]] over a piece's entries e; not weighted, Σ dense[e].

    Pieces of one block of columns follow one another, so that what a multiprocessor's cache holds of `dense` is read
    again and again.
    """
    piece = tl.program_id(0)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < columns
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    target = tl.load(targets + piece).to(tl.int64)
    total = tl.zeros((width,), dtype=out.dtype.element_ty)
    for first in range(start, end, entries):
        e = first + tl.arange(0, entries)
        here = e < end
        if weighted:
            row = tl.load(indices + e, mask=here, other=0).to(tl.int64)
            weight = tl.load(values + e, mask=here, other=0.0)
            read = tl.load(dense + row[:, None] * columns + c[None, :], mask=here[:, None] & inside[None, :], other=0.0)
            total += tl.sum(weight[:, None] * read, axis=0)
        else:
            place = e.to(tl.int64)[:, None] * columns + c[None, :]
            total += tl.sum(tl.load(dense + place, mask=here[:, None] & inside[None, :], other=0.0), axis=0)
    tl.store(out + target * columns + c, total, mask=inside)


def launch(
    out: Tensor, dense: Tensor, pieces: tuple[Tensor, Tensor, Tensor], entries: tuple[Tensor, Tensor] | None
) -> None:
    """Fill the rows of `out` that the pieces name, from rows of `dense`.

    Args:
        out: contiguous.
        dense: contiguous, of the same type.
        pieces: the first entry of each, one past its last, and the row of `out` that it fills; int32.
        entries: the row of `dense` that each entry reads, and its weight; None where entry e is row e with weight 1.
    """
    starts, ends, targets = pieces
    columns = dense.size(1)
    indices, values = entries if entries is not None else (targets, dense)  # not read
    kernel: Any = add_up
    with torch.cuda.device_of(out):
        kernel[(starts.numel(), triton.cdiv(columns, COLUMNS))](
            out, dense, starts, ends, targets, indices, values, columns,
            weighted=entries is not None, entries=ENTRIES, width=COLUMNS, num_warps=4,
        )  # fmt: skip
