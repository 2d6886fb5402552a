"""Logits and their tangents in one forward pass of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor
from torch.func import functional_call

from evergraph.curvature.products import forward_product
from evergraph.data.batches import Batch
from evergraph.models.base import GraphModel
from evergraph.params import Direction, named_params


def forward(model: GraphModel, batch: Batch, directions: Sequence[Direction]) -> tuple[Tensor, list[Tensor]]:
    """Logits, and J d for every direction d: by the model's own joint pass, else by forward-mode AD."""
    if not directions:
        return model(batch), []
    function = partial(functional_call, model, args=(batch,))
    own = getattr(model, "jvp", None) or (
        lambda _, direction: forward_product(function, named_params(model), direction)
    )
    pairs = [own(batch, direction) for direction in directions]
    return pairs[-1][0], [tangent for _, tangent in pairs]
