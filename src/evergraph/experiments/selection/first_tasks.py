"""`first-tasks`: the stream's first tasks alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from evergraph.core.settings import Bounds
from evergraph.data import TaskStream
from evergraph.errors import EvergraphError
from evergraph.experiments.selection.highest_score import HighestScore
from evergraph.experiments.selection.rule import SELECTION_RULES, final_performances
from evergraph.experiments.selection.space import Space
from evergraph.experiments.specification import RunSpec


@SELECTION_RULES.register
@dataclass(frozen=True)
class FirstTasks(HighestScore):
    """The final AP of the stream's first tasks (Chaudhry et al., Efficient Lifelong Learning with A-GEM, ICLR 2019).

    Validation nodes of these tasks are kept until the last of them has been learned. Results belong on the tasks that
    come later, or have to say that these tasks are among them.

    Args:
        standard_errors: as for every rule whose highest score wins (`HighestScore`).
        tasks: how many.
    """

    name = "first-tasks"
    about = "the first tasks alone (two by default): their final AP on validation nodes"

    tasks: Annotated[int, Bounds(at_least=2)] = 2  # one task forgets nothing

    @property
    def scope(self) -> str:
        """So many tasks."""
        return f"first-{self.tasks}-tasks"

    @property
    def tasks_spent(self) -> int:
        """The first ones."""
        return self.tasks

    @property
    def note(self) -> str:
        """Where results belong."""
        return (
            f"chosen on the first {self.tasks} tasks: report results on the tasks after them, or say that they are "
            "among those reported"
        )

    def restrict(self, spec: RunSpec) -> RunSpec:
        """The first tasks in the stream's place."""
        return replace(super().restrict(spec), stream={**spec.stream, "first_tasks": self.tasks})

    def check(self, spec: RunSpec, stream: TaskStream, space: Space, trials: int) -> None:
        """Something must be left to report on."""
        super().check(spec, stream, space, trials)
        if self.tasks >= len(stream):
            raise EvergraphError(
                f"first-tasks: tasks={self.tasks} leaves nothing of a stream of {len(stream)} to report on; "
                "take fewer, or another rule"
            )

    def scores(self, result: dict[str, Any]) -> list[float]:
        """The final AP of these tasks."""
        return final_performances(result)
