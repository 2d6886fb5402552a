"""Products of a few directions with the first weight's gradient, without a pass over that gradient.

The gradient is (ÃX)ᵀΔ with Δ what comes back to the first layer's output, so Bᵀ∇ is (ÃXB)ᵀΔ: rows of ÃXB, which stands
still during a task, at the few nodes that the batch reads there.
"""

from __future__ import annotations

from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.shortcuts import fast
from evergraph.methods.base import Step
from evergraph.models.fixed_products import fixed_product
from evergraph.models.notes import FIRST_LAYER, FirstLayer

COMES_BACK = "gradient at the first layer's output"


def watch_first_layer(step: Step) -> None:
    """Before the backward pass: keep what comes back to the first layer's output, where that is all of the gradient."""
    context, note = step.context, step.batch.notes.get(FIRST_LAYER)
    context.cache.pop(COMES_BACK, None)
    alone = context.method is not None and len(context.method.parts()) == 1  # nobody else adds to the gradient
    whole = capable(context.model, "after_first_layer") is not None  # nor does the weight reach the outputs elsewhere
    if alone and whole and note is not None and note.out.requires_grad and fast("structure"):
        note.out.register_hook(lambda cotangent: context.cache.__setitem__(COMES_BACK, cotangent))


def inner_products(step: Step, name: str, directions: Tensor, grad: Tensor) -> Tensor:
    """directionsᵀ ∇ for the gradient of a weight matrix."""
    cheap = _from_first_layer(step, step.context.params[name], directions)
    return directions.T @ grad if cheap is None else cheap


def _from_first_layer(step: Step, weight: Tensor, directions: Tensor) -> Tensor | None:
    cotangent: Tensor | None = step.context.cache.get(COMES_BACK)
    batch, source = step.batch, step.batch.source
    if cotangent is None or source is None or source.fan_out is not None:
        return None
    note: FirstLayer = batch.notes[FIRST_LAYER]
    if note.weight is not weight:
        return None
    at_nodes = fixed_product(source, directions, propagate=not note.propagated)
    if at_nodes is None:
        return None
    return at_nodes.index_select(0, batch.nodes[: cotangent.size(0)]).T @ cotangent
