"""Products of a few directions with the first weight's gradient, without a pass over that gradient.

The gradient is (ÃX)ᵀΔ with Δ the gradient at the first layer's output, so Bᵀ∇ is (ÃXB)ᵀΔ. ÃXB is fixed during a task,
and only its rows at the few nodes that the batch reads there are needed.
"""

from __future__ import annotations

from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.shortcuts import fast
from evergraph.core.workers import workers
from evergraph.methods.base import Method, Step
from evergraph.models.fixed_products import fixed_rows

ADD_TO_THE_GRADIENT = ("loss", "penalty", "replay", "edit_grads")  # hooks that may do so outside the batch's own pass
COMES_BACK = "gradient at the first layer's output"


def watch_first_layer(method: Method, step: Step) -> None:
    """Before backward, arrange to record the gradient at the first layer's output, if the weight's follows from it."""
    context = step.context
    context.cache.pop(COMES_BACK, None)
    others = [part for part in (context.method or method).parts() if part is not method]
    alone = all(getattr(type(part), hook) is getattr(Method, hook) for part in others for hook in ADD_TO_THE_GRADIENT)
    whole = capable(context.model, "after_first_layer") is not None  # the weight acts nowhere else
    exact = step.batch.source is not None and step.batch.source.fan_out is None
    at_hand = context.device.type == "cpu" and workers().size == 1 and bool(step.layers)
    if fast("structure") and alone and whole and exact and at_hand and step.layers[0].out.requires_grad:
        step.layers[0].out.register_hook(lambda cotangent: context.cache.__setitem__(COMES_BACK, cotangent))


def inner_products(step: Step, name: str, directions: Tensor, grad: Tensor) -> Tensor:
    """Return directionsᵀ ∇ for the gradient of a weight matrix."""
    first, _ = next(step.model.named_parameters())
    cheap = _from_first_layer(step, directions) if name == first else None
    return directions.T @ grad if cheap is None else cheap


def _from_first_layer(step: Step, directions: Tensor) -> Tensor | None:
    cotangent: Tensor | None = step.context.cache.get(COMES_BACK)
    first_layer = capable(step.model, "first_layer")
    if cotangent is None or first_layer is None:
        return None
    found = fixed_rows(step.batch, directions, cotangent.size(0), propagate=len(first_layer(step.batch)) > 1)
    rows = None if found is None else found.picked()
    return None if rows is None else rows.T @ cotangent
