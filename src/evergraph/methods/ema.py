"""Moving average of the parameters over tasks: θ_t ← β θ_{t−1} + (1−β) θ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from evergraph.core.params import Params, named_numbers
from evergraph.core.settings import BelowOne
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, Context, Method, search_over
from evergraph.methods.state import state


def average_with(model: nn.Module, previous: Params, decay: float) -> None:
    """Set θ ← decay · previous + (1−decay) · θ in place, and likewise everything else in `previous`."""
    with torch.no_grad():
        for name, value in named_numbers(model):
            if name in previous:
                value.lerp_(previous[name], decay)


def averaged_numbers(model: nn.Module) -> Params:
    """Return a copy of what is averaged: parameters and their running statistics, but no counters."""
    return {name: value.detach().clone() for name, value in named_numbers(model) if value.is_floating_point()}


@METHODS.register
@dataclass(repr=False)
class EMA(Method):
    """After each task, average the parameters with those stored after the previous task (the paper's Algorithm 1).

    θ_t ← β θ_{t−1} + (1−β) θ. The result is the starting point of the next task and, for methods that come after it in
    `Compose`, the anchor. Running statistics of normalization layers are averaged along with their parameters.

    Args:
        decay: β, the weight of the earlier parameters; 0.5 in the paper, 0 turns averaging off.
        from_first_task: follow Algorithm 1 to the letter: average the first task too, with the initial parameters θ_0.
            By default averaging begins with the second task, since θ_0 has learned nothing worth keeping.
    """

    name = "ema"
    step_settings = ()
    family = "parameter averaging"
    reference = "Yin, Sun and Wu: Unbiased Online Curvature Approximation, Algorithm 1"
    access = Access(keeps=("parameters",))
    search_space = search_over(decay=(0.0, 0.9))
    hold = ("decay",)

    decay: BelowOne = 0.5
    from_first_task: bool = False
    previous_: Params = state(dict, like="params", new="values")

    def start_task(self, context: Context) -> None:
        """Store θ_0 if the first task is averaged with it."""
        if self.decay and self.from_first_task and not self.previous_:
            self.previous_ = averaged_numbers(context.model)

    def end_task(self, context: Context) -> None:
        """Average with the stored parameters, then store the result."""
        if not self.decay:
            return
        if self.previous_:
            average_with(context.model, self.previous_, self.decay)
        self.previous_ = averaged_numbers(context.model)
