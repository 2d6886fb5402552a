"""Triton kernels of a layer after an activation on a GPU: [σ(H) 1] W with its tangent, forward and backward.

Imported only if Triton is available; `evergraph.core.activated_layer` documents what they compute. Networks are stacked
along the middle dimension of every matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # of a matrix, per program
PROGRAMS = 264  # among which a sum over rows is divided, two for each multiprocessor of an H200


@triton.jit
def outputs_of(  # type: ignore[no-untyped-def]
    out, hidden, moved, weight, against, num_rows, networks, units, inputs: tl.constexpr, paired: tl.constexpr,
    rows: tl.constexpr, depth: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Rows of [σ(H) 1] W and, if paired, of their tangent [Ḣ ∘ σ'(H) 0] W + [σ(H) 1] Ẇ, for one network.

    `against` is −Ẇ.
    """
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    network = tl.program_id(1)
    c, k = tl.arange(0, width), tl.arange(0, depth)
    there, inside = r[:, None] < num_rows, c[None, :] < units
    start = (r[:, None].to(tl.int64) * networks + network) * inputs + k[None, :]
    of_weight = (k[:, None].to(tl.int64) * networks + network) * units + c[None, :]
    last = (inputs * networks + network) * units + c
    bias = tl.load(weight + last, mask=c < units, other=0.0)
    sums = tl.zeros((rows, width), dtype=tl.float32) + bias[None, :]
    change = tl.zeros((rows, width), dtype=tl.float32)
    if paired:
        change -= tl.load(against + last, mask=c < units, other=0.0)[None, :]
    back = tl.zeros((rows, width), dtype=tl.float32)
    for first in range(0, inputs, depth):
        before = tl.load(hidden + start + first, mask=there, other=0.0)
        w = tl.load(weight + of_weight + first * networks * units, mask=inside, other=0.0)
        active = tl.where(before < 0, 0.0, before)  # NaN stays NaN
        sums = tl.dot(active, w, sums, input_precision=precision)
        if paired:
            moves = tl.where(before > 0, tl.load(moved + start + first, mask=there, other=0.0), 0.0)
            d = tl.load(against + of_weight + first * networks * units, mask=inside, other=0.0)
            change = tl.dot(moves, w, change, input_precision=precision)
            # a separate sum: computing the factor −d first takes far longer
            back = tl.dot(active, d, back, input_precision=precision)
    sides = 2 if paired else 1
    place = (r[:, None].to(tl.int64) * sides * networks + network) * units + c[None, :]
    tl.store(out + place, sums, mask=there & inside)
    if paired:
        tl.store(out + place + networks * units, change - back, mask=there & inside)


