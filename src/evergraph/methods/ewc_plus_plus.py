"""EWC++ (Chaudhry et al., ECCV 2018): the Fisher diagonal as a moving average during training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evergraph.core.capabilities import capability
from evergraph.core.params import Params
from evergraph.core.settings import BelowOne, NonNegative
from evergraph.curvature import pick_labels, random_sign_diagonal, require_deterministic, squared_gradient
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step, search_over
from evergraph.methods.quadratic import Quadratic
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class EWCPlusPlus(Quadratic):
    """F ← decay · F + (1−decay) · F_batch at every step; after a task, F and θ become importance and anchor.

    F_batch is the mean over the batch of squared single-node gradients, estimated without bias from one
    backward pass with random signs. The published code squares the batch gradient instead
    (`fisher="squared-batch"`), which is not the Fisher information.

    Args:
        strength: λ; 1e4, the paper's value for EWC.
        decay: 1−α, the weight of the past; 0.9 in its authors' code.
        labels: `empirical`, `sample` or `pred`.
        fisher: `per-node` or `squared-batch`.
    """

    name = "ewc++"
    family = "Fisher, diagonal"
    besides = "the network backwards a second time, for the Fisher diagonal"
    reference = "Chaudhry et al.: Riemannian Walk for Incremental Learning, ECCV 2018"
    search_space = search_over(strength=(1e-1, 1e10))

    strength: NonNegative = 1e4
    decay: BelowOne = 0.9
    labels: Literal["empirical", "sample", "pred"] = "empirical"
    fisher: Literal["per-node", "squared-batch"] = "per-node"
    average_: Params = state(dict, like="params")

    def start_task(self, context: Context) -> None:
        """Raise if the model is random in training mode, in which the Fisher is measured."""
        require_deterministic(context.model, next(context.batches()), training=True)

    def observe(self, step: Step) -> None:
        """Add the batch's Fisher to the average while the autograd graph is alive."""
        outputs, size = step.logits.detach(), step.batch.num_examples
        picked = pick_labels(step.problem, outputs, self.labels, step.batch.y, step.context.generator)
        cotangent, params = step.problem.score(outputs, picked), step.context.params
        if self.fisher == "per-node":
            squares = random_sign_diagonal(step.logits, params, cotangent / size**0.5, step.context.generator)
        else:
            squares = squared_gradient(step.logits, params, cotangent / size)
        for name, value in squares.items():
            average = self.average_.setdefault(name, value)  # starts at the first batch's Fisher
            average.lerp_(value, 1 - self.decay)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: the average is updated in place, and signs and labels are the device's own random numbers."""
        return True

    def measure(self, context: Context) -> Params:
        """Return a copy of the moving average."""
        return {name: value.clone() for name, value in self.average_.items()}

    def merge(self, importance: Params, anchor: Params) -> None:
        """Replace Fisher and anchor; the moving average itself continues from task to task."""
        self.importance_, self.anchor_ = importance, {name: anchor[name] for name in importance}
