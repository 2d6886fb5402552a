"""What a rule of selection is: it chooses settings without old data and without test nodes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from evergraph import registry
from evergraph.core.settings import Checked
from evergraph.data import TaskStream
from evergraph.errors import EvergraphError
from evergraph.evaluation import average_performance, learning_accuracy
from evergraph.experiments.plots import describe_metric
from evergraph.experiments.selection.proposals import batches
from evergraph.experiments.selection.space import Point, Space
from evergraph.experiments.specification import RunSpec

if TYPE_CHECKING:
    from evergraph.experiments.selection.search import Search

SELECTION_RULES: registry.Registry[type[SelectionRule]] = registry.selection_rules
WHOLE_STREAM = "full"  # the scope of rules whose trials learn the whole stream


@dataclass(frozen=True)
class Trial:
    """Some settings, the run that tries them, and what came of it.

    Args:
        key: the trial's name: the folder of its run below `cells`.
        point: the settings tried.
        spec: the run.
        result: the run's result; None if it failed.
        error: why it failed.
    """

    key: str
    point: Point
    spec: RunSpec
    result: dict[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True)
class Selection:
    """What a rule chose, and among what.

    Args:
        chosen: the trial with the settings chosen.
        trials: all trials.
        note: what to know about the choice, for people.
    """

    chosen: Trial
    trials: list[Trial]
    note: str = ""


@dataclass(frozen=True)
class SelectionRule(metaclass=Checked):
    """Chooses among trials by their accuracies on validation nodes. `result["matrices"]`, on test nodes, is taboo."""

    name: ClassVar[str]
    about: ClassVar[str]
    """What it looks at, in one line."""
    climbs: ClassVar[bool] = False
    """Whether the highest score wins, so that proposals can follow the scores."""
    proposes: ClassVar[bool] = False
    """Whether it brings its own trials."""

    @property
    def scope(self) -> str:
        """What its trials learn, as a folder's name."""
        return WHOLE_STREAM

    @property
    def tasks_spent(self) -> int:
        """Tasks at the stream's beginning that the choice was made on alone; results on later ones are untouched."""
        return 0

    @property
    def note(self) -> str:
        """What to know about results with its choice."""
        return ""

    def restrict(self, spec: RunSpec) -> RunSpec:
        """The run of a trial: the whole stream, or what the rule may look at of it."""
        return replace(spec, validate=True)

    def check(self, spec: RunSpec, stream: TaskStream, space: Space, trials: int) -> None:
        """Raise an error where the rule has nothing to look at; most always have."""

    @abstractmethod
    def score(self, result: dict[str, Any]) -> float:
        """The number that a trial is judged by, from its accuracies on validation nodes."""

    def choose(self, space: Space, trials: Sequence[Trial]) -> Trial:
        """The trial with the highest score, the first of equals."""
        return max(finished(trials), key=lambda trial: _last_if_no_number(self.score(result_of(trial))))

    def search(self, search: Search) -> Selection:
        """Run trials and choose."""
        proposer, trials = search.proposer(self), list[Trial]()
        for batch in batches(proposer):
            new = search.run(self, [search.trial(self, f"{number:03d}", point) for number, point in batch])
            for (number, _), trial in zip(batch, new):
                proposer.tell(number, None if trial.result is None else self.score(trial.result))
            trials += new
        return Selection(self.choose(search.space, trials), trials, self.note)


def finished(trials: Sequence[Trial]) -> list[Trial]:
    """Those that have a result; an error if there are none."""
    done = [trial for trial in trials if trial.result is not None]
    if not done:
        raise EvergraphError(f"none of {len(trials)} trials came to an end ({trials[0].error}); narrow it with --space")
    return done


def _last_if_no_number(score: float) -> float:
    return score if math.isfinite(score) else -math.inf


def result_of(trial: Trial) -> dict[str, Any]:
    """The result of a finished trial."""
    assert trial.result is not None
    return trial.result


def final_performance(result: dict[str, Any]) -> float:
    """AP on validation nodes after the last task, mean over seeds."""
    return float(np.mean(final_performances(result)))


def final_performances(result: dict[str, Any]) -> list[float]:
    """AP on validation nodes after the last task, of each seed; of an error, less than nothing."""
    return [sign(result) * float(average_performance(matrix)) for matrix in result["validation"]]


def new_task_accuracy(result: dict[str, Any]) -> float:
    """Accuracy on each task's validation nodes after it was learned, mean over tasks and seeds; errors as above."""
    return sign(result) * float(np.mean([learning_accuracy(matrix) for matrix in result["validation"]]))


def nearly(score: float, share: float) -> float:
    """What is short of a score by at most a share of it, whatever its sign."""
    return score - (1 - share) * abs(score)


def sign(result: dict[str, Any]) -> int:
    """−1 where a result's numbers are errors, which count against a trial."""
    return 1 if describe_metric(result)["higher_is_better"] else -1
