"""EWC++ (Chaudhry et al., ECCV 2018): the Fisher diagonal as a moving average during training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.curvature import pick_labels, random_sign_diagonal, score
from evergraph.errors import EvergraphError, one_of
from evergraph.methods.base import Context, Step
from evergraph.methods.quadratic import Quadratic
from evergraph.params import Params


@dataclass(repr=False)
class EWCPlusPlus(Quadratic):
    """F ← α F_batch + (1−α) F at every step; at a task's end F and the parameters become importance and anchor.

    F_batch is the mean over the batch of squared single-node gradients, estimated without bias from one
    backward pass by random signs. The published code squares the batch gradient instead
    (`fisher="squared-batch"`), which is not the Fisher information.

    Args:
        strength: λ.
        decay: α, the weight of the newest batch.
        labels: `empirical`, `sample` or `pred`.
        fisher: `per-node` or `squared-batch`.
    """

    name = "ewc++"
    family = "Fisher, diagonal"
    reference = "Chaudhry et al.: Riemannian Walk for Incremental Learning, ECCV 2018"

    strength: float = 1e4
    decay: float = 0.1
    labels: str = "empirical"
    fisher: str = "per-node"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("kind of labels", self.labels, ("empirical", "sample", "pred"))
        one_of("fisher", self.fisher, ("per-node", "squared-batch"))
        if not 0 < self.decay <= 1:
            raise EvergraphError(f"ewc++: decay={self.decay} must be above 0 and at most 1")
        self.average_: Params = {}

    def penalty(self, step: Step) -> Tensor | None:
        """Measure the batch's Fisher while the graph is alive; nothing is added to the loss here."""
        logits = step.scoped_logits.detach()
        picked = pick_labels(logits, self.labels, step.targets, step.context.generator)
        cotangent = step.widen(score(logits, picked))
        params = step.context.params
        if self.fisher == "per-node":
            batch = random_sign_diagonal(step.logits, params, cotangent, step.context.generator)
            batch = {name: value / step.batch.num_seeds for name, value in batch.items()}
        else:
            mean = cotangent / step.batch.num_seeds
            grads = torch.autograd.grad(step.logits, list(params.values()), mean, retain_graph=True, allow_unused=True)
            batch = {n: torch.zeros_like(p) if g is None else g.square() for (n, p), g in zip(params.items(), grads)}
        for name, value in batch.items():
            self.average_[name] = self.average_[name].lerp(value, self.decay) if name in self.average_ else value
        return None

    def measure(self, context: Context) -> Params:
        """The moving average as it stands."""
        return {name: value.clone() for name, value in self.average_.items()}

    def merge(self, importance: Params, anchor: Params) -> None:
        """One running Fisher, one anchor: the average goes on from task to task."""
        self.importance_, self.anchor_ = importance, anchor
