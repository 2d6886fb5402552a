"""Parameters by name: what curvature functions and methods pass around."""

from __future__ import annotations

from torch import Tensor, nn

Params = dict[str, Tensor]


def copy_params(model: nn.Module) -> Params:
    """The parameters' present values."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def named_params(model: nn.Module) -> Params:
    """The parameters themselves."""
    return dict(model.named_parameters())
