"""Synaptic intelligence (Zenke, Poole and Ganguli, ICML 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evergraph.core.capabilities import capability
from evergraph.core.params import Params, copy_params
from evergraph.core.settings import NonNegative, Positive
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step, search_over
from evergraph.methods.quadratic import Quadratic, in_pieces
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class SI(Quadratic):
    """Importance Ω_i ← max(Ω_i + ω_i / (Δ_i² + damping), 0), with ω_i = −Σ_steps g_i · δθ_i the path integral.

    g is the gradient of the loss without the penalty. In the limit of small steps Σ_i ω_i is the decrease of
    the loss over the task. In `Compose`, put it before methods that edit gradients; penalties of other
    methods are part of the loss it integrates.

    Args:
        strength: twice the paper's c (the quadratic here carries a factor ½); c = 1 for its split MNIST.
        damping: ξ, keeps the quotient finite for parameters that did not move; 1e-3 for its split MNIST.
    """

    name = "si"
    family = "importance"
    reference = "Zenke, Poole and Ganguli: Continual Learning Through Synaptic Intelligence, ICML 2017"
    search_space = search_over(strength=(1e-3, 1e5))

    strength: NonNegative = 1.0
    damping: Positive = 1e-3
    path_: Params = state(dict, like="params")
    start_: Params = state(dict, like="params")

    def start_task(self, context: Context) -> None:
        """Store the initial parameters of the task and reset the path integral."""
        self.start_ = copy_params(context.model)
        self.path_ = {name: torch.zeros_like(value) for name, value in self.start_.items()}

    def edit_grads(self, step: Step) -> None:
        """Store the loss's own gradient and the parameters it was taken at, then add the quadratic's gradient."""
        params = step.context.params
        self._gradient = {name: value.grad.clone() for name, value in params.items() if value.grad is not None}
        self._before = {name: params[name].detach().clone() for name in self._gradient}
        super().edit_grads(step)

    def after_step(self, step: Step) -> None:
        """Update the path integral: ω ← ω − g · δθ."""
        for name, gradient in self._gradient.items():
            now = step.context.params[name].detach()
            for path, of_loss, after, before in in_pieces(self.path_[name], gradient, now, self._before[name]):
                path.addcmul_(of_loss, after - before, value=-1.0)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: the path integral is accumulated in place."""
        return True

    def measure(self, context: Context) -> Params:
        """Return ω / (Δ² + damping)."""
        return {
            name: self.path_[name] / ((value.detach() - self.start_[name]).square() + self.damping)
            for name, value in context.params.items()
        }

    def merge(self, importance: Params, anchor: Params) -> None:
        """Add the importance, clamped at zero, and move the anchor."""
        self.move(importance, anchor)
        self.importance_ = {name: value.clamp(min=0) for name, value in self.importance_.items()}
