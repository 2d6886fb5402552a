"""The two-layer training step in five Triton kernels: a candidate, measured by `benchmarks.candidates`.

It computes the same as a captured step of a two-layer GCN on padded batches: cut the batch, forward with the tangent
along D = count · θ − total, loss and exact curvature, backward, Adam. Sums over edges and batches are atomic, so their
order, and the last bits, change from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.step_by_hand import Learned, Past, Standing, adam_factors

EDGES, UNITS, INPUTS, CLASSES, SEEDS = 32, 64, 32, 64, 16  # sizes of tiles


@triton.jit
def cut(seeds, indptr, indices, values, source, seed, weight, batch: tl.constexpr, tile: tl.constexpr):
    """Write the edges into each seed after those of the seeds before it; one program per seed."""
    mine = tl.program_id(0)
    all_seeds = tl.arange(0, batch)
    node = tl.load(seeds + all_seeds)
    counts = tl.load(indptr + node + 1) - tl.load(indptr + node)
    begin = tl.sum(tl.where(all_seeds < mine, counts, 0))
    start = tl.load(indptr + tl.load(seeds + mine))
    count = tl.sum(tl.where(all_seeds == mine, counts, 0))
    for first in range(0, count, tile):
        entry = first + tl.arange(0, tile)
        here = entry < count
        tl.store(source + begin + entry, tl.load(indices + start + entry, mask=here, other=0), mask=here)
        tl.store(weight + begin + entry, tl.load(values + start + entry, mask=here, other=0.0), mask=here)
        tl.store(seed + begin + entry, tl.zeros_like(entry) + mine, mask=here)


@triton.jit
def first_layer(
    x, source, seed, weight, w1, total1, hidden_sums, moved_sums, weight_sums, active, count, width, units,
    exact: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute σ(x W₁) of a tile of edges, and its tangent, summed at the edges' seeds."""
    e = tl.program_id(0) * rows + tl.arange(0, rows)
    c = tl.program_id(1) * columns + tl.arange(0, columns)
    node = tl.load(source + e)
    hidden = tl.zeros((rows, columns), dtype=tl.float32)
    moved = tl.zeros((rows, columns), dtype=tl.float32)
    for first in range(0, width, depth):
        k = first + tl.arange(0, depth)
        inside = k < width
        inputs = tl.load(x + node[:, None] * width + k[None, :], mask=inside[None, :], other=0.0)
        w = tl.load(w1 + k[:, None] * units + c[None, :], mask=inside[:, None], other=0.0)
        hidden += tl.dot(inputs, w, input_precision=precision)
        if exact:
            total = tl.load(total1 + k[:, None] * units + c[None, :], mask=inside[:, None], other=0.0)
            moved += tl.dot(inputs, count * w - total, input_precision=precision)
    on = hidden > 0
    share, at = tl.load(weight + e), tl.load(seed + e)
    place = at[:, None] * units + c[None, :]
    tl.store(active + e[:, None] * units + c[None, :], on.to(tl.int8))
    tl.atomic_add(hidden_sums + place, tl.where(on, hidden, 0.0) * share[:, None])
    if exact:
        tl.atomic_add(moved_sums + place, tl.where(on, moved, 0.0) * share[:, None])
    if tl.program_id(1) == 0:
        tl.atomic_add(weight_sums + at, share)


