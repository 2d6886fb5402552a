"""Composition of several methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from evergraph.core.capabilities import Answer, No, capability, capable
from evergraph.core.params import Direction, Params
from evergraph.data.batching import Batch
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import STEP_HOOKS, Context, Method, Replay, SearchSpace, Step, View
from evergraph.models.base import GraphModel
from evergraph.problems.base import Problem


class Compose(Method):
    """Several methods combined into one; hooks run in list order."""

    name = "compose"
    family = "composition"
    reference = "several methods at once"

    def __init__(self, *methods: Method) -> None:
        if not methods:
            raise EvergraphError("Compose needs at least one method")
        for part in methods:
            if not isinstance(part, Method):
                raise EvergraphError(f"Compose takes methods, e.g. eg.Compose(eg.EMA(), eg.EWC()), not {part!r:.80}")
        self.methods = list(methods)
        for part in methods:
            others = [other for other in methods if other is not part and other.access.keeps]
            if part.alone and others:
                raise EvergraphError(f"{part.name} cannot be composed with {others[0].title}: {part.alone}")
        self._shares: list[int] = []

    @property
    def access(self) -> Access:  # type: ignore[override]
        """Union of what the parts keep and are told."""
        return Access.union(method.access for method in self.methods)

    def access_at(self, level: str) -> Access:
        """Return the union of what the parts keep and are told if examples are nodes, graphs or links."""
        return Access.union(method.access_at(level) for method in self.methods)

    @property
    def model(self) -> str:  # type: ignore[override]
        """First non-default model of a part."""
        return next((method.model for method in self.methods if method.model != Method.model), Method.model)

    @property
    def training(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Default training settings of all parts; if two parts set the same one, the first part wins."""
        return {key: value for method in reversed(self.methods) for key, value in method.training.items()}

    @property
    def search_space(self) -> SearchSpace:  # type: ignore[override]
        """Search spaces of the parts: a part's own settings are prefixed with its name, training settings are not."""
        return {
            f"{method.name}.{key}" if key in method.hyperparameters() else key: values
            for method in self.methods
            for key, values in method.search_space.items()
        }

    @property
    def hold(self) -> tuple[str, ...]:  # type: ignore[override]
        """`hold` settings of all parts, prefixed with the part's name."""
        return tuple(f"{method.name}.{key}" for method in self.methods for key in method.hold)

    @property
    def besides(self) -> str:  # type: ignore[override]
        """What the parts' steps run besides one pass of the model."""
        return "; ".join(method.besides for method in self.methods if method.besides)

    @property
    def no_validation(self) -> str:  # type: ignore[override]
        """First reason given by a part."""
        return next((method.no_validation for method in self.methods if method.no_validation), "")

    @property
    def trains_on_validation(self) -> bool:  # type: ignore[override]
        """Whether any part trains on validation examples."""
        return any(method.trains_on_validation for method in self.methods)

    @property
    def reads_layers(self) -> bool:  # type: ignore[override]
        """Whether any part reads hidden layers."""
        return any(method.reads_layers for method in self.methods)

    def prepare(self, context: Context) -> None:
        """Prepare each part in order."""
        for method in self.methods:
            method.prepare(context)

    def start_task(self, context: Context) -> None:
        """Start the task for each part in order."""
        for method in self.methods:
            method.start_task(context)

    def training_data(self, context: Context) -> Task | None:
        """Return the training data of the one part that brings its own; raise if several do."""
        offers = [(method, data) for method in self.methods if (data := method.training_data(context)) is not None]
        if len(offers) > 1:
            names = " and ".join(method.name for method, _ in offers)
            raise EvergraphError(f"{names} each bring their own training data and cannot be composed")
        return offers[0][1] if offers else None

    def epochs(self, context: Context, planned: int) -> int:
        """Return the number of epochs; each part may change the number returned by the previous one."""
        for method in self.methods:
            planned = method.epochs(context, planned)
        return planned

    def for_many_steps(self, context: Context, batch: Batch) -> None:
        """Call the hook of each part in order."""
        for method in self.methods:
            method.for_many_steps(context, batch)

    def further_examples(self, context: Context) -> Tensor | None:
        """Return the further examples of all parts."""
        asked = [more for method in self.methods if (more := method.further_examples(context)) is not None]
        return torch.cat(asked) if asked else None

    def directions(self, context: Context) -> list[Direction]:
        """Return the directions of all parts, part by part."""
        asked = [method.directions(context) for method in self.methods]
        self._shares = [len(directions) for directions in asked]
        return [direction for directions in asked for direction in directions]

    def loss_outputs(self, context: Context, outputs: Tensor) -> Tensor:
        """Apply the hook of each part to the previous part's result."""
        for method in self.methods:
            outputs = method.loss_outputs(context, outputs)
        return outputs

    def _shared(self, hook: str, step: Step) -> Iterator[tuple[Method, Step]]:
        """Yield each part that overrides the hook, with a step that has only the tangents of the part's directions."""
        start = 0
        for method, share in zip(self.methods, self._shares or [0] * len(self.methods)):
            if getattr(type(method), hook) is not getattr(Method, hook) or hook in vars(method):
                own = step.tangents[start : start + share]
                yield method, step if share == len(step.tangents) else dataclasses.replace(step, tangents=own)
            start += share

    def replay(self, step: Step) -> list[Replay]:
        """Return the replayed examples of all parts."""
        return [replay for method, share in self._shared("replay", step) for replay in method.replay(share)]

    def replayed_weight(self, context: Context) -> Tensor | None:
        """Return the sum of the parts' weights."""
        return _total([method.replayed_weight(context) for method in self.methods])

    def loss(self, step: Step) -> Tensor | None:
        """Return the loss of the one part that has its own; raise if several do."""
        shared = self._shared("loss", step)
        offers = [(method, own) for method, share in shared if (own := method.loss(share)) is not None]
        if len(offers) > 1:
            names = " and ".join(method.name for method, _ in offers)
            raise EvergraphError(f"{names} each bring a loss of their own and cannot be composed")
        return offers[0][1] if offers else None

    def penalty(self, step: Step) -> Tensor | None:
        """Return the sum of the parts' penalties."""
        return _total([method.penalty(share) for method, share in self._shared("penalty", step)])

    def logit_cotangent(self, step: Step) -> Tensor | None:
        """Return the sum of the parts' cotangents."""
        return _total([method.logit_cotangent(share) for method, share in self._shared("logit_cotangent", step)])

    def observe(self, step: Step) -> None:
        """Call the hook of each part in order."""
        for method, share in self._shared("observe", step):
            method.observe(share)

    def edit_grads(self, step: Step) -> None:
        """Call the hook of each part in order."""
        for method, share in self._shared("edit_grads", step):
            method.edit_grads(share)

    def after_step(self, step: Step) -> None:
        """Call the hook of each part in order."""
        for method, share in self._shared("after_step", step):
            method.after_step(share)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> Answer:
        """Return whether the steps of all parts can be captured."""
        for method in self.methods:
            claim = capable(method, "steps_can_be_captured")
            answer: Answer = No(f"{method.title} does not say that its steps are the same kernels every time")
            answer = claim(context) if claim is not None else answer
            if not answer:
                return answer
        return True

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_stacked(self, context: Context) -> Answer:
        """Return whether the steps of all parts can be stacked."""
        for method in self.methods:
            claim = capable(method, "steps_can_be_stacked")
            if claim is None or not (answer := claim(context)):
                return No(f"{method.title} steps alone") if claim is None else answer
        return True

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """Return everything that the parts' steps depend on; None if any part returns None."""
        claims = [capable(method, "steps_depend_on") for method in self.methods]
        found = [None if claim is None else claim(context) for claim in claims]
        if any(part is None for part in found):
            return None
        return ["composed", *found] if any(found) else []

    def epoch_counts(self, context: Context) -> bool:
        """Return whether the epoch counts for all parts."""
        return all(method.epoch_counts(context) for method in self.methods)

    def phase(self, context: Context) -> Hashable:
        """Return the phases of all parts."""
        return tuple(method.phase(context) for method in self.methods)

    @property
    def ends_last(self) -> bool:  # type: ignore[override]
        """Whether any part ends last."""
        return any(method.ends_last for method in self.methods)

    def end_task(self, context: Context) -> None:
        """End the task for each part in order, parts with `ends_last` after all others."""
        for method in sorted(self.methods, key=lambda method: method.ends_last):
            method.end_task(context)

    def release(self, context: Context) -> None:
        """Let each part free what it has computed for the task."""
        for method in self.methods:
            method.release(context)

    def predict(self, view: View) -> Tensor | None:
        """Return the outputs of the first part that makes its own predictions."""
        return next((outputs for method in self.methods if (outputs := method.predict(view)) is not None), None)

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Let each part extend the model, in order."""
        for method in self.methods:
            method.adapt_model(model, task)

    def grow(self, before: Params, after: Params) -> None:
        """Grow the state of each part."""
        for method in self.methods:
            method.grow(before, after)

    def parts(self) -> list[Method]:
        """Return the parts of all composed methods, flattened."""
        return [part for method in self.methods for part in method.parts()]

    def check_problem(self, problem: Problem) -> None:
        """Raise if any part does not support the problem."""
        for method in self.methods:
            method.check_problem(problem)

    def hyperparameters(self) -> dict[str, Any]:
        """Return the hyper-parameters of each part, keyed by position and name."""
        return {f"{i}.{method.name}": method.hyperparameters() for i, method in enumerate(self.methods)}

    def kept_bytes(self) -> int:
        """Return the total size in bytes over all parts."""
        return sum(method.kept_bytes() for method in self.methods)

    @property
    def title(self) -> str:
        """Names of the parts, joined by plus signs."""
        return "+".join(method.title for method in self.methods)

    def description(self) -> dict[str, Any]:
        """Return the descriptions of all parts."""
        return {"compose": [method.description() for method in self.methods]}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each part, keyed by position."""
        return {str(i): method.state_dict() for i, method in enumerate(self.methods)}

    def copied_state(self) -> dict[str, Any]:
        """Return a snapshot of the state of each part, keyed by position."""
        return {str(i): method.copied_state() for i, method in enumerate(self.methods)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of each part."""
        for i, method in enumerate(self.methods):
            method.load_state_dict(state[str(i)])

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.methods))})"


def _total(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return sum(present[1:], present[0]) if present else None
