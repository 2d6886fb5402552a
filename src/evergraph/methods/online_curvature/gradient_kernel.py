"""Triton kernels for a queue of single nodes' gradients of P [σ(H) 1] W: push one gradient, and compute their pull.

Imported only if Triton is available; `evergraph.methods.online_curvature.gradient_rows` describes what they compute.
Stacked networks are the second dimension of every table, and of H and W.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

AT_ONCE = 16  # rows of a gradient that a program reads at once


@triton.jit
def push_gradient(  # type: ignore[no-untyped-def]
    rows, nodes, numbers, grads, places, seeds, scores, hidden, weight, indptr, indices, values, names, networks, units,
    room, inputs: tl.constexpr, depth: tl.constexpr, width: tl.constexpr, at_once: tl.constexpr,
):  # fmt: skip
    """Write a block of inputs of the gradient of score · outputs at a network's seed to its place in the tables."""
    network, block = tl.program_id(0), tl.program_id(1)
    k, c, number = block * depth + tl.arange(0, depth), tl.arange(0, width), tl.arange(0, at_once)
    slot = tl.load(places + network) * networks + network
    seed = tl.load(seeds + network)
    score = tl.load(scores + network * units + c, mask=c < units, other=0.0)
    of_weight = (k[:, None].to(tl.int64) * networks + network) * units + c[None, :]
    w = tl.load(weight + of_weight, mask=c[None, :] < units, other=0.0)
    pulled = tl.sum(w * score[None, :], axis=1)
    start, end = tl.load(indptr + seed), tl.load(indptr + seed + 1)
    count = (end - start).to(tl.int32)
    before = tl.load(numbers + slot)
    active = tl.zeros((depth,), dtype=hidden.dtype.element_ty)
    total = tl.sum(tl.zeros((at_once,), dtype=hidden.dtype.element_ty))
    for first in range(0, tl.maximum(count, before), at_once):
        j = first + number
        there = j < count
        node = tl.load(indices + start + j, mask=there, other=0).to(tl.int64)
        value = tl.load(values + start + j, mask=there, other=0.0)
        h = tl.load(hidden + (node[:, None] * networks + network) * inputs + k[None, :], mask=there[:, None], other=0.0)
        row = tl.where(h > 0, value[:, None] * pulled[None, :], 0.0)  # zero beyond the last neighbour
        place = slot * room + j
        tl.store(rows + place[:, None] * inputs + k[None, :], row, mask=(j < room)[:, None])
        active += tl.sum(value[:, None] * tl.maximum(h, 0.0), axis=0)
        total += tl.sum(value)
        if block == 0:
            tl.store(nodes + place, tl.load(names + node), mask=j < room)
    base = grads + slot * (inputs + 1) * units
    outer = active[:, None] * score[None, :]
    tl.store(base + k[:, None] * units + c[None, :], outer, mask=c[None, :] < units)
    if block == 0:
        tl.store(base + inputs * units + c, total * score, mask=c < units)


