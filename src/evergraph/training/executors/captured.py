"""Training steps on a GPU without launch overhead: recorded once as a CUDA graph, then replayed.

A step on a small batch is some sixty kernels of a few microseconds each, so a GPU waits for Python most of the
time. A CUDA graph launches all of them at once, but needs the same shapes every time. Batches are
therefore padded: each edge into a seed gets a row of its own (no search for neighbours that occur twice), up to
one of a few allowed numbers of rows, and the step itself is the training loop's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.capabilities import Answer
from evergraph.core.row_pieces import row_kernel
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.methods.base import Context, Method
from evergraph.training.executors.base import TrainStep
from evergraph.training.executors.cuda_graphs import can_capture
from evergraph.training.executors.recording import RecordingExecutor

MOST_SEEDS = 1024  # in a batch made by Triton's kernel
LARGEST_OPERATOR = 2**24  # entries of a padded batch's dense operator; larger batches are not launch-bound anyway


@dataclass(eq=False)
class PaddedBatch(Batch):
    """A batch with a single layer: a dense matrix from one row per edge to the seeds."""

    matrix: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    def layer(self, number: int) -> Tensor:  # type: ignore[override]
        """The dense matrix."""
        return self.matrix


@dataclass(eq=False)
class Piece:
    """The seeds of a batch and the number of rows that it is padded to."""

    seeds: Tensor
    capacity: int


def padded_batch(batcher: Neighbourhoods, seeds: Tensor, capacity: int) -> PaddedBatch:
    """Make a one-hop batch around the seeds, with shapes that depend only on the number of seeds and `capacity`.

    Row e of the batch is the source of the e-th edge into the seeds; rows beyond the last edge are node 0
    with weight 0. The operator is a dense matrix. Nothing here waits for the device.
    """
    operator, count = batcher.operator, seeds.numel()
    features: Tensor = batcher.x  # type: ignore[assignment]  # dense, as the model's capability asks for
    if seeds.is_cuda and count <= MOST_SEEDS and features.is_contiguous() and row_kernel() is not None:
        from evergraph.training.executors.cut_kernel import launch

        source, matrix, x = launch(seeds, operator.parts(), capacity, features)
    else:
        source, matrix = cut_rows(operator, seeds, capacity)
        x = features.index_select(0, source)
    y = batcher.y.index_select(0, seeds)
    return PaddedBatch(x, operator, (count, capacity), source, y, batcher, matrix=matrix)


def cut_rows(operator: SparseMatrix, seeds: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """The source of each row of a padded batch, and the matrix from rows to seeds."""
    count = seeds.numel()
    start = operator.indptr[seeds]
    edges = operator.indptr[seeds + 1] - start
    end = edges.cumsum(0)
    row = torch.arange(capacity, device=seeds.device)
    seed = torch.searchsorted(end, row, right=True)  # the seed of each edge; `count` for padding
    present = seed < count
    seed = seed.clamp(max=count - 1)
    entry = torch.where(present, start[seed] + row - (end - edges)[seed], 0)
    weight = operator.values[entry] * present
    matrix = weight * (seed == torch.arange(count, device=seeds.device).unsqueeze(1))
    return operator.indices[entry], matrix


class CapturedExecutor(RecordingExecutor):
    """Padded training steps; on a GPU they are captured, one recorded step for each shape."""

    def __init__(self, context: Context, step: TrainStep) -> None:
        super().__init__(context, step)
        self._seeds: dict[tuple[int, int], Tensor] = {}  # the buffer that each shape's recorded step reads

    @classmethod
    def suits(cls, context: Context, method: Method) -> Answer:
        """On a GPU, if model and method declare that their steps are the same kernels every time."""
        if context.batch_size is None:
            return False
        return cls.can_record(context) and can_capture(context, method, "padded")

    def batches(self, seeds: Tensor) -> Iterator[Piece]:
        """Consecutive pieces of the seeds, each with the number of rows it needs, rounded up."""
        size = self.context.batch_size or max(seeds.numel(), 1)
        counts = self.context.batcher.operator.counts()[seeds]
        edges = F.pad(counts, (0, -counts.numel() % size)).view(-1, size).sum(1)
        for piece, rows in zip(torch.split(seeds, size), edges.tolist()):
            yield Piece(piece, rounded_up(rows))

    def step(self, batch: Piece) -> Tensor:
        """One training step; returns the batch's summed loss."""
        if batch.seeds.numel() * batch.capacity > LARGEST_OPERATOR:
            return self.train_step(self.context.batcher.batch(batch.seeds))
        if not self.captures:
            return self._padded(batch.seeds, batch.capacity)
        shape = (batch.seeds.numel(), batch.capacity)
        if shape not in self._seeds:
            self._seeds[shape] = torch.empty_like(batch.seeds)
        seeds = self._seeds[shape]
        seeds.copy_(batch.seeds)
        return self.replay(shape, lambda: partial(self._padded, seeds, batch.capacity))

    def _padded(self, seeds: Tensor, capacity: int) -> Tensor:
        return self.train_step(padded_batch(self.context.batcher, seeds, capacity))


def rounded_up(rows: int) -> int:
    """Round up to the next of 64, 96, 128, 192, 256, …, which adds at most a half."""
    size = 64
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
