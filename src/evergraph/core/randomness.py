"""Random numbers within a training step."""

from __future__ import annotations

import torch
from torch import Tensor


def random_integers(
    below: int, shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Integers from 0 on; on a GPU from the device's own random numbers, so that nothing waits for Python."""
    if device.type == "cuda":
        return torch.randint(below, shape, device=device)
    return torch.randint(below, shape, generator=generator).to(device)
