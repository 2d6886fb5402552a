"""`pseudo-stream`: the first task's classes as a small stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from evergraph.data import TaskStream
from evergraph.experiments.selection.highest_score import HighestScore
from evergraph.experiments.selection.rule import SELECTION_RULES, final_performances
from evergraph.experiments.selection.space import Space
from evergraph.experiments.specification import RunSpec


@SELECTION_RULES.register
@dataclass(frozen=True)
class PseudoStream(HighestScore):
    """The final AP of a small stream made by splitting the first task's classes.

    Only the training and validation nodes of the first task are used: its test nodes are not in the graph. Every task
    of the small stream has at least two classes: with a single class, a softmax over the classes seen has nothing to
    learn, and only untrained outputs would be kept. If the first task has fewer than eight classes, they are split into
    parts that count as classes (`TaskStream.within_task`). The rule observes forgetting, and it is done before the
    second task arrives.

    Args:
        standard_errors: as for every rule that takes the highest score (`HighestScore`).
    """

    name = "pseudo-stream"
    about = "the first task's training and validation nodes alone, cut into a small stream: its final AP"

    @property
    def scope(self) -> str:
        """The small stream, as a folder's name."""
        return self.name

    @property
    def tasks_spent(self) -> int:
        """One: the first task."""
        return 1

    def restrict(self, spec: RunSpec) -> RunSpec:
        """Replace the stream by the small one."""
        return replace(super().restrict(spec), stream={**spec.stream, "pseudo_stream": True})

    def check(self, spec: RunSpec, stream: TaskStream, space: Space, trials: int) -> None:
        """Raise if the first task cannot be split into a stream."""
        super().check(spec, stream, space, trials)
        stream.within_task(0)

    def scores(self, result: dict[str, Any]) -> list[float]:
        """The final AP of the small stream, for each seed."""
        return final_performances(result)
