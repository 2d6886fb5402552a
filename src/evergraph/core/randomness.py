"""Random numbers within a training step.

On a GPU they are the device's own: a step that waits for Python's numbers is slow, and cannot be captured. Elsewhere
they come from the generator of whoever draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

DEVICES = frozenset({"cuda"})  # whose own random numbers are taken


def own_numbers(device: torch.device) -> bool:
    """Whether random numbers within a step are the device's own."""
    return device.type in DEVICES


_members: Sequence[torch.Generator] | None = None


@contextmanager
def drawing_for(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Within it, what is drawn under `vmap` on a device with numbers of its own is drawn by each member's generator."""
    global _members
    before, _members = _members, generators
    try:
        yield
    finally:
        _members = before


class _Drawn(torch.autograd.Function):
    """What a function draws from the device's numbers; for several members, from those of each."""

    @staticmethod
    def forward(like: Tensor, draw: Callable[[torch.Generator | None], Tensor]) -> Tensor:
        return draw(None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], like: Tensor, draw: Callable[..., Tensor]) -> tuple[Tensor, int]:
        assert _members is not None
        assert len(_members) == info.batch_size
        return torch.stack([draw(generator) for generator in _members]), 0


def _drawn(draw: Callable[[torch.Generator | None], Tensor], like: Tensor | None) -> Tensor:
    """From the device's own numbers, or where `like` is that of several members from those of each."""
    if _members is None or like is None:
        return draw(None)
    drawn: Tensor = _Drawn.apply(like.detach(), draw)
    return drawn


def uniform(
    shape: tuple[int, ...],
    device: torch.device,
    generator: torch.Generator | None,
    dtype: torch.dtype | None = None,
    *,
    like: Tensor | None = None,
) -> Tensor:
    """Numbers between 0 and 1; where `like` is the tensor of several members side by side, for each its own."""
    if own_numbers(device):
        return _drawn(lambda own: torch.rand(shape, dtype=dtype, device=device, generator=own), like)
    return torch.rand(shape, dtype=dtype, generator=generator).to(device)


def normal(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None, dtype: torch.dtype | None = None
) -> Tensor:
    """Standard normal numbers."""
    if own_numbers(device):
        return torch.randn(shape, dtype=dtype, device=device)
    return torch.randn(shape, dtype=dtype, generator=generator).to(device)


def random_integers(
    below: int,
    shape: tuple[int, ...],
    device: torch.device,
    generator: torch.Generator | None,
    *,
    like: Tensor | None = None,
) -> Tensor:
    """Integers from 0 on; `like` as above."""
    if own_numbers(device):
        return _drawn(lambda own: torch.randint(below, shape, device=device, generator=own), like)
    return torch.randint(below, shape, generator=generator).to(device)


def random_subset(number: int, of: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """So many different integers below `of`."""
    if own_numbers(device):
        return torch.rand(of, device=device).argsort()[:number]
    return torch.randperm(of, generator=generator)[:number].to(device)
