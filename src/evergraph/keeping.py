"""A learner that lives in a folder: what `evergraph learn` does.

The folder always holds the learner as it was after its last finished task. A task in progress is saved
beside it, in `unfinished/`; so a killed process loses little, and a task that was a mistake can be dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from evergraph.checkpoint import INDEX, make_folder, only_writer, remove_tree
from evergraph.data.stream import Task
from evergraph.errors import EvergraphError
from evergraph.learner import Learner, new_names
from evergraph.saving import task_mark
from evergraph.training import Progress

UNFINISHED = "unfinished"
CHECKPOINT_SECONDS = 20.0  # at most so much work is lost; 0 saves after every epoch


def load_kept(folder: Path, *, device: str = "auto") -> Learner | None:
    """The learner of the last finished task; None where the folder holds none yet."""
    if not (folder / INDEX).exists():
        if folder.exists() and not folder.is_dir():
            raise EvergraphError(f"{folder} is a file; --checkpoint names a folder")
        if folder.is_dir() and any(path.name[0] != "." and path.name != UNFINISHED for path in folder.iterdir()):
            raise EvergraphError(f"{folder} has files in it but no checkpoint; name a new or empty folder")
        return None
    return Learner.load(folder, device=device)


def learn_kept(
    folder: Path,
    learner: Learner,
    task: Task,
    *,
    grow: bool = False,
    restart: bool = False,
    on_epoch: Callable[[Progress, int], None] | None = None,
) -> Learner:
    """Learn a task and save the learner; goes on with one that was left in the middle.

    Args:
        folder: where the learner lives.
        learner: the learner of the last finished task.
        task: what to learn.
        grow: make the output layer larger where the task's classes need it.
        restart: drop a task that was left in the middle.
        on_epoch: called after every epoch.
    """
    unfinished = folder / UNFINISHED
    begun = _begun(unfinished, learner, task, restart)
    if begun is not None:
        learner = begun
    elif grow:
        needed = len(learner.classes) + len(new_names(learner.classes, task))
        if learner.model.out_channels is not None and needed > learner.model.out_channels:
            learner.grow(needed)
    learner.check(task)
    make_folder(folder, "name another with --checkpoint")
    saved = time.perf_counter()

    def save(progress: Progress, epochs: int) -> None:
        nonlocal saved
        if on_epoch is not None:
            on_epoch(progress, epochs)
        if time.perf_counter() - saved >= CHECKPOINT_SECONDS:
            learner.save(unfinished)
            saved = time.perf_counter()

    with only_writer(folder):
        if begun is None:
            remove_tree(unfinished)
        learner.learn(task, save)
        learner.save(folder)
        remove_tree(unfinished)
    return learner


def _begun(unfinished: Path, learner: Learner, task: Task, restart: bool) -> Learner | None:
    """The learner in the middle of this very task, if an earlier process left one."""
    if restart or not (unfinished / INDEX).exists():
        return None
    begun = Learner.load(unfinished, device=str(learner.device))
    if begun.num_tasks != learner.num_tasks:
        return None  # the task was finished and saved; the process ended before it removed this
    if begun.task_mark != task_mark(task):
        raise EvergraphError(
            f"{unfinished.parent}: another task was left in the middle; give its graph and classes to go on, "
            "or add --restart to drop it"
        )
    return begun
