"""Softmax over the units in scope, row by row on a GPU: cross entropy and divergences with their gradients, Fisher
products and scores.

Triton kernels, imported where Triton is at hand; `evergraph.core.fused_softmax` says what they compute.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4  # that a program has, a warp


@triton.jit
def in_scope(  # type: ignore[no-untyped-def]
    outputs, mask, r, c, num_rows, units, stride, masked: tl.constexpr
):  # fmt: skip
    """Rows of the outputs, minus infinity at units out of scope; zeros behind the last row."""
    there = (r[:, None] < num_rows) & (c[None, :] < units)
    z = tl.load(outputs + r[:, None].to(tl.int64) * stride + c[None, :], mask=there, other=float("-inf"))
    if masked:
        z += tl.load(mask + c, mask=c < units, other=0.0)[None, :]
    return tl.where(r[:, None] < num_rows, z, 0.0)


@triton.jit
def entropy(  # type: ignore[no-untyped-def]
    losses, gradient, outputs, targets, mask, num_rows, units, stride, other_stride, masked: tl.constexpr,
    rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """−log p(y) and p − onehot(y) for some rows; not a number where y is no unit."""
    r, c = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    there = (r[:, None] < num_rows) & (c[None, :] < units)
    place = r[:, None].to(tl.int64) * units + c[None, :]
    z = in_scope(outputs, mask, r, c, num_rows, units, stride, masked)
    y = tl.load(targets + r * other_stride, mask=r < num_rows, other=0)
    top = tl.max(z, axis=1)
    e = tl.exp(z - top[:, None])
    total = tl.sum(e, axis=1)
    hit = c[None, :] == y[:, None]
    chosen = tl.sum(tl.where(hit, z, 0.0), axis=1)
    loss = tl.log(total) + top - chosen
    tl.store(losses + r, tl.where((y >= 0) & (y < units), loss, float("nan")), mask=r < num_rows)
    tl.store(gradient + place, e / total[:, None] - tl.where(hit, 1.0, 0.0), mask=there)


@triton.jit(do_not_specialize=["temperature"])
def divergent(  # type: ignore[no-untyped-def]
    losses, gradient, outputs, reference, mask, num_rows, units, stride, other_stride, temperature,
    masked: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """KL(q ‖ p) and (p − q) / T for some rows, p and q of outputs and reference over T."""
    r, c = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    there = (r[:, None] < num_rows) & (c[None, :] < units)
    place = r[:, None].to(tl.int64) * units + c[None, :]
    z = in_scope(outputs, mask, r, c, num_rows, units, stride, masked) / temperature
    old = in_scope(reference, mask, r, c, num_rows, units, other_stride, masked) / temperature
    z -= tl.max(z, axis=1)[:, None]
    old -= tl.max(old, axis=1)[:, None]
    e, e_old = tl.exp(z), tl.exp(old)
    total, total_old = tl.sum(e, axis=1), tl.sum(e_old, axis=1)
    p, q = e / total[:, None], e_old / total_old[:, None]
    apart = tl.where(e_old > 0, q * (old - z), 0.0)  # minus infinity less itself is none out of scope
    loss = tl.sum(apart, axis=1) + tl.log(total) - tl.log(total_old)
    tl.store(losses + r, loss, mask=r < num_rows)
    tl.store(gradient + place, (p - q) / temperature, mask=there)


@triton.jit(do_not_specialize=["scale"])
def fisher(  # type: ignore[no-untyped-def]
    out, outputs, tangents, mask, num_rows, units, stride, other_stride, scale, masked: tl.constexpr,
    rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """scale (p ∘ u − p (p · u)) for some rows."""
    r, c = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    there = (r[:, None] < num_rows) & (c[None, :] < units)
    place = r[:, None].to(tl.int64) * units + c[None, :]
    z = in_scope(outputs, mask, r, c, num_rows, units, stride, masked)
    e = tl.exp(z - tl.max(z, axis=1)[:, None])
    p = e / tl.sum(e, axis=1)[:, None]
    along = tangents + r[:, None].to(tl.int64) * other_stride + c[None, :]
    weighted = p * tl.load(along, mask=there, other=0.0)
    tl.store(out + place, scale * (weighted - p * tl.sum(weighted, axis=1)[:, None]), mask=there)


@triton.jit
def scores(  # type: ignore[no-untyped-def]
    out, outputs, thresholds, mask, num_rows, units, stride, other_stride, masked: tl.constexpr, rows: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """onehot(y) − p for some rows, y the first unit in scope up to which p adds up to a threshold; else the last."""
    r, c = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    there = (r[:, None] < num_rows) & (c[None, :] < units)
    place = r[:, None].to(tl.int64) * units + c[None, :]
    scope = c < units
    if masked:
        scope = tl.load(mask + c, mask=c < units, other=float("-inf")) == 0
    z = in_scope(outputs, mask, r, c, num_rows, units, stride, masked)
    e = tl.exp(z - tl.max(z, axis=1)[:, None])
    p = e / tl.sum(e, axis=1)[:, None]
    threshold = tl.load(thresholds + r * other_stride, mask=r < num_rows, other=0.0)
    reached = (tl.cumsum(p, axis=1) >= threshold[:, None]) & scope[None, :]
    first = tl.min(tl.where(reached, c[None, :], width), axis=1)
    last = tl.max(tl.where(scope, c, 0), axis=0)
    y = tl.where(first < width, first, last)
    tl.store(out + place, tl.where(c[None, :] == y[:, None], 1.0, 0.0) - p, mask=there)


def cross_entropy(outputs: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss of each row and its gradient at the outputs.

    Args:
        outputs: `(rows, units)`, the numbers of a row side by side.
        targets: a unit for each row.
        mask: added to each row: minus infinity at units out of scope, else zero. None for none.
    """
    losses, gradient = outputs.new_empty(outputs.size(0)), outputs.new_empty(outputs.shape)
    _launch(entropy, (losses, gradient), outputs, targets, mask)
    return losses, gradient


