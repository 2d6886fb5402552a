"""The contract between the training loop and a method. `Method()` itself is fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergraph.data.batches import Batch, Neighbourhoods
from evergraph.data.stream import Task
from evergraph.errors import EvergraphError
from evergraph.models.base import GraphModel
from evergraph.params import Direction, Params, named_params


@dataclass(eq=False)
class Context:
    """What a method may look at during one task.

    Args:
        model: the model being trained.
        task: the task at hand.
        index: tasks learned before this one.
        classes: output units that the training softmax runs over (the label scope).
        old: output units of classes met in earlier tasks.
        neighbourhoods: cuts batches out of the task's graph; its labels are output units.
        batch_size: nodes in a training batch, None for all.
        generator: random numbers of the method's own, so that its draws do not move the loop's.
        reduction: `sum` or `mean`: how the loss is reduced over a batch.
        cache: what a method computes once a task and can compute again; it is not saved.
    """

    model: GraphModel
    task: Task
    index: int
    classes: Tensor
    old: Tensor
    neighbourhoods: Neighbourhoods
    batch_size: int | None
    generator: torch.Generator
    reduction: str
    cache: dict[Any, Any] = field(default_factory=dict)
    _position: Tensor | None = None

    @property
    def params(self) -> Params:
        """The model's parameters by name."""
        return named_params(self.model)

    @property
    def num_train(self) -> int:
        """Number of training nodes of the task."""
        return self.task.train.numel()

    def batches(self, batch_size: int | None = None) -> Iterator[Batch]:
        """The training nodes in order, exact neighbourhoods, `batch_size` at a time (by default the loop's)."""
        seeds = self.task.train.to(self.neighbourhoods.y.device)
        return self.neighbourhoods.exact().batches(seeds, batch_size or self.batch_size)

    def targets(self, batch: Batch) -> Tensor:
        """The batch's labels as positions in `classes`."""
        if self._position is None:
            size = int(self.classes.max()) + 1
            self._position = torch.full((size,), -1, dtype=torch.long, device=self.classes.device)
            self._position[self.classes] = torch.arange(self.classes.numel(), device=self.classes.device)
        return self._position[batch.y]


