"""A layer behind an activation on a GPU, [σ(H) 1] W with its tangent, forwards and backwards: the Triton kernels.

Imported where Triton is at hand; `evergraph.core.activated_layer` says what they compute. Networks side by side are the
middle dimension of every matrix.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # of a matrix that a program has
PROGRAMS = 264  # that a sum over rows is divided among, two for each multiprocessor of an H200


@triton.jit
def outputs_of(  # type: ignore[no-untyped-def]
    out, hidden, moved, weight, tangent, num_rows, networks, units, inputs: tl.constexpr, paired: tl.constexpr,
    rows: tl.constexpr, depth: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Rows of [σ(H) 1] W and, paired, of their tangent [Ḣ ∘ σ'(H) 0] W + [σ(H) 1] Ẇ, for one network."""
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    network = tl.program_id(1)
    c, k = tl.arange(0, width), tl.arange(0, depth)
    there, inside = r[:, None] < num_rows, c[None, :] < units
    start = (r[:, None].to(tl.int64) * networks + network) * inputs + k[None, :]
    of_weight = (k[:, None].to(tl.int64) * networks + network) * units + c[None, :]
    last = (inputs * networks + network) * units + c
    total = tl.zeros((rows, width), dtype=tl.float32) + tl.load(weight + last, mask=c < units, other=0.0)[None, :]
    change = tl.zeros((rows, width), dtype=tl.float32)
    if paired:
        change += tl.load(tangent + last, mask=c < units, other=0.0)[None, :]
    for first in range(0, inputs, depth):
        before = tl.load(hidden + start + first, mask=there, other=0.0)
        w = tl.load(weight + of_weight + first * networks * units, mask=inside, other=0.0)
        active = tl.maximum(before, 0.0)
        total = tl.dot(active, w, total, input_precision=precision)
        if paired:
            moves = tl.where(before > 0, tl.load(moved + start + first, mask=there, other=0.0), 0.0)
            d = tl.load(tangent + of_weight + first * networks * units, mask=inside, other=0.0)
            change = tl.dot(moves, w, change, input_precision=precision)
            change = tl.dot(active, d, change, input_precision=precision)
    sides = 2 if paired else 1
    place = (r[:, None].to(tl.int64) * sides * networks + network) * units + c[None, :]
    tl.store(out + place, total, mask=there & inside)
    if paired:
        tl.store(out + place + networks * units, change, mask=there & inside)


@triton.jit
def pulled_back(  # type: ignore[no-untyped-def]
    out, cotangent, hidden, weight, num_rows, networks, units, inputs: tl.constexpr,
    rows: tl.constexpr, depth: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A piece of (G Wᵀ without the row of ones) ∘ σ'(H), for one network."""
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
    tl.store(out + row * inputs + k[None, :], tl.where(before > 0, pulled, 0.0), mask=there)


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
        total = tl.dot(tl.maximum(before, 0.0), g, total, input_precision=precision)
        ones += tl.sum(g, axis=0)
    base = out + part.to(tl.int64) * (inputs + 1) * networks * units + network * units
    tl.store(base + k[:, None].to(tl.int64) * networks * units + c[None, :], total, mask=c[None, :] < units)
    if tl.program_id(2) == 0:
        tl.store(base + inputs * networks * units + c, ones, mask=c < units)


@triton.jit
def set_apart(out, moved, at_total, product, count, size, numbers: tl.constexpr):  # type: ignore[no-untyped-def]
    """With P = A (total − count W): A D = −P, and A W = (A total − P) / count."""
    i = tl.program_id(0).to(tl.int64) * numbers + tl.arange(0, numbers)
    inside = i < size
    p = tl.load(product + i, mask=inside, other=0.0)
    known = tl.load(at_total + i, mask=inside, other=0.0)
    tl.store(moved + i, -p, mask=inside)
    tl.store(out + i, (known - p) / count, mask=inside)


def forwards(hidden: Tensor, weight: Tensor, moved: Tensor | None, tangent: Tensor | None, precision: str) -> Tensor:
    """[σ(H) 1] W, and beside it the tangent where there is one: `(rows, 1 or 2, networks, units)`.

    Args:
        hidden: H, `(rows, networks, inputs)`, contiguous as all others.
        weight: W, `(inputs + 1, networks, units)`.
        moved: the tangent of H, or None.
        tangent: the tangent of W, or None.
        precision: of the products: `tf32` or `ieee`.
    """
    num_rows, networks, inputs = hidden.shape
    units, paired = weight.size(2), moved is not None
    out = hidden.new_empty(num_rows, 2 if paired else 1, networks, units)
    kernel: Any = outputs_of
    grid = triton.cdiv(num_rows, ROWS // 2), networks
    with torch.cuda.device_of(out):
        kernel[grid](
            out, hidden, moved if paired else hidden, weight, tangent if paired else weight, num_rows, networks, units,
            inputs=inputs, paired=paired, rows=ROWS // 2, depth=_depth(inputs), width=_width(units),
            precision=precision, num_warps=4,
        )  # fmt: skip
    return out


def backwards(cotangent: Tensor, hidden: Tensor, weight: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The gradients at H and at W for a cotangent G, `(rows, networks, units)`, at [σ(H) 1] W."""
    num_rows, networks, inputs = hidden.shape
    units, depth, width = weight.size(2), _depth(inputs), _width(weight.size(2))
    at_hidden = torch.empty_like(hidden)
    sizes = num_rows, networks, units
    shapes = {"inputs": inputs, "rows": ROWS, "depth": depth, "width": width, "precision": precision}
    pieces = inputs // depth
    parts = min(max(PROGRAMS // (pieces * networks), 1), triton.cdiv(num_rows, ROWS))
    share = triton.cdiv(triton.cdiv(num_rows, parts), ROWS) * ROWS
    parts = triton.cdiv(num_rows, share)
    at_weight = weight.new_empty(parts, *weight.shape)
    by_rows: Any = pulled_back
    by_weights: Any = weight_share
    with torch.cuda.device_of(hidden):
        grid = triton.cdiv(num_rows, ROWS), networks, pieces
        by_rows[grid](at_hidden, cotangent, hidden, weight, *sizes, **shapes, num_warps=4)
        by_weights[(parts, networks, pieces)](at_weight, cotangent, hidden, *sizes, share=share, **shapes, num_warps=4)
    return at_hidden, at_weight.sum(0) if parts > 1 else at_weight[0]


def apart(product: Tensor, at_total: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(A W, A D) from A (total − count W) and A total, both contiguous."""
    out, moved = torch.empty_like(product), torch.empty_like(product)
    kernel: Any = set_apart
    with torch.cuda.device_of(product):
        kernel[(triton.cdiv(product.numel(), 1024),)](
            out, moved, at_total, product, float(count), product.numel(), numbers=1024
        )
    return out, moved


def _depth(inputs: int) -> int:
    """Inputs that are multiplied at once."""
    return next(size for size in (64, 32, 16) if inputs % size == 0)


def _width(units: int) -> int:
    return max(16, triton.next_power_of_2(units))
