"""The plain executor: step after step, on any device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from evergraph.core.capabilities import Answer
from evergraph.data.batching import Batch
from evergraph.methods.base import Context, Method
from evergraph.training.executors.base import Executor


class PlainExecutor(Executor):
    """Makes batches of the task's graph and steps on each; suits every task."""

    @classmethod
    def suits(cls, context: Context, method: Method) -> Answer:
        """Always."""
        return True

    def batches(self, seeds: Tensor) -> Iterator[Batch]:
        """Consecutive pieces of the seeds with their neighbourhoods, and any further examples that the method reads."""
        for piece in torch.split(seeds, self.context.batch_size or max(seeds.numel(), 1)):
            yield self.cut(piece)

    def cut(self, examples: Tensor) -> Batch:
        """Make a batch of the given examples."""
        context = self.context
        further = context.method.further_examples(context) if context.method is not None else None
        if further is None:
            return context.batcher.batch(examples)
        further = further[~torch.isin(further, examples)].unique()
        batch = context.batcher.batch(torch.cat([examples, further]))
        return batch.choose(torch.arange(examples.numel(), device=examples.device), context.batcher.y[examples])

    def step(self, batch: Batch) -> Tensor:
        """The loop's step."""
        return self.train_step(batch)