@triton.jit
def pulled_back(  # type: ignore[no-untyped-def]
    out, cotangent, hidden, weight, num_rows, networks, units, inputs: tl.constexpr,
    rows: tl.constexpr, depth: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A piece of (G Wᵀ without the bias) ∘ σ'(H), for one network."""
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    network = tl.program_id(1)
    c, k = tl.arange(0, width), tl.program_id(2) * depth + tl.arange(0, depth)
    there = r[:, None] < num_rows
    row = r[:, None].to(tl.int64) * networks + network
    g = tl.load(cotangent + row * units + c[None, :], mask=there & (c[None, :] < units), other=0.0)
    of_weight = (k[None, :].to(tl.int64) * networks + network) * units + c[:, None]
    w = tl.load(weight + of_weight, mask=c[:, None] < units, other=0.0)  # transposed
    before = tl.load(hidden + row * inputs + k[None, :], mask=there, other=0.0)
    pulled = tl.dot(g, w, input_precision=precision)
    tl.store(out + row * inputs + k[None, :], tl.where(before <= 0, 0.0, pulled), mask=there)


@triton.jit
def weight_share(  # type: ignore[no-untyped-def]
    out, cotangent, hidden, num_rows, networks, units, inputs: tl.constexpr, share,
    rows: tl.constexpr, depth: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A piece of [σ(H) 1]ᵀ G over a share of the rows, for one network."""
    part, network = tl.program_id(0), tl.program_id(1)
    c, k = tl.arange(0, width), tl.program_id(2) * depth + tl.arange(0, depth)
    total = tl.zeros((depth, width), dtype=tl.float32)
    ones = tl.zeros((width,), dtype=tl.float32)
    for first in range(part * share, part * share + share, rows):
        r = first + tl.arange(0, rows)
        row = r.to(tl.int64) * networks + network
        there = r < num_rows
        g = tl.load(
            cotangent + row[:, None] * units + c[None, :], mask=there[:, None] & (c[None, :] < units), other=0.0
        )
        before = tl.load(hidden + row[None, :] * inputs + k[:, None], mask=there[None, :], other=0.0)  # transposed
        total = tl.dot(tl.where(before < 0, 0.0, before), g, total, input_precision=precision)
        ones += tl.sum(g, axis=0)
    base = out + part.to(tl.int64) * (inputs + 1) * networks * units + network * units
    tl.store(base + k[:, None].to(tl.int64) * networks * units + c[None, :], total, mask=c[None, :] < units)
    if tl.program_id(2) == 0:
        tl.store(base + inputs * networks * units + c, ones, mask=c < units)


@triton.jit
def add_shares(out, shares, parts, size, at_once: tl.constexpr, numbers: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of all shares, for the program's numbers."""
    i = tl.program_id(0) * numbers + tl.arange(0, numbers)
    total = tl.zeros((numbers,), dtype=tl.float32)
    for first in range(0, parts, at_once):
        part = first + tl.arange(0, at_once)
        there = (part < parts)[:, None] & (i < size)[None, :]
        read = tl.load(shares + part[:, None].to(tl.int64) * size + i[None, :], mask=there, other=0.0)
        total += tl.sum(read, axis=0)
    tl.store(out + i, total, mask=i < size)


@triton.jit
def set_apart(  # type: ignore[no-untyped-def]
    out, moved, at_total, product, chosen, count, size, columns, picked: tl.constexpr, numbers: tl.constexpr,
):  # fmt: skip
    """A D = −P and A W = (A total − P) / count, with P = A (total − count W); if picked, of chosen rows of A total."""
    i = tl.program_id(0).to(tl.int64) * numbers + tl.arange(0, numbers)
    inside = i < size
    p = tl.load(product + i, mask=inside, other=0.0)
    place = i
    if picked:
        place = tl.load(chosen + i // columns, mask=inside, other=0) * columns + i % columns
    known = tl.load(at_total + place, mask=inside, other=0.0)
    tl.store(moved + i, -p, mask=inside)
    tl.store(out + i, (known - p) / count, mask=inside)


@triton.jit(do_not_specialize=["size", "size_2", "blocks", "count"])
def set_against(  # type: ignore[no-untyped-def]
    out, weight, total, size, out_2, weight_2, total_2, size_2, blocks, count, numbers: tl.constexpr
):  # fmt: skip
    """total − count W for some numbers of one of two matrices; the first `blocks` programs compute the first."""
    block = tl.program_id(0).to(tl.int64)
    if block >= blocks:
        block -= blocks
        out, weight, total, size = out_2, weight_2, total_2, size_2
    i = block * numbers + tl.arange(0, numbers)
    inside = i < size
    w = tl.load(weight + i, mask=inside, other=0.0)
    tl.store(out + i, tl.load(total + i, mask=inside, other=0.0) - count * w, mask=inside)


Moved = tuple[Tensor, Tensor]
"""The tangent of H, and the negated tangent of W."""


def forwards(hidden: Tensor, weight: Tensor, tangents: Moved | None, precision: str) -> Tensor:
    """Return [σ(H) 1] W, and next to it the tangent, if given `tangents`: `(rows, 1 or 2, networks, units)`.

    Args:
        hidden: H, `(rows, networks, inputs)`, contiguous like all others.
        weight: W, `(inputs + 1, networks, units)`.
        tangents: tangents of H and W; None for none.
        precision: precision of the products: `tf32`, or `tf32x3` for 22 bits.
    """
    num_rows, networks, inputs = hidden.shape
    units, paired = weight.size(2), tangents is not None
    moved, against = tangents if tangents is not None else (hidden, weight)  # not read
    out = hidden.new_empty(num_rows, 2 if paired else 1, networks, units)
    kernel: Any = outputs_of
    rows = ROWS if triton.cdiv(num_rows, ROWS) * networks >= PROGRAMS // 2 else ROWS // 2  # to keep the GPU busy
    with torch.cuda.device_of(out):
        kernel[(triton.cdiv(num_rows, rows), networks)](
            out, hidden, moved, weight, against, num_rows, networks, units, inputs=inputs, paired=paired,
            rows=rows, depth=_depth(inputs), width=_width(units), precision=precision, num_warps=4,
        )  # fmt: skip
    return out


def backwards(cotangent: Tensor, hidden: Tensor, weight: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """Return the gradients at H and W, given the cotangent G of [σ(H) 1] W, `(rows, networks, units)`."""
    num_rows, networks, inputs = hidden.shape
    units, depth, width = weight.size(2), _depth(inputs), _width(weight.size(2))
    at_hidden = torch.empty_like(hidden)
    sizes = num_rows, networks, units
    shapes = {"inputs": inputs, "rows": ROWS, "depth": depth, "width": width, "precision": precision}
    pieces = inputs // depth
    parts = min(max(PROGRAMS // (pieces * networks), 1), triton.cdiv(num_rows, ROWS))
    share = triton.cdiv(triton.cdiv(num_rows, parts), ROWS) * ROWS
    parts = triton.cdiv(num_rows, share)
    shares = weight.new_empty(parts, *weight.shape)
    at_weight = torch.empty_like(weight) if parts > 1 else shares[0]
    by_rows: Any = pulled_back
    by_weights: Any = weight_share
    added: Any = add_shares
    with torch.cuda.device_of(hidden):
        grid = triton.cdiv(num_rows, ROWS), networks, pieces
        by_rows[grid](at_hidden, cotangent, hidden, weight, *sizes, **shapes, num_warps=4)
        by_weights[(parts, networks, pieces)](shares, cotangent, hidden, *sizes, share=share, **shapes, num_warps=4)
        if parts > 1:
            blocks = triton.cdiv(weight.numel(), 64)
            added[(blocks,)](at_weight, shares, parts, weight.numel(), at_once=16, numbers=64, num_warps=2)
    return at_hidden, at_weight


def apart(product: Tensor, at_total: Tensor, chosen: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return (A W, A D) from A (total − count W) and A total, or its chosen rows; all contiguous."""
    out, moved = torch.empty_like(product), torch.empty_like(product)
    kernel: Any = set_apart
    with torch.cuda.device_of(product):
        kernel[(triton.cdiv(product.numel(), 1024),)](
            out, moved, at_total, product, at_total if chosen is None else chosen, float(count), product.numel(),
            product.numel() // max(product.size(0), 1), picked=chosen is not None, numbers=1024,
        )  # fmt: skip
    return out, moved


def against(weights: Sequence[Tensor], totals: Sequence[Tensor], count: int) -> tuple[Tensor, ...]:
    """Return total − count W for each pair of matrices, all contiguous; two pairs share a kernel."""
    made = tuple(torch.empty_like(weight) for weight in weights)
    triples = list(zip(made, weights, totals))
    kernel: Any = set_against
    with torch.cuda.device_of(made[0]):
        for one, other in zip_longest(triples[::2], triples[1::2]):
            size, size_2 = one[0].numel(), 0 if other is None else other[0].numel()
            blocks, blocks_2 = triton.cdiv(size, 1024), triton.cdiv(size_2, 1024)
            kernel[(blocks + blocks_2,)](*one, size, *(other or one), size_2, blocks, float(count), numbers=1024)
    return made


def _depth(inputs: int) -> int:
    """Return how many inputs are multiplied at once."""
    return next(size for size in (64, 32, 16) if inputs % size == 0)


def _width(units: int) -> int:
    return max(16, triton.next_power_of_2(units))
