"""Which labels a Fisher matrix is taken over, and its action on the outputs.

The Fisher matrix of example v is J_vᵀ H_v J_v with J_v = ∂z_v/∂θ. Only H_v depends on the labels:

- `empirical`: H = s sᵀ with the score s = ∂ log p(y | z)/∂z at the true label y,
- `sample`: the same at one label drawn from the model,
- `pred`: the same at the most probable label,
- `exact`: the expectation over all labels.

The problem defines p, and with it the score and the expectation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.errors import EvergraphError, one_of

if TYPE_CHECKING:
    from evergraph.problems.base import Problem

Labels = Literal["empirical", "sample", "pred", "exact"]
LABELS: tuple[Labels, ...] = ("empirical", "sample", "pred", "exact")


def pick_labels(
    problem: Problem,
    outputs: Tensor,
    labels: str,
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One label per example, by the rule `empirical`, `sample` or `pred`."""
    one_of("kind of labels", labels, LABELS[:3])
    if labels == "pred":
        return problem.most_probable(outputs)
    if labels == "sample":
        return problem.sample(outputs, generator)
    if targets is None:
        raise EvergraphError("empirical Fisher needs the true labels: pass targets")
    return targets


def label_factors(
    problem: Problem,
    outputs: Tensor,
    labels: str,
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Vectors whose outer products add up to H_v: `(examples, vectors, units)`. For a picked label, only the score."""
    one_of("kind of labels", labels, LABELS)
    if labels == "exact":
        return problem.fisher_factors(outputs)
    return problem.score(outputs, pick_labels(problem, outputs, labels, targets, generator)).unsqueeze(1)


def apply_output_fisher(
    problem: Problem,
    outputs: Tensor,
    tangent: Tensor,
    labels: str,
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
    scale: float = 1.0,
) -> Tensor:
    """scale · H_v u_v for every example v: the cotangent on the outputs that the curvature regularizer adds."""
    one_of("kind of labels", labels, LABELS)
    if labels == "exact":
        scaled = None if outputs.requires_grad or tangent.requires_grad else capable(problem, "scaled_fisher_product")
        return scale * problem.fisher_product(outputs, tangent) if scaled is None else scaled(outputs, tangent, scale)
    if labels == "sample":
        score = problem.sampled_score(outputs, generator)
    else:
        score = problem.score(outputs, pick_labels(problem, outputs, labels, targets, generator))
    return score * (scale * (score * tangent).sum(1, keepdim=True))
