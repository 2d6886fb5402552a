"""Elastic weight consolidation (Kirkpatrick et al., PNAS 2017), with the correct Fisher diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evergraph.core.params import Params
from evergraph.core.settings import NonNegative
from evergraph.curvature import fisher_diagonal, measuring, squared_batch_gradients
from evergraph.curvature.labels import Labels
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, Context, search_over
from evergraph.methods.quadratic import Quadratic


@METHODS.register
@dataclass(repr=False)
class EWC(Quadratic):
    """Penalty strength/2 Σ_t Σ_i F_ti (θ_i − θ_ti)²: a Fisher diagonal and an anchor per task, as one quadratic.

    This is the framework (`evergraph.curvature.regularizer`) with four choices made: F is evaluated at the old
    parameters, with the given labels, as a diagonal, over the old task's training nodes.

    Args:
        strength: λ; 1e4 in the paper.
        labels: `empirical` (true labels), `sample`, `pred` (the paper's three rows) or `exact` (expectation).
        fisher: `per-node` squares single-node gradients, which is the Fisher diagonal; `squared-batch`
            squares the gradient of batch means, the shortcut of much public code, which is not.
        reduction: `mean` or `sum` over the task's nodes.
    """

    name = "ewc"
    step_settings = step_factors = ("strength",)
    family = "Fisher, diagonal"
    reference = "Kirkpatrick et al.: Overcoming catastrophic forgetting in neural networks, PNAS 2017"
    search_space = search_over(strength=(1e-1, 1e10))

    strength: NonNegative = 1e4
    labels: Labels = "empirical"
    fisher: Literal["per-node", "squared-batch"] = "per-node"
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        if self.fisher == "squared-batch" and self.labels == "exact":
            raise EvergraphError(
                f"{self.name}: fisher=squared-batch needs one label per node; use labels=empirical, sample or pred"
            )

    def measure(self, context: Context) -> Params:
        """Return the Fisher diagonal at the current parameters, over the task's training nodes and label scope."""
        over = (context.problem, self.labels, context.generator)
        with measuring(context.model, next(context.batches(1))):
            if self.fisher == "squared-batch":
                total = squared_batch_gradients(context.model, context.batches(), *over)
            elif self.labels == "sample":  # every process draws the same labels
                total = fisher_diagonal(context.model, context.batches, *over)
            else:
                total = context.divided_sum(lambda batches: fisher_diagonal(context.model, batches, *over))
        if self.reduction == "sum":
            return total
        return {name: value / context.num_train for name, value in total.items()}