@triton.jit
def second_layer(
    hidden_sums, moved_sums, weight_sums, w2, total2, seeds, targets, in_scope, pulled, grad2, count, strength,
    units, classes, exact: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Compute outputs of a tile of seeds, the gradient there of loss and curvature, and those at W₂ and below it."""
    v, c = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, columns)
    there = c < classes
    bias, share = tl.load(w2 + units * classes + c, mask=there, other=0.0), tl.load(weight_sums + v)
    z = share[:, None] * bias[None, :]
    u = tl.zeros((rows, columns), dtype=tl.float32)
    if exact:
        u = share[:, None] * (count * bias - tl.load(total2 + units * classes + c, mask=there, other=0.0))[None, :]
    for first in range(0, units, depth):
        k = first + tl.arange(0, depth)
        p = tl.load(hidden_sums + v[:, None] * units + k[None, :])
        w = tl.load(w2 + k[:, None] * classes + c[None, :], mask=there[None, :], other=0.0)
        z += tl.dot(p, w, input_precision=precision)
        if exact:
            total = tl.load(total2 + k[:, None] * classes + c[None, :], mask=there[None, :], other=0.0)
            u += tl.dot(p, count * w - total, input_precision=precision)
            u += tl.dot(tl.load(moved_sums + v[:, None] * units + k[None, :]), w, input_precision=precision)
    scope = tl.load(in_scope + c, mask=there, other=0) != 0
    z = tl.where(scope[None, :], z, -float("inf"))
    p = tl.exp(z - tl.max(z, axis=1)[:, None])
    p = p / tl.sum(p, axis=1)[:, None]
    y = tl.load(targets + tl.load(seeds + v))
    g = p - tl.where(c[None, :] == y[:, None], 1.0, 0.0)
    if exact:
        weighted = p * u
        g += strength * (weighted - p * tl.sum(weighted, axis=1)[:, None])
    g = tl.where(scope[None, :], g, 0.0)
    tl.atomic_add(grad2 + units * classes + c, tl.sum(share[:, None] * g, axis=0), mask=there)
    for first in range(0, units, depth):
        k = first + tl.arange(0, depth)
        h = tl.load(hidden_sums + v[:, None] * units + k[None, :])
        w = tl.load(w2 + k[:, None] * classes + c[None, :], mask=there[None, :], other=0.0)
        change = tl.dot(tl.trans(h), g, input_precision=precision)
        tl.atomic_add(grad2 + k[:, None] * classes + c[None, :], change, mask=there[None, :])
        tl.store(pulled + v[:, None] * units + k[None, :], tl.dot(g, tl.trans(w), input_precision=precision))


@triton.jit
def first_gradient(
    x, source, seed, weight, active, pulled, grad1, width, units, edges_each,
    rows: tl.constexpr, columns: tl.constexpr, inputs: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the gradient at W₁, over some of the edges."""
    f = tl.program_id(0) * inputs + tl.arange(0, inputs)
    c = tl.program_id(1) * columns + tl.arange(0, columns)
    change = tl.zeros((inputs, columns), dtype=tl.float32)
    for first in range(0, edges_each, rows):
        e = tl.program_id(2) * edges_each + first + tl.arange(0, rows)
        node, at, share = tl.load(source + e), tl.load(seed + e), tl.load(weight + e)
        on = tl.load(active + e[:, None] * units + c[None, :]) != 0
        below = tl.load(pulled + at[:, None] * units + c[None, :]) * share[:, None]
        across = tl.load(x + node[None, :] * width + f[:, None], mask=f[:, None] < width, other=0.0)
        change += tl.dot(across, tl.where(on, below, 0.0), input_precision=precision)
    tl.atomic_add(grad1 + f[:, None] * units + c[None, :], change, mask=f[:, None] < width)


@triton.jit
def adam(theta, grad, mean, square, factors, size, decay, beta1, beta2, epsilon, tile: tl.constexpr):
    """Take one step of Adam over all parameters, and reset the gradient to zero."""
    i = tl.program_id(0) * tile + tl.arange(0, tile)
    there = i < size
    t = tl.load(theta + i, mask=there)
    g = tl.load(grad + i, mask=there) + decay * t
    m = beta1 * tl.load(mean + i, mask=there) + (1 - beta1) * g
    s = beta2 * tl.load(square + i, mask=there) + (1 - beta2) * g * g
    rate, correction = tl.load(factors), tl.load(factors + 1)
    tl.store(theta + i, t - rate * m / (tl.sqrt(s) / correction + epsilon), mask=there)
    tl.store(mean + i, m, mask=there)
    tl.store(square + i, s, mask=there)
    tl.store(grad + i, tl.zeros_like(g), mask=there)


@dataclass(eq=False)
class TritonStep:
    """A training step with its own buffers; `seeds` and the parameters are read and written in place.

    Args:
        standing: what is constant during a task.
        learned: parameters and Adam's averages, as one flat tensor each.
        seeds: seed nodes; their number is a power of two and a multiple of 16.
        capacity: number of rows that the batch is padded to, a multiple of 256.
        past: anchors; None for a plain step.
        precision: precision of products: `ieee` (float32) or `tf32`.
    """

    standing: Standing
    learned: Learned
    seeds: Tensor
    capacity: int
    past: Past | None = None
    precision: str = "ieee"

    def __post_init__(self) -> None:
        units, batch, device = self.learned.w1.size(1), self.seeds.numel(), self.seeds.device
        sums = torch.zeros(2 * batch * units + batch + self.capacity, device=device)
        parts = sums.split([batch * units, batch * units, batch, self.capacity])
        self.sums, (self.hidden, self.moved, self.shares, self.weight) = sums, parts
        self.source, self.seed = (torch.zeros(self.capacity, dtype=torch.long, device=device) for _ in range(2))
        self.active = torch.empty(self.capacity, units, dtype=torch.int8, device=device)
        self.pulled = torch.empty(batch, units, device=device)
        self.grad = torch.zeros_like(self.learned.theta)

    def __call__(self) -> None:
        """Take one step."""
        s, own, batch = self.standing, self.learned, self.seeds.numel()
        width, units, classes = own.w1.size(0), own.w1.size(1), own.w2.size(1)
        grad1, grad2 = self.grad.split([own.w1.numel(), own.w2.numel()])
        exact = self.past is not None
        total1, total2 = (self.past.total1, self.past.total2) if self.past is not None else (own.w1, own.w2)
        count, strength = (self.past.count, self.past.strength) if self.past is not None else (0, 0.0)
        self.sums.zero_()
        run(cut, (batch,), self.seeds, s.indptr, s.indices, s.values, self.source, self.seed, self.weight,
            batch=batch, tile=EDGES)  # fmt: skip
        run(first_layer, (self.capacity // EDGES, units // UNITS), s.x, self.source, self.seed, self.weight, own.w1,
            total1, self.hidden, self.moved, self.shares, self.active, count, width, units, exact=exact, rows=EDGES,
            columns=UNITS, depth=INPUTS, precision=self.precision)  # fmt: skip
        run(second_layer, (batch // SEEDS,), self.hidden, self.moved, self.shares, own.w2, total2, self.seeds,
            s.targets, s.in_scope, self.pulled, grad2, count, strength, units, classes, exact=exact, rows=SEEDS,
            columns=CLASSES, depth=UNITS, precision=self.precision)  # fmt: skip
        run(first_gradient, (triton.cdiv(width, INPUTS), units // UNITS, 8), s.x, self.source, self.seed, self.weight,
            self.active, self.pulled, grad1, width, units, self.capacity // 8, rows=EDGES, columns=UNITS,
            inputs=INPUTS, precision=self.precision)  # fmt: skip
        adam_factors(own)
        run(adam, (triton.cdiv(own.theta.numel(), 1024),), own.theta, self.grad, own.mean, own.square, own.factors,
            own.theta.numel(), own.decay, 0.9, 0.999, 1e-8, tile=1024)  # fmt: skip


def run(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch a kernel."""
    kernel[grid](*args, **constants)
