"""The contract between the training loop and a method. `Method()` itself is fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from evergraph import registry
from evergraph.core.capabilities import Answer, capability, capable
from evergraph.core.params import Direction, Params
from evergraph.core.settings import Checked, settings_kept
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
"""Search range of each setting: a pair is a range, log-uniform (uniform if it starts at 0); a list holds choices."""


def search_over(**settings: tuple[float, float] | list[Any]) -> SearchSpace:
    """Return a search space over the given settings and the learning rate."""
    return MappingProxyType({**settings, "lr": (1e-4, 1e-2)})


class Method(metaclass=Checked):
    """A way to learn a new task without forgetting the old ones. Every hook is optional.

    Constructor arguments are hyper-parameters (make subclasses dataclasses), checked against their annotations
    (`evergraph.core.settings`). Learned state, in fields declared by `state` and in other attributes whose names end in
    `_`, is tensors, numbers, or lists, tuples or dictionaries of them. It is saved and loaded automatically; `state`
    declares how it grows. Hooks never call `backward` or `step`.
    """

    name: ClassVar[str] = "finetune"
    family: ClassVar[str] = "baseline"
    reference: ClassVar[str] = "plain training on each task in turn"
    access: ClassVar[Access] = Access()
    """What the method keeps of earlier tasks and what it is told."""
    model: ClassVar[str] = "gcn"
    """Default model of a learner."""
    training: ClassVar[Mapping[str, Any]] = {}
    """Default training settings of a learner; see `Training`."""
    search_space: ClassVar[SearchSpace] = search_over()
    """Search space of `evergraph tune`: settings of the method and, under their own names, of `Training`."""
    alone: ClassVar[str] = ""
    """Why the method cannot be composed with one that keeps something (`Access.keeps`); empty if it can."""
    no_validation: ClassVar[str] = ""
    """Why its training data has no validation examples, which early stopping needs; empty if it has the task's."""
    trains_on_validation: ClassVar[bool] = False
    """Whether its training data includes the task's validation examples, which then calibrate nothing."""
    ends_last: ClassVar[bool] = False
    """Whether `end_task` runs after that of all composed methods, because it reads or changes their results."""
    learns_without_epochs: ClassVar[bool] = False
    """Whether the method learns a task even if no epoch is trained, as a closed form does."""
    hold: ClassVar[tuple[str, ...]] = ("strength",)
    """Settings that preserve old tasks: the larger, the more so. Some selection rules order candidates by them."""
    besides: ClassVar[str] = ""
    """What its steps inherently run besides one pass of the model over the batch: another network or graph, or another
    pass of the same network. Everything else in a step has to be cheap: `evergraph bench` flags methods otherwise."""
    reads_layers: ClassVar[bool] = False
    """Whether its steps read the outputs of the model's hidden layers (`Step.layers`)."""
    step_state: ClassVar[tuple[str, ...]] = ()
    """State that its steps read, if they can be stacked (`steps_can_be_stacked`)."""
    step_writes: ClassVar[tuple[str, ...]] = ()
    """The part of `step_state` that its steps write, in place."""
    step_settings: ClassVar[tuple[str, ...] | None] = None
    """Settings that its steps read; None if all may be. Learners that differ in other settings only can be stacked. It
    holds for the class that declares it: a subclass may read more."""
    step_factors: ClassVar[tuple[str, ...]] = ()
    """The part of `step_settings` that its steps only multiply by, and skip if zero: stacked learners may differ in
    them, and then see a tensor. Like `step_settings`, it is not inherited."""
    levels: ClassVar[tuple[str, ...]] = ("node", "graph", "link")
    """Supported kinds of examples; problems with other examples are refused."""
    kinds: ClassVar[tuple[str, ...]] = ("classes", "labels", "numbers")
    """Supported kinds of targets: one class of several, binary labels, or numbers."""

    def access_at(self, level: str) -> Access:
        """Return what the method keeps and is told if examples are nodes, graphs or links."""
        return self.access.at(level)

    # entering a task

    def prepare(self, context: Context) -> None:
        """Called whenever a task is entered, at its start and after a resume: rebuild unsaved state, freeze layers."""

    def start_task(self, context: Context) -> None:
        """Called before the first step of a task; `context.task` is the task that arrived."""

    def training_data(self, context: Context) -> Task | None:
        """Return the data to train on instead of the task that arrived, or None. It must be the same after a resume."""
        return None

    def epochs(self, context: Context, planned: int) -> int:
        """Return the number of epochs to train this task for; `planned` is the configured number."""
        return planned

    def for_many_steps(self, context: Context, batch: Batch) -> None:
        """Called before the first step if all steps of the task read rows of this one batch."""

    def further_examples(self, context: Context) -> Tensor | None:
        """Return examples of the task to add to the next step's batch, for a method that reads them.

        They take no part in the loss, but `step.layers` includes the hidden layers' outputs at them. None if no step
        of the task asks for any.
        """
        return None

    # within a step

    def directions(self, context: Context) -> list[Direction]:
        """Return directions d in parameter space along which the step also computes J d."""
        return []

    def loss_outputs(self, context: Context, outputs: Tensor) -> Tensor:
        """Return the outputs as the training loss reads them, both of the task's own and of replayed examples.

        Everything else (penalties, curvature, predictions) reads the unmodified outputs.
        """
        return outputs

    def loss(self, step: Step) -> Tensor | None:
        """Return a loss to minimize instead of the examples' loss, for phases with a loss of their own; else None."""
        return None

    def penalty(self, step: Step) -> Tensor | None:
        """Return a differentiable scalar to add to the loss. The autograd graph of the outputs is alive here."""
        return None

    def logit_cotangent(self, step: Step) -> Tensor | None:
        """Return a matrix of the outputs' shape to add to their cotangent in the one backward pass."""
        return None

    def replay(self, step: Step) -> list[Replay]:
        """Return further weighted examples to include in the step's backward pass."""
        return []

    def replayed_weight(self, context: Context) -> Tensor | None:
        """Return the total weight per output unit that `replay` adds to the loss over an epoch; None for none.

        Each of the task's own examples has weight 1.
        """
        return None

    def observe(self, step: Step) -> None:
        """Called just before backward, while the autograd graph of the outputs is alive: measure something."""

    def edit_grads(self, step: Step) -> None:
        """Called after backward: change the parameters' `.grad` in place."""

    def after_step(self, step: Step) -> None:
        """Called after the optimizer has updated the parameters."""

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> Answer:
        """Return whether the step hooks launch the same kernels at every step of a phase; `No(reason)` says why not.

        They read no values back, and on a GPU draw the device's own random numbers (`evergraph.core.randomness`).
        """
        return True

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_stacked(self, context: Context) -> Answer:
        """Return whether several learners that differ only in their tensors and in settings that steps do not read
        (`step_settings`) or only multiply by (`step_factors`) can take a step together.

        Up to the objective, hooks are then called under `vmap`. They draw random numbers only through
        `evergraph.core.randomness` and write only `step_writes`. `edit_grads` is called once, with the stacked
        parameters, gradients and `step_state` of all learners, and must work elementwise.
        """
        return True

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """Return what the task's steps depend on besides parameters, examples, training settings and random numbers.

        Plain values and tensors, or lists and dictionaries of them; empty if the step hooks do nothing and draw
        nothing, as in most methods' first task. Runs of one table carry out trainings that agree in all of this only
        once (`evergraph.training.known_trainings`). None if steps keep state of their own.
        """
        return []

    def epoch_counts(self, context: Context) -> bool:
        """Return whether the current epoch (`context.epoch`) trains the task, as the last one does.

        Early stopping and averages over epochs skip epochs of a preceding phase, whose own loss says nothing about the
        task.
        """
        return True

    def phase(self, context: Context) -> Hashable:
        """Return a key that differs between steps with different kernels, for methods that train in phases."""
        return None

    # leaving a task

    def end_task(self, context: Context) -> None:
        """Called after the last step of a task: measure curvature, store anchors, choose what to keep."""

    def release(self, context: Context) -> None:
        """Called once the task has been learned, tested and calibrated on: free what was computed for it."""

    # prediction and growth

    def predict(self, view: View) -> Tensor | None:
        """Return outputs at the requested examples, one row each, on the CPU; None for the model's own outputs.

        The prediction at a node of `view.graph.joining` must not depend on another such node, nor on the other
        requested examples. Elsewhere it may, and the method then declares `Access(transductive=True)`.
        """
        return None

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Called before a task: extend the model beyond its output units. New parameters are saved like all others."""

    def grow(self, before: Params, after: Params) -> None:
        """Called when the output layer has grown; `before` and `after` are the parameters before and after.

        By default, state declared `like="params"` grows with them.
        """
        for declared in _state_fields(self):
            if declared.metadata.get("like") == "params":
                value = getattr(self, declared.name)
                setattr(self, declared.name, grown(value, before, after, declared.metadata["new"]))

    # description

    def check_problem(self, problem: Problem) -> None:
        """Raise if the method does not support the problem."""
        if problem.level not in self.levels or problem.kind not in self.kinds:
            levels, kinds = " or ".join(f"{level}s" for level in self.levels), " or ".join(self.kinds)
            raise EvergraphError(
                f"{self.title} works on {levels} with {kinds}, and {problem.name} has {problem.level}s with "
                f"{problem.kind}; choose another method, e.g. curvature, ewc, mas or lwf"
            )

    def hyperparameters(self) -> dict[str, Any]:
        """Return the constructor arguments and their values, stored as attributes of the same names."""
        return settings_kept(self)

    def parts(self) -> list[Method]:
        """Return the methods that this one is composed of: itself, or the parts of a `Compose`."""
        return [self]

    def capability_of_a_part(self, name: str) -> Callable[..., Any] | None:
        """Return a capability of the first of its parts that has it; None if there is none."""
        return next((found for part in self.parts() if (found := capable(part, name)) is not None), None)

    @property
    def title(self) -> str:
        """Name of the method, as accepted by `make_method`."""
        return self.name

    def description(self) -> dict[str, Any]:
        """Return the name and hyper-parameters as plain values, as stored in a checkpoint."""
        return {"name": self.name, "hyperparameters": self.hyperparameters()}

    def kept_bytes(self) -> int:
        """Return the current size in bytes of what is kept of earlier tasks besides the model, without counters."""
        return sum(count_bytes(value) for value in self.state_dict().values() if not isinstance(value, (int, float)))

    # state

    def stacked_state(self, differing: Collection[str], like: Tensor) -> dict[str, Any]:
        """Return what steps read of this learner among stacked ones: `step_state`, and settings that differ.

        Args:
            differing: the `step_factors` in which the learners differ.
            like: a tensor of the dtype and on the device of the parameters.
        """
        factors = {name: like.new_tensor(getattr(self, name)) for name in differing}
        return {**{name: getattr(self, name) for name in self.step_state}, **factors}

    def state_dict(self) -> dict[str, Any]:
        """Return the learned state: every field declared by `state` and every attribute whose name ends in `_`."""
        declared = {field.name for field in _state_fields(self)}
        return {key: value for key, value in vars(self).items() if key in declared or _is_state(key)}

    def copied_state(self) -> dict[str, Any]:
        """Return a snapshot of the state that later changes do not affect; state declared `replaced` is not cloned."""
        replaced = {declared.name for declared in _state_fields(self) if declared.metadata.get("replaced")}
        return {key: _shallow(value) if key in replaced else copied(value) for key, value in self.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a copy of a saved state."""
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


METHODS.accept(subclasses_of=Method)


def _is_state(name: str) -> bool:
    """Return whether an attribute is state by its name, declared or not."""
    return name.endswith("_") and not name.startswith("_")


def _state_fields(method: Method) -> list[dataclasses.Field[Any]]:
    """Return the fields declared by `state`."""
    fields: Any = dataclasses.fields(method) if dataclasses.is_dataclass(method) else ()
    return [field for field in fields if "replaced" in field.metadata]


def _shallow(value: Any) -> Any:
    """Return a shallow copy: a new container with the same tensors."""
    return value.copy() if isinstance(value, (dict, list)) else value
