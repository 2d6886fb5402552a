"""Rules that take the highest score, or the strongest retention among scores that are as good given the seeds."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evergraph.core.settings import NonNegative
from evergraph.data import TaskStream
from evergraph.errors import EvergraphError
from evergraph.experiments.selection.rule import SelectionRule, Trial, finished, result_of
from evergraph.experiments.selection.space import Space
from evergraph.experiments.specification import RunSpec


@dataclass(frozen=True)
class HighestScore(SelectionRule):
    """A rule that takes the trial with the highest score.

    Args:
        standard_errors: 0 takes the highest mean over seeds. 1 is the one-standard-error rule (Breiman et al.,
            Classification and Regression Trees, 1984), which takes the simplest of the settings that are as good as
            far as the seeds can tell: the strongest retention among the trials at most one standard error behind the
            best. The standard error is that of the per-seed difference, since a seed gives all trials the same split
            and start and its effect on their scores cancels; but at most that of the best trial's mean, so that a
            trial that fails with one seed is not excused by its own scatter.
    """

    climbs = True

    standard_errors: NonNegative = field(default=0.0, kw_only=True)

    def check(self, spec: RunSpec, stream: TaskStream, space: Space, trials: int) -> None:
        """Raise if there are too few seeds for a standard error, which needs two."""
        if self.standard_errors and len(spec.seeds) < 2:
            raise EvergraphError(
                f"{self.name}: standard_errors={self.standard_errors:g} needs at least two seeds for each trial, "
                "and there is one; ask for more (tune --seeds 3, compare --tune-seeds 3), or use 0"
            )

    @abstractmethod
    def scores(self, result: dict[str, Any]) -> list[float]:
        """One score per seed, from accuracies on validation nodes."""

    def score(self, result: dict[str, Any]) -> float:
        """The mean score over seeds."""
        return float(np.mean(self.scores(result)))

    def choose(self, space: Space, trials: Sequence[Trial]) -> Trial:
        """The trial with the highest score (the first of equals), or the strongest retention that is as good."""
        best = super().choose(space, trials)
        if not self.standard_errors:
            return best
        close = [trial for trial in finished(trials) if trial is best or self._as_good(trial, best)]
        return max(close, key=lambda trial: (space.strength_of(trial.point), self.score(result_of(trial))))

    def _as_good(self, trial: Trial, best: Trial) -> bool:
        """Whether a trial is behind the best by at most `standard_errors` standard errors."""
        highest = np.asarray(self.scores(result_of(best)))
        behind = highest - self.scores(result_of(trial))
        error = min(_standard_error(behind), _standard_error(highest))
        return float(np.mean(behind)) <= self.standard_errors * error


def _standard_error(values: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
