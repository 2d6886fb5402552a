"""One training step: the objective, one backward pass, one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evergraph.core.finite import nan_unless_finite
from evergraph.core.params import Direction
from evergraph.core.pulled import pull_back, pulled_along
from evergraph.core.recording import noted_layers
from evergraph.core.shortcuts import full_precision
from evergraph.curvature import forward, in_mode
from evergraph.data.batching import Batch
from evergraph.errors import EvergraphError
from evergraph.methods.base import Context, Method, Replay, Step
from evergraph.models.base import GraphModel
from evergraph.problems.base import Problem
from evergraph.training.adam import pulled_while_moving

Forward = Callable[[GraphModel, Batch, Sequence[Direction]], tuple[Tensor, list[Tensor]]]
"""From a model, a batch and directions d to the outputs and J d: `evergraph.curvature.forward`, or an executor's."""


def train_step(
    context: Context,
    method: Method,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    weigh: Callable[[Tensor], Tensor] | None = None,
    forward: Forward = forward,
) -> Tensor:
    """One step: forward with the method's tangents, one backward pass, one update; returns the summed loss.

    An executor may pass a forward function of its own, with the same results.
    """
    value, per_example, step = objective(context, method, batch, weigh, forward)
    method.observe(step)
    optimizer.zero_grad(set_to_none=True)
    pull_back(value)
    if not pulled_while_moving(context, method, optimizer):
        with full_precision(context.device):
            method.edit_grads(step)
    optimizer.step()
    method.after_step(step)
    summed = weigh is None and context.reduction == "sum"
    return nan_unless_finite(value, step.loss.detach() if summed else per_example.detach().sum())


def objective(
    context: Context,
    method: Method,
    batch: Batch,
    weigh: Callable[[Tensor], Tensor] | None = None,
    forward: Forward = forward,
) -> tuple[Tensor, Tensor, Step]:
    """Return the value that a step minimizes, the loss of each example, and the step itself, with its tangents."""
    with noted_layers(method.reads_layers) as layers:
        logits, tangents = forward(context.model, batch, method.directions(context))
    per_example = losses_of(context.problem, method.loss_outputs(context, logits), batch.y)
    if weigh is not None:
        per_example = weigh(batch.y).to(per_example.dtype) * per_example
    step = Step(context, batch, logits, context.reduced(per_example), tangents, layers)
    value = step.loss if (own := method.loss(step)) is None else own
    if (penalty := method.penalty(step)) is not None:
        value = value + penalty
    if (cotangent := method.logit_cotangent(step)) is not None:
        value = pulled_along(value, logits, cotangent)
    for replay in method.replay(step):
        value = value + _replayed(context, method, replay)
    return value, per_example, step


def _replayed(context: Context, method: Method, replay: Replay) -> Tensor:
    """The term that replayed examples add to the objective."""
    with in_mode(context.model, replay.training):
        outputs, tangents = forward(context.model, replay.batch, replay.directions)
    term = outputs.new_zeros(())
    if replay.weights is not None:
        problem = replay.problem or context.problem
        per_example = losses_of(problem, method.loss_outputs(context, outputs), replay.batch.y)
        if replay.weights.dim() > 1 or replay.weights.numel() not in (1, per_example.numel()):
            raise EvergraphError(
                f"{method.title}: replay gives weights of shape {tuple(replay.weights.shape)} for "
                f"{per_example.numel()} examples; there must be one for each"
            )
        term = term + (replay.weights * per_example).sum()
    if replay.cotangent is not None:
        term = pulled_along(term, outputs, replay.cotangent(outputs.detach(), tangents))
    return term


def losses_of(problem: Problem, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example, which a problem must not have reduced."""
    if not outputs.is_floating_point():
        raise EvergraphError(f"the model's outputs are whole numbers ({outputs.dtype}); they must be floating-point")
    per_example = problem.loss(outputs, targets)
    if per_example.shape != outputs.shape[:1]:
        raise EvergraphError(
            f"the loss of {problem.name} has shape {tuple(per_example.shape)} for {outputs.size(0)} examples; there "
            "must be one number for each"
        )
    return per_example
