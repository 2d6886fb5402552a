"""Outputs and their tangents in one forward pass of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from evergraph.core.capabilities import capable
from evergraph.core.params import Direction, named_params
from evergraph.curvature.products import forward_product


def forward(model: nn.Module, batch: Any, directions: Sequence[Direction]) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and J d for every direction d: by the model's own joint pass, else by forward-mode AD."""
    if not directions:
        return model(batch), []
    joint = capable(model, "joint_forward")
    if joint is not None:
        pairs = [batch.pair_of_chosen(*joint(batch, direction)) for direction in directions]
    else:
        function = partial(functional_call, model, args=(batch,))
        pairs = [forward_product(function, named_params(model), direction) for direction in directions]
    return pairs[-1][0], [tangent for _, tangent in pairs]
