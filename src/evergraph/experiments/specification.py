"""What a run is: everything its numbers depend on, as plain values."""

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
        model: the model's name; the one that the method prefers where it is empty.
        model_settings: the model's hyper-parameters.
        training: how a task is trained.
        seeds: one run each.
        device: `auto`, `cpu` or `cuda`.
        also_test: further test graphs on which the same learner is measured.
        validate: measure the accuracy matrix on validation nodes too, to choose settings by.
        problem: what is to be learned; the stream's own problem where it is empty.
        metric: what is measured; the problem's own metric where it is empty.
        pieces: training examples that arrive at once, where tasks have no boundaries (`Task.pieces`): each piece is
            learned as it comes. 0 for whole tasks.
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
        """A learner that has learned nothing yet, for a stream with the given problem."""
        return Learner(
            make_model(self.model or preferred_model(self.method), **self.model_settings),
            make_method(self.method, self.settings),
            self.training,
            problem=self.problem or problem or None,
            device=self.device,
            seed=seed,
        )

    def make_stream(self, seed: int, data_root: str | Path | None) -> TaskStream:
        """The stream as this seed splits it."""
        asked: dict[str, Any] = {"problem": self.problem} if about_numbers(self.problem) else {}
        tasks = stream(self.source, seed=seed, data_root=data_root, **asked, **self.stream)
        for name in self.also_test:
            TEST_GRAPHS[name].check(tasks.graph)
        return tasks

    def check(self) -> None:
        """Raise the error for a name or a setting that is wrong, before anything is run."""
        if self.problem:
            PROBLEMS[self.problem]
        if self.metric:
            METRICS[self.metric]
        for name in self.also_test:
            TEST_GRAPHS[name]
        self.learner(self.seeds[0])

    def learner_for(self, tasks: TaskStream) -> Learner:
        """One for a stream; raises the error for a stream that it cannot learn or a metric that it has not."""
        learner = self.learner(self.seeds[0], tasks.problem)
        tasks.check_tests()
        learner.check(tasks[0])
        METRICS[self.metric or learner.problem.metric].check(learner.problem.kind)
        return learner

    def differences(self, saved: Mapping[str, Any]) -> list[str]:
        """What differs from a saved specification, the device and further seeds aside.

        What is not named is the default.
        """
        wanted, defaults = (json.loads(json.dumps(spec.as_dict())) for spec in (self, RunSpec(self.source)))
        earlier = {**defaults, **saved, "training": {**defaults["training"], **saved.get("training", {})}}
        for spec in (wanted, earlier):  # protocols that have but one order of classes may leave it out
            if isinstance(spec["stream"], dict):
                spec["stream"] = {"order": settings_of(TaskStream)["order"], **spec["stream"]}
        if wanted["seeds"][: len(earlier["seeds"])] == earlier["seeds"]:
            earlier["seeds"] = wanted["seeds"]  # seeds may be added to a run
        return [name for name in {**wanted, **earlier} if earlier.get(name) != wanted.get(name) and name != "device"]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; `pieces` where there are any."""
        plain = {**asdict(self), "training": self.training.protocol()}
        return {key: value for key, value in plain.items() if key != "pieces" or value}
