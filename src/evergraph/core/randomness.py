"""Random numbers within a training step.

On a GPU they are the device's own: a step that waits for Python's numbers is slow, and cannot be captured. Elsewhere
they come from the generator of whoever draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

DEVICES = frozenset({"cuda"})  # whose own random numbers are taken


def own_numbers(device: torch.device) -> bool:
    """Whether random numbers within a step are the device's own."""
    return device.type in DEVICES


def uniform(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None, dtype: torch.dtype | None = None
) -> Tensor:
    """Numbers between 0 and 1."""
    if own_numbers(device):
        return torch.rand(shape, dtype=dtype, device=device)
    return torch.rand(shape, dtype=dtype, generator=generator).to(device)


def normal(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None, dtype: torch.dtype | None = None
) -> Tensor:
    """Standard normal numbers."""
    if own_numbers(device):
        return torch.randn(shape, dtype=dtype, device=device)
    return torch.randn(shape, dtype=dtype, generator=generator).to(device)


def random_integers(
    below: int, shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Integers from 0 on."""
    if own_numbers(device):
        return torch.randint(below, shape, device=device)
    return torch.randint(below, shape, generator=generator).to(device)


def random_subset(number: int, of: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """So many different integers below `of`."""
    if own_numbers(device):
        return torch.rand(of, device=device).argsort()[:number]
    return torch.randperm(of, generator=generator)[:number].to(device)
