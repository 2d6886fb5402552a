"""The paper's framework, axis by axis: Σ_t ½ (θ−θ_t)ᵀ F(θ̄_t) (θ−θ_t), and its gradient.

Every Fisher method is a choice of *where* F is evaluated, of *which labels*, of *which structure* and
of *which nodes*. EWC is `point=0, labels="empirical", structure="diagonal"` over the old task's nodes;
the paper's method is `point=1, labels="sample", structure="full"` over the current batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.core.params import Params
from evergraph.curvature.labels import label_factors
from evergraph.curvature.per_example import batched_gradients, counted_bytes
from evergraph.curvature.products import OutputFunction, fisher_product
from evergraph.errors import one_of

if TYPE_CHECKING:
    from evergraph.problems.base import Problem


def regularizer(
    function: OutputFunction,
    params: Params,
    anchors: Sequence[Params],
    problem: Problem,
    *,
    point: float = 1.0,
    labels: str = "exact",
    structure: str = "full",
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Params]:
    """Σ_t ½ (θ−θ_t)ᵀ F(θ̄_t) (θ−θ_t), and Σ_t F(θ̄_t) (θ−θ_t): its gradient with the curvature held constant.

    Args:
        function: from parameters to the outputs of the examples that F is summed over.
        params: θ.
        anchors: θ_1, θ_2, ….
        problem: what the outputs mean.
        point: θ̄_t = θ_t + point (θ − θ_t): 0 is EWC's point, 1 the paper's.
        labels: `empirical`, `sample`, `pred` or `exact`.
        structure: `full` or `diagonal`.
        targets: true labels, for `empirical`.
        generator: random numbers for `sample`.
    """
    one_of("structure", structure, ("full", "diagonal"))
    value = next(iter(params.values())).new_zeros(())
    gradient = {name: torch.zeros_like(theta) for name, theta in params.items()}
    for anchor in anchors:
        gap = {name: theta.detach() - anchor[name] for name, theta in params.items()}
        between = {name: anchor[name] + point * gap[name] for name in gap}
        if structure == "full":
            product = fisher_product(function, between, gap, problem, labels, targets, generator)
        else:
            diagonal = _diagonal(function, between, problem, labels, targets, generator)
            product = {name: diagonal[name] * gap[name] for name in gap}
        for name, sum_ in gradient.items():
            sum_ += product[name]
            value = value + (gap[name] * product[name]).sum() / 2
    return value, gradient


def _diagonal(
    function: OutputFunction,
    params: Params,
    problem: Problem,
    labels: str,
    targets: Tensor | None,
    generator: torch.Generator | None,
) -> Params:
    """The Fisher diagonal at `params`, summed over the function's examples."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad(), counted_bytes() as sizes:
        outputs = function(leaves)
    vectors = label_factors(problem, outputs.detach(), labels, targets, generator)
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for grads in batched_gradients(outputs, list(leaves.values()), vectors, sum(sizes)):
        for sum_, grad in zip(total.values(), grads):
            sum_ += grad.square().sum(0)
    return total
