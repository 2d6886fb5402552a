"""Random numbers within a training step.

On a GPU they are drawn by the device: a step that waits for numbers from the host is slow, and cannot be captured.
Elsewhere they come from the caller's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

DEVICES = frozenset({"cuda"})  # types of devices that draw their own random numbers


def own_numbers(device: torch.device) -> bool:
    """Return whether random numbers within a step are drawn by the device."""
    return device.type in DEVICES


_members: Sequence[torch.Generator] | None = None


@contextmanager
def drawing_for(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Within the context, draw under `vmap` from each member's generator, on a device that draws its own numbers."""
    global _members
    before, _members = _members, generators
    try:
        yield
    finally:
        _members = before


class _Drawn(torch.autograd.Function):
    """Calls a function that draws random numbers on the device; for several members, with the generator of each."""

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
    """Draw on the device; if `like` is a tensor of several stacked members, with the generator of each."""
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
    """Return uniform numbers between 0 and 1; if `like` is a tensor of several stacked members, separate for each."""
    if own_numbers(device):
        return _drawn(lambda own: torch.rand(shape, dtype=dtype, device=device, generator=own), like)
    return torch.rand(shape, dtype=dtype, generator=generator).to(device)


def normal(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None, dtype: torch.dtype | None = None
) -> Tensor:
    """Return standard normal numbers."""
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
    """Return random integers from 0 to `below` − 1; `like` as in `uniform`."""
    if own_numbers(device):
        return _drawn(lambda own: torch.randint(below, shape, device=device, generator=own), like)
    return torch.randint(below, shape, generator=generator).to(device)


def random_subset(number: int, of: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Return `number` distinct random integers below `of`."""
    if own_numbers(device):
        return torch.rand(of, device=device).argsort()[:number]
    return torch.randperm(of, generator=generator)[:number].to(device)
