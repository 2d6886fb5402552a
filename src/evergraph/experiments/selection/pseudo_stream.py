"""`pseudo-stream`: the first task's classes as a small stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from evergraph.data import TaskStream
from evergraph.errors import EvergraphError
from evergraph.experiments.selection.rule import SELECTION_RULES, SelectionRule, final_performance
from evergraph.experiments.selection.space import Space
from evergraph.experiments.specification import RunSpec


@SELECTION_RULES.register
@dataclass(frozen=True)
class PseudoStream(SelectionRule):
    """The final AP of a small stream that the first task's classes are cut into.

    Training and validation nodes of the first task are all that is there: its test nodes are not in the graph. The
    classes arrive one by one if there are at most four, else in three to five tasks. It sees forgetting, and it is
    done before the second task arrives.
    """

    name = "pseudo-stream"
    about = "the first task's training and validation nodes alone, cut into a small stream: its final AP"
    climbs = True

    @property
    def scope(self) -> str:
        """The small stream."""
        return self.name

    @property
    def tasks_spent(self) -> int:
        """The first."""
        return 1

    def restrict(self, spec: RunSpec) -> RunSpec:
        """The small stream in the stream's place."""
        return replace(super().restrict(spec), stream={**spec.stream, "pseudo_stream": True})

    def check(self, spec: RunSpec, stream: TaskStream, space: Space, trials: int) -> None:
        """Single classes must have something to compete with."""
        alone = stream.within_task(0).classes_per_task == 1
        if alone and (spec.training.label_scope == "current" or stream.task_incremental):
            why = "task-incremental tests" if stream.task_incremental else "label scope current"
            raise EvergraphError(
                f"pseudo-stream: the first task's {len(stream.tasks_classes[0])} classes arrive one by one, and with "
                f"{why} a single class competes with none; use label scope seen, or another rule"
            )

    def score(self, result: dict[str, Any]) -> float:
        """The final AP."""
        return final_performance(result)
