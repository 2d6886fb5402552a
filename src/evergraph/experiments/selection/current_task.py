"""`current-task`: the rule of version 0.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evergraph.core.settings import BelowOne
from evergraph.experiments.selection.rule import (
    SELECTION_RULES,
    SelectionRule,
    Trial,
    finished,
    nearly,
    new_task_accuracy,
    result_of,
)
from evergraph.experiments.selection.space import Space


@SELECTION_RULES.register
@dataclass(frozen=True)
class CurrentTask(SelectionRule):
    """The strongest retention that costs new tasks at most `margin` of their accuracy; blind to forgetting itself.

    Each task is evaluated right after it is learned, over all classes seen; old nodes are not needed. The rule of
    version 0.1 (after De Lange et al., TPAMI 2022, with their threshold as a constant).

    Args:
        margin: fraction of the best accuracy on new tasks that may be lost.
    """

    name = "current-task"
    about = (
        "each task's validation nodes right after learning it: the strongest hold on the past that costs at most "
        "`margin` of their accuracy"
    )

    margin: BelowOne = 0.05

    def score(self, result: dict[str, Any]) -> float:
        """The accuracy on new tasks."""
        return new_task_accuracy(result)

    def choose(self, space: Space, trials: Sequence[Trial]) -> Trial:
        """The strongest retention among the trials within `margin` of the best; of equals, the highest score."""
        scores = [(trial, self.score(result_of(trial))) for trial in finished(trials)]
        best = max(score for _, score in scores)
        close = [
            (space.strength_of(trial.point), score, trial)
            for trial, score in scores
            if score >= nearly(best, 1 - self.margin)
        ]
        return max(close, key=lambda entry: entry[:2])[2]
