"""Base class of the curvature regularizer's forms: anchors, their sum, and the weight of the pull towards them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from evergraph.core.capabilities import Answer, No, capable
from evergraph.core.params import Displacement, Params, copy_params, named_params
from evergraph.core.settings import NonNegative, is_zero
from evergraph.curvature import require_deterministic
from evergraph.errors import one_of
from evergraph.methods.access import Access
from evergraph.methods.base import Context, Method, search_over
from evergraph.methods.state import state

PAPER = "Yin, Sun and Wu: Unbiased Online Curvature Approximation for Regularized Graph Continual Learning"
Anchors = Literal["stored", "previous", "latest"]
OverTasks = Literal["sum-of-squares", "square-of-sum"]
OverNodes = Literal["loss", "sum", "mean"]
Estimator = Literal["exact", "sampled"]


@dataclass(repr=False)
class AnchoredCurvature(Method):
    """strength/2 Σ_{t<τ} (θ−θ_t)ᵀ F(θ) (θ−θ_t), F the full Fisher matrix at the current θ.

    With D = Σ_t (θ − θ_t) the gradient is strength · F D, so only Σ_t θ_t is stored, whatever the number of tasks.
    The curvature is held constant when differentiating, as in the paper. Subclasses define which examples F is summed
    over, and how.
    """

    family = "Fisher, full, online"
    reference = PAPER
    access = Access(keeps=("parameters",))
    search_space = search_over(strength=(1e-3, 1e3))
    training = MappingProxyType({"label_scope": "current", "reduction": "mean", "weight_decay": 0.0})
    measures_while_training: ClassVar[bool] = True
    """Whether F is measured in training mode, as part of the step, and so needs a model without dropout."""

    strength: NonNegative = 0.1
    over_tasks: OverTasks = "sum-of-squares"
    over_nodes: OverNodes = "loss"
    anchors: Anchors = "stored"
    anchor_sum_: Params = state(dict)
    num_anchors_: int = state(int)
    previous_: Params = state(dict, like="params", new="values")  # θ_{t−1}, only for anchors="previous"

    def grow(self, before: Params, after: Params) -> None:
        """Anchor new output units at their current values."""
        if self.anchor_sum_:
            total = {name: value * self.num_anchors_ for name, value in after.items()}
            for name, old in self.anchor_sum_.items():
                total[name][tuple(slice(size) for size in old.shape)] = old
            self.anchor_sum_ = total
        super().grow(before, after)

    def start_task(self, context: Context) -> None:
        """Store θ_0 if it is an anchor; raise if the model is random while F is measured."""
        if self.anchors == "previous" and not self.num_anchors_:
            self.previous_ = copy_params(context.model)
        if self.strength:
            require_deterministic(context.model, next(context.batches()), training=self.measures_while_training)

    def end_task(self, context: Context) -> None:
        """Add the task's anchor."""
        now = copy_params(context.model)
        anchor = self.previous_ if self.anchors == "previous" else now
        if self.anchors == "previous":
            self.previous_ = now
        if self.anchors == "latest":
            self.drop_anchors()
        self.add_anchor(anchor)
        self.num_anchors_ += 1

    def drop_anchors(self) -> None:
        """Drop all anchors."""
        self.anchor_sum_, self.num_anchors_ = {}, 0

    def add_anchor(self, anchor: Params) -> None:
        """Add an anchor."""
        self.anchor_sum_ = {name: value + self.anchor_sum_.get(name, 0) for name, value in anchor.items()}

    @property
    def active(self) -> bool:
        """Whether there are anchors and the strength is not zero."""
        return bool(self.num_anchors_) and not is_zero(self.strength)

    def scale(self, num_examples: int, reduction: str) -> float:
        """Return the factor on a sum over examples of H u, from `strength`, `over_tasks` and `over_nodes`.

        It is a tensor where stacked learners differ in `strength`.
        """
        tasks = self.num_anchors_ if self.over_tasks == "square-of-sum" else 1
        mean = (reduction if self.over_nodes == "loss" else self.over_nodes) == "mean"
        return self.strength * tasks / (num_examples if mean else 1)

    def displacement(self, context: Context) -> Displacement:
        """Return D = Σ_t (θ − θ_t), computed from the running sum of anchors."""
        return Displacement(named_params(context.model), self.num_anchors_, self.anchor_sum_)


def labels_of(estimator: str) -> str:
    """Return the labels that an estimator of F uses: their expectation, or one drawn per example."""
    one_of("estimator", estimator, ("exact", "sampled"))
    return "exact" if estimator == "exact" else "sample"


def draws_for_several(context: Context) -> Answer:
    """Return whether labels can be drawn for several learners at once, with each learner's own random numbers."""
    claim = capable(context.problem, "draws_scores_for_several")
    return (claim is not None and claim(context.device)) or No("labels are drawn one learner at a time")
