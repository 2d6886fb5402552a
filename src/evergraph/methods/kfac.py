"""Online structured Laplace approximation with Kronecker factors (Ritter, Botev and Barber, NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evergraph.core.capabilities import capability
from evergraph.core.settings import NonNegative
from evergraph.curvature import KroneckerFactor
from evergraph.curvature.labels import Labels
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step, search_over
from evergraph.methods.kronecker import KroneckerMemory


@METHODS.register
@dataclass(repr=False)
class KFAC(KroneckerMemory):
    """strength/2 Σ_layers tr(Dᵀ A D G) with D = W − W_{t−1}: the Fisher as A ⊗ G in every layer.

    After each task the factors are merged with the running ones (A as a mean, G as a sum over tasks: the
    sum of the tasks' products where they share A) and the anchor moves to the present parameters.
    Parameters that are not weight matrices (attention vectors) get the Fisher diagonal.

    Args:
        strength: λ; 1e4, the paper's value for EWC.
        labels: `empirical`, `sample`, `pred` or `exact`.
    """

    name = "kfac"
    family = "Fisher, Kronecker"
    besides = "products with a square matrix as wide as each layer's input"
    reference = "Ritter, Botev and Barber: Online Structured Laplace Approximations, NeurIPS 2018"
    search_space = search_over(strength=(1e-1, 1e10))

    strength: NonNegative = 1e4
    labels: Labels = "exact"

    def edit_grads(self, step: Step) -> None:
        """Add strength · A (W − W*) G to each weight's gradient."""
        if not self.anchor_ or not self.strength:
            return
        with torch.no_grad():
            for name, value in step.model.named_parameters():
                gap = value - self.anchor_[name]
                if name in self.factors_:
                    pull = KroneckerFactor(**self.factors_[name]).apply(gap)
                else:
                    pull = self.diagonal_[name] * gap
                value.grad = self.strength * pull if value.grad is None else value.grad.add_(pull, alpha=self.strength)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Two products for each weight matrix."""
        return True
