"""Online structured Laplace approximation with Kronecker factors (Ritter, Botev and Barber, NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evergraph.core.capabilities import capability
from evergraph.core.params import Params, copy_params
from evergraph.core.recording import recorded_products
from evergraph.curvature import LABELS, KroneckerFactor, fisher_diagonal, kronecker_factors, measuring
from evergraph.errors import EvergraphError, one_of
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, Step, search_over
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class KFAC(Method):
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
    reference = "Ritter, Botev and Barber: Online Structured Laplace Approximations, NeurIPS 2018"
    access = Access(keeps=("parameters",))
    search_space = search_over(strength=(1e-1, 1e10))

    strength: float = 1e4
    labels: str = "exact"
    factors_: dict[str, Params] = state(dict)
    diagonal_: Params = state(dict, like="params")
    anchor_: Params = state(dict, like="params", new="values")
    num_tasks_: int = state(int)

    def __post_init__(self) -> None:
        one_of("kind of labels", self.labels, LABELS)

    def start_task(self, context: Context) -> None:
        """Factors need the layers' inputs and outputs: refuse a model that does not show them."""
        with torch.no_grad(), recorded_products() as products:
            context.model(next(context.batches(1)))
        if not products:
            raise EvergraphError(
                "kfac needs gcn, sage or gat; a foreign module does not show its layers: use online-ewc"
            )

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

    def end_task(self, context: Context) -> None:
        """Measure the factors over the task's training nodes and merge them."""
        over = (context.problem, self.labels, context.generator)
        with measuring(context.model, next(context.batches(1))):
            factors = kronecker_factors(context.model, context.batches, *over)
            rest = [name for name in context.params if name not in factors]
            diagonal = fisher_diagonal(context.model, context.batches, *over) if rest else {}
        self.num_tasks_ += 1
        for name, new in factors.items():
            old = self.factors_.setdefault(name, {"inputs": new.inputs, "outputs": torch.zeros_like(new.outputs)})
            mean = old["inputs"] + (new.inputs - old["inputs"]) / self.num_tasks_
            self.factors_[name] = {"inputs": mean, "outputs": old["outputs"] + new.outputs}
        for name in rest:
            self.diagonal_[name] = self.diagonal_.get(name, 0) + diagonal[name] / context.num_train
        self.anchor_ = copy_params(context.model)

    def grow(self, before: Params, after: Params) -> None:
        """New output units have no curvature yet: pad the output factors with zeros."""
        super().grow(before, after)
        for name, factor in self.factors_.items():
            wide = factor["outputs"].new_zeros(after[name].size(1), after[name].size(1))
            size = factor["outputs"].size(0)
            wide[:size, :size] = factor["outputs"]
            self.factors_[name] = {"inputs": factor["inputs"], "outputs": wide}