@triton.jit
def note_numbers(numbers, places, seeds, indptr, networks, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the number of rows of the gradient just pushed, for each network."""
    network = tl.arange(0, width)
    there = network < networks
    seed = tl.load(seeds + network, mask=there, other=0)
    count = tl.load(indptr + seed + 1, mask=there, other=0) - tl.load(indptr + seed, mask=there, other=0)
    slot = tl.load(places + network, mask=there, other=0) * networks + network
    tl.store(numbers + slot, count.to(tl.int32), mask=there)


@triton.jit
def pull_rows(  # type: ignore[no-untyped-def]
    gathered, inner, rows, nodes, numbers, grads, moved, weight, total, count, scales, row_of, networks, units, room,
    inputs: tl.constexpr, whole: tl.constexpr, at_once: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Compute scale · (g · D) for one gradient g of one network, and add that times g's rows to their nodes' rows.

    D is `moved` at the first layer's output, and count · W − total at the weight.
    """
    gradient, network = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = gradient * networks + network
    k, number = tl.arange(0, whole), tl.arange(0, at_once)
    inside = (k < inputs)[None, :]
    held = tl.load(numbers + slot)
    product = tl.zeros((whole,), dtype=rows.dtype.element_ty)
    for first in range(0, held, at_once):
        j = first + number
        there = (j < held)[:, None] & inside
        node = tl.load(row_of + tl.load(nodes + slot * room + j, mask=j < held, other=0), mask=j < held, other=0)
        row = tl.load(rows + (slot * room + j)[:, None] * inputs + k[None, :], mask=there, other=0.0)
        at = tl.load(moved + (node[:, None] * networks + network) * inputs + k[None, :], mask=there, other=0.0)
        product += tl.sum(row * at, axis=0)
    more = tl.zeros((size,), dtype=rows.dtype.element_ty)
    numbers_of_weight = (inputs + 1) * units
    for first in range(0, numbers_of_weight, size):
        i = first + tl.arange(0, size)
        there = i < numbers_of_weight
        of_weight = ((i // units) * networks + network) * units + i % units
        d = count * tl.load(weight + of_weight, mask=there, other=0.0)
        d -= tl.load(total + of_weight, mask=there, other=0.0)
        more += d * tl.load(grads + slot * numbers_of_weight + i, mask=there, other=0.0)
    found = (tl.sum(product) + tl.sum(more)) * tl.load(scales + network)
    tl.store(inner + slot, found)
    for first in range(0, held, at_once):
        j = first + number
        there = (j < held)[:, None] & inside
        node = tl.load(row_of + tl.load(nodes + slot * room + j, mask=j < held, other=0), mask=j < held, other=0)
        row = tl.load(rows + (slot * room + j)[:, None] * inputs + k[None, :], mask=there, other=0.0)
        place = (node[:, None] * networks + network) * inputs + k[None, :]
        tl.atomic_add(gathered + place, found * row, mask=there, sem="relaxed")


@triton.jit
def pull_weight(  # type: ignore[no-untyped-def]
    out, inner, grads, capacity, networks, size, at_once: tl.constexpr, some: tl.constexpr,
):  # fmt: skip
    """Compute a block of Σ_q inner_q g_q at the weight, for one network."""
    i, network = tl.program_id(0) * some + tl.arange(0, some), tl.program_id(1)
    total = tl.zeros((some,), dtype=grads.dtype.element_ty)
    for first in range(0, capacity, at_once):
        q = first + tl.arange(0, at_once)
        slot = q.to(tl.int64) * networks + network
        factor = tl.load(inner + slot, mask=q < capacity, other=0.0)
        there = (q < capacity)[:, None] & (i < size)[None, :]
        total += tl.sum(factor[:, None] * tl.load(grads + slot[:, None] * size + i[None, :], mask=there, other=0.0), 0)
    tl.store(out + network * size + i, total, mask=i < size)


def push(
    tables: tuple[Tensor, Tensor, Tensor, Tensor], places: Tensor, seeds: Tensor, scores: Tensor, hidden: Tensor,
    weight: Tensor, operator: tuple[Tensor, Tensor, Tensor], names: Tensor,
) -> None:  # fmt: skip
    """Write the gradient of score · outputs at each network's seed to its place in the tables.

    Args:
        tables: rows of the first layer's cotangent `(capacity, networks, room, inputs)`, their nodes, the number of
            rows per gradient (int32), and the gradients of the weight `(capacity, networks, inputs + 1, units)`.
        places: positions in the tables, one per network.
        seeds: rows of P.
        scores: `(networks, units)`.
        hidden: H, `(rows, networks, inputs)`.
        weight: W, `(inputs + 1, networks, units)`.
        operator: row pointers, columns and entries of P.
        names: node of each row of H, as stored in the tables.
    """
    rows, _, numbers, _ = tables
    networks, inputs, units = hidden.size(1), hidden.size(2), weight.size(2)
    depth = next(size for size in (64, 32, 16, 8, 4, 2, 1) if inputs % size == 0)
    pushing: Any = push_gradient
    noting: Any = note_numbers
    with torch.cuda.device_of(rows):
        pushing[(networks, inputs // depth)](
            *tables, places, seeds, scores, hidden, weight, *operator, names, networks, units, rows.size(2),
            inputs=inputs, depth=depth, width=_power(units), at_once=AT_ONCE,
        )  # fmt: skip
        noting[(1,)](numbers, places, seeds, operator[0], networks, width=_power(networks))


def pull(
    tables: tuple[Tensor, Tensor, Tensor, Tensor], moved: Tensor, weight: Tensor, total: Tensor, count: float,
    scales: Tensor, row_of: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return scale · Σ_q (g_q · D) g_q at the first layer's output and at the weight, for each network.

    Args:
        tables: as for `push`.
        moved: the first layer's tangent along D, in the shape of H.
        weight: W.
        total: D at the weight is count · W − total.
        count: see `total`.
        scales: one per network.
        row_of: maps nodes, as stored in the tables, to rows of `moved`.
    """
    rows, _, _, grads = tables
    capacity, networks, room, inputs = rows.shape
    units = weight.size(2)
    gathered, inner = torch.zeros_like(moved), rows.new_empty(capacity, networks)
    kernel: Any = pull_rows
    summing: Any = pull_weight
    with torch.cuda.device_of(rows):
        kernel[(capacity, networks)](
            gathered, inner, *tables, moved, weight, total, float(count), scales, row_of, networks, units, room,
            inputs=inputs, whole=_power(inputs), at_once=AT_ONCE, size=1024,
        )  # fmt: skip
        size = (inputs + 1) * units
        at_weight = grads.new_empty(networks, inputs + 1, units)
        grid = triton.cdiv(size, 64), networks
        summing[grid](at_weight, inner, grads, capacity, networks, size, at_once=32, some=64, num_warps=4)
    return gathered, at_weight.transpose(0, 1)


def _power(number: int) -> int:
    return max(16, triton.next_power_of_2(number))
