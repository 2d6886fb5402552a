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
    """The final AP of a small stream that the first task's classes are cut into.

    Training and validation nodes of the first task are all that is there: its test nodes are not in the graph. Every
    task of the small stream has at least two classes: with one alone, a softmax over the classes seen has nothing to
    learn, and untrained outputs are all there is to keep. Where the first task has fewer than eight
    classes, they are cut into parts that count as classes (`TaskStream.within_task`). The rule sees forgetting, and it
    is done before the second task arrives.

    Args:
        standard_errors: as for every rule whose highest score wins (`HighestScore`).
    """

    name = "pseudo-stream"
    about = "the first task's training and validation nodes alone, cut into a small stream: its final AP"

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
        """The first task must have what a stream can be cut from."""
        super().check(spec, stream, space, trials)
        stream.within_task(0)

    def scores(self, result: dict[str, Any]) -> list[float]:
        """The final AP."""
        return final_performances(result)
