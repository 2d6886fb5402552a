"""Outputs and their tangents in one forward pass of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from evergraph.core.capabilities import capable
from evergraph.core.params import Direction, Params, copy_buffers, named_params
from evergraph.curvature.products import forward_product
from evergraph.errors import unknown


def forward(model: nn.Module, batch: Any, directions: Sequence[Direction]) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and J d for every direction d: by the model's own joint pass, else by forward-mode AD.

    A direction may leave out parameters, such as frozen ones, which are then held fixed. Buffers, such as running
    statistics, change as in one pass, whatever the number of directions.
    """
    if not directions:
        return model(batch), []
    params, joint = named_params(model), capable(model, "joint_forward")
    passed: Params = {}  # what the last pass read, with its buffers as it left them
    pairs = []

    def outputs(moved: Params) -> Tensor:
        nonlocal passed
        passed = {**copy_buffers(model), **moved}
        values: Tensor = functional_call(model, passed, (batch,))
        return values

    for direction in directions:
        if names := set(direction) - params.keys():
            raise unknown("parameter in a direction", min(names), params)
        if joint is not None and len(direction) == len(params):
            pairs.append(batch.pair_of_chosen(*joint(batch, direction)))
        else:
            moved = {name: value for name, value in params.items() if name in direction}
            pairs.append(forward_product(outputs, moved, direction))
    for name, value in model.named_buffers():
        if name in passed:
            value.data.copy_(passed[name])  # behind autograd's back: another pass may have saved them for its backward
    return pairs[-1][0], [tangent for _, tangent in pairs]


def outputs_at(model: nn.Module, batch: Any, params: Params) -> Tensor:
    """Return the outputs at other parameters; the model's buffers, such as running statistics, stay as they are."""
    outputs: Tensor = functional_call(model, {**copy_buffers(model), **params}, (batch,))
    return outputs
