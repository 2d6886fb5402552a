"""The curvature regularizer with F evaluated between the anchors and the current parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from evergraph.core.capabilities import capability
from evergraph.core.params import Params, named_params
from evergraph.core.settings import Fraction, NonNegative
from evergraph.curvature import outputs_at, regularizer
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step
from evergraph.methods.online_curvature.anchors import AnchoredCurvature, Estimator, labels_of
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class InterpolatedCurvature(AnchoredCurvature):
    """strength Σ_t F(θ̄_t)(θ − θ_t) with θ̄_t = θ_t + point (θ − θ_t), F summed over the nodes of the step.

    Every anchor is stored, and each costs its own product with F.

    Args:
        strength: λ.
        over_tasks: only `sum-of-squares`, since there is one Fisher matrix per task.
        over_nodes: as for `batch-curvature`.
        anchors: as for `batch-curvature`.
        estimator: as for `batch-curvature`.
        point: 0 is EWC's point θ_t; 1 would be the paper's θ, where `batch-curvature` handles all anchors at once.
    """

    name = "interpolated-curvature"
    besides = "the network at each anchor"

    strength: NonNegative = 0.001
    estimator: Estimator = "exact"
    point: Fraction = 0.5
    anchor_list_: list[Params] = state(list, like="params", new="values")

    def __post_init__(self) -> None:
        if self.over_tasks == "square-of-sum":
            raise EvergraphError(f"{self.name}: over_tasks=square-of-sum needs one Fisher for all tasks; use point=1")

    def drop_anchors(self) -> None:
        """Drop all anchors."""
        super().drop_anchors()
        self.anchor_list_ = []

    def add_anchor(self, anchor: Params) -> None:
        """Add an anchor to the list."""
        self.anchor_list_ = [*self.anchor_list_, anchor]

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: one Fisher product per anchor, and drawn labels come from the device's own random numbers."""
        return True

    def edit_grads(self, step: Step) -> None:
        """Add the regularizer's gradient."""
        if not self.active:
            return
        _, gradient = regularizer(
            partial(outputs_at, step.model, step.batch), named_params(step.model), self.anchor_list_, step.problem,
            point=self.point, labels=labels_of(self.estimator), generator=step.context.generator,
        )  # fmt: skip
        scale = self.scale(step.batch.num_examples, step.context.reduction)
        for name, value in step.context.params.items():
            pull = scale * gradient[name]
            value.grad = pull if value.grad is None else value.grad.add_(pull)
