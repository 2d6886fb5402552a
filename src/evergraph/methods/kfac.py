"""Online structured Laplace approximation with Kronecker factors (Ritter, Botev and Barber, NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evergraph.curvature import KroneckerFactor, fisher_diagonal, kronecker_factors, require_deterministic
from evergraph.curvature.labels import LABELS
from evergraph.errors import one_of
from evergraph.methods.base import Context, Method, Step
from evergraph.params import Params, copy_params

NODES_AT_ONCE = 16


@dataclass(repr=False)
class KFAC(Method):
    """strength/2 Σ_layers tr(Dᵀ A D G) with D = W − W_{t−1}: the Fisher as A ⊗ G in every layer.

    After each task the factors are added to the running ones (A as a mean, G as a sum over tasks) and the
    anchor moves to the present parameters. Parameters that are not weight matrices (attention vectors)
    get the Fisher diagonal.

    Args:
        strength: λ.
        labels: `empirical`, `sample`, `pred` or `exact`.
    """

    name = "kfac"
    family = "Fisher, Kronecker"
    reference = "Ritter, Botev and Barber: Online Structured Laplace Approximations, NeurIPS 2018"

    strength: float = 1e4
    labels: str = "exact"

    def __post_init__(self) -> None:
        one_of("kind of labels", self.labels, LABELS)
        self.inputs_: Params = {}
        self.outputs_: Params = {}
        self.diagonal_: Params = {}
        self.anchor_: Params = {}
        self.tasks_: int = 0

    def edit_grads(self, step: Step) -> None:
        """Add strength · A (W − W*) G to each weight's gradient."""
        if not self.anchor_ or not self.strength:
            return
        with torch.no_grad():
            for name, value in step.model.named_parameters():
                gap = value - self.anchor_[name]
                if name in self.inputs_:
                    pull = KroneckerFactor(self.inputs_[name], self.outputs_[name]).apply(gap)
                else:
                    pull = self.diagonal_[name] * gap
                value.grad = self.strength * pull if value.grad is None else value.grad.add_(pull, alpha=self.strength)

    def end_task(self, context: Context) -> None:
        """Measure the factors over the task's training nodes and merge them."""
        model, was_training = context.model, context.model.training
        model.eval()
        try:
            require_deterministic(model, next(context.batches(1)))
            settings = (context.classes, self.labels, context.targets, context.generator)
            factors = kronecker_factors(model, context.batches(NODES_AT_ONCE), *settings)
            rest = set(context.params) - set(factors)
            diagonal = fisher_diagonal(model, context.batches(NODES_AT_ONCE), *settings) if rest else {}
        finally:
            model.train(was_training)
        self.tasks_ += 1
        for name, factor in factors.items():
            if name not in self.inputs_:
                self.inputs_[name], self.outputs_[name] = factor.inputs, factor.outputs
            else:
                self.inputs_[name] = self.inputs_[name] + (factor.inputs - self.inputs_[name]) / self.tasks_
                self.outputs_[name] = self.outputs_[name] + factor.outputs
        for name in sorted(rest):
            self.diagonal_[name] = self.diagonal_.get(name, 0) + diagonal[name] / context.num_train
        self.anchor_ = copy_params(model)

    def grow(self, before: Params, after: Params) -> None:
        """New output units have no curvature yet: pad the output factors with zeros."""
        super().grow(before, after)
        for name, factor in self.outputs_.items():
            wide = factor.new_zeros(after[name].size(1), after[name].size(1))
            wide[: factor.size(0), : factor.size(1)] = factor
            self.outputs_[name] = wide
