"""One step of Adam over one parameter or two, in one pass that all multiprocessors of a GPU share: the Triton kernel.

Imported where Triton is at hand; `evergraph.training.adam` says what it computes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024  # that a program moves


@triton.jit(do_not_specialize=["size", "size_2", "blocks", "strength"])
def move(  # type: ignore[no-untyped-def]
    param, grad, mean, square, steps, anchor, importance, size,
    param_2, grad_2, mean_2, square_2, steps_2, anchor_2, importance_2, size_2, rate, strength, blocks,
    first: tl.constexpr, second: tl.constexpr, log_first: tl.constexpr, log_second: tl.constexpr, eps: tl.constexpr,
    decay: tl.constexpr, pulled: tl.constexpr, numbers: tl.constexpr,
):  # fmt: skip
    """Move `numbers` numbers of one of two parameters and of its averages; `steps` counts this one.

    Pulled, a quadratic's gradient is added, strength · importance · (θ − anchor). The first `blocks` programs have the
    first parameter, the others the second.
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
"""A parameter, its gradient, Adam's averages of it and of its square, how many steps there were, this one included; and
the anchor and the importance of a quadratic's pull, which are not read where there is none."""


def launch(
    one: Moved,
    other: Moved | None,
    rate: Tensor,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    strength: float | None = None,
) -> None:
    """Move one parameter or two, and Adam's averages of their gradients, all float32 and laid out alike without gaps.

    Args:
        one: moved in place.
        other: likewise.
        rate: the learning rate.
        betas: what the averages keep of themselves.
        eps: as in `torch.optim.Adam`, as the next.
        decay: weight decay.
        strength: of the pull; None for none.
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
