"""What an executor is: it cuts an epoch into batches and carries out a step on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from evergraph.core.capabilities import Answer
from evergraph.data.batching import Batch
from evergraph.methods.base import Context, Method

TrainStep = Callable[[Batch], Tensor]
"""The loop's own step: from a batch to its summed loss, with the parameters moved."""


class Executor:
    """Carries out the loop's steps in its own way, with the same results to float tolerance.

    Args:
        context: the task.
        step: the loop's step.
    """

    def __init__(self, context: Context, step: TrainStep) -> None:
        self.context, self.train_step = context, step
        self.passed_over: list[str] = []
        """What spoke against the executors before it."""

    @property
    def settled(self) -> bool:
        """Whether all steps are replayed from now on: they touch memory that is this training's own."""
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
        """Let go of what it holds, when the task's steps are done."""

    def how(self) -> str:
        """How steps were carried out, in words: `captured`, or `eager` and why."""
        return ": ".join(["eager", *filter(None, ["; ".join(self.passed_over)])])
