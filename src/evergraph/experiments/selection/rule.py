"""The interface of selection rules, which choose settings without old data and without test nodes."""

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
from evergraph.experiments.metric_titles import describe_metric
from evergraph.experiments.selection.proposals import batches
from evergraph.experiments.selection.space import Point, Space
from evergraph.experiments.specification import RunSpec

if TYPE_CHECKING:
    from evergraph.experiments.selection.search import Search

SELECTION_RULES: registry.Registry[type[SelectionRule]] = registry.selection_rules
WHOLE_STREAM = "full"  # the scope of rules whose trials learn the whole stream


@dataclass(frozen=True)
class Trial:
    """Settings, the run that tries them, and its outcome.

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
    """What a rule chose, and the trials that it chose from.

    Args:
        chosen: the trial with the chosen settings.
        trials: all trials.
        note: what users should know about the choice.
    """

    chosen: Trial
    trials: list[Trial]
    note: str = ""


@dataclass(frozen=True)
class SelectionRule(metaclass=Checked):
    """Chooses among trials by accuracies on validation nodes. It must not read `result["matrices"]`, on test nodes."""

    name: ClassVar[str]
    about: ClassVar[str] = ""
    """What the rule looks at, in one line."""
    climbs: ClassVar[bool] = False
    """Whether the highest score wins, so that proposals can follow the scores."""
    proposes: ClassVar[bool] = False
    """Whether the rule proposes its own trials."""

    @property
    def scope(self) -> str:
        """What the trials learn, as a folder's name."""
        return WHOLE_STREAM

    @property
    def tasks_spent(self) -> int:
        """Number of first tasks, if the choice is based on these alone; results on later tasks are untouched by it."""
        return 0

    @property
    def note(self) -> str:
        """What users should know about results with the rule's choice."""
        return ""

    def restrict(self, spec: RunSpec) -> RunSpec:
        """The run of a trial: the whole stream, or the part that the rule may look at."""
        return replace(spec, validate=True)

    def check(self, spec: RunSpec, stream: TaskStream, space: Space, trials: int) -> None:
        """Raise if the rule has nothing to look at; by default it never raises."""

    @abstractmethod
    def score(self, result: dict[str, Any]) -> float:
        """The score of a trial, from its accuracies on validation nodes."""

    def choose(self, space: Space, trials: Sequence[Trial]) -> Trial:
        """The trial with the highest score, the first of equals."""
        return max(finished(trials), key=lambda trial: last_if_no_number(self.score(result_of(trial))))

    def search(self, search: Search) -> Selection:
        """Run trials and choose one."""
        proposer, trials = search.proposer(self), list[Trial]()
        for batch in batches(proposer):
            new = search.run(self, [search.trial(self, f"{number:03d}", point) for number, point in batch])
            for (number, _), trial in zip(batch, new):
                proposer.tell(number, None if trial.result is None else self.score(trial.result))
            trials += new
        return Selection(self.choose(search.space, trials), trials, self.note)


SELECTION_RULES.accept(subclasses_of=SelectionRule)


def finished(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that have a result; raises if there are none."""
    done = [trial for trial in trials if trial.result is not None]
    if not done:
        raise EvergraphError(f"none of {len(trials)} trials came to an end ({trials[0].error}); narrow it with --space")
    return done


def last_if_no_number(score: float | None) -> float:
    """A score to sort by: trials without one, or whose score is no number, come after all others."""
    return score if score is not None and math.isfinite(score) else -math.inf


def result_of(trial: Trial) -> dict[str, Any]:
    """The result of a finished trial."""
    assert trial.result is not None
    return trial.result


def final_performance(result: dict[str, Any]) -> float:
    """AP on validation nodes after the last task, mean over seeds."""
    return float(np.mean(final_performances(result)))


def final_performances(result: dict[str, Any]) -> list[float]:
    """AP on validation nodes after the last task, for each seed; negated if the metric is an error."""
    return [sign(result) * float(average_performance(matrix)) for matrix in result["validation"]]


def new_task_accuracy(result: dict[str, Any]) -> float:
    """Accuracy on each task's validation nodes after learning it, mean over tasks and seeds; errors are negated."""
    return sign(result) * float(np.mean([learning_accuracy(matrix) for matrix in result["validation"]]))


def nearly(score: float, share: float) -> float:
    """The threshold that reaches a share of a score, whatever its sign: `score − (1 − share) · |score|`."""
    return score - (1 - share) * abs(score)


def sign(result: dict[str, Any]) -> int:
    """−1 if a result's metric is an error, where lower is better; else 1."""
    return 1 if describe_metric(result)["higher_is_better"] else -1
