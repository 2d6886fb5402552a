"""Triton kernels for sums of weighted rows on a GPU, with one program per piece of a sparse matrix's row.

Imported only if Triton is available; `evergraph.core.row_pieces` documents what they compute.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from evergraph.core.row_pieces import Flags

TILE = 2**13  # bytes of the dense factor that a program reads at once: eight rows of 256 float32 numbers
WIDEST = 256  # columns of a tile


@triton.jit
def add_up(  # type: ignore[no-untyped-def]
    out, dense, starts, ends, targets, indices, values, columns, rows, row_flags, entry_flags, networks, unit,
    weighted: tl.constexpr, by_row: tl.constexpr, by_entry: tl.constexpr, entries: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """out[target] = Σ values[e] · dense[indices[e]] over a piece's entries e; Σ dense[e] if not weighted.

    A program is one warp: each of its threads adds up columns of its own, and never waits for other warps. Rows that
    are not needed are zero, and entries that are not needed are skipped, by flags for each network, which has `unit`
    consecutive columns.
    """
    piece = tl.program_id(0)
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < columns
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    target = tl.load(targets + piece).to(tl.int64)
    network = tl.program_id(1) * width // unit
    if by_row:
        needed = tl.load(row_flags + tl.load(rows + piece).to(tl.int64) * networks + network)
        end = tl.where(needed != 0, end, start)
    total = tl.zeros((width,), dtype=out.dtype.element_ty)
    e = start + tl.arange(0, entries)
    row = e.to(tl.int64)
    if weighted:
        row = tl.load(indices + e, mask=e < end, other=0).to(tl.int64)
        weight = tl.load(values + e, mask=e < end, other=0.0)
    for _ in range(start, end, entries):
        place = row[:, None] * columns + c[None, :]
        there = e < end
        if by_entry:
            there = there & (tl.load(entry_flags + row * networks + network, mask=there, other=0) != 0)
        read = tl.load(dense + place, mask=there[:, None] & inside[None, :], other=0.0)
        e += entries
        row = e.to(tl.int64)
        if weighted:  # loads the next entries while these are added up
            read *= weight[:, None]
            row = tl.load(indices + e, mask=e < end, other=0).to(tl.int64)
            weight = tl.load(values + e, mask=e < end, other=0.0)
        total += tl.sum(read, axis=0)
    tl.store(out + target * columns + c, total, mask=inside)


@triton.jit
def mark(  # type: ignore[no-untyped-def]
    out, rows, indptr, indices, networks, count, listed: tl.constexpr, entries: tl.constexpr
):  # fmt: skip
    """Flag, for one network, the columns of a row's entries: of a listed row, or of a row with a flag."""
    network = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64)
    if listed:
        row = tl.load(rows + network * count + row).to(tl.int64)
    start, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    if not listed:
        end = tl.where(tl.load(rows + row * networks + network) != 0, end, start)
    for first in range(start, end, entries):
        e = first + tl.arange(0, entries)
        column = tl.load(indices + e, mask=e < end, other=0).to(tl.int64)
        tl.store(out + column * networks + network, 1, mask=e < end)


@triton.jit
def split(out, dense, rows, count, columns, picked: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Round a piece of a row to bfloat16, and write the remainder `count` rows further down."""
    r = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * width + tl.arange(0, width)
    source = r
    if picked:
        source = tl.load(rows + r).to(tl.int64)
    x = tl.load(dense + source * columns + c, mask=c < columns, other=0.0)
    rounded = x.to(tl.bfloat16)
    tl.store(out + r * columns + c, rounded, mask=c < columns)
    tl.store(out + (r + count) * columns + c, (x - rounded.to(x.dtype)).to(tl.bfloat16), mask=c < columns)


def launch(
    out: Tensor,
    dense: Tensor,
    pieces: tuple[Tensor, Tensor, Tensor],
    entries: tuple[Tensor, Tensor] | None,
    rows: Tensor | None = None,
    flags: Flags = (None, None),
) -> None:
    """Fill each piece's row of `out` with the weighted sum of its rows of `dense`.

    Args:
        out: contiguous.
        dense: contiguous, of the same type.
        pieces: the first entry of each, one past its last, and the row of `out` that it fills; int32.
        entries: the row of `dense` that each entry reads, and its weight; None if entry e is row e with weight 1.
        rows: the row of the product that each piece belongs to, if flags tell which are needed.
        flags: what is needed, if not everything is.
    """
    starts, ends, targets = pieces
    columns = dense.size(1)
    indices, values = entries if entries is not None else (targets, dense)  # not read
    width = columns_at_once(columns)
    by_row, by_entry = (flag is not None for flag in flags)
    networks = next((flag.size(1) for flag in flags if flag is not None), 1)
    kernel: Any = add_up
    with torch.cuda.device_of(out):
        kernel[(starts.numel(), triton.cdiv(columns, width))](
            out, dense, starts, ends, targets, indices, values, columns,
            targets if rows is None else rows, targets if flags[0] is None else flags[0],
            targets if flags[1] is None else flags[1], networks, columns // networks,
            weighted=entries is not None, by_row=by_row, by_entry=by_entry,
            entries=min(TILE // (width * dense.element_size()), 64), width=width, num_warps=1,
        )  # fmt: skip


def columns_at_once(columns: int) -> int:
    """Return how many columns of a product a program adds up."""
    return int(min(max(16, triton.next_power_of_2(columns)), WIDEST))


def mark_columns(out: Tensor, rows: Tensor, indptr: Tensor, indices: Tensor, *, listed: bool) -> None:
    """Flag the columns of some rows' entries for each network, in `out`.

    Args:
        out: flags, `(columns, networks)`.
        rows: if listed, the rows of each network, `(networks, examples)`; else flags, `(rows, networks)`.
        indptr: where each row starts.
        indices: the column of each entry.
        listed: whether `rows` is a list of rows, not flags.
    """
    count = rows.size(1) if listed else rows.size(0)
    kernel: Any = mark
    with torch.cuda.device_of(out):
        kernel[(count, out.size(1))](
            out, rows, indptr, indices, out.size(1), count, listed=listed, entries=64, num_warps=1
        )  # fmt: skip


def halve(dense: Tensor, rows: Tensor | None) -> Tensor:
    """Return the given rows of a contiguous matrix (None for all) rounded to bfloat16 and, below, their remainders."""
    count, columns = dense.size(0) if rows is None else rows.numel(), dense.size(1)
    out = dense.new_empty(2 * count, columns, dtype=torch.bfloat16)
    kernel: Any = split
    with torch.cuda.device_of(out):
        kernel[(count, triton.cdiv(columns, 1024))](
            out, dense, dense if rows is None else rows, count, columns, picked=rows is not None, width=1024
        )
    return out
