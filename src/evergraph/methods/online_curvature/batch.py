"""The curvature regularizer over the current batch: the paper's equation "Ours", in the loss's own backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evergraph.core.capabilities import Answer, capability
from evergraph.core.params import Direction
from evergraph.curvature import apply_output_fisher
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step
from evergraph.methods.online_curvature.anchors import AnchoredCurvature, Estimator, draws_for_several, labels_of


@METHODS.register
@dataclass(repr=False)
class BatchCurvature(AnchoredCurvature):
    """F summed over the nodes of the step.

    With u_v = J_v D the gradient is Jᵀc with c_v = strength · H_v u_v: a cotangent on the outputs, so loss and
    regularizer share one backward pass.

    Args:
        strength: λ; 0.1 in the paper.
        over_tasks: `sum-of-squares` (equation "Ours") has the gradient F D, `square-of-sum` (the batch loss
            and Algorithm 1) has (τ−1) F D.
        over_nodes: `loss` reduces the regularizer over nodes as the loss is reduced; `sum` (equation "Ours") and
            `mean` fix it.
        anchors: `stored` uses θ_1 … θ_{τ−1}; `previous` uses θ_0 … θ_{τ−2}, as in the batch loss; `latest`
            uses only θ_{τ−1}.
        estimator: `exact` (expectation over labels in closed form) or `sampled` (one label drawn per node).
    """

    name = "batch-curvature"
    step_state = ("anchor_sum_", "num_anchors_")
    step_settings = ("strength", "over_tasks", "over_nodes", "estimator")
    step_factors = ("strength",)

    estimator: Estimator = "exact"

    def directions(self, context: Context) -> list[Direction]:
        """Return the displacement D."""
        return [self.displacement(context)] if self.active else []

    def logit_cotangent(self, step: Step) -> Tensor | None:
        """Return c_v = strength · H_v J_v D."""
        if not step.tangents:
            return None
        generator, labels = step.context.generator, labels_of(self.estimator)
        scale = self.scale(step.batch.num_examples, step.context.reduction)
        outputs, tangent = step.logits.detach(), step.tangents[0]
        return apply_output_fisher(step.problem, outputs, tangent, labels, generator=generator, scale=scale)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: drawn labels come from the device's own random numbers."""
        return True

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_stacked(self, context: Context) -> Answer:
        """Return True if no labels are drawn, or if the problem can draw them for several learners at once."""
        return self.estimator == "exact" or draws_for_several(context)

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """Return an empty list while the regularizer is inactive, else None."""
        return None if self.active else []
