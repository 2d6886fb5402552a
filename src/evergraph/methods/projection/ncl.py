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
    """Gradient descent in the metric of the prior formed by past tasks: θ ← θ − γ (Λ⁻¹∇ℓ + θ − μ).

    Bayes' rule makes the last posterior, N(μ, Λ⁻¹), the prior of this task. With the precision per example
    Λ = prior · I + F, F the past tasks' Fisher as A ⊗ G in every layer, and ∇ℓ the gradient of the loss per example,
    a step within a trust region of the prior's own metric follows

        prior · Λ⁻¹ ∇ℓ + prior · (θ − μ),

    which is the gradient itself where the past has no curvature, and shrinks by prior / (prior + curvature) where it
    has some. In the eigenvectors U of A and V of G, with eigenvalues a and g, the inverse is exact:
    Λ⁻¹ ∇ = U [(Uᵀ ∇ V)_ij / (prior + a_i g_j)] Vᵀ.

    For a factor with more rows than `rank`, only the leading eigenvectors are computed, by subspace iteration; along
    the others, where past inputs hardly reach, the gradient is left unchanged. So a step costs features × rank × width
    instead of features² × width.

    Args:
        prior: precision of the initial prior, per example (p_w⁻² in the paper, divided by the number of examples).
            The smaller, the more firmly old tasks are preserved; the larger, the closer every parameter stays to μ.
        labels: labels of the Fisher: `empirical`, `sample`, `pred` or `exact`.
        rank: maximum number of eigenvectors computed per factor; factors with no more rows are inverted exactly.
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
        """Compute the factors' eigenvectors, which are fixed during a task."""
        context.cache["eigenvectors"] = {
            name: tuple(leading_eigenvectors(factor[side], self.rank) for side in ("inputs", "outputs"))
            for name, factor in self.factors_.items()
        }

    def observe(self, step: Step) -> None:
        """Record the gradient at the first layer's output, which gives Uᵀ∇ of the first weight."""
        if self.anchor_:
            watch_first_layer(self, step)

    def edit_grads(self, step: Step) -> None:
        """Replace the gradient by prior · (Λ⁻¹ ∇ + θ − μ), with θ − μ times the batch size if the loss is summed."""
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
        """Replace one parameter's gradient by prior · Λ⁻¹ ∇."""
        context = step.context
        if name not in self.factors_:
            grad.mul_(self.prior / (self.prior + self.diagonal_[name]))
            return
        key = ("preconditioner", name, grad.dtype)
        if key not in context.cache:  # once per task, so that steps compute only products
            (a, u), (g, v) = context.cache["eigenvectors"][name]
            curvature = a.clamp(min=0).unsqueeze(1) * g.clamp(min=0)
            taken = curvature / (self.prior + curvature)  # 1 − prior / (prior + curvature)
            context.cache[key] = (u.to(grad.dtype), v.to(grad.dtype), taken.to(grad.dtype))
        u, v, taken = context.cache[key]
        inner = inner_products(step, name, u, grad)
        grad.addmm_(u, (taken * (inner @ v)) @ v.T, alpha=-1)  # the cheapest order for thin u

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: a step computes four matrix products per weight."""
        return True
