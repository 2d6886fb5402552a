"""Saving and resuming: a learner that lives in a folder and survives whatever happens to its process.

A task in progress is saved from time to time, so that a killed process loses little work. Where finished and unfinished
states are kept apart, the folder always holds the learner as it was after its last finished task, and a task that was a
mistake can be dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from evergraph.core.workers import workers
from evergraph.data.tasks import Task
from evergraph.errors import DivergedError, EvergraphError
from evergraph.persistence.checkpoint import INDEX, no_checkpoint, read_index, read_plain, remove_tree
from evergraph.persistence.files import holds_something, taken_folder
from evergraph.persistence.reading import content_hash
from evergraph.training.learner import Learner
from evergraph.training.member import OnEpoch, Progress

UNFINISHED = "unfinished"
CONTINUES = "continues"  # in the notes of a learner in the middle of a task: the mark of the saved one it continues
CHECKPOINT_SECONDS = 20.0  # at most this much work is lost; 0 saves after every epoch


class Driver:
    """Learns tasks and saves the learner while it learns and when it is done.

    Args:
        folder: where the learner is saved when a task is done.
        unfinished: where it is saved in the middle of a task; the same folder by default.
        advice: appended to the error message of a failed save.
    """

    def __init__(self, folder: Path, unfinished: Path | None = None, *, advice: str = "") -> None:
        self.folder, self.unfinished, self.advice = folder, unfinished or folder, advice
        self._saved = time.perf_counter()
        self._pause = CHECKPOINT_SECONDS

    def learn(
        self,
        learner: Learner,
        task: Task,
        *,
        on_epoch: OnEpoch | None = None,
        notes: Callable[[], dict[str, Any]] | None = None,
    ) -> list[dict[str, float]]:
        """Learn a task, saving from time to time; `notes` returns the notes to save with the learner."""

        def hook(progress: Progress, epochs: int) -> None:
            if on_epoch is not None:
                on_epoch(progress, epochs)
            if time.perf_counter() - self._saved >= self._pause:
                self._save(learner, self.unfinished, notes)

        try:
            return learner.learn(task, hook)
        except DivergedError:
            if self.unfinished != self.folder:
                remove_tree(self.unfinished)  # going on from there would only diverge again
            raise

    def commit(self, learner: Learner, notes: Callable[[], dict[str, Any]] | None = None) -> None:
        """Save the learner after a finished task."""
        self._save(learner, self.folder, notes)
        if self.unfinished != self.folder:
            remove_tree(self.unfinished)

    def _save(self, learner: Learner, folder: Path, notes: Callable[[], dict[str, Any]] | None) -> None:
        if workers().rank:
            return  # all processes hold the same learner; only the first one writes
        begun = time.perf_counter()
        try:
            learner.save(folder, notes=notes() if notes is not None else None)
        except EvergraphError as error:
            raise EvergraphError(f"{error}{self.advice}") from None
        self._saved = time.perf_counter()
        if CHECKPOINT_SECONDS:  # on a slow disk save less often, so that saving takes at most a tenth of the time
            self._pause = max(CHECKPOINT_SECONDS, 10 * (self._saved - begun))


def unfinished_task(folder: Path) -> bool:
    """Whether the learner of a folder was left in the middle of a task.

    It was not if the process ended after the finished task was saved, before the unfinished state was removed.
    """
    if not (folder / UNFINISHED / INDEX).exists():
        return False
    begun, finished = (_num_tasks(place) for place in (folder / UNFINISHED, folder))
    return begun >= finished


def _num_tasks(folder: Path) -> int:
    """Number of tasks that a saved learner has finished; 0 if there is none."""
    return int(read_plain(folder, "num_tasks") or 0) if (folder / INDEX).exists() else 0


def load_learner(folder: Path, *, device: str = "auto") -> Learner | None:
    """Load the learner as of its last finished task; None if the folder does not hold one yet."""
    if not (folder / INDEX).exists():
        if folder.exists() and not folder.is_dir():
            raise EvergraphError(f"{folder} is a file; --checkpoint names a folder")
        if holds_something(folder, besides=UNFINISHED):
            raise EvergraphError(f"{folder} has files in it but no checkpoint; name a new or empty folder")
        return None
    return Learner.load(folder, device=device)


def learn_in_folder(
    folder: Path,
    prepare: Callable[[Learner | None], tuple[Learner, Task]],
    *,
    device: str = "auto",
    restart: bool = False,
    on_epoch: OnEpoch | None = None,
    fits: Callable[[Learner], None] = lambda begun: None,
) -> Learner:
    """Learn a task with the learner that lives in a folder, resuming it if it was left in the middle.

    Args:
        folder: where the learner lives; locked before it is read.
        prepare: from the learner as of its last finished task, or None, to the learner to train and its task.
        device: the device to load the learner to.
        restart: drop a task that was left in the middle.
        on_epoch: called after every epoch.
        fits: raises if a learner in the middle of the task was started with settings other than the current ones.
    """
    look = partial(load_learner, folder, device=device)
    with taken_folder(folder, look, advice="name another with --checkpoint") as known:
        learner, task = prepare(known)
        driver = Driver(folder, folder / UNFINISHED)
        begun = _begun(driver.unfinished, learner, task, restart)
        if begun is not None:
            fits(begun)
        if begun is None:
            learner.check(task)
            remove_tree(driver.unfinished)
        learner = begun or learner
        own, mark = {key: value for key, value in learner.notes.items() if key != CONTINUES}, _mark(folder)
        driver.learn(learner, task, on_epoch=on_epoch, notes=lambda: {**own, CONTINUES: mark})
        driver.commit(learner, lambda: own)
    return learner


def change_in_folder(folder: Path, change: Callable[[Learner], Any], *, device: str = "auto") -> tuple[Learner, Any]:
    """Change the learner that lives in a folder and save it; returns the learner and the result of `change`."""
    if not (folder / INDEX).exists():
        raise no_checkpoint(folder)
    with taken_folder(folder, partial(load_learner, folder, device=device)) as learner:
        assert learner is not None
        if unfinished_task(folder):
            raise EvergraphError(
                f"{folder}: a task was left in the middle; finish it with `evergraph learn`, or --restart"
            )
        remove_tree(folder / UNFINISHED)
        result = change(learner)
        Driver(folder).commit(learner)
    return learner, result


def _mark(folder: Path) -> str:
    """Hash that identifies the saved learner; empty if the folder does not hold one yet."""
    return content_hash(read_index(folder)) if (folder / INDEX).exists() else ""


def _begun(unfinished: Path, learner: Learner, task: Task, restart: bool) -> Learner | None:
    """Load the learner that an earlier process left in the middle of this task, if there is one."""
    if restart or not unfinished_task(unfinished.parent):
        return None
    begun = Learner.load(unfinished, device=str(learner.device))
    if begun.notes.get(CONTINUES) != _mark(unfinished.parent):
        raise EvergraphError(f"{unfinished} is another learner's; add --restart to drop it")
    if begun.task_mark != task.mark():
        raise EvergraphError(
            f"{unfinished.parent}: another task was left in the middle; give its graph and classes to go on, "
            "or add --restart to drop it"
        )
    return begun
