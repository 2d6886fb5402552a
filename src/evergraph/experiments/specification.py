"""The specification of a run: everything its numbers depend on, as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from evergraph.core.settings import Checked, NonNegativeInt, NotEmpty, Seed, settings_of
from evergraph.data import TEST_GRAPHS, TaskStream, stream
from evergraph.data.streams import about_numbers
from evergraph.evaluation import METRICS
from evergraph.methods import make_method, preferred_model
from evergraph.models import make_model
from evergraph.problems import PROBLEMS
from evergraph.training import Learner, Training


@dataclass
class RunSpec(metaclass=Checked):
    """Everything a run's numbers depend on, as plain values.

    Args:
        source: a stream's name or path.
        stream: settings of the stream (`order`, `test_graph`, `classes_per_task`, …); `first_tasks` and
            `pseudo_stream` restrict it to what a selection rule may look at.
        method: the method's name.
        settings: the method's hyper-parameters.
        model: the model's name; empty for the one that the method prefers.
        model_settings: the model's hyper-parameters.
        training: how a task is trained.
        seeds: one run per seed.
        device: `auto`, `cpu` or `cuda`.
        also_test: further test graphs on which the same learner is measured.
        validate: also measure the accuracy matrix on validation nodes, for choosing settings.
        problem: what is to be learned; empty for the stream's own problem.
        metric: what is measured; empty for the problem's own metric.
        pieces: number of training examples that arrive at once, if tasks have no boundaries (`Task.pieces`): each piece
            is learned as it arrives. 0 for whole tasks.
    """

    source: str
    stream: dict[str, Any] = field(default_factory=dict)
    method: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    model_settings: dict[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    seeds: Annotated[list[Seed], NotEmpty()] = field(default_factory=lambda: [0])
    device: str = "auto"
    also_test: list[str] = field(default_factory=list)
    validate: bool = False
    problem: str = ""
    metric: str = ""
    pieces: NonNegativeInt = 0

    def learner(self, seed: int, problem: str = "") -> Learner:
        """Return an untrained learner for a stream with the given problem."""
        return Learner(
            make_model(self.model or preferred_model(self.method), **self.model_settings),
            make_method(self.method, self.settings),
            self.training,
            problem=self.problem or problem or None,
            device=self.device,
            seed=seed,
        )

    def make_stream(self, seed: int, data_root: str | Path | None) -> TaskStream:
        """Return the stream, split with this seed."""
        asked: dict[str, Any] = {"problem": self.problem} if about_numbers(self.problem) else {}
        tasks = stream(self.source, seed=seed, data_root=data_root, **asked, **self.stream)
        for name in self.also_test:
            TEST_GRAPHS[name].check(tasks.graph)
        return tasks

    def check(self) -> None:
        """Raise if a name or a setting is wrong, before anything is run."""
        if self.problem:
            PROBLEMS[self.problem]
        if self.metric:
            METRICS[self.metric]
        for name in self.also_test:
            TEST_GRAPHS[name]
        self.learner(self.seeds[0])

    def learner_for(self, tasks: TaskStream) -> Learner:
        """Return a learner for a stream; raise if it cannot learn the stream or does not have the metric."""
        learner = self.learner(self.seeds[0], tasks.problem)
        tasks.check_tests()
        learner.check(tasks[0])
        METRICS[self.metric or learner.problem.metric].check(learner.problem.kind)
        return learner

    def differences(self, saved: Mapping[str, Any]) -> list[str]:
        """Names of the fields that differ from a saved specification, ignoring the device and added seeds.

        The settings that differ follow the name of a field that holds several, as in `training: epochs, lr`. A field
        that is not saved has its default.
        """
        wanted, defaults = (json.loads(json.dumps(spec.as_dict())) for spec in (self, RunSpec(self.source)))
        earlier = {**defaults, **saved, "training": {**defaults["training"], **saved.get("training", {})}}
        for spec in (wanted, earlier):  # protocols with a single order of classes may leave it out
            if isinstance(spec["stream"], dict):
                spec["stream"] = {"order": settings_of(TaskStream)["order"], **spec["stream"]}
        if wanted["seeds"][: len(earlier["seeds"])] == earlier["seeds"]:
            earlier["seeds"] = wanted["seeds"]  # seeds may be added to a run
        apart = _differing(wanted, earlier)
        return [_named(name, wanted.get(name), earlier.get(name)) for name in apart if name != "device"]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; without `pieces` if it is 0."""
        plain = {**asdict(self), "training": self.training.protocol()}
        return {key: value for key, value in plain.items() if key != "pieces" or value}


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ."""
    return [key for key in {**first, **second} if first.get(key) != second.get(key)]


def _named(field: str, wanted: Any, earlier: Any) -> str:
    """The name of a field that differs, with the keys that do if both values are dictionaries."""
    if isinstance(wanted, dict) and isinstance(earlier, dict):
        return f"{field}: {', '.join(_differing(wanted, earlier))}"
    return field
