"""Natural continual learning (Kao, Jensen, van de Ven, Bernacchia and Hennequin, NeurIPS 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.settings import Positive, PositiveInt
from evergraph.curvature.labels import Labels
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step
from evergraph.methods.kronecker import KroneckerMemory, leading_eigenvectors
from evergraph.methods.projection.inner_products import inner_products, watch_first_layer
from evergraph.methods.quadratic import in_pieces


@METHODS.register
@dataclass(repr=False)
class NCL(KroneckerMemory):
    """Steps of gradient descent in the metric of the prior, which past tasks have made: θ ← θ − γ (Λ⁻¹∇ℓ + θ − μ).

    Bayes' rule makes the last posterior, N(μ, Λ⁻¹), the prior of this task. With the precision per example
    Λ = prior · I + F, F the past tasks' Fisher as A ⊗ G in every layer, and ∇ℓ the gradient of the loss per example,
    a step within a trust region of the prior's own metric follows

        prior · Λ⁻¹ ∇ℓ + prior · (θ − μ),

    which is the gradient itself where the past has no curvature, and shrinks by prior / (prior + curvature) where it
    has some. In the eigenvectors U of A and V of G, with eigenvalues a and g, the inverse is exact:
    Λ⁻¹ ∇ = U [(Uᵀ ∇ V)_ij / (prior + a_i g_j)] Vᵀ.

    Of a factor with more rows than `rank` the leading eigenvectors alone are found, by subspace iteration, and along
    the others, where the past's inputs hardly reach, the gradient is left as it is. So a step costs
    features × rank × width, and not features² × width.

    Args:
        prior: precision of the very first prior, per example (p_w⁻² in the paper, divided by the number of examples).
            The smaller, the more firmly old tasks are held; the larger, the more every parameter stays at μ.
        labels: of the Fisher: `empirical`, `sample`, `pred` or `exact`.
        rank: eigenvectors of each factor that are found at most; factors with no more rows are inverted exactly.
    """

    name = "ncl"
    family = "projection"
    reference = "Kao et al.: Natural continual learning: success is a journey, not (just) a destination, NeurIPS 2021"
    reads_layers = True
    training = MappingProxyType({"optimizer": "sgd", "lr": 0.05, "reduction": "mean", "weight_decay": 0.0})
    search_space = MappingProxyType({"prior": (1e-8, 1e-1), "lr": (1e-3, 1.0)})
    hold = ()

    prior: Positive = 1e-4
    labels: Labels = "exact"
    rank: PositiveInt = 256

    def prepare(self, context: Context) -> None:
        """The factors' eigenvectors: they stand still during a task."""
        context.cache["eigenvectors"] = {
            name: tuple(leading_eigenvectors(factor[side], self.rank) for side in ("inputs", "outputs"))
            for name, factor in self.factors_.items()
        }

    def observe(self, step: Step) -> None:
        """What comes back to the first layer gives Uᵀ∇ there."""
        if self.anchor_:
            watch_first_layer(self, step)

    def edit_grads(self, step: Step) -> None:
        """prior · (Λ⁻¹ ∇ + θ − μ) in the gradient's place; against a summed loss, times the batch's size."""
        if not self.anchor_:
            return
        scale = self.prior * (step.batch.num_examples if step.context.reduction == "sum" else 1)
        with torch.no_grad():
            for name, value in step.context.params.items():
                if name not in self.anchor_:  # frozen in all tasks so far
                    continue
                if value.grad is None:
                    value.grad = torch.zeros_like(value)
                else:
                    self.precondition(step, name, value.grad)
                for grad, now, then in in_pieces(value.grad, value, self.anchor_[name]):
                    grad.add_(now - then, alpha=scale)

    def precondition(self, step: Step, name: str, grad: Tensor) -> None:
        """prior · Λ⁻¹ ∇ for one parameter, in the gradient's place."""
        context = step.context
        if name not in self.factors_:
            grad.mul_(self.prior / (self.prior + self.diagonal_[name]))
            return
        key = ("preconditioner", name, grad.dtype)
        if key not in context.cache:  # once per task: a step shall do products alone
            (a, u), (g, v) = context.cache["eigenvectors"][name]
            curvature = a.clamp(min=0).unsqueeze(1) * g.clamp(min=0)
            taken = curvature / (self.prior + curvature)  # 1 − prior / (prior + curvature)
            context.cache[key] = (u.to(grad.dtype), v.to(grad.dtype), taken.to(grad.dtype))
        u, v, taken = context.cache[key]
        inner = inner_products(step, name, u, grad)
        grad.addmm_(u, (taken * (inner @ v)) @ v.T, alpha=-1)  # in the order that is cheapest for thin u

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Four matrix products per weight."""
        return True
