"""What a method is given: the current task, the current step, the graph to predict on; and what it replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.params import Direction, Params, trained_params
from evergraph.core.recording import Layer
from evergraph.core.workers import ALONE, workers
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.data.targets import ClassName
from evergraph.data.tasks import Task
from evergraph.methods.shared import Shared
from evergraph.models.base import NODES_AT_ONCE, GraphModel
from evergraph.problems.base import Problem

if TYPE_CHECKING:
    from evergraph.methods.base import Method


@dataclass(eq=False)
class Context(Shared):
    """What a method can access during one task; with several processes, also this process's share (`Shared`).

    Args:
        model: the model being trained.
        task: the task trained on: the one that arrived, or its replacement from `Method.training_data`.
        problem: the learning problem, with outputs that compete within the label scope.
        index: number of tasks learned before this one.
        old: output units of classes met in earlier tasks, whether or not they recur in this one.
        batcher: makes batches of the task's examples; its targets are output units.
        batch_size: number of examples in a training batch, None for all.
        generator: the method's own random numbers, so that its draws do not affect the loop's.
        reduction: `sum` or `mean`: how the loss is reduced over a batch.
        arrived: the task that arrived.
        method: the method as a whole, in which composed methods find each other's capabilities
            (`capability_of_a_part`).
        epoch: number of finished epochs of this task, for methods that train in phases.
        class_names: names of all classes met, including this task's, by output unit.
        cache: what a method computes once per task and can recompute; not saved.
    """

    model: GraphModel
    task: Task
    problem: Problem
    index: int
    old: Tensor
    batcher: Neighbourhoods
    batch_size: int | None
    generator: torch.Generator
    reduction: str
    arrived: Task | None = None
    method: Method | None = None
    epoch: int = 0
    class_names: list[ClassName] = field(default_factory=list)
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def num_seen(self) -> int:
        """Number of output units of all classes met, including this task's."""
        return len(self.class_names)

    @property
    def params(self) -> Params:
        """Trained parameters of the model, by name; parameters that require no gradient are frozen and left out."""
        return trained_params(self.model)

    @property
    def device(self) -> torch.device:
        """Device of the model and its batches."""
        return self.batcher.y.device

    @cached_property
    def train(self) -> Tensor:
        """Training examples, on the device."""
        return self.task.train.to(self.device)

    @property
    def num_train(self) -> int:
        """Number of training examples of the task."""
        return self.task.train.numel()

    def batches(self, batch_size: int | None = None) -> Iterator[Batch]:
        """Iterate over the training examples in order, with exact neighbourhoods; the loop's batch size by default."""
        return self.batcher.exact().batches(self.train, batch_size or self.batch_size)

    def capability_of_a_part(self, name: str) -> Callable[..., Any] | None:
        """Return a capability of the first part of the method that has it; None if there is none."""
        return None if self.method is None else self.method.capability_of_a_part(name)

    def reduced(self, per_example: Tensor) -> Tensor:
        """Reduce a number per example as the loss is reduced."""
        return per_example.sum() if self.reduction == "sum" else per_example.mean()


@dataclass(eq=False)
class Step:
    """One training step, as the hooks see it.

    Args:
        context: the task.
        batch: the examples of this step.
        logits: all outputs of the examples.
        loss: the loss of the examples, before penalties and replay.
        tangents: J d for each direction the method asked for.
        layers: outputs of the model's hidden layers, before activation, if the method asks for them
            (`Method.reads_layers`) and the model records them.
    """

    context: Context
    batch: Batch
    logits: Tensor
    loss: Tensor
    tangents: list[Tensor] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)

    @property
    def model(self) -> GraphModel:
        """The model being trained."""
        return self.context.model

    @property
    def problem(self) -> Problem:
        """The learning problem."""
        return self.context.problem


@dataclass(eq=False)
class Replay:
    """Further examples for a step, in the same backward pass as the step's own.

    Args:
        batch: the examples; `batch.y` holds their targets.
        weights: weight of each example's loss; None if they take no part in the loss.
        directions: directions d along which J d is also computed at their outputs.
        cotangent: function from their outputs (without gradient) and tangents to a matrix that is added to the
            gradient at their outputs; None for none.
        training: whether the model is in training mode for them; False for stand-ins that must not change a layer's
            running statistics.
        problem: problem that defines their loss; None for the step's own. Examples of classes outside the label scope
            need one with a wider scope.
    """

    batch: Batch
    weights: Tensor | None = None
    directions: list[Direction] = field(default_factory=list)
    cotangent: Callable[[Tensor, list[Tensor]], Tensor] | None = None
    training: bool = True
    problem: Problem | None = None


@dataclass(eq=False)
class View:
    """A graph to predict on, as a method sees it.

    Args:
        model: the model, in evaluation mode.
        problem: the learning problem.
        graph: the graph. If `graph.joining` is set, each of those nodes is predicted as if it had joined alone.
        nodes: the requested examples: indices of nodes, graphs or links.
        device: where to compute.
    """

    model: GraphModel
    problem: Problem
    graph: Graph
    nodes: Tensor
    device: torch.device

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """Return the model's outputs at the examples, on the CPU, computed with exact neighbourhoods."""
        batcher = self.problem.batcher(self.model, self.graph, device=self.device)
        group = workers() if self.graph.rows is None else ALONE  # each process has its own nodes of a partitioned graph
        own = self.nodes[group.share(self.nodes.numel())].to(self.device)
        rows = [self.model(batch).cpu() for batch in batcher.batches(own, NODES_AT_ONCE)] if own.numel() else []
        dtype = next((value.dtype for value in self.model.parameters()), torch.float32)
        part = torch.cat(rows) if rows else torch.empty(0, self.model.out_channels or 0, dtype=dtype)
        return group.stack(part, self.nodes.numel())
