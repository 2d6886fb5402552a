"""Checks that a model is deterministic before its curvature is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from evergraph.curvature.forward import outputs_at
from evergraph.errors import EvergraphError


def require_deterministic(model: nn.Module, batch: Any, *, training: bool = False) -> None:
    """Raise if a model's forward pass is random (dropout and the like) in the mode it will be measured in.

    Args:
        model: the model.
        batch: any batch that the model can read.
        training: whether curvature is measured in training mode, as part of a training step.
    """
    devices = [batch.y.device] if batch.y.is_cuda else []
    with torch.random.fork_rng(devices), torch.no_grad(), in_mode(model, training):
        states = _random_states(devices)
        first, second = outputs_at(model, batch, {}), outputs_at(model, batch, {})
        drew = not all(torch.equal(a, b) for a, b in zip(states, _random_states(devices)))
        # a GPU may add numbers in another order, so sums that nearly cancel can have a large relative difference
        near = 1e-3 * first.abs().nan_to_num().max()
        if drew or not torch.allclose(first, second, rtol=1e-3, atol=float(near), equal_nan=True):
            raise EvergraphError(
                f"{type(model).__name__} draws random numbers (dropout?) while curvature is measured; "
                "set dropout=0 or use a method that measures no curvature during training"
            )


@contextmanager
def measuring(model: nn.Module, batch: Any) -> Iterator[None]:
    """Within this context, the model is in evaluation mode, checked to be deterministic; restores its mode on exit."""
    require_deterministic(model, batch)
    with in_mode(model, training=False):
        yield


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Within this context, the model is in training or evaluation mode; restores its mode on exit."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


def _random_states(devices: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state()] + [torch.cuda.get_rng_state(device) for device in devices]