def divergence(outputs: Tensor, reference: Tensor, mask: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """KL(softmax(reference / T) ‖ softmax(outputs / T)) of each row and its gradient at the outputs; as above."""
    losses, gradient = outputs.new_empty(outputs.size(0)), outputs.new_empty(outputs.shape)
    _launch(divergent, (losses, gradient), outputs, reference, mask, float(temperature))
    return losses, gradient


def fisher_product(outputs: Tensor, tangents: Tensor, mask: Tensor | None, scale: float = 1.0) -> Tensor:
    """scale · H u of each row, H = diag(p) − p pᵀ; arguments as above."""
    out = outputs.new_empty(outputs.shape)
    _launch(fisher, (out,), outputs, tangents, mask, float(scale))
    return out


def sampled_score(outputs: Tensor, thresholds: Tensor, mask: Tensor | None) -> Tensor:
    """onehot(y) − p of each row, y drawn from p by a number between 0 and 1; arguments as above."""
    out = outputs.new_empty(outputs.shape)
    _launch(scores, (out,), outputs, thresholds, mask)
    return out


def _launch(
    kernel: Any, made: tuple[Tensor, ...], outputs: Tensor, other: Tensor, mask: Tensor | None, *numbers: float
) -> None:
    """Let a kernel fill what is made of the outputs and of what else each row has."""
    with torch.cuda.device_of(outputs):
        kernel[(triton.cdiv(outputs.size(0), ROWS),)](
            *made, outputs, other, outputs if mask is None else mask, *outputs.shape, outputs.stride(0),
            other.stride(0), *numbers, masked=mask is not None, rows=ROWS, width=_width(outputs), num_warps=1,
        )  # fmt: skip


def _width(outputs: Tensor) -> int:
    return max(16, triton.next_power_of_2(outputs.size(1)))
