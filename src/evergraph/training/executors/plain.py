"""The plain executor: step after step, on any device."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from evergraph.core.capabilities import Answer
from evergraph.data.batching import Batch
from evergraph.methods.base import Context, Method
from evergraph.training.executors.base import Executor


class PlainExecutor(Executor):
    """Cuts batches out of the task's graph and steps on each; suits every task."""

    @classmethod
    def suits(cls, context: Context, method: Method) -> Answer:
        """Always."""
        return True

    def batches(self, seeds: Tensor) -> Iterator[Batch]:
        """Consecutive pieces of the seeds with their neighbourhoods."""
        return self.context.batcher.batches(seeds, self.context.batch_size)

    def step(self, batch: Batch) -> Tensor:
        """The loop's step."""
        return self.train_step(batch)
