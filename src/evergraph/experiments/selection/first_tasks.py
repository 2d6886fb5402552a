"""`first-tasks`: only the stream's first tasks."""

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

    Validation nodes of these tasks are kept until the last of them has been learned. Results should be reported on the
    later tasks, or say that these tasks are among them.

    Args:
        standard_errors: as for every rule that takes the highest score (`HighestScore`).
        tasks: number of first tasks.
    """

    name = "first-tasks"
    about = "the first tasks alone (two by default): their final AP on validation nodes"

    tasks: Annotated[int, Bounds(at_least=2)] = 2  # with one task, nothing is forgotten

    @property
    def scope(self) -> str:
        """The first tasks, as a folder's name."""
        return f"first-{self.tasks}-tasks"

    @property
    def tasks_spent(self) -> int:
        """The number of first tasks."""
        return self.tasks

    @property
    def note(self) -> str:
        """On which tasks to report results."""
        return (
            f"chosen on the first {self.tasks} tasks: report results on the tasks after them, or say that they are "
            "among those reported"
        )

    def restrict(self, spec: RunSpec) -> RunSpec:
        """Replace the stream by its first tasks."""
        return replace(super().restrict(spec), stream={**spec.stream, "first_tasks": self.tasks})

    def check(self, spec: RunSpec, stream: TaskStream, space: Space, trials: int) -> None:
        """Raise if no task is left to report on."""
        super().check(spec, stream, space, trials)
        if self.tasks >= len(stream):
            raise EvergraphError(
                f"first-tasks: tasks={self.tasks} leaves nothing of a stream of {len(stream)} to report on; "
                "take fewer, or another rule"
            )

    def scores(self, result: dict[str, Any]) -> list[float]:
        """The final AP of these tasks, for each seed."""
        return final_performances(result)
