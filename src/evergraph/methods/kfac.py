"""Online structured Laplace approximation with Kronecker factors (Ritter, Botev and Barber, NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.settings import NonNegative, NonNegativeInt
from evergraph.curvature import KroneckerFactor
from evergraph.curvature.labels import Labels
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step, search_over
from evergraph.methods.kronecker import KroneckerMemory, leading_eigenvectors
from evergraph.methods.quadratic import in_pieces


@METHODS.register
@dataclass(repr=False)
class KFAC(KroneckerMemory):
    """strength/2 Σ_layers tr(Dᵀ A D G) with D = W − W_{t−1}: the Fisher as A ⊗ G in every layer.

    After each task the factors are merged with the running ones (A as a mean, G as a sum over tasks: the
    sum of the tasks' products where they share A) and the anchor moves to the present parameters.
    Parameters that are not weight matrices (attention vectors) get the Fisher diagonal.

    With a `rank`, steps take of an A with more rows the leading eigenvectors U with eigenvalues a, and of the rest its
    diagonal:

        A ⊗ G ≈ U diag(a) Uᵀ ⊗ G + diag(A − U diag(a) Uᵀ) ⊗ diag(G),

    so that the diagonal of the whole is exact and a step costs features × rank × width, not features² × width. A
    itself is kept and merged whole.

    Args:
        strength: λ; 1e4, the paper's value for EWC.
        labels: `empirical`, `sample`, `pred` or `exact`.
        rank: rows up to which A is taken as it is, and eigenvectors of a larger one; 0 takes every A as it is.
    """

    name = "kfac"
    family = "Fisher, Kronecker"
    reference = "Ritter, Botev and Barber: Online Structured Laplace Approximations, NeurIPS 2018"
    search_space = search_over(strength=(1e-1, 1e10))

    strength: NonNegative = 1e4
    labels: Labels = "exact"
    rank: NonNegativeInt = 0

    def prepare(self, context: Context) -> None:
        """The leading eigenvectors of large factors: they stand still during a task."""
        context.cache["low rank"] = {
            name: LowRankFactor.of(KroneckerFactor(**factor), self.rank)
            for name, factor in self.factors_.items()
            if 0 < self.rank < factor["inputs"].size(0)
        }

    def edit_grads(self, step: Step) -> None:
        """Add strength · A (W − W*) G to each weight's gradient."""
        if not self.anchor_ or not self.strength:
            return
        low_rank = step.context.cache.get("low rank", {})
        with torch.no_grad():
            for name, value in step.context.params.items():
                if name not in self.anchor_:  # frozen in all tasks so far
                    continue
                if value.grad is None:
                    value.grad = torch.zeros_like(value)
                if name in low_rank:
                    low_rank[name].add_to(value.grad, value, self.anchor_[name], self.strength)
                    continue
                gap = value - self.anchor_[name]
                known = name in self.factors_
                pull = KroneckerFactor(**self.factors_[name]).apply(gap) if known else self.diagonal_[name] * gap
                value.grad.add_(pull, alpha=self.strength)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Two products for each weight matrix."""
        return True


@dataclass(frozen=True, eq=False)
class LowRankFactor:
    """U diag(a) Uᵀ ⊗ G + rest ⊗ diag(G), with a diagonal rest.

    Args:
        vectors: U, orthonormal columns.
        core: a, a column.
        outputs: G.
        rest: a column.
    """

    vectors: Tensor
    core: Tensor
    outputs: Tensor
    rest: Tensor

    @classmethod
    def of(cls, factor: KroneckerFactor, rank: int) -> LowRankFactor:
        """The leading eigenvectors of the inputs' factor; what they leave of its diagonal is the rest."""
        inputs = factor.inputs
        values, vectors = (found.to(inputs.dtype) for found in leading_eigenvectors(inputs, rank))
        rest = inputs.diagonal() - vectors.square() @ values
        return cls(vectors, values.unsqueeze(1), factor.outputs, rest.clamp(min=0).unsqueeze(1))

    def add_to(self, grad: Tensor, now: Tensor, then: Tensor, strength: float) -> None:
        """Add strength times the product with now − then, which is never there as a whole."""
        inner = grad.new_zeros(self.vectors.size(1), grad.size(1))  # Uᵀ D
        outputs = strength * self.outputs
        diagonal = outputs.diagonal().contiguous()
        for part, a, b, vectors, rest in in_pieces(grad, now, then, self.vectors, self.rest):
            gap = a - b
            inner.addmm_(vectors.T, gap)
            part.addcmul_(gap.mul_(diagonal), rest)
        grad.addmm_(self.vectors, (self.core * inner) @ outputs)
