"""Topology-aware weight preserving (Liu, Yang and Wang, AAAI 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from evergraph.core.capabilities import Answer, No, capability, capable
from evergraph.core.params import Params
from evergraph.core.settings import NonNegative
from evergraph.curvature import measuring
from evergraph.data.batching import Batch
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Step, search_over
from evergraph.methods.quadratic import Quadratic, mean_squared_gradient
from evergraph.models.gat import edge_softmax


@METHODS.register
@dataclass(repr=False)
class TWP(Quadratic):
    """Importance of a parameter for the task's loss and for the attention between neighbours.

    importance = task_weight (∂L/∂θ)² + topology_weight (∂T/∂θ)², with L the mean loss over the training
    nodes v and T the mean over them of Σ_layers Σ_u e_vu², the squared attention-like coefficients of the
    edges into v. From the second task on sparsity · ‖∂L_batch/∂θ‖₁ is added to the loss, so that a new
    task relies on few parameters.

    Public code differs, so it is available as a `reading`. In CGLB's code the last term is a detached number without
    a gradient, and the importance is

    - `cglb`, its mini-batch code: (task_weight + topology_weight) · mean over batches of (∂L_batch/∂θ)². The loss's
      importance is also used for the topology, whose own importance is dropped.
    - `cglb-full-batch`: task_weight (∂L/∂θ)² + topology_weight (∂L/∂θ + ∂‖α‖/∂θ)² with α the first layer's
      coefficients after a softmax, over all edges of the task's graph. The second gradient is accumulated onto the
      first, which is not reset.

    Args:
        strength: factor on all terms; 0 is fine-tuning.
        task_weight: λ_l; 1e4 in the paper.
        topology_weight: λ_t; 1e4 in the paper.
        sparsity: β; 0.01 in the paper. Has no effect in CGLB's readings.
        reading: `liu` as above, `cglb` or `cglb-full-batch`.
    """

    name = "twp"
    step_settings = ("strength", "sparsity", "reading")
    step_factors = ("strength",)
    family = "importance, topology"
    besides = "the network a second time, forwards and backwards, for the gradient of its gradient's norm"
    reference = "Liu, Yang and Wang: Overcoming Catastrophic Forgetting in Graph Neural Networks, AAAI 2021"
    levels = ("node",)
    search_space = search_over(task_weight=(1e-2, 1e8), topology_weight=(1e-2, 1e8))
    hold = ("task_weight", "topology_weight")

    strength: NonNegative = 1.0
    task_weight: NonNegative = 1e4
    topology_weight: NonNegative = 1e4
    sparsity: NonNegative = 0.01
    reading: Literal["liu", "cglb", "cglb-full-batch"] = "liu"

    def start_task(self, context: Context) -> None:
        """Raise now, not after the task, if the model has no attention-like coefficients."""
        if self.reading != "cglb":
            with torch.no_grad():
                topology(context, next(edge_batches(context, 1)))

    def measure(self, context: Context) -> Params:
        """Return the importance for the task just learned, according to `reading`."""
        with measuring(context.model, next(context.batches(1))):
            losses = (context.problem.loss(context.model(batch), batch.y) for batch in context.batches())
            if self.reading == "cglb":
                squares = mean_squared_gradient(context, (loss.mean() for loss in losses))
                return {name: (self.task_weight + self.topology_weight) * value for name, value in squares.items()}
            task = gradient_of_mean(context, (loss.sum() for loss in losses))
            if self.reading == "liu":
                shape = gradient_of_mean(context, (topology(context, batch) for batch in edge_batches(context)))
            else:
                norm = gradient_of_mean(context, iter([context.num_train * coefficient_norm(context)]))
                shape = {name: task[name] + norm[name] for name in task}
        return {
            name: self.task_weight * task[name].square() + self.topology_weight * shape[name].square() for name in task
        }

    def penalty(self, step: Step) -> Tensor | None:
        """Return β times the 1-norm of the loss's gradient, itself differentiable."""
        if not self.importance_ or not self.sparsity or not self.strength or self.reading != "liu":
            return None
        params = list(step.context.params.values())
        grads = torch.autograd.grad(step.loss, params, create_graph=True, allow_unused=True)
        norm = torch.stack([torch.linalg.vector_norm(grad, 1) for grad in grads if grad is not None]).sum()
        return self.strength * self.sparsity * norm

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: a step runs a second backward pass, and the quadratic's two operations per parameter."""
        return True

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_stacked(self, context: Context) -> Answer:
        """Return whether a step only adds the quadratic: the gradient of a gradient is taken one learner at a time."""
        quadratic = self.reading != "liu" or not self.sparsity or not self.strength
        return quadratic or No("a step takes the gradient of a gradient")

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """Return the quadratic, and the sparsity and reading that determine the gradient's norm."""
        found = super().steps_depend_on(context)
        return [*found, self.sparsity, self.reading] if found else found


def topology(context: Context, batch: Batch) -> Tensor:
    """Return Σ e² over layers and edges into the seeds, with each edge's e² averaged over heads."""
    layers = []
    for number, score in enumerate(coefficients(context, batch)):
        inward = batch.layer(number).row_of_entry() < batch.num_seeds
        layers.append(score[inward].square().mean(1).sum())
    return torch.stack(layers).sum()


def coefficient_norm(context: Context) -> Tensor:
    """Return ‖α‖ over all heads and edges of the task's graph, with α_vu the first layer's softmax of e_vu over u."""
    shown = context.problem.batcher(context.model, context.task.graph, device=context.device, show_edges=True)
    batch = shown.batch(torch.arange(context.task.graph.num_nodes, device=context.device))
    first = batch.layer(0)
    with torch.enable_grad():
        score = coefficients(context, batch)[0]
        return edge_softmax(score, first.row_of_entry(), first.num_rows).norm()


def coefficients(context: Context, batch: Batch) -> list[Tensor]:
    """Return the model's attention-like coefficients e, layer by layer, one row per edge."""
    attention = capable(context.model, "attention")
    if attention is None:
        raise EvergraphError(f"{type(context.model).__name__} has no attention-like coefficients; use GCN or GAT")
    scores: list[Tensor] = attention(batch)
    return scores


def edge_batches(context: Context, batch_size: int | None = None) -> Iterator[Batch]:
    """Iterate over the training nodes in batches that expose the edges of every layer."""
    shown = context.problem.batcher(context.model, context.task.graph, device=context.device, show_edges=True)
    return shown.batches(context.train, batch_size or context.batch_size)


def gradient_of_mean(context: Context, sums: Iterator[Tensor]) -> Params:
    """Return the gradient of (sum of the batches' sums) / (number of training nodes)."""
    params = context.params
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    with torch.enable_grad():
        for value in sums:
            if not value.requires_grad:  # depends on frozen parameters only
                continue
            grads = torch.autograd.grad(value, list(params.values()), allow_unused=True)
            for sum_, grad in zip(total.values(), grads):
                if grad is not None:
                    sum_ += grad / context.num_train
    return total
