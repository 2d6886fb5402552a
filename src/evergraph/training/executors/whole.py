"""Full-batch steps on a GPU: the one batch is cut once a task, and the step on it captured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from evergraph.core.shortcuts import fast
from evergraph.data.batching import Batch
from evergraph.methods.base import Context, Method
from evergraph.training.executors.base import Executor, TrainStep
from evergraph.training.executors.cuda_graphs import Recorded, can_capture


class WholeBatchExecutor(Executor):
    """Steps on all examples of a task at once. Their order, which matters to no sum, is the task's own."""

    def __init__(self, context: Context, step: TrainStep) -> None:
        super().__init__(context, step)
        self._batch = context.batcher.batch(context.train)
        whole = partial(step, self._batch)
        self._step = Recorded(whole) if context.device.type == "cuda" else whole

    @classmethod
    def suits(cls, context: Context, method: Method) -> bool:
        """On a GPU, where model and method declare that their steps are the same kernels every time."""
        return fast("capture") and context.device.type == "cuda" and can_capture(context, method, padded=False)

    def batches(self, seeds: Tensor) -> Iterator[Batch]:
        """The one batch."""
        yield self._batch

    def step(self, batch: Batch) -> Tensor:
        """The loop's step, captured once it is warm."""
        return self._step()
