"""The curvature regularizer from a queue of recent gradients: the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from evergraph.core.capabilities import Answer, No, capability
from evergraph.core.params import Direction, FirstLayerDisplacement, Params, named_params
from evergraph.core.randomness import random_integers
from evergraph.core.settings import PositiveInt
from evergraph.data.batching import Batch
from evergraph.errors import tell
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step
from evergraph.methods.online_curvature import gradient_rows
from evergraph.methods.online_curvature.anchors import AnchoredCurvature
from evergraph.methods.online_curvature.factored_gradients import (
    SEEDS,
    factors_pay,
    node_factors,
    pull,
    pull_within,
    pushed,
)
from evergraph.methods.state import state

QueueRule = Literal["text", "algorithm"]


@METHODS.register
@dataclass(repr=False)
class QueueCurvature(AnchoredCurvature):
    """Estimate the F of `batch-curvature` from gradients of single nodes' sampled log-likelihoods in recent steps.

    Each step adds the gradient of one random node of the batch B to the queue Q, which is emptied between tasks. The
    regularizer is n/(2|Q|) · strength · Σ_{g∈Q} (g · D)², with n = |B| if the loss is summed over the batch and 1 if
    it is averaged. At fixed parameters the mean of its gradient is that of `batch-curvature`, whatever the queue's
    length: M changes the noise and not the strength.

    Args:
        strength: λ; 0.1 in the paper.
        over_tasks: as for `batch-curvature`.
        over_nodes: `loss` is this unbiased reading. `mean` is the paper's queue line taken literally, 1/|Q| however the
            loss is reduced: for a summed loss it weighs |B| times less than equation "Ours". `sum` is the plain sum
            over the queue, so that M is a factor on the strength; for |Q| = |B| and a summed loss it equals `loss`.
        anchors: as for `batch-curvature`.
        queue_size: M; 128 in the paper.
        queue_rule: `text` holds at most M gradients; `algorithm` pops only when more than M are held
            before a push, so it can hold M+1.
    """

    name = "queue-curvature"
    reads_layers = True
    step_state = ("anchor_sum_", "num_anchors_", "queue_", "pushed_")
    step_writes = ("queue_", "pushed_")
    step_settings = ("strength", "over_tasks", "over_nodes", "queue_size", "queue_rule")

    queue_size: PositiveInt = 128
    queue_rule: QueueRule = "text"
    queue_: Params = state(dict)  # ring buffer of gradients, in full or as rows; or their factors
    pushed_: Params = state(dict)  # count: gradients pushed so far, on the device, so that no step waits for it

    def start_task(self, context: Context) -> None:
        """Empty the queue."""
        self.queue_, self.pushed_ = {}, {}
        super().start_task(context)

    def end_task(self, context: Context) -> None:
        """Add the task's anchor and empty the queue."""
        super().end_task(context)
        self.queue_, self.pushed_ = {}, {}

    def for_many_steps(self, context: Context, batch: Batch) -> None:
        """Allocate a table for gradients as first-layer rows, if that pays off."""
        if not self.active or self._factored(context):
            return
        gradient_rows.know_rows(context, batch)
        if not self.queue_ and gradient_rows.rows_pay(context, self.capacity):
            self.queue_ = gradient_rows.empty_table(context, self.capacity)
            self.pushed_ = _none_pushed(context)

    def further_examples(self, context: Context) -> Tensor | None:
        """Return the queue's nodes if gradients are kept as factors, so that one pass serves them and the step."""
        if not (self.active and self._factored(context)):
            return None
        return self.queue_[SEEDS] if self.queue_ else context.train[:0]

    def directions(self, context: Context) -> list[Direction]:
        """Return D if the pass over the batch is to serve the queue."""
        if self._in_rows and not gradient_rows.known(context, self.queue_):  # filled on another kind of device
            tell("the queue's gradients were kept for steps on a GPU: it begins anew for this task")
            self.queue_, self.pushed_ = {}, {}
        if not (self.active and (self._factored(context) or self._in_rows)):
            return []
        direction = FirstLayerDisplacement(named_params(context.model), self.num_anchors_, self.anchor_sum_)
        context.cache["queue's direction"] = direction
        return [direction]

    def penalty(self, step: Step) -> Tensor | None:
        """Push the gradient of one random node's sampled log-likelihood into the queue.

        Returns a term whose gradient is the pull if gradients are kept as first-layer rows, or as factors whose nodes
        are in the step's batch.
        """
        if not self.active:
            return None
        node, score = self._drawn(step)
        if self._factored(step.context):
            seed = step.batch.of_chosen(step.batch.nodes[: step.batch.num_seeds])[node]
            self.queue_ = pushed(self.queue_, node_factors(step.context, seed, score, step), self.capacity)
            term = pull_within(step, self.queue_, step.context.cache["queue's direction"], self._scale(step))
        elif self._in_rows:
            place = (self.pushed_["count"] - 1) % self.capacity
            displacement = step.context.cache.get("queue's direction") or self.displacement(step.context)
            scale = self._scale(step)
            term = gradient_rows.push_and_pull(step, self.queue_, place, node, score, displacement, scale)
        else:
            self._push(step, torch.zeros_like(step.logits).index_copy(0, node, score))
            term = None
        step.context.cache["queue pulled"] = term is not None
        return term

    def _drawn(self, step: Step) -> tuple[Tensor, Tensor]:
        """Draw and count a random node; return it and the gradient of its sampled log-likelihood at its outputs."""
        context, logits = step.context, step.logits.detach()
        if not self.pushed_:
            self.pushed_ = _none_pushed(context)
        self.pushed_["count"] += 1
        node = random_integers(step.batch.num_examples, (1,), context.device, context.generator, like=logits)
        return node, step.problem.sampled_score(logits.index_select(0, node), context.generator)

    def _factored(self, context: Context) -> bool:
        """Return whether gradients are kept as factors; a non-empty queue keeps its form."""
        return SEEDS in self.queue_ if self.queue_ else factors_pay(context)

    @property
    def _in_rows(self) -> bool:
        """Whether gradients are kept as first-layer rows."""
        return gradient_rows.NODES in self.queue_ and SEEDS not in self.queue_  # which only factors have

    def _push(self, step: Step, cotangent: Tensor) -> None:
        """Push the full gradient for a cotangent at the outputs into the ring buffer."""
        params = step.context.params
        grads = torch.autograd.grad(step.logits, list(params.values()), cotangent, retain_graph=True, allow_unused=True)
        if not self.queue_:
            self.queue_ = {
                name: value.detach().new_zeros(self.capacity, *value.shape) for name, value in params.items()
            }
        place = (self.pushed_["count"] - 1) % self.capacity
        for row, grad in zip(self.queue_.values(), grads):
            row.index_copy_(0, place, torch.zeros_like(row[:1]) if grad is None else grad.unsqueeze(0))

    @property
    def capacity(self) -> int:
        """Maximum number of gradients held; Algorithm 1 pops before a push if more than M are held: M+1 after it."""
        return self.queue_size + (1 if self.queue_rule == "algorithm" else 0)

    def _scale(self, step: Step) -> Tensor:
        """Return n/|Q| · strength."""
        held = self.pushed_["count"].clamp(max=self.capacity).to(step.logits.dtype)  # further rows are zero
        scale = self.scale(1, "mean") / (torch.ones_like(held) if self.over_nodes == "sum" else held)
        if self.over_nodes == "loss" and step.context.reduction == "sum":
            scale = scale * step.batch.num_examples  # the mean over the queue estimates the mean over the batch
        return scale

    def edit_grads(self, step: Step) -> None:
        """Add n/|Q| · strength · Σ_q (g_q · D) g_q, unless the step's own pass has already added it."""
        if not self.active or step.context.cache["queue pulled"]:
            return
        displacement, scale = self.displacement(step.context), self._scale(step)
        if self._factored(step.context):
            pulls = pull(step.context, self.queue_, displacement, scale)
        else:
            rows = {name: gradients.flatten(1) for name, gradients in self.queue_.items()}
            inner = torch.stack([rows[name] @ displacement[name].flatten() for name in rows]).sum(0)  # g_q · D
            pulls = {name: (scale * inner @ rows[name]).view_as(displacement[name]) for name in rows}
        for name, value in step.context.params.items():
            value.grad = pulls[name] if value.grad is None else value.grad.add_(pulls[name])

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: nodes and labels are drawn on the device, and the queue's position is counted there."""
        return True

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_stacked(self, context: Context) -> Answer:
        """Return whether the regularizer is inactive, or gradients are first-layer rows with their own kernels."""
        rows = gradient_rows.rows_pay(context, self.capacity) and gradient_rows.kernels_suit(context)
        return not self.active or rows or No("gradients are queued one by one")

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """Return an empty list while the regularizer is inactive, else None."""
        return None if self.active else []


def _none_pushed(context: Context) -> Params:
    return {"count": torch.zeros(1, dtype=torch.long, device=context.device)}
