"""Training steps on a GPU without the launches: recorded once as a CUDA graph, then replayed.

A step of a small batch is some sixty kernels of a few microseconds, so a GPU waits for Python most of the
time. A CUDA graph launches all of them at once, but wants the same shapes every time. Batches are
therefore padded: each edge into a seed gets a row of its own (no search for neighbours met twice), up to
a number of rows that only a few sizes are allowed for, and the step itself is the training loop's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from evergraph.data.batches import Batch, Neighbourhoods
from evergraph.fast import fast
from evergraph.methods.base import Compose, Context, Method
from evergraph.methods.curvature import OnlineCurvature
from evergraph.methods.quadratic import Quadratic
from evergraph.models.gcn import GCN

TrainStep = Callable[[Batch], Tensor]
LARGEST_OPERATOR = 2**24  # entries of a padded batch's dense operator; larger batches are not launch-bound anyway
BETWEEN_STEPS = {"start_task", "end_task", "epochs", "grow", "hyperparameters", "state_dict", "load_state_dict"}


@dataclass(eq=False)
class PaddedBatch(Batch):
    """A batch whose one layer is a dense matrix, from a row for each edge to the seeds."""

    matrix: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    def layer(self, number: int) -> Tensor:  # type: ignore[override]
        """The dense matrix."""
        return self.matrix


@dataclass(eq=False)
class Piece:
    """The seeds of a batch and the rows that it is padded to."""

    seeds: Tensor
    capacity: int


def padded_batch(cut: Neighbourhoods, seeds: Tensor, capacity: int) -> PaddedBatch:
    """One hop around the seeds with shapes that depend on the number of seeds and `capacity` alone.

    Row e of the batch is the source of the e-th edge into the seeds; rows beyond the last edge are node 0
    with weight 0. The operator is a dense matrix. Nothing here waits for the device.
    """
    operator, count = cut.operator, seeds.numel()
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
    source = operator.indices[entry]
    x = cut.x[source]  # type: ignore[index]  # dense: see `can_capture`
    return PaddedBatch(x, operator, (count, capacity), source, cut.y[seeds], cut, matrix)


class PaddedSteps:
    """Padded training steps, in place of batches and steps in the training loop; on a GPU they are captured.

    A shape that is met for the first time is stepped through as it is, which also warms up the libraries;
    the second time it is captured, and from then on replayed.
    """

    def __init__(self, cut: Neighbourhoods, step: TrainStep) -> None:
        self.cut, self.step = cut, step
        self.captures = cut.y.is_cuda
        self._met: set[tuple[int, int]] = set()
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._stream = torch.cuda.Stream(cut.y.device) if self.captures else None

    def batches(self, seeds: Tensor, batch_size: int | None) -> Iterator[Piece]:
        """The seeds in consecutive pieces, with the rows each needs rounded up."""
        pieces = torch.split(seeds, batch_size or max(seeds.numel(), 1))
        counts = self.cut.operator.counts()[seeds]
        edges = torch.stack([part.sum() for part in torch.split(counts, batch_size or max(seeds.numel(), 1))])
        for piece, rows in zip(pieces, edges.tolist()):
            yield Piece(piece, rounded_up(rows))

    def __call__(self, piece: Piece) -> Tensor:
        """One training step; returns the batch's loss."""
        if piece.seeds.numel() * piece.capacity > LARGEST_OPERATOR:
            return self.step(self.cut.batch(piece.seeds))
        if not self.captures:
            return self._padded(piece.seeds, piece.capacity)
        shape = (piece.seeds.numel(), piece.capacity)
        if shape not in self._met:
            self._met.add(shape)
            return self._aside(piece)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(piece)
        graph, seeds, loss = self._graphs[shape]
        seeds.copy_(piece.seeds)
        graph.replay()
        return loss

    def _padded(self, seeds: Tensor, capacity: int) -> Tensor:
        return self.step(padded_batch(self.cut, seeds, capacity))

    def _aside(self, piece: Piece) -> Tensor:
        """A step outside of a capture, on the stream that captures use."""
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._padded(piece.seeds, piece.capacity)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _capture(self, piece: Piece) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        """Record a step; nothing is computed yet."""
        graph, seeds = torch.cuda.CUDAGraph(), piece.seeds.clone()
        with torch.cuda.graph(graph, stream=self._stream):
            loss = self._padded(seeds, piece.capacity)
        return graph, seeds, loss


def rounded_up(rows: int) -> int:
    """The next of 64, 96, 128, 192, 256, …: at most half as much again."""
    size = 64
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def padded_steps(context: Context, method: Method, step: TrainStep) -> PaddedSteps | None:
    """Captured steps where they are possible and not switched off, else None."""
    if not (fast("capture") and context.classes.is_cuda and can_capture(context, method)):
        return None
    return PaddedSteps(context.neighbourhoods, step)


def can_capture(context: Context, method: Method) -> bool:
    """Whether a step is the same kernels every time: no random numbers, no answers read by Python."""
    model, cut = context.model, context.neighbourhoods
    return (
        type(model) is GCN
        and model.dropout == 0
        and cut.num_hops == 1
        and isinstance(cut.x, Tensor)
        and cut.fan_out is None
        and context.batch_size is not None
        and _steps_are_fixed(method)
    )


def _steps_are_fixed(method: Method) -> bool:
    """Fine-tuning's hooks, the merged quadratic's, and the exact curvature's; any other method steps eagerly."""
    if type(method) is Compose:
        return all(_steps_are_fixed(part) for part in method.methods)
    if type(method) is OnlineCurvature:
        return method.estimator == "exact" and method.point == 1
    hooks = [name for name in vars(Method) if not name.startswith("_") and callable(getattr(Method, name))]
    return all(
        getattr(type(method), name) in (getattr(Method, name), getattr(Quadratic, name))
        for name in hooks
        if name not in BETWEEN_STEPS
    )
