"""Learned tasks as messages tell them: by their numbers, from 1, and the names of their graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


def in_tasks(*numbers: int) -> str:
    """Learned tasks as messages tell them, numbered from 1: `task 2`, `tasks 1 and 2`, `tasks 1, 2 and 3`."""
    return _enumerated([str(number + 1) for number in numbers])


def tasks_named(learner: Learner, numbers: Sequence[int]) -> str:
    """Learned tasks with the names of their graphs: `task 2 (feb)`, `tasks 2 (feb) and 3 (mar)`, `tasks 1 to 4 (x)`."""
    names = [str(learner.records[number].get("graph", "unknown")) for number in numbers]
    if len(set(names)) > 1 or len(names) == 1:
        return _enumerated([f"{number + 1} ({name})" for number, name in zip(numbers, names)])
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"tasks {numbers[0] + 1} to {numbers[-1] + 1} ({names[0]})"
    return f"{in_tasks(*numbers)} ({names[0]})"


def _enumerated(tasks: Sequence[str]) -> str:
    if len(tasks) == 1:
        return f"task {tasks[0]}"
    return f"tasks {', '.join(tasks[:-1])} and {tasks[-1]}"