@dataclass(eq=False)
class Step:
    """One training step, as far as it has come.

    Args:
        context: the task.
        batch: the nodes of this step.
        logits: all output units at the seeds.
        loss: the classification loss, before penalties.
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
    def scoped_logits(self) -> Tensor:
        """Logits of the classes in the label scope."""
        return self.logits[:, self.context.classes]

    @property
    def targets(self) -> Tensor:
        """Labels as positions in the label scope."""
        return self.context.targets(self.batch)

    def widen(self, scoped: Tensor) -> Tensor:
        """A matrix over the label scope, with zeros at all other output units."""
        wide = scoped.new_zeros(self.logits.shape)
        wide[:, self.context.classes] = scoped
        return wide


def state(empty: Callable[[], Any]) -> Any:
    """A field that is learned, not given: `importance_: Params = state(dict)`."""
    return field(default_factory=empty, init=False, repr=False, compare=False)


class Method:
    """A way to learn a new task without forgetting the old ones. Every hook may be left out.

    Constructor arguments are hyper-parameters (make subclasses dataclasses); attributes that end in `_`
    are learned state: tensors, numbers, and lists or dictionaries of them. They are saved and loaded
    without another line. Hooks never call backward, zero_grad or optimizer.step.
    """

    name: ClassVar[str] = "finetune"
    family: ClassVar[str] = "baseline"
    reference: ClassVar[str] = "plain training on each task in turn"
    joint: ClassVar[bool] = False
    """Whether the method is given all earlier tasks' data too (an upper bound, not a continual learner)."""
    model: ClassVar[str] = "gcn"
    """The model that a run takes where none is named."""

    def start_task(self, context: Context) -> None:
        """Before the first step of a task."""

    def epochs(self, context: Context, planned: int) -> int:
        """How many epochs the loop shall train this task; `planned` is what the configuration says."""
        return planned

    def directions(self, context: Context) -> list[Direction]:
        """Directions d in parameter space along which the step shall also carry J d."""
        return []

    def penalty(self, step: Step) -> Tensor | None:
        """A differentiable scalar added to the loss. The graph of the logits is alive here."""
        return None

    def logit_cotangent(self, step: Step) -> Tensor | None:
        """A matrix of the logits' shape added to their cotangent in the one backward pass."""
        return None

    def edit_grads(self, step: Step) -> None:
        """After backward: change the parameters' `.grad` in place."""

    def after_step(self, step: Step) -> None:
        """After the optimizer has moved the parameters."""

    def end_task(self, context: Context) -> None:
        """After the last step of a task: measure curvature, store anchors, average parameters."""

    def grow(self, before: Params, after: Params) -> None:
        """The output layer has grown: `before` and `after` are the parameters then and now.

        By default every state tensor that stands under a grown parameter's name and has its old shape
        is padded: with the new parameters' own values where it holds parameters (`anchor…`, `teacher…`,
        `previous…`), with zeros elsewhere.
        """
        for key, value in self.state_dict().items():
            copies = key.startswith(("anchor", "teacher", "previous"))
            setattr(self, key, _grown(value, "", before, after, copies))

    def hyperparameters(self) -> dict[str, Any]:
        """Constructor arguments and their values."""
        if not dataclasses.is_dataclass(self):
            return {}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}

    def state_dict(self) -> dict[str, Any]:
        """The learned state: every attribute that ends in `_`."""
        return {key: value for key, value in vars(self).items() if key.endswith("_") and not key.startswith("_")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a copy of a saved state."""
        own = self.state_dict()
        for key in sorted(own.keys() ^ state.keys()):
            problem = "unknown state" if key in state else "no state"
            raise EvergraphError(
                f"{self.name}: {problem} {key!r} in the checkpoint; it is another version's or method's"
            )
        for key, value in state.items():
            setattr(self, key, _copied(value))

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in self.hyperparameters().items())
        return f"{type(self).__name__}({settings})"


def _grown(value: Any, name: str, before: Params, after: Params, copies: bool) -> Any:
    """A piece of state after the output layer has grown; `name` is the key it stands under."""
    if isinstance(value, dict):
        return {key: _grown(item, key, before, after, copies) for key, item in value.items()}
    if isinstance(value, list):
        return [_grown(item, name, before, after, copies) for item in value]
    if not isinstance(value, Tensor) or name not in before or value.shape != before[name].shape:
        return value
    wide = after[name].detach().clone() if copies else torch.zeros_like(after[name])
    wide[tuple(slice(size) for size in value.shape)] = value
    return wide


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.clone() if isinstance(value, Tensor) else value


class Compose(Method):
    """Several methods as one; hooks run in list order."""

    name = "compose"
    family = "composition"
    reference = "several methods at once"

    def __init__(self, *methods: Method) -> None:
        if not methods:
            raise EvergraphError("Compose needs at least one method")
        self.methods = list(methods)
        self._shares: list[int] = []

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """Joint if any part is."""
        return any(method.joint for method in self.methods)

    def start_task(self, context: Context) -> None:
        """Each in turn."""
        for method in self.methods:
            method.start_task(context)

    def epochs(self, context: Context, planned: int) -> int:
        """Each may change what the one before it answered."""
        for method in self.methods:
            planned = method.epochs(context, planned)
        return planned

    def directions(self, context: Context) -> list[Direction]:
        """All directions, one method after another."""
        asked = [method.directions(context) for method in self.methods]
        self._shares = [len(directions) for directions in asked]
        return [direction for directions in asked for direction in directions]

    def _shared(self, step: Step) -> Iterator[tuple[Method, Step]]:
        """Each method with the step as it sees it: the tangents of its own directions."""
        start = 0
        for method, share in zip(self.methods, self._shares or [0] * len(self.methods)):
            yield method, dataclasses.replace(step, tangents=step.tangents[start : start + share])
            start += share

    def penalty(self, step: Step) -> Tensor | None:
        """The sum."""
        return _total([method.penalty(own) for method, own in self._shared(step)])

    def logit_cotangent(self, step: Step) -> Tensor | None:
        """The sum."""
        return _total([method.logit_cotangent(own) for method, own in self._shared(step)])

    def edit_grads(self, step: Step) -> None:
        """Each in turn."""
        for method, own in self._shared(step):
            method.edit_grads(own)

    def after_step(self, step: Step) -> None:
        """Each in turn."""
        for method, own in self._shared(step):
            method.after_step(own)

    def end_task(self, context: Context) -> None:
        """Each in turn."""
        for method in self.methods:
            method.end_task(context)

    def grow(self, before: Params, after: Params) -> None:
        """Each in turn."""
        for method in self.methods:
            method.grow(before, after)

    def hyperparameters(self) -> dict[str, Any]:
        """Those of each part, under its name."""
        return {f"{i}.{method.name}": method.hyperparameters() for i, method in enumerate(self.methods)}

    def state_dict(self) -> dict[str, Any]:
        """Those of each part, under its position."""
        return {str(i): method.state_dict() for i, method in enumerate(self.methods)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give each part its own."""
        for i, method in enumerate(self.methods):
            method.load_state_dict(state[str(i)])

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.methods))})"


def _total(parts: list[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return sum(found[1:], found[0]) if found else None
