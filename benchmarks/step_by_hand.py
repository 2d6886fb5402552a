"""The two-layer training step written out in torch operations, without autograd: the reference for candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class Standing:
    """What is constant during a task: propagated inputs, the operator's rows, targets, and the units in scope."""

    x: Tensor
    indptr: Tensor
    indices: Tensor
    values: Tensor
    targets: Tensor
    in_scope: Tensor  # 1 for each output unit in the softmax


@dataclass(eq=False)
class Past:
    """The number and the sum of the anchors, and the strength of the pull towards them."""

    count: int
    total1: Tensor
    total2: Tensor
    strength: float


@dataclass(eq=False)
class Learned:
    """Parameters and Adam's averages, each as one flat tensor; `w1` and `w2` are views of the parameters."""

    theta: Tensor
    shapes: tuple[tuple[int, int], tuple[int, int]]
    lr: float = 1e-5
    decay: float = 5e-4
    mean: Tensor = field(init=False)
    square: Tensor = field(init=False)
    steps: Tensor = field(init=False)
    factors: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.square = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self.steps, self.factors = self.theta.new_zeros(()), self.theta.new_zeros(2)
        first, second = self.theta.split([rows * columns for rows, columns in self.shapes])
        self.w1, self.w2 = first.view(self.shapes[0]), second.view(self.shapes[1])

    @classmethod
    def of(cls, w1: Tensor, w2: Tensor) -> Learned:
        """Make it from two weight matrices, which are copied."""
        theta = torch.cat([w1.detach().flatten(), w2.detach().flatten()])
        return cls(theta, ((w1.size(0), w1.size(1)), (w2.size(0), w2.size(1))))


def adam_factors(own: Learned) -> None:
    """Count a step; compute the rate over the first moment's bias correction, and the root of the second's."""
    own.steps.add_(1)
    own.factors[0] = own.lr / (1 - 0.9**own.steps)
    own.factors[1] = (1 - 0.999**own.steps).sqrt()


Product = Callable[[Tensor, Tensor], Tensor]


def step_by_hand(
    standing: Standing,
    own: Learned,
    seeds: Tensor,
    capacity: int,
    past: Past | None = None,
    product: Product = torch.mm,
) -> None:
    """Take one step in place; `product` computes the large products with the inputs."""
    # the batch: a row for each edge into a seed
    batch, device = seeds.numel(), seeds.device
    start = standing.indptr[seeds]
    edges = standing.indptr[seeds + 1] - start
    end = edges.cumsum(0)
    row = torch.arange(capacity, device=device)
    seed = torch.searchsorted(end, row, right=True)
    present = seed < batch
    seed = seed.clamp(max=batch - 1)
    entry = torch.where(present, start[seed] + row - (end - edges)[seed], 0)
    weight = standing.values[entry] * present
    matrix = weight * (seed == torch.arange(batch, device=device).unsqueeze(1))
    x = standing.x[standing.indices[entry]]
    # forward, with the tangent u along D = count · θ − total
    hidden = product(x, own.w1)
    on = hidden > 0
    sums = matrix @ torch.cat([hidden * on, torch.ones_like(weight).unsqueeze(1)], dim=1)
    outside = standing.in_scope == 0
    p = (sums @ own.w2).masked_fill(outside, -torch.inf).softmax(1)
    cotangent = p.scatter_add(1, standing.targets[seeds].unsqueeze(1), p.new_full((batch, 1), -1.0))
    if past is not None:
        moved = matrix @ (product(x, past.count * own.w1 - past.total1) * on)
        u = moved @ own.w2[:-1] + sums @ (past.count * own.w2 - past.total2)
        cotangent = cotangent + past.strength * (p * u - p * (p * u).sum(1, keepdim=True))
    # backward
    below = (matrix.T @ (cotangent @ own.w2[:-1].T)) * on
    gradient = torch.cat([product(x.T, below).flatten(), (sums.T @ cotangent).flatten()])
    # Adam
    gradient = gradient + own.decay * own.theta
    own.mean.lerp_(gradient, 0.1)
    own.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    adam_factors(own)
    own.theta.sub_(own.factors[0] * own.mean / (own.square.sqrt() / own.factors[1] + 1e-8))
