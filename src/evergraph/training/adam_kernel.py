"""Triton kernel for an Adam step over one or two parameters, in a single pass spread over all multiprocessors of a GPU.

Imported only where Triton is available; `evergraph.training.adam` describes what it computes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024  # elements per program


@triton.jit(do_not_specialize=["size", "size_2", "blocks", "strength"])
def move(  # type: ignore[no-untyped-def]
    param, grad, mean, square, steps, anchor, importance, size,
    param_2, grad_2, mean_2, square_2, steps_2, anchor_2, importance_2, size_2, rate, strength, blocks,
    first: tl.constexpr, second: tl.constexpr, log_first: tl.constexpr, log_second: tl.constexpr, eps: tl.constexpr,
    decay: tl.constexpr, pulled: tl.constexpr, numbers: tl.constexpr,
):  # fmt: skip
    """Update `numbers` elements of one of two parameters and of its averages; `steps` includes this step.

    If `pulled`, the gradient of a quadratic penalty is added: strength · importance · (θ − anchor). The first `blocks`
    programs update the first parameter, the remaining ones the second.
    """
    block = tl.program_id(0).to(tl.int64)
    if block >= blocks:
        block -= blocks
        param, grad, mean, square, steps, size = param_2, grad_2, mean_2, square_2, steps_2, size_2
        anchor, importance = anchor_2, importance_2
    i = block * numbers + tl.arange(0, numbers)
    inside = i < size
    t = tl.load(steps).to(tl.float64)
    lr = tl.load(rate).to(tl.float64)
    length = (lr / (1.0 - tl.exp(t * log_first))).to(tl.float32)
    correction = (1.0 / tl.sqrt(1.0 - tl.exp(t * log_second))).to(tl.float32)
    p = tl.load(param + i, mask=inside, other=0.0)
    g = tl.load(grad + i, mask=inside, other=0.0)
    m = tl.load(mean + i, mask=inside, other=0.0)
    v = tl.load(square + i, mask=inside, other=0.0)
    if pulled:
        a = tl.load(anchor + i, mask=inside, other=0.0)
        g += strength * tl.load(importance + i, mask=inside, other=0.0) * (p - a)
    if decay != 0:
        g += decay * p
    m += first * (g - m)
    v += second * (g * g - v)
    p -= length * m / (tl.sqrt(v) * correction + eps)
    tl.store(param + i, p, mask=inside)
    tl.store(mean + i, m, mask=inside)
    tl.store(square + i, v, mask=inside)


Moved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""A parameter, its gradient, Adam's averages of the gradient and of its square, the number of steps including this one,
and the anchor and importance of a quadratic penalty, which are not read if there is no penalty."""


def launch(
    one: Moved,
    other: Moved | None,
    rate: Tensor,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    strength: float | None = None,
) -> None:
    """Update one or two parameters and Adam's averages of their gradients, all float32, dense and of the same layout.

    Args:
        one: the first parameter, updated in place.
        other: the second parameter, likewise; None to update only one.
        rate: the learning rate.
        betas: decay rates of the averages, as in `torch.optim.Adam`.
        eps: as in `torch.optim.Adam`.
        decay: weight decay, as in `torch.optim.Adam`.
        strength: strength of the quadratic penalty; None for no penalty.
    """
    blocks = triton.cdiv(one[0].numel(), NUMBERS)
    second, size = (one, 0) if other is None else (other, other[0].numel())
    kernel: Any = move
    with torch.cuda.device_of(one[0]):
        kernel[(blocks + triton.cdiv(size, NUMBERS),)](
            *one, one[0].numel(), *second, size, rate, float(strength or 0), blocks, first=1 - betas[0],
            second=1 - betas[1], log_first=math.log(betas[0]), log_second=math.log(betas[1]), eps=eps, decay=decay,
            pulled=strength is not None, numbers=NUMBERS,
        )  # fmt: skip
