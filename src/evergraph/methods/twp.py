"""Topology-aware weight preserving (Liu, Yang and Wang, AAAI 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.data.batches import Batch
from evergraph.methods.base import Context, Step
from evergraph.methods.quadratic import Quadratic
from evergraph.models.base import neighbourhoods
from evergraph.params import Params


@dataclass(repr=False)
class TWP(Quadratic):
    """Importance of a parameter for the task's loss and for the attention between neighbours.

    importance = task_weight (∂L/∂θ)² + topology_weight (∂T/∂θ)², with L the mean loss over the training
    nodes and T the mean over them of the squared attention-like coefficients of all layers. From the
    second task on β ‖∂L_batch/∂θ‖₁ is added to the loss, so that a new task leans on few parameters.

    Deviation: public code adds that term as a detached number, which no gradient sees; here it works.

    Args:
        strength: factor on everything; 0 is fine-tuning.
        task_weight: λ_l; 1e4 in the paper.
        topology_weight: λ_t; 1e4 in the paper.
        sparsity: β; 0.01 in the paper.
    """

    name = "twp"
    family = "importance, topology"
    reference = "Liu, Yang and Wang: Overcoming Catastrophic Forgetting in Graph Neural Networks, AAAI 2021"

    strength: float = 1.0
    task_weight: float = 1e4
    topology_weight: float = 1e4
    sparsity: float = 0.01

    def measure(self, context: Context) -> Params:
        """Squared gradients of the mean loss and of the mean squared coefficients."""
        model, was_training = context.model, context.model.training
        model.eval()
        try:
            losses = (
                F.cross_entropy(model(batch)[:, context.classes], context.targets(batch), reduction="sum")
                for batch in context.batches()
            )
            task = _gradient_of_mean(context, losses)
            topology = _gradient_of_mean(context, (self._coefficients(context, b) for b in _raw_batches(context)))
        finally:
            model.train(was_training)
        return {
            name: self.task_weight * task[name].square() + self.topology_weight * topology[name].square()
            for name in task
        }

    @staticmethod
    def _coefficients(context: Context, batch: Batch) -> Tensor:
        """Σ over the layers' edges into the batch of e², each layer's as a mean over heads."""
        return torch.stack([score.square().mean(1).sum() for score in context.model.attention(batch)]).sum()

    def penalty(self, step: Step) -> Tensor | None:
        """β times the 1-norm of the loss's gradient, itself differentiable."""
        if not self.importance_ or not self.sparsity or not self.strength:
            return None
        params = list(step.model.parameters())
        grads = torch.autograd.grad(step.loss, params, create_graph=True, allow_unused=True)
        norm = torch.stack([grad.abs().sum() for grad in grads if grad is not None]).sum()
        return self.strength * self.sparsity * norm


def _raw_batches(context: Context) -> Iterator[Batch]:
    """Batches that show the edges of every layer."""
    device = context.classes.device
    raw = neighbourhoods(context.model, context.task.graph, device=device, propagate=False)
    return raw.batches(context.task.train.to(device), context.batch_size)


def _gradient_of_mean(context: Context, sums: Iterator[Tensor]) -> Params:
    """The gradient of (sum of the batches' sums) / (number of training nodes)."""
    params = context.params
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    with torch.enable_grad():
        for value in sums:
            grads = torch.autograd.grad(value, list(params.values()), allow_unused=True)
            for sum_, grad in zip(total.values(), grads):
                if grad is not None:
                    sum_ += grad / context.num_train
    return total
