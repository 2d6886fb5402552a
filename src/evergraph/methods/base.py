"""The contract between the training loop and a method. `Method()` itself is fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from evergraph import registry
from evergraph.core.capabilities import Answer, capability
from evergraph.core.params import Direction, Params
from evergraph.core.settings import Checked
from evergraph.data.batching import Batch
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.context import Context, Replay, Step, View
from evergraph.methods.state import copied, count_bytes, grown
from evergraph.models.base import GraphModel
from evergraph.problems.base import Problem

__all__ = ["METHODS", "STEP_HOOKS", "Context", "Method", "Replay", "SearchSpace", "Step", "View", "search_over"]

METHODS: registry.Registry[type[Method]] = registry.methods


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
    no_validation: ClassVar[str] = ""
    """Why what it trains on holds no validation examples, which early stopping needs; empty where it holds a task's."""
    ends_last: ClassVar[bool] = False
    """Whether `end_task` comes after that of all methods it is composed with: it reads, or changes, what they leave."""
    hold: ClassVar[tuple[str, ...]] = ("strength",)
    """Settings that hold on to the past: the larger, the stronger. Some rules of selection order candidates by them."""
    besides: ClassVar[str] = ""
    """What its steps run by definition besides one pass of the model over the batch: another network or graph, or the
    same network once more. Whatever else a step does has to be cheap: `evergraph bench` names methods that are not."""
    reads_layers: ClassVar[bool] = False
    """Whether its steps read what the model's hidden layers put out (`Step.layers`)."""
    step_state: ClassVar[tuple[str, ...]] = ()
    """The state that its steps read, where they can be stacked (`steps_can_be_stacked`)."""
    step_writes: ClassVar[tuple[str, ...]] = ()
    """What of it they write, in place."""
    levels: ClassVar[tuple[str, ...]] = ("node", "graph", "link")
    """What examples may be; a problem of others is refused."""
    kinds: ClassVar[tuple[str, ...]] = ("classes", "labels", "numbers")
    """What may be known of them: one class of several, labels that hold or do not, numbers."""

    def access_at(self, level: str) -> Access:
        """What it keeps and is told where examples are nodes, graphs or links."""
        return self.access.at(level)

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

    def for_many_steps(self, context: Context, batch: Batch) -> None:
        """Before the first step that reads rows of one batch, which all steps of the task will."""

    def further_examples(self, context: Context) -> Tensor | None:
        """Examples of the task that the next step's batch shall hold besides its own, for a method that reads them.

        They take no part in the loss; `step.layers` has what hidden layers put out at them too. None where no step of
        the task asks for any.
        """
        return None

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

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_stacked(self, context: Context) -> Answer:
        """Whether one step may be that of several learners at once, which differ in their tensors alone.

        Up to the objective, hooks are then called under `vmap`. They draw as `evergraph.core.randomness` lets them, and
        write `step_writes` alone. `edit_grads` is called once, with parameters, gradients and `step_state` of all
        learners side by side, and goes by single numbers.
        """
        return True

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """What the steps of this task depend on besides parameters, examples, training settings and random numbers.

        Plain values and tensors, or lists and dictionaries of them; none where the hooks within a step do nothing and
        draw nothing, as at most methods' first task. Runs of one table carry out trainings that agree in all of it
        once (`evergraph.training.known_trainings`). None where steps keep something of their own.
        """
        return []

    def epoch_counts(self, context: Context) -> bool:
        """Whether the epoch under way (`context.epoch`) trains the task, as its last one does.

        Early stopping and averages over epochs leave out those of a phase that comes before: a loss of its own says
        nothing about the task.
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
