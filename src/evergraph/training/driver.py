"""The one driver that saves and resumes: a learner that lives in a folder, whatever happens to its process.

A task in progress is saved from time to time; so a killed process loses little. Where finished and unfinished states
are kept apart, the folder always holds the learner as it was after its last finished task, and a task that was a
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
from evergraph.persistence.checkpoint import INDEX, read_index, remove_tree
from evergraph.persistence.files import holds_something, taken_folder
from evergraph.persistence.reading import content_hash
from evergraph.training.learner import Learner
from evergraph.training.loop import OnEpoch, Progress

UNFINISHED = "unfinished"
CONTINUES = "continues"  # in the notes of a learner in the middle of a task: the mark of the one that it goes on from
CHECKPOINT_SECONDS = 20.0  # at most so much work is lost; 0 saves after every epoch


class Driver:
    """Learns tasks and saves the learner while it learns and when it is done.

    Args:
        folder: where the learner is saved when a task is done.
        unfinished: where it is saved in the middle of a task; the same folder by default.
        advice: what an error about a failed save says besides.
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
        """Learn a task, saving from time to time; `notes` gives what is saved beside the learner."""

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
            return  # of several processes the first one writes; they all hold the same
        begun = time.perf_counter()
        try:
            learner.save(folder, notes=notes() if notes is not None else None)
        except EvergraphError as error:
            raise EvergraphError(f"{error}{self.advice}") from None
        self._saved = time.perf_counter()
        if CHECKPOINT_SECONDS:  # on a slow disk save less often, so that it takes no more than a tenth of the time
            self._pause = max(CHECKPOINT_SECONDS, 10 * (self._saved - begun))


def load_learner(folder: Path, *, device: str = "auto") -> Learner | None:
    """The learner of the last finished task; None where the folder holds none yet."""
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
    on_learned: Callable[[Learner], None] = lambda learner: None,
) -> Learner:
    """Learn a task with the learner that lives in a folder; goes on with one that was left in the middle.

    Args:
        folder: where the learner lives. It is locked before it is looked at.
        prepare: from the learner of the last finished task, or None, to the one that shall learn, and the task.
        device: where the learner is loaded to.
        restart: drop a task that was left in the middle.
        on_epoch: called after every epoch.
        fits: raises the error for a learner in the middle of the task that was begun with other settings than now.
        on_learned: called with the learner when the task is done, before it is saved.
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
        on_learned(learner)
        driver.commit(learner, lambda: own)
    return learner


def change_in_folder(folder: Path, change: Callable[[Learner], Any], *, device: str = "auto") -> tuple[Learner, Any]:
    """Change the learner that lives in a folder and save it; returns it, and what `change` returned."""
    if not (folder / INDEX).exists():
        raise EvergraphError(f"{folder} holds no checkpoint (there is no {INDEX} in it)")
    with taken_folder(folder, partial(load_learner, folder, device=device)) as learner:
        assert learner is not None
        if (folder / UNFINISHED / INDEX).exists():
            raise EvergraphError(
                f"{folder}: a task was left in the middle; finish it with `evergraph learn`, or --restart"
            )
        result = change(learner)
        Driver(folder).commit(learner)
    return learner, result


def _mark(folder: Path) -> str:
    """What sets a saved learner apart from every other; empty where the folder holds none yet."""
    return content_hash(read_index(folder)) if (folder / INDEX).exists() else ""


def _begun(unfinished: Path, learner: Learner, task: Task, restart: bool) -> Learner | None:
    """The learner in the middle of this very task, if an earlier process left one."""
    if restart or not (unfinished / INDEX).exists():
        return None
    begun = Learner.load(unfinished, device=str(learner.device))
    if begun.num_tasks < learner.num_tasks:
        return None  # the task was finished and saved; the process ended before it removed this
    if begun.notes.get(CONTINUES) != _mark(unfinished.parent):
        raise EvergraphError(f"{unfinished} is another learner's; add --restart to drop it")
    if begun.task_mark != task.mark():
        raise EvergraphError(
            f"{unfinished.parent}: another task was left in the middle; give its graph and classes to go on, "
            "or add --restart to drop it"
        )
    return begun
