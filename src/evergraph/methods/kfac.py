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
    """Penalty strength/2 Σ_layers tr(Dᵀ A D G) with D = W − W_{t−1}: the Fisher matrix as A ⊗ G in every layer.

    After each task the factors are merged with the running ones (A as a mean and G as a sum over tasks, which gives
    the sum of the tasks' products if they share A), and the anchor moves to the current parameters. Parameters that
    are not weight matrices (attention vectors) get the Fisher diagonal.

    With a `rank`, steps approximate an A with more rows by its leading eigenvectors U, with eigenvalues a, and the
    diagonal of the rest:

        A ⊗ G ≈ U diag(a) Uᵀ ⊗ G + diag(A − U diag(a) Uᵀ) ⊗ diag(G),

    so that the diagonal of the product is exact and a step costs features × rank × width instead of features² × width.
    A itself is stored and merged in full.

    Args:
        strength: λ; 1e4, the paper's value for EWC.
        labels: `empirical`, `sample`, `pred` or `exact`.
        rank: largest number of rows for which A is used in full, and number of eigenvectors of a larger A; 0 uses
            every A in full.
    """

    name = "kfac"
    family = "Fisher, Kronecker"
    reference = "Ritter, Botev and Barber: Online Structured Laplace Approximations, NeurIPS 2018"
    search_space = search_over(strength=(1e-1, 1e10))

    strength: NonNegative = 1e4
    labels: Labels = "exact"
    rank: NonNegativeInt = 0

    def prepare(self, context: Context) -> None:
        """Compute the leading eigenvectors of large factors, which are fixed during a task."""
        context.cache["low rank"] = {
            name: LowRankFactor.of(self.factor(name), self.rank)
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
                pull = self.factor(name).apply(gap) if known else self.diagonal_[name] * gap
                value.grad.add_(pull, alpha=self.strength)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: a step computes two products per weight matrix."""
        return True


@dataclass(frozen=True, eq=False)
class LowRankFactor:
    """Low-rank approximation U diag(a) Uᵀ ⊗ G + diag(rest) ⊗ diag(G) of a Kronecker factor.

    Args:
        vectors: U, with orthonormal columns.
        core: a, as a column.
        outputs: G.
        rest: diagonal of the remainder, as a column.
    """

    vectors: Tensor
    core: Tensor
    outputs: Tensor
    rest: Tensor

    @classmethod
    def of(cls, factor: KroneckerFactor, rank: int) -> LowRankFactor:
        """Approximate the inputs' factor by its leading eigenvectors and the remainder of its diagonal."""
        inputs = factor.inputs
        values, vectors = (found.to(inputs.dtype) for found in leading_eigenvectors(inputs, rank))
        rest = inputs.diagonal() - vectors.square() @ values
        return cls(vectors, values.unsqueeze(1), factor.outputs, rest.clamp(min=0).unsqueeze(1))

    def add_to(self, grad: Tensor, now: Tensor, then: Tensor, strength: float) -> None:
        """Add strength times the product with now − then, without materializing that difference as a whole."""
        inner = grad.new_zeros(self.vectors.size(1), grad.size(1))  # Uᵀ D
        outputs = strength * self.outputs
        diagonal = outputs.diagonal().contiguous()
        for part, a, b, vectors, rest in in_pieces(grad, now, then, self.vectors, self.rest):
            gap = a - b
            inner.addmm_(vectors.T, gap)
            part.addcmul_(gap.mul_(diagonal), rest)
        grad.addmm_(self.vectors, (self.core * inner) @ outputs)
