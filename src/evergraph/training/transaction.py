"""Changing a learner as a transaction: a failure leaves it as it was; the global random state is untouched."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evergraph.data import Task
from evergraph.errors import EvergraphError
from evergraph.training.inputs import new_names
from evergraph.training.member import OnEpoch, Progress

if TYPE_CHECKING:
    from evergraph.training.learner import Learner

CHANGING = (
    "classes_", "num_classes", "num_tasks", "first_accuracies", "history", "records", "feature_names", "progress",
    "task_mark", "optimizer_state", "random_state",
)  # fmt: skip
"""Attributes of a learner that learning and forgetting change, besides its model, its method and their generator."""


@contextmanager
def transaction(learner: Learner, task: Task) -> Iterator[bool]:
    """Begin a task, or resume an unfinished one; yields whether it is resumed. A failure restores everything."""
    mark, resumed = task.mark(), learner.in_mid_task
    if learner.progress is not None and mark != learner.task_mark:
        raise EvergraphError(
            f"the learner is in the middle of another task (epoch {learner.progress.epoch}); "
            "learn that one to its end, or load an earlier checkpoint"
        )
    try:
        with restored_on_failure(learner):
            if not resumed:
                learner.classes_ = learner.classes_ + new_names(learner.classes_, task)
                kept = learner.optimizer_state if learner.training.keep_optimizer else None
                learner.progress, learner.task_mark, learner.optimizer_state = Progress(optimizer=kept), mark, None
            yield resumed
    except _StoppedBetweenEpochs as stopped:
        raise stopped.reason from None


@contextmanager
def restored_on_failure(learner: Learner) -> Iterator[None]:
    """Restore the learner if anything within this context raises, except a caller's hook between epochs."""
    before = {name: copy.deepcopy(getattr(learner, name)) for name in CHANGING}
    restore_model = remembered(learner.model)
    state, generator = learner.method.copied_state(), learner.generator.get_state()
    try:
        yield
    except _StoppedBetweenEpochs:
        raise
    except BaseException:
        for name, value in before.items():
            setattr(learner, name, value)
        restore_model()
        learner.method.load_state_dict(state)
        learner.generator.set_state(generator)
        raise


class _StoppedBetweenEpochs(BaseException):
    """Carries an exception raised by a caller's hook past the clean-up for failures."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__()
        self.reason = reason


def between_epochs(learner: Learner, on_epoch: OnEpoch | None) -> OnEpoch:
    """Wrap the caller's hook so that it is called with the learner in a state that can be saved."""

    def hook(progress: Progress, epochs: int) -> None:
        learner.random_state = torch.get_rng_state()
        if on_epoch is None:
            return
        try:
            on_epoch(progress, epochs)
        except BaseException as reason:
            raise _StoppedBetweenEpochs(reason) from None
        torch.set_rng_state(learner.random_state)  # undoes draws by the hook

    return hook


@contextmanager
def own_random_numbers(learner: Learner) -> Iterator[None]:
    """Within this context, use the learner's random state; the global one is left unchanged."""
    devices = [learner.device] if learner.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.set_rng_state(learner.random_state)
        if devices:
            torch.cuda.manual_seed(zlib.crc32(learner.random_state.numpy().tobytes()))  # without drawing a seed
        yield
        learner.random_state = torch.get_rng_state()


def remembered(model: nn.Module) -> Callable[[], None]:
    """Return a function that restores a model's present parameters, buffers and submodules, whatever happens to it.

    Every module stays the same object: a caller's own module is restored too, not replaced by a copy.
    """
    copies: dict[int, Any] = {}
    copy.deepcopy(model, copies)  # maps each object's id to its copy
    modules = list(model.modules())

    def restore() -> None:
        original = {id(copies[id(module)]): module for module in modules}
        for module in modules:
            saved = vars(copies[id(module)])
            parts = {name: None if part is None else original[id(part)] for name, part in saved["_modules"].items()}
            vars(module).clear()
            vars(module).update({**saved, "_modules": parts})

    return restore
