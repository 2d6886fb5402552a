"""Captured steps on a GPU that read rows of one pass over all of a task's examples, batched once per task."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from evergraph.core.capabilities import Answer, No, capable
from evergraph.core.needed_rows import NeededRows
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.fixed_sampling import sampled_rows
from evergraph.methods.base import Context, Method
from evergraph.training.executors.base import TrainStep
from evergraph.training.executors.cuda_graphs import can_capture
from evergraph.training.executors.recording import RecordingExecutor

LARGEST_PASS = 2**16, 2**22, 2**28  # nodes, edges, numbers read for just a few rows; beyond, steps are not launch-bound


class WholeBatchExecutor(RecordingExecutor):
    """Steps on all examples at once or, for mini-batches, on rows of one pass over all of them.

    A pass over a whole task has the same shapes whatever the batch, so it can be captured for any model whose outputs
    do not depend on the other examples of a batch. On a GPU it takes little longer than a pass over a batch, as long as
    the task is small. Sampled neighbours are drawn for all nodes, anew in every layer. Examples of a full batch are in
    the task's own order, which does not matter to sums.
    """

    def __init__(self, context: Context, step: TrainStep) -> None:
        super().__init__(context, step)
        self._whole = context.batcher.exact().batch(context.train).for_many_steps()
        self._whole.source = context.batcher
        if context.method is not None:
            context.method.for_many_steps(context, self._whole)
        self._needed = rows_needed(context, self._whole, 1)
        self._row = torch.full((context.batcher.y.size(0),), -1, dtype=torch.long, device=context.device)
        self._row[context.train] = torch.arange(context.num_train, device=context.device)
        self._rows: dict[int, Tensor] = {}  # the buffer that the recorded step of each size reads rows from

    @classmethod
    def suits(cls, context: Context, method: Method) -> Answer:
        """On a GPU, if model and method declare that their steps are the same kernels every time."""
        if context.batch_size is None:
            return cls.can_record(context) and can_capture(context, method, "whole")
        small = is_small(context.batcher) or No("a pass over the whole task would take longer than its batches")
        return cls.can_record(context) and small and can_capture(context, method, "rows")

    def batches(self, seeds: Tensor) -> Iterator[Tensor]:
        """Rows of the pass: all of them, or those of consecutive pieces of the seeds."""
        return iter(torch.split(self._row[seeds], self.context.batch_size or max(seeds.numel(), 1)))

    def step(self, batch: Tensor) -> Tensor:
        """The loop's step, captured once it is warm."""
        if self.context.batch_size is None:
            step = partial(self._step_on, self._whole)
            return self.replay("whole", lambda: step) if self.captures else step()
        size = batch.numel()
        if size not in self._rows:
            self._rows[size] = torch.empty_like(batch)
        rows = self._rows[size].copy_(batch)
        return self.replay(size, lambda: partial(self._step_of, rows)) if self.captures else self._step_of(rows)

    def _step_of(self, rows: Tensor) -> Tensor:
        if self._needed is not None:
            self._needed.mark(rows.unsqueeze(0))
        return self._step_on(self._whole.choose(rows, self._whole.y.index_select(0, rows), self._needed))

    def _step_on(self, batch: Batch) -> Tensor:
        """The loop's step; if neighbours are sampled, those of each layer are drawn anew."""
        if (fan_out := self.context.batcher.fan_out) is not None:
            layers = (batch.layer(number) for number in range(batch.num_hops))
            drawn = zip(layers, reversed(fan_out[: batch.num_hops]))
            batch = batch.with_layers([sampled_rows(layer, number, None) for layer, number in drawn])
        return self.train_step(batch)


def rows_needed(context: Context, whole: Batch, networks: int) -> NeededRows | None:
    """Flags of the rows that mini-batches read; None if model or method may read others, or too little is saved."""
    size, claim = context.batch_size, capable(context.model, "leaves_out_rows")
    if size is None or claim is None or not whole.num_hops or not isinstance(whole.x, SparseMatrix):
        return None
    reads_more = context.method is not None and context.method.reads_layers
    if reads_more or whole.members is not None or context.batcher.fan_out is not None:
        return None
    needed, number = whole.needs_of(networks), whole.num_seeds
    some = torch.linspace(0, number - 1, min(size, number), device=whole.nodes.device).long()  # spread over the task
    return needed if needed.saves(some.expand(networks, -1)) else None


def is_small(batcher: Neighbourhoods) -> bool:
    """Whether a task is small enough for a pass over all of it to pay even for a few rows."""
    numbers = batcher.x.nnz if isinstance(batcher.x, SparseMatrix) else batcher.x.numel()
    sizes = batcher.operator.num_rows, batcher.operator.nnz, numbers
    return all(size <= most for size, most in zip(sizes, LARGEST_PASS))
