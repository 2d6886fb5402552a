"""Sums of weighted rows on a GPU, one program for each piece of a sparse matrix's row: the Triton kernel.

Imported where Triton is at hand; `evergraph.core.row_pieces` says what it computes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2**13  # bytes of the dense factor that a program reads at once: eight rows of 256 float32 numbers
WIDEST = 256  # columns of a tile


@triton.jit
def add_up(  # type: ignore[no-untyped-def]
    out, dense, starts, ends, targets, indices, values, columns,
    weighted: tl.constexpr, entries: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """out[target] = Σ values[e] · dense[indices[e]] over a piece's entries e; not weighted, Σ dense[e].

    A program is one warp: each of its threads adds up columns of its own, and nothing waits for other warps.
    """
    piece = tl.program_id(0)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < columns
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    target = tl.load(targets + piece).to(tl.int64)
    total = tl.zeros((width,), dtype=out.dtype.element_ty)
    e = start + tl.arange(0, entries)
    row = e.to(tl.int64)
    if weighted:
        row = tl.load(indices + e, mask=e < end, other=0).to(tl.int64)
        weight = tl.load(values + e, mask=e < end, other=0.0)
    for _ in range(start, end, entries):
        place = row[:, None] * columns + c[None, :]
        read = tl.load(dense + place, mask=(e < end)[:, None] & inside[None, :], other=0.0)
        e += entries
        row = e.to(tl.int64)
        if weighted:  # the next entries are on their way while these are added up
            read *= weight[:, None]
            row = tl.load(indices + e, mask=e < end, other=0).to(tl.int64)
            weight = tl.load(values + e, mask=e < end, other=0.0)
        total += tl.sum(read, axis=0)
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
    width = min(max(16, triton.next_power_of_2(columns)), WIDEST)
    kernel: Any = add_up
    with torch.cuda.device_of(out):
        kernel[(starts.numel(), triton.cdiv(columns, width))](
            out, dense, starts, ends, targets, indices, values, columns,
            weighted=entries is not None, entries=min(TILE // (width * dense.element_size()), 64), width=width,
            num_warps=1,
        )  # fmt: skip
