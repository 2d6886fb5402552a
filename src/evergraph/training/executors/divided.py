"""Data-parallel steps: each process computes the outputs of its share of a batch, and all see the whole step.

The outputs of all shares are gathered before the loss is computed, so every hook of a method sees the step as a single
process would: its loss, penalties, cotangents, replayed examples and random draws are the same everywhere. Only the
model's forward and backward pass over the batch, which takes most of the time, is divided. The gradients of the shares
are summed over the processes, in their order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evergraph.core.capabilities import Answer
from evergraph.core.params import Direction, copy_buffers, trained_params
from evergraph.core.workers import Workers, workers
from evergraph.curvature import forward, in_mode
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.methods.base import Context, Method
from evergraph.training.executors.base import Executor, TrainStep


class DividedBatch(Batch):
    """A batch of which this process computes a share. The whole batch is only made when its nodes are accessed.

    `dataclasses.replace` turns it into an ordinary batch.
    """

    _all: Tensor | None = None
    _share: slice

    @classmethod
    def of(cls, batcher: Neighbourhoods, examples: Tensor, group: Workers) -> DividedBatch:
        """Make a batch of the given examples, shared by a group."""
        batch = cls.__new__(cls)
        batch.source, batch.y, batch.members, batch.examples = batcher, batcher.y[examples], None, None
        batch._all, batch._share, batch._layers = examples, group.share(examples.numel()), {}
        return batch

    @property
    def is_divided(self) -> bool:
        """Whether this process computes only a share of it."""
        return self._all is not None

    @property
    def num_examples(self) -> int:
        """Number of examples in the whole batch."""
        return super().num_examples if self._all is None else self._all.numel()

    @property
    def num_own(self) -> int:
        """Number of examples in this process's share; may be 0."""
        return int(self._share.stop - self._share.start)

    def own(self) -> Batch:
        """Batch of this process's share; if that is empty, of another's example, so that every process takes part."""
        assert self.source is not None
        assert self._all is not None
        return self.source.batch(self._all[self._share] if self.num_own else self._all[:1])

    def __getattr__(self, name: str) -> Any:
        """Make the whole batch when one of its parts is accessed."""
        if name not in {"x", "operator", "sizes", "nodes"} or self._all is None:
            raise AttributeError(name)
        assert self.source is not None
        whole = self.source.batch(self._all)
        for part in ("x", "operator", "sizes", "nodes", "members", "examples"):
            setattr(self, part, getattr(whole, part))
        return getattr(self, name)


class DividedExecutor(Executor):
    """Divides every batch among the processes that torchrun started."""

    def __init__(self, context: Context, step: TrainStep) -> None:
        super().__init__(context, step)
        self.group = workers()
        self._divides = rows_are_independent(context)
        self._seed = self._steps = 0

    @classmethod
    def suits(cls, context: Context, method: Method) -> Answer:
        """If there is more than one process."""
        return workers().size > 1

    def batches(self, seeds: Tensor) -> Iterator[Batch]:
        """Consecutive pieces of the seeds; every process begins the epoch with the first process's parameters."""
        self.group.same(list(self.context.model.parameters()))
        self._seed, self._steps = zlib.crc32(torch.get_rng_state().numpy().tobytes()), 0
        for piece in torch.split(seeds, self.context.batch_size or max(seeds.numel(), 1)):
            if self._divides:
                yield DividedBatch.of(self.context.batcher, piece, self.group)
            else:
                yield self.context.batcher.batch(piece)

    def step(self, batch: Batch) -> Tensor:
        """The loop's step, with a forward pass that is divided among the processes."""
        self._steps += 1
        return self.train_step(batch, forward=self.forward if self._divides else forward)  # type: ignore[call-arg]

    def forward(self, model: nn.Module, batch: Any, directions: Sequence[Direction]) -> tuple[Tensor, list[Tensor]]:
        """Outputs and tangents of the whole batch, of which this process computes its share."""
        if not (isinstance(batch, DividedBatch) and batch.is_divided):  # replayed examples
            return forward(model, batch, directions)
        trained = trained_params(model)
        copies = _Copy.apply(self.group, *trained.values())
        given = {f"model.{name}": copy for name, copy in zip(trained, copies)}
        with self._own_random_numbers():
            outputs, tangents = functional_call(_Pass(model), given, (batch.own(), directions))
        parts = [part[: batch.num_own] for part in (outputs, *tangents)]
        whole = _Stack.apply(torch.cat(parts, dim=1), batch.num_examples, self.group)
        outputs, *tangents = whole.split([part.size(1) for part in parts], dim=1)
        return outputs, [tangent.detach() for tangent in tangents]

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Within this context, draws differ between processes: dropout and sampled neighbours, and nothing else."""
        device = self.context.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self._seed + 1_000_003 * self._steps + 7_919 * self.group.rank)
            yield


class _Pass(nn.Module):
    """A forward pass as a module, so that `functional_call` can give it other parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, directions: Sequence[Direction]) -> tuple[Tensor, list[Tensor]]:
        return forward(self.model, batch, directions)


# Four linear maps between tensors that are the same in all processes and tensors that each process has of its own. They
# are pairs of transposes, so that gradients of gradients are right too.


class _Copy(torch.autograd.Function):
    """Use the same values in every process; gradients are summed over the processes."""

    @staticmethod
    def forward(ctx: Any, group: Workers, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        ctx.set_materialize_grads(False)
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        summed = iter(_Sum.apply(ctx.group, *(grad for grad in grads if grad is not None)))
        return (None, *(None if grad is None else next(summed) for grad in grads))


class _Sum(torch.autograd.Function):
    """Sum tensors over the processes."""

    @staticmethod
    def forward(ctx: Any, group: Workers, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(group.sum(values))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return (None, *_Copy.apply(ctx.group, *grads))


class _Stack(torch.autograd.Function):
    """Concatenate the rows of all shares."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, total: int, group: Workers) -> Tensor:
        ctx.total, ctx.group = total, group
        return group.stack(rows, total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Share.apply(grad, ctx.total, ctx.group), None, None


class _Share(torch.autograd.Function):
    """Take this process's share of rows that all processes have."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, total: int, group: Workers) -> Tensor:
        ctx.total, ctx.group = total, group
        return rows[group.share(total)].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Stack.apply(grad.contiguous(), ctx.total, ctx.group), None, None


@torch.no_grad()
def rows_are_independent(context: Context) -> bool:
    """Whether a batch's outputs equal those of its parts, so that it can be divided; found by trying.

    Batch normalization reads the whole batch. With dropout, passes in training mode cannot be compared, so evaluation
    mode decides, unless a pass updates a buffer.
    """
    model, some = context.model, context.train[:2]
    if some.numel() < 2:
        return True
    batcher = context.batcher.exact()

    def passed(examples: Tensor) -> tuple[Tensor, bool]:
        buffers = copy_buffers(model)
        outputs: Tensor = functional_call(model, buffers, (batcher.batch(examples),))
        moved = any(not torch.equal(value, buffers[name]) for name, value in model.named_buffers())
        return outputs, moved

    def agree(training: bool) -> tuple[bool, bool]:
        with in_mode(model, training):
            whole, moved = passed(some)
            parts = torch.cat([passed(one)[0] for one in some.split(1)])
        return torch.allclose(whole, parts, rtol=1e-3, atol=1e-6, equal_nan=True), moved

    with torch.random.fork_rng([context.device] if context.device.type == "cuda" else []):
        state = torch.get_rng_state()
        same, moved = agree(training=True)
        drew = not torch.equal(state, torch.get_rng_state())
        return same or (drew and not moved and agree(training=False)[0])
