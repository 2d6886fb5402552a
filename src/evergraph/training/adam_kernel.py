"""One step of Adam over one parameter, in one pass that all multiprocessors of a GPU share: the Triton kernel.

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


@triton.jit
def move(  # type: ignore[no-untyped-def]
    param, grad, mean, square, steps, rate, size, first: tl.constexpr, second: tl.constexpr,
    log_first: tl.constexpr, log_second: tl.constexpr, eps: tl.constexpr, decay: tl.constexpr, numbers: tl.constexpr,
):  # fmt: skip
    """Move `numbers` numbers of a parameter and of its two averages; `steps` counts this one."""
    i = tl.program_id(0).to(tl.int64) * numbers + tl.arange(0, numbers)
    inside = i < size
    t = tl.load(steps).to(tl.float64)
    lr = tl.load(rate).to(tl.float64)
    length = (lr / (1.0 - tl.exp(t * log_first))).to(tl.float32)
    correction = (1.0 / tl.sqrt(1.0 - tl.exp(t * log_second))).to(tl.float32)
    p = tl.load(param + i, mask=inside, other=0.0)
    g = tl.load(grad + i, mask=inside, other=0.0)
    m = tl.load(mean + i, mask=inside, other=0.0)
    v = tl.load(square + i, mask=inside, other=0.0)
    if decay != 0:
        g += decay * p
    m += first * (g - m)
    v += second * (g * g - v)
    p -= length * m / (tl.sqrt(v) * correction + eps)
    tl.store(param + i, p, mask=inside)
    tl.store(mean + i, m, mask=inside)
    tl.store(square + i, v, mask=inside)


def launch(
    param: Tensor, grad: Tensor, averages: tuple[Tensor, Tensor], steps: Tensor, rate: Tensor,
    betas: tuple[float, float], eps: float, decay: float,
) -> None:  # fmt: skip
    """Move a parameter and Adam's averages of its gradients, all float32 and laid out alike without gaps.

    Args:
        param: moved in place.
        grad: its gradient.
        averages: of the gradient and of its square; moved in place.
        steps: how many there were, this one included.
        rate: the learning rate.
        betas: what the averages keep of themselves.
        eps: as in `torch.optim.Adam`, as the next.
        decay: weight decay.
    """
    kernel: Any = move
    with torch.cuda.device_of(param):
        kernel[(triton.cdiv(param.numel(), NUMBERS),)](
            param, grad, *averages, steps, rate, param.numel(), first=1 - betas[0], second=1 - betas[1],
            log_first=math.log(betas[0]), log_second=math.log(betas[1]), eps=eps, decay=decay, numbers=NUMBERS,
        )  # fmt: skip
