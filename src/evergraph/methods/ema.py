"""Moving average of the parameters over tasks: θ_t ← β θ_{t−1} + (1−β) θ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from evergraph.core.params import Params, copy_params
from evergraph.core.settings import BelowOne
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, Context, Method, search_over
from evergraph.methods.state import state


def average_with(model: nn.Module, previous: Params, decay: float) -> None:
    """θ ← decay · previous + (1−decay) · θ, in place."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.lerp_(previous[name], decay)


@METHODS.register
@dataclass(repr=False)
class EMA(Method):
    """After each task, average the parameters with those stored after the one before (the paper, Algorithm 1).

    θ_t ← β θ_{t−1} + (1−β) θ. The result is the start of the next task and, for methods that stand after it in
    `Compose`, the anchor.

    Args:
        decay: β, the weight of the earlier parameters; 0.5 in the paper, 0 turns averaging off.
        from_first_task: Algorithm 1 to the letter: the first task is averaged too, with the initial parameters θ_0.
            By default averaging begins with the second task, since θ_0 has learned nothing that could be kept.
    """

    name = "ema"
    family = "parameter averaging"
    reference = "Yin, Sun and Wu: Unbiased Online Curvature Approximation, Algorithm 1"
    access = Access(keeps=("parameters",))
    search_space = search_over(decay=(0.0, 0.9))
    hold = ("decay",)

    decay: BelowOne = 0.5
    from_first_task: bool = False
    previous_: Params = state(dict, like="params", new="values")

    def start_task(self, context: Context) -> None:
        """Remember θ_0 where it takes part."""
        if self.decay and self.from_first_task and not self.previous_:
            self.previous_ = copy_params(context.model)

    def end_task(self, context: Context) -> None:
        """Average with the stored parameters, then store the result."""
        if not self.decay:
            return
        if self.previous_:
            average_with(context.model, self.previous_, self.decay)
        self.previous_ = copy_params(context.model)
