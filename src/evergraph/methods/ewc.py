"""Elastic weight consolidation (Kirkpatrick et al., PNAS 2017), with the Fisher diagonal computed right."""

from __future__ import annotations

from dataclasses import dataclass

from evergraph.curvature import (
    LABELS,
    fisher_diagonal,
    nodes_at_once,
    require_deterministic,
    squared_batch_gradients,
)
from evergraph.errors import one_of
from evergraph.methods.base import Context
from evergraph.methods.quadratic import Quadratic
from evergraph.params import Params


@dataclass(repr=False)
class EWC(Quadratic):
    """strength/2 Σ_t Σ_i F_ti (θ_i − θ_ti)²: one Fisher diagonal and one anchor a task, merged into one quadratic.

    The framework with four words filled in: F is evaluated at the old parameters, with the given labels,
    as a diagonal, over the old task's training nodes.

    Args:
        strength: λ; 1e4 in the paper.
        labels: `empirical` (true labels), `sample`, `pred` (the paper's three rows) or `exact` (expectation).
        fisher: `per-node` squares single-node gradients, which is the Fisher diagonal; `squared-batch`
            squares the gradient of batch means, the shortcut of much public code, which is not.
        reduction: `mean` or `sum` over the task's nodes.
    """

    name = "ewc"
    family = "Fisher, diagonal"
    reference = "Kirkpatrick et al.: Overcoming catastrophic forgetting in neural networks, PNAS 2017"

    strength: float = 1e4
    labels: str = "empirical"
    fisher: str = "per-node"
    reduction: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("kind of labels", self.labels, LABELS)
        one_of("fisher", self.fisher, ("per-node", "squared-batch"))
        one_of("reduction", self.reduction, ("mean", "sum"))

    def measure(self, context: Context) -> Params:
        """The Fisher diagonal over the task's training nodes."""
        return measure_fisher(context, self.labels, self.fisher, self.reduction)


def measure_fisher(context: Context, labels: str, fisher: str, reduction: str) -> Params:
    """The Fisher diagonal at the present parameters over the task's training nodes and label scope."""
    model, was_training = context.model, context.model.training
    model.eval()
    try:
        if fisher == "squared-batch":
            total = squared_batch_gradients(
                model, context.batches(), context.classes, "sample" if labels == "exact" else labels,
                context.targets, context.generator,
            )  # fmt: skip
        else:
            vectors = context.classes.numel() if labels == "exact" else 1
            size = nodes_at_once(model, vectors)
            require_deterministic(model, next(context.batches(1)))
            total = fisher_diagonal(
                model, context.batches(size), context.classes, labels, context.targets, context.generator
            )
    finally:
        model.train(was_training)
    scale = 1 / context.num_train if reduction == "mean" else 1.0
    return {name: value * scale for name, value in total.items()}
