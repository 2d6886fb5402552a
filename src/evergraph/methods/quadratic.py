"""Base class of EWC, MAS, SI, TWP and related methods: one quadratic penalty, merged over all past tasks.

Σ_t strength/2 Σ_i F_ti (θ_i − θ_ti)² is, whatever the number of tasks, one quadratic: with weights
Σ_t F_t and centre Σ_t F_t θ_t / Σ_t F_t, plus a constant that has no gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from evergraph.core.capabilities import Answer, capability
from evergraph.core.compiled import Pull, kernels_over
from evergraph.core.params import Params, copy_params
from evergraph.core.settings import NonNegative
from evergraph.methods.access import Access
from evergraph.methods.base import STEP_HOOKS, Context, Method, Step
from evergraph.methods.state import state

AT_ONCE = 2**16  # entries of a parameter processed at once


@dataclass(repr=False)
class Quadratic(Method):
    """A penalty strength/2 Σ_i importance_i (θ_i − anchor_i)², merged over all past tasks.

    State: `importance_` and `anchor_`, two tensors per trained parameter; `constant_`, a number.
    """

    access = Access(keeps=("parameters",))
    training = MappingProxyType({"reduction": "mean", "weight_decay": 0.0})
    """A mean loss makes strengths independent of the batch size; weight decay would pull away from the anchors."""

    step_state = ("importance_", "anchor_")

    strength: NonNegative = 1.0
    importance_: Params = state(dict, like="params")
    anchor_: Params = state(dict, like="params", new="values")
    constant_: float = state(float)

    def stacked_state(self, differing: Collection[str], like: Tensor) -> dict[str, Any]:
        """Return anchors and importances; learners of different strengths have it multiplied into the importances."""
        state = super().stacked_state((), like)
        if "strength" not in differing:
            return state
        weighted = {name: self.strength * value for name, value in self.importance_.items()}
        return {**state, "importance_": weighted, "strength": 1.0}

    def measure(self, context: Context) -> Params:
        """Return the importance of each parameter for the task just learned."""
        raise NotImplementedError

    def end_task(self, context: Context) -> None:
        """Measure the importance and merge it with the past."""
        self.merge(self.measure(context), copy_params(context.model))

    def merge(self, importance: Params, anchor: Params) -> None:
        """Add a task's quadratic to the merged one."""
        for name, new in importance.items():
            if name not in self.importance_:
                self.importance_[name], self.anchor_[name] = new, anchor[name]
                continue
            old, centre = self.importance_[name], self.anchor_[name]
            total = old + new
            share = torch.where(total > 0, new / total, torch.zeros_like(total))
            gap = anchor[name] - centre
            # F₁(θ−a)² + F₂(θ−b)² = (F₁+F₂)(θ−c)² + F₁F₂/(F₁+F₂) (a−b)²
            self.constant_ += float((old * share * gap.square()).sum())
            # exactly one of the two where only one task has importance: Adam would enlarge a rounding to a step
            self.anchor_[name] = torch.lerp(centre, anchor[name], share)
            self.importance_[name] = total

    def move(self, importance: Params, anchor: Params, decay: float = 1.0) -> None:
        """Merge in another way: importance ← decay · importance + new, anchor ← the current parameters."""
        for name, old in self.importance_.items():
            importance[name] = decay * old + importance.get(name, 0)  # parameters frozen now have no new importance
        self.importance_, self.anchor_ = importance, {name: anchor[name] for name in importance}

    def value(self, params: Params) -> float:
        """Return the penalty itself, for logs: strength/2 (Σ_i importance_i (θ_i − anchor_i)² + constant)."""
        parts = [(self.importance_[n] * (params[n] - self.anchor_[n]).square()).sum() for n in self.importance_]
        return self.strength / 2 * (float(sum(parts)) + self.constant_)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: a step runs two fused operations per parameter."""
        return True

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_stacked(self, context: Context) -> Answer:
        """Return True: the pull is elementwise."""
        return True

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """Return the quadratic; empty before the first importance and with strength 0."""
        idle = not self.importance_ or not self.strength
        return [] if idle else ["quadratic", self.strength, self.importance_, self.anchor_]

    @capability(rests_on=("observe", "edit_grads", "after_step"))
    def pulls(self, context: Context) -> dict[Tensor, Pull]:
        """Return anchor, importance and strength by parameter, for optimizers that can replace `edit_grads`."""
        if not self.importance_ or not self.strength:
            return {}
        params = [(name, value) for name, value in context.params.items() if name in self.importance_]
        return {value: (self.anchor_[name], self.importance_[name], self.strength) for name, value in params}

    def edit_grads(self, step: Step) -> None:
        """Add strength · importance · (θ − anchor) to the gradient."""
        if not self.importance_ or not self.strength:
            return
        with torch.no_grad():
            for name, value in step.context.params.items():
                if name not in self.importance_:  # frozen in all tasks so far
                    continue
                if value.grad is None:
                    value.grad = torch.zeros_like(value)
                anchored = value.grad, value, self.anchor_[name], self.importance_[name]
                if (compiled := kernels_over(*anchored)) is not None:
                    compiled.pull(*anchored, self.strength)
                    continue
                parts = in_pieces(value.grad, value, self.anchor_[name], self.importance_[name])
                for grad, now, then, weight in parts:
                    grad.addcmul_(now - then, weight, value=self.strength)


def in_pieces(first: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors of equal length by rows, on a CPU into pieces so small that intermediate results stay in cache."""
    rows = first.size(0) if first.is_cuda else max(1, AT_ONCE * first.size(0) // max(first.numel(), 1))
    return zip(*(tensor.split(rows) for tensor in (first, *others)))


def mean_squared_gradient(context: Context, batch_values: Iterator[Tensor]) -> Params:
    """Return the elementwise mean over batches of (∂value/∂θ)²: batch gradients are squared, not node gradients."""
    params, count = context.params, 0
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    with torch.enable_grad():
        for value in batch_values:
            grads = torch.autograd.grad(value, list(params.values()), allow_unused=True)
            for sum_, grad in zip(total.values(), grads):
                if grad is not None:
                    sum_ += grad.square()
            count += 1
    return {name: sum_ / count for name, sum_ in total.items()}
