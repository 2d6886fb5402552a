"""What a method is given: the task it is in, the step it is part of, the graph it predicts on; and what it replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.params import Direction, Params, trained_params
from evergraph.core.recording import Layer
from evergraph.core.workers import ALONE, workers
from evergraph.data.arrays import ClassName
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.data.tasks import Task
from evergraph.methods.shared import Shared
from evergraph.models.base import NODES_AT_ONCE, GraphModel
from evergraph.problems.base import Problem

if TYPE_CHECKING:
    from evergraph.methods.base import Method


@dataclass(eq=False)
class Context(Shared):
    """What a method may look at during one task; with several processes, what of it is this one's (`Shared`).

    Args:
        model: the model being trained.
        task: what is trained on: the task that arrived, or what `Method.training_data` puts in its place.
        problem: what is to be learned, with outputs that compete within the label scope.
        index: tasks learned before this one.
        old: output units of classes met in earlier tasks, whether or not they come again in this one.
        batcher: makes batches of the task's examples; its targets are output units.
        batch_size: examples in a training batch, None for all.
        generator: random numbers of the method's own, so that its draws do not move the loop's.
        reduction: `sum` or `mean`: how the loss is reduced over a batch.
        arrived: the task that arrived.
        method: the method as a whole: composed methods find one another's capabilities in it (`capability_of_a_part`).
        epoch: epochs of this task that are finished; for methods that train in phases.
        class_names: the names of all classes met, this task's included, by output unit.
        cache: what a method computes once per task and can compute again; it is not saved.
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
        """Output units of all classes met, this task's included."""
        return len(self.class_names)

    @property
    def params(self) -> Params:
        """The model's parameters that are trained, by name; those that require no gradient are frozen."""
        return trained_params(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model and its batches are."""
        return self.batcher.y.device

    @cached_property
    def train(self) -> Tensor:
        """The training examples, on the device."""
        return self.task.train.to(self.device)

    @property
    def num_train(self) -> int:
        """Number of training examples of the task."""
        return self.task.train.numel()

    def batches(self, batch_size: int | None = None) -> Iterator[Batch]:
        """The training examples in order, exact neighbourhoods, `batch_size` at a time (by default the loop's)."""
        return self.batcher.exact().batches(self.train, batch_size or self.batch_size)

    def capability_of_a_part(self, name: str) -> Callable[..., Any] | None:
        """A capability of the method that is being trained with, or of the first of its parts that has it."""
        parts = self.method.parts() if self.method is not None else []
        return next((found for part in parts if (found := capable(part, name)) is not None), None)

    def reduced(self, per_example: Tensor) -> Tensor:
        """A number per example reduced as the loss is."""
        return per_example.sum() if self.reduction == "sum" else per_example.mean()


@dataclass(eq=False)
class Step:
    """One training step, as far as it has come.

    Args:
        context: the task.
        batch: the examples of this step.
        logits: all outputs of the examples.
        loss: the loss of the examples, before penalties and replay.
        tangents: J d for each direction the method asked for.
        layers: what the model's hidden layers put out, before activation, where the method asked for it
            (`Method.reads_layers`) and the model notes it.
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
        """What is to be learned."""
        return self.context.problem


@dataclass(eq=False)
class Replay:
    """Further examples in a step, in the same backward pass as its own.

    Args:
        batch: the examples; `batch.y` holds their targets.
        weights: of each example's loss; None where they take no part in the loss.
        directions: directions d along which their outputs shall also carry J d.
        cotangent: from their outputs (without gradient) and tangents to a matrix that is added to the gradient at
            their outputs; None for none.
        training: whether the model is in training mode for them; off for stand-ins that shall not move a layer's
            running statistics.
        problem: by which their loss is taken; None for the step's own. Examples of classes outside the label scope
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
        problem: what was learned.
        graph: the graph. Where `graph.joining` is set, those nodes are asked for as if each were there alone.
        nodes: the examples asked for: numbers of nodes, graphs or links.
        device: where to compute.
    """

    model: GraphModel
    problem: Problem
    graph: Graph
    nodes: Tensor
    device: torch.device

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """The model's outputs at the examples, on the CPU, with exact neighbourhoods."""
        batcher = self.problem.batcher(self.model, self.graph, device=self.device)
        group = workers() if self.graph.rows is None else ALONE  # of a graph in parts each process has its own nodes
        own = self.nodes[group.share(self.nodes.numel())].to(self.device)
        rows = [self.model(batch).cpu() for batch in batcher.batches(own, NODES_AT_ONCE)] if own.numel() else []
        dtype = next((value.dtype for value in self.model.parameters()), torch.float32)
        part = torch.cat(rows) if rows else torch.empty(0, self.model.out_channels or 0, dtype=dtype)
        return group.stack(part, self.nodes.numel())
