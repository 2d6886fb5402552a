"""The contract between the training loop and a method. `Method()` itself is fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergraph import registry
from evergraph.core.capabilities import Answer, capability, capable
from evergraph.core.params import Direction, Params, named_params
from evergraph.core.settings import Checked
from evergraph.core.workers import ALONE, workers
from evergraph.data.arrays import ClassName
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.shared import Shared
from evergraph.methods.state import copied, count_bytes, grown
from evergraph.models.base import NODES_AT_ONCE, GraphModel
from evergraph.problems.base import Problem

METHODS: registry.Registry[type[Method]] = registry.methods


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
        """The model's parameters by name."""
        return named_params(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model and its batches are."""
        return self.batcher.y.device

    @property
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
    """

    context: Context
    batch: Batch
    logits: Tensor
    loss: Tensor
    tangents: list[Tensor] = field(default_factory=list)

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


STEP_HOOKS = (
    "directions", "loss_outputs", "loss", "penalty", "logit_cotangent", "replay", "observe", "edit_grads", "after_step",
)  # fmt: skip
"""The hooks that run inside a training step, in the order in which the loop calls them."""


SearchSpace = Mapping[str, tuple[float, float] | list[Any]]
"""Ranges and choices by setting: a pair is a range, log-uniform or, from 0, uniform; a list holds choices."""


def search_over(**settings: tuple[float, float] | list[Any]) -> SearchSpace:
    """A method's search space: the settings given, and the learning rate of its training."""
    return MappingProxyType({**settings, "lr": (1e-4, 1e-2)})


class Method(metaclass=Checked):
    """A way to learn a new task without forgetting the old ones. Every hook may be left out.

    Constructor arguments are hyper-parameters (make subclasses dataclasses), checked against their annotations
    (`evergraph.core.settings`); attributes that end in `_` are learned state: tensors, numbers, lists or dictionaries
    of them, saved and loaded without another line; `state` declares how they grow. Hooks never call backward or step.
    """

    name: ClassVar[str] = "finetune"
    family: ClassVar[str] = "baseline"
    reference: ClassVar[str] = "plain training on each task in turn"
    access: ClassVar[Access] = Access()
    """What it keeps of earlier tasks and what it is told."""
    model: ClassVar[str] = "gcn"
    """The model that a learner takes where none is named."""
    training: ClassVar[Mapping[str, Any]] = {}
    """Training settings that a learner takes where none are named; see `Training`."""
    search_space: ClassVar[SearchSpace] = search_over()
    """What `evergraph tune` searches: settings of the method and, under their own names, of `Training`."""
    alone: ClassVar[str] = ""
    """Why it cannot be composed with a method that keeps something of its own; empty where it can."""
    hold: ClassVar[tuple[str, ...]] = ("strength",)
    """Settings that hold on to the past: the larger, the stronger. Some rules of selection order candidates by them."""
    besides: ClassVar[str] = ""
    """What its steps run by definition besides one pass of the model over the batch: another network, another graph."""
    levels: ClassVar[tuple[str, ...]] = ("node", "graph", "link")
    """What examples may be; a problem of others is refused."""
    kinds: ClassVar[tuple[str, ...]] = ("classes", "labels", "numbers")
    """What may be known of them: one class of several, labels that hold or do not, numbers."""

    # entering a task

    def prepare(self, context: Context) -> None:
        """Whenever a task is entered, at its start and after a resume: rebuild what is not saved, freeze layers."""

    def start_task(self, context: Context) -> None:
        """Before the first step of a task; `context.task` is the task that arrived."""

    def training_data(self, context: Context) -> Task | None:
        """What to train on in place of the task that arrived; None for the task itself. The same after a resume."""
        return None

    def epochs(self, context: Context, planned: int) -> int:
        """How many epochs the loop shall train this task; `planned` is what the configuration says."""
        return planned

    # within a step

    def directions(self, context: Context) -> list[Direction]:
        """Directions d in parameter space along which the step shall also carry J d."""
        return []

    def loss_outputs(self, context: Context, outputs: Tensor) -> Tensor:
        """The outputs as the training loss reads them, of the task's own examples and of replayed ones alike.

        Everything else (penalties, curvature, predictions) sees the outputs as they are.
        """
        return outputs

    def loss(self, step: Step) -> Tensor | None:
        """What to minimize in place of the examples' loss, for phases with a loss of their own; None for that loss."""
        return None

    def penalty(self, step: Step) -> Tensor | None:
        """A differentiable scalar added to the loss. The graph of the outputs is alive here."""
        return None

    def logit_cotangent(self, step: Step) -> Tensor | None:
        """A matrix of the outputs' shape added to their cotangent in the one backward pass."""
        return None

    def replay(self, step: Step) -> list[Replay]:
        """Further examples, with weights, in the step's backward pass."""
        return []

    def replayed_weight(self, context: Context) -> Tensor | None:
        """What `replay` adds to the loss over an epoch: the total weight of each output unit's examples; None for none.

        One of the task's own examples weighs 1.
        """
        return None

    def observe(self, step: Step) -> None:
        """Just before backward: measure something while the graph of the outputs is alive."""

    def edit_grads(self, step: Step) -> None:
        """After backward: change the parameters' `.grad` in place."""

    def after_step(self, step: Step) -> None:
        """After the optimizer has moved the parameters."""

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> Answer:
        """Whether the hooks within a step are the same kernels every time in one phase; `No(reason)` says why not.

        They read no value back, and on a GPU draw from the device's own numbers (`evergraph.core.randomness`).
        """
        return True

    def phase(self, context: Context) -> Hashable:
        """What tells apart steps with different kernels, for methods that train in phases (`context.epoch`)."""
        return None

    # leaving a task

    def end_task(self, context: Context) -> None:
        """After the last step of a task: measure curvature, store anchors, choose what to keep."""

    # prediction and growth

    def predict(self, view: View) -> Tensor | None:
        """Outputs at the examples asked for, on the CPU, one row each; None for the model's own.

        What is predicted at a node of `view.graph.joining` may not depend on another such node, nor on the other
        examples asked for. Elsewhere it may, and the method then declares `Access(transductive=True)`.
        """
        return None

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Before a task: let the model grow beyond its output units. What is made here is saved like all parameters."""

    def grow(self, before: Params, after: Params) -> None:
        """The output layer has grown: `before` and `after` are the parameters then and now.

        By default state declared `like="params"` grows with them.
        """
        for declared in _state_fields(self):
            if declared.metadata.get("like") == "params":
                value = getattr(self, declared.name)
                setattr(self, declared.name, grown(value, before, after, declared.metadata["new"]))

    # what it is

    def check_problem(self, problem: Problem) -> None:
        """Refuse a problem that the method does not make sense for."""
        if problem.level not in self.levels or problem.kind not in self.kinds:
            levels, kinds = " or ".join(f"{level}s" for level in self.levels), " or ".join(self.kinds)
            raise EvergraphError(
                f"{self.title} works on {levels} with {kinds}, and {problem.name} has {problem.level}s with "
                f"{problem.kind}; choose another method, e.g. curvature, ewc, mas or lwf"
            )

    def hyperparameters(self) -> dict[str, Any]:
        """Constructor arguments and their values."""
        if not dataclasses.is_dataclass(self):
            return {}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}

    def parts(self) -> list[Method]:
        """The methods that it is composed of: itself alone, or all that `Compose` holds."""
        return [self]

    @property
    def title(self) -> str:
        """Its name, as `make_method` takes it."""
        return self.name

    def description(self) -> dict[str, Any]:
        """Its name and hyper-parameters, as plain values: what a checkpoint says of it."""
        return {"name": self.name, "hyperparameters": self.hyperparameters()}

    def kept_bytes(self) -> int:
        """What it keeps of earlier tasks besides the model, in bytes, as it stands; single counters are left out."""
        return sum(count_bytes(value) for value in self.state_dict().values() if not isinstance(value, (int, float)))

    # its state

    def state_dict(self) -> dict[str, Any]:
        """The learned state: every attribute that ends in `_`."""
        return {key: value for key, value in vars(self).items() if key.endswith("_") and not key.startswith("_")}

    def copied_state(self) -> dict[str, Any]:
        """The state as it stands, safe from what comes: copied, but for what is declared to be replaced whole."""
        replaced = {declared.name for declared in _state_fields(self) if declared.metadata.get("replaced")}
        return {key: _shallow(value) if key in replaced else copied(value) for key, value in self.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a copy of a saved state."""
        current = self.state_dict()
        for key in sorted(current.keys() ^ state.keys()):
            problem = "unknown state" if key in state else "no state"
            raise EvergraphError(
                f"{self.name}: {problem} {key!r} in the checkpoint; it is another version's or method's"
            )
        for key, value in state.items():
            setattr(self, key, copied(value))

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in self.hyperparameters().items())
        return f"{type(self).__name__}({settings})"


def _state_fields(method: Method) -> list[dataclasses.Field[Any]]:
    fields: Any = dataclasses.fields(method) if dataclasses.is_dataclass(method) else ()
    return [f for f in fields if not f.init and f.name.endswith("_")]


def _shallow(value: Any) -> Any:
    """A container of its own around the same tensors."""
    return value.copy() if isinstance(value, (dict, list)) else value
