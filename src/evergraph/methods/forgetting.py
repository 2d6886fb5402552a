"""What a method offers that can make a learner forget: the result of its capability `forgetting`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from evergraph.methods.context import Context
from evergraph.models.base import GraphModel
from evergraph.problems.base import Problem

Small = dict[str, Any]
"""A method's state without its tensors."""


class Forgetting(Protocol):
    """Removes examples, tasks and output units from what a method has learned.

    Where a method's state tells what happened in which task, the states of earlier moments have to change with the
    present one: `before` holds the small state before each task, for editing.
    """

    @property
    def weighs_by_size(self) -> bool:
        """Whether the weight of an example depends on the size of its class."""

    def small_state(self) -> Small:
        """Return a copy of the state without its tensors."""

    def rewind(self, number: int, context: Context, before: Small) -> None:
        """Undo the last task, given the small state before it."""

    def keeps_alike(self, before: Small) -> bool:
        """Return whether learning again from an earlier state, with what is kept now, makes the choices as then."""

    def exchange(
        self, number: int, old: tuple[Context, Sequence[int]], new: tuple[Context, Sequence[int]] | None
    ) -> None:
        """Replace a task by what is left of it, or by nothing.

        Args:
            number: the task.
            old: the task as it was learned, and the sizes of the classes right after it.
            new: likewise without the examples to remove; None if nothing is left.
        """

    def count(self, context: Context) -> Small:
        """Return what the task's validation examples would add to the counts with the present state; changes nothing.

        Afterwards the context can be measured by heads that have not learned from them (`held_out`).
        """

    def sizes_after(self, number: int, before: Sequence[Small], width: int) -> list[int]:
        """Return the size of each class right after a task, for `width` output units."""

    def subtract(self, number: int, before: Sequence[Small], sizes: Sequence[int], counts: Small) -> None:
        """Subtract class sizes and counts that a task has added, from every state after it."""

    def reassign_units(self, gone: Sequence[int], before: Sequence[Small], has: Callable[[int, int], bool]) -> None:
        """Reassign classes without examples left in the task that introduced them to the next task that has some.

        Args:
            gone: tasks that have lost examples.
            before: see above.
            has: whether a task still has training examples of an output unit.
        """

    def arrange_units(self, units: Sequence[int], before: Sequence[Small]) -> None:
        """Keep the given output units only, in this order, in all states; empty ones fill the last places."""

    def drop_task(self, number: int, before: Sequence[Small]) -> None:
        """Remove a task from every state after it; later tasks move up."""

    def write(self, problem: Problem, model: GraphModel) -> None:
        """Write the present solution into the model."""

    def conclude(self, problem: Problem, model: GraphModel) -> None:
        """Make the choices that follow from the present state again, and write the solution into the model."""
