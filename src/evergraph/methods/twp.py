"""Topology-aware weight preserving (Liu, Yang and Wang, AAAI 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.params import Params
from evergraph.curvature import measuring
from evergraph.data.batching import Batch
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, Context, Step
from evergraph.methods.quadratic import Quadratic


@METHODS.register
@dataclass(repr=False)
class TWP(Quadratic):
    """Importance of a parameter for the task's loss and for the attention between neighbours.

    importance = task_weight (∂L/∂θ)² + topology_weight (∂T/∂θ)², with L the mean loss over the training
    nodes v and T the mean over them of Σ_layers Σ_u e_vu², the squared attention-like coefficients of the
    edges into v. From the second task on sparsity · ‖∂L_batch/∂θ‖₁ is added to the loss, so that a new
    task leans on few parameters.

    Deviations: public code adds that last term as a detached number, which no gradient sees; here it
    works. Public code squares the sum of both gradients for the topology; here each its own.

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

    def start_task(self, context: Context) -> None:
        """Find out now, not after the task, whether the model has attention-like coefficients."""
        with torch.no_grad():
            topology(context, next(edge_batches(context, 1)))

    def measure(self, context: Context) -> Params:
        """Squared gradients of the mean loss and of the mean squared coefficients."""
        with measuring(context.model, next(context.batches(1))):
            losses = (context.problem.loss(context.model(batch), batch.y).sum() for batch in context.batches())
            task = gradient_of_mean(context, losses)
            shape = gradient_of_mean(context, (topology(context, batch) for batch in edge_batches(context)))
        return {
            name: self.task_weight * task[name].square() + self.topology_weight * shape[name].square() for name in task
        }

    def penalty(self, step: Step) -> Tensor | None:
        """β times the 1-norm of the loss's gradient, itself differentiable."""
        if not self.importance_ or not self.sparsity or not self.strength:
            return None
        params = list(step.model.parameters())
        grads = torch.autograd.grad(step.loss, params, create_graph=True, allow_unused=True)
        norm = torch.stack([grad.abs().sum() for grad in grads if grad is not None]).sum()
        return self.strength * self.sparsity * norm


def topology(context: Context, batch: Batch) -> Tensor:
    """Σ over layers and edges into the seeds of e², each edge's as a mean over heads."""
    attention = capable(context.model, "attention")
    if attention is None:
        raise EvergraphError(f"{type(context.model).__name__} has no attention-like coefficients; use GCN or GAT")
    layers = []
    for number, score in enumerate(attention(batch)):
        inward = batch.layer(number).row_of_entry() < batch.num_seeds
        layers.append(score[inward].square().mean(1).sum())
    return torch.stack(layers).sum()


def edge_batches(context: Context, batch_size: int | None = None) -> Iterator[Batch]:
    """The training nodes in batches that show the edges of every layer."""
    shown = context.problem.batcher(context.model, context.task.graph, device=context.device, show_edges=True)
    return shown.batches(context.train, batch_size or context.batch_size)


def gradient_of_mean(context: Context, sums: Iterator[Tensor]) -> Params:
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
