"""Base class of executors, which split an epoch into batches and carry out a step on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from torch import Tensor

from evergraph.core.capabilities import Answer
from evergraph.data.batching import Batch
from evergraph.methods.base import Context, Method

TrainStep = Callable[[Batch], Tensor]
"""The loop's own step: updates the parameters on a batch and returns its summed loss."""


class Executor:
    """Carries out the loop's steps in its own way, with the same results to float tolerance.

    Args:
        context: the task.
        step: the loop's step.
    """

    def __init__(self, context: Context, step: TrainStep) -> None:
        self.context, self.train_step = context, step
        self.passed_over: list[str] = []
        """Why the executors before it were not used."""

    stacked: ClassVar[bool] = False
    """Whether it takes the seeds of several members at once, `(members, examples)`."""

    @property
    def settled(self) -> bool:
        """Whether all steps from now on are replays, which touch only this job's own memory."""
        return False

    @classmethod
    def suits(cls, context: Context, method: Method) -> Answer:
        """Whether it can carry out this task's steps."""
        raise NotImplementedError

    def batches(self, seeds: Tensor) -> Iterator[Any]:
        """An epoch's examples in batches of the context's size, in whatever form `step` takes."""
        raise NotImplementedError

    def step(self, batch: Any) -> Tensor:
        """One training step; returns the batch's summed loss."""
        raise NotImplementedError

    def close(self) -> None:
        """Release resources when the task's steps are done."""

    def how(self) -> str:
        """How steps were carried out, in words: `captured`, or `eager` and why."""
        return ": ".join(["eager", *filter(None, ["; ".join(self.passed_over)])])
