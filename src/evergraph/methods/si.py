"""Synaptic intelligence (Zenke, Poole and Ganguli, ICML 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evergraph.methods.base import Context, Step
from evergraph.methods.quadratic import Quadratic
from evergraph.params import Params, copy_params


@dataclass(repr=False)
class SI(Quadratic):
    """Importance Ω_i = Σ_tasks max(ω_i, 0) / (Δ_i² + damping), with ω_i = −Σ_steps g_i · δθ_i the path integral.

    In the limit of small steps Σ_i ω_i is the drop of the loss over the task.

    Args:
        strength: twice the paper's c (the quadratic here carries a factor ½).
        damping: ξ, keeps the quotient finite for parameters that did not move.
    """

    name = "si"
    family = "importance"
    reference = "Zenke, Poole and Ganguli: Continual Learning Through Synaptic Intelligence, ICML 2017"

    strength: float = 1.0
    damping: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path_: Params = {}
        self.start_: Params = {}
        self._gradient: Params = {}
        self._before: Params = {}

    def start_task(self, context: Context) -> None:
        """Remember where the task began."""
        self.start_ = copy_params(context.model)
        self.path_ = {name: torch.zeros_like(value) for name, value in self.start_.items()}

    def edit_grads(self, step: Step) -> None:
        """Keep the loss's own gradient and the point it was taken at, then add the quadratic's."""
        params = step.model.named_parameters()
        self._gradient = {name: value.grad.clone() for name, value in params if value.grad is not None}
        self._before = copy_params(step.model)
        super().edit_grads(step)

    def after_step(self, step: Step) -> None:
        """ω ← ω − g · δθ."""
        with torch.no_grad():
            for name, value in step.model.named_parameters():
                if name in self._gradient:
                    self.path_[name].addcmul_(self._gradient[name], value - self._before[name], value=-1.0)

    def measure(self, context: Context) -> Params:
        """max(ω, 0) / (Δ² + damping)."""
        return {
            name: self.path_[name].clamp(min=0) / ((value.detach() - self.start_[name]).square() + self.damping)
            for name, value in context.params.items()
        }

    def merge(self, importance: Params, anchor: Params) -> None:
        """Add the importance, move the anchor."""
        for name, old in self.importance_.items():
            importance[name] = old + importance[name]
        self.importance_, self.anchor_ = importance, anchor
