"""Batches prepared ahead of time on a CPU: a second thread prepares the next one while a step is carried out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from evergraph.core.capabilities import Answer
from evergraph.data.batching import Batch
from evergraph.methods.base import Context, Method
from evergraph.training.executors.base import TrainStep
from evergraph.training.executors.plain import PlainExecutor


class AheadExecutor(PlainExecutor):
    """The plain steps, on batches that another thread prepares ahead of time, with the transposes that a step needs.

    Exact neighbourhoods draw no random numbers, so the batches are exactly the same; sampled ones are left to the
    loop's own thread, where their random numbers belong.
    """

    def __init__(self, context: Context, step: TrainStep) -> None:
        super().__init__(context, step)
        self._batcher = context.batcher.twin()  # with a workspace of its own

    @classmethod
    def suits(cls, context: Context, method: Method) -> Answer:
        """On a CPU with a core to spare, for mini-batches with exact neighbourhoods."""
        if context.device.type != "cpu" or context.batch_size is None or context.batcher.fan_out is not None:
            return False
        if method.further_examples(context) is not None:  # these depend on the previous step
            return False
        return torch.get_num_threads() > 1 and context.num_train > context.batch_size

    def batches(self, seeds: Tensor) -> Iterator[Batch]:
        """The same batches as `PlainExecutor`, each prepared while the previous step is carried out."""
        pieces = torch.split(seeds, self.context.batch_size or max(seeds.numel(), 1))
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(self._cut, pieces[0])
            for piece in (*pieces[1:], None):
                batch = coming.result()
                if piece is not None:
                    coming = thread.submit(self._cut, piece)
                yield batch

    def _cut(self, seeds: Tensor) -> Batch:
        batch = self._batcher.batch(seeds).with_transposes()
        batch.source = self.context.batcher  # products with constant weights are cached for this batcher
        return batch
