"""The linear head that a closed form solves."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.data.batching import Batch
from evergraph.errors import EvergraphError
from evergraph.models.base import GraphModel


def linear_head(model: GraphModel) -> tuple[Callable[[Batch], Tensor], Tensor]:
    """Return the model's feature function and its output weights: the outputs of a batch are features @ weights."""
    features, weight = capable(model, "features"), capable(model, "output_weight")
    if features is None or weight is None:
        raise EvergraphError(f"{type(model).__name__} has no linear head; use GCN, GraphSAGE or RandomFeatures")
    return features, weight()


def head_name(model: GraphModel, head: Tensor) -> str:
    """Return the name of a head among the model's parameters."""
    return next(name for name, value in model.named_parameters() if value is head)
