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
from evergraph.errors import unknown


def forward(model: nn.Module, batch: Any, directions: Sequence[Direction]) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and J d for every direction d: by the model's own joint pass, else by forward-mode AD.

    A direction may leave out parameters, such as frozen ones, which are then held fixed.
    """
    if not directions:
        return model(batch), []
    params, joint = named_params(model), capable(model, "joint_forward")
    pairs = []
    for direction in directions:
        if names := set(direction) - params.keys():
            raise unknown("parameter in a direction", min(names), params)
        if joint is not None and len(direction) == len(params):
            pairs.append(batch.pair_of_chosen(*joint(batch, direction)))
        else:
            moved = {name: value for name, value in params.items() if name in direction}
            pairs.append(forward_product(partial(functional_call, model, args=(batch,)), moved, direction))
    return pairs[-1][0], [tangent for _, tangent in pairs]
