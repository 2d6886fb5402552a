"""Gradient episodic memory (Lopez-Paz and Ranzato, NeurIPS 2017): steps that raise no old task's loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evergraph.core.capabilities import Answer, No, capability
from evergraph.core.params import Params
from evergraph.core.settings import NonNegative
from evergraph.curvature import in_mode
from evergraph.data.batching import Batch
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, Step, search_over
from evergraph.methods.memory import MemoryMethod
from evergraph.problems.base import Problem

ROUNDING = 1e-10  # added to the Gram matrix's diagonal, relative to its mean: gradients may be dependent


@METHODS.register
@dataclass(repr=False)
class GEM(MemoryMethod):
    """min ½‖g̃ − g‖² over g̃ with ⟨g̃, g_t⟩ ≥ 0 for every old task t: a step must not raise the loss on any memory.

    g_t is the gradient of the loss on the memory of task t. The programme is solved in its dual, with one variable per
    old task: v = argmin ½ vᵀGGᵀv + gᵀGᵀv over v ≥ 0, and g̃ = g + Gᵀ(v + margin). Losses are means over examples; if
    the training loss is summed over a batch of n, the margin is n · margin, so that g̃ is simply n times as large.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples kept per class if `memory` is empty.
        margin: γ, added to v if a constraint is violated: pulls beyond its boundary, towards lower losses on old
            tasks. 0.5 in the paper; with 0 the products are merely non-negative.
    """

    name = "gem"
    besides = "the graph of the memory"
    reference = "Lopez-Paz and Ranzato: Gradient Episodic Memory for Continual Learning, NeurIPS 2017"
    search_space = search_over(margin=(0.0, 1.0))
    levels, kinds = Method.levels, Method.kinds
    hold = ("margin",)

    margin: NonNegative = 0.5

    def edit_grads(self, step: Step) -> None:
        """Project the gradient if a step along it would raise the loss of an old task."""
        replayed = self.replayed(step.context)
        if replayed is None:
            return
        gradients = memory_gradients(step.context, replayed.problem, replayed.batch, replayed.tasks, len(self.memory_))
        gradient = flat_gradient(step.context.params)
        per_example = step.context.reduction == "mean"  # like the memory's losses; v scales with a summed loss
        margin = self.margin * (1 if per_example else step.batch.num_examples)
        move = projection(gradients, gradient, margin)
        if move is not None:
            add_to_gradient(step.context.params, move)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> Answer:
        """Return True only while there is no memory."""
        return not self.memory_ or No("gem solves its quadratic programme on the CPU")


def memory_gradients(context: Context, problem: Problem, batch: Batch, groups: Tensor, number: int) -> Tensor:
    """Return the gradient of the mean loss on each group of examples, one row per group."""
    params = list(context.params.values())
    with in_mode(context.model, training=False), torch.enable_grad():
        losses = problem.loss(context.model(batch), batch.y)
        empty = torch.zeros(number, dtype=losses.dtype, device=losses.device)
        means = empty.index_add(0, groups, losses) / empty.index_add(0, groups, torch.ones_like(losses))
        rows = [torch.autograd.grad(mean, params, retain_graph=True, allow_unused=True) for mean in means]
    return torch.stack([_flat(row, params) for row in rows])


def projection(gradients: Tensor, gradient: Tensor, margin: float = 0.0) -> Tensor | None:
    """Return what to add to the gradient, Gᵀ(v + margin); None if no constraint is violated."""
    from scipy.linalg import cholesky, solve_triangular  # imported lazily: it takes a quarter of a second
    from scipy.optimize import nnls

    precise = gradients.double()  # float32's rounding exceeds what is added to the diagonal
    products = (precise @ gradient.double()).cpu().numpy()
    if products.min() >= 0:
        return None
    gram = (precise @ precise.T).cpu().numpy()
    gram += np.eye(len(gram)) * (ROUNDING * np.trace(gram) / len(gram) + np.finfo(float).tiny)
    # ½ vᵀ LLᵀ v + bᵀ v is ½ ‖Lᵀ v + L⁻¹ b‖² up to a constant: non-negative least squares
    lower = cholesky(gram, lower=True)
    dual, _ = nnls(lower.T, -solve_triangular(lower, products, lower=True))
    return torch.from_numpy(dual + margin).to(gradients) @ gradients


def flat_gradient(params: Params) -> Tensor:
    """Return the parameters' gradients, flattened and concatenated."""
    return _flat([value.grad for value in params.values()], list(params.values()))


def add_to_gradient(params: Params, move: Tensor) -> None:
    """Add a flat vector to the parameters' gradients."""
    for value, part in zip(params.values(), move.split([value.numel() for value in params.values()])):
        change = part.view_as(value)
        value.grad = change.clone() if value.grad is None else value.grad.add_(change)


def _flat(parts: list[Tensor | None] | tuple[Tensor | None, ...], params: list[Tensor]) -> Tensor:
    present = [torch.zeros_like(value) if part is None else part for part, value in zip(parts, params)]
    return torch.cat([part.detach().flatten() for part in present])
