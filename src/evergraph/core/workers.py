"""The processes that work on one learner together: one alone, or several under torchrun.

All of them run the same program with the same random numbers. If a sum over examples is worth dividing, each process
computes its share, and the shares are added in the order of the processes, so all get the same bits, every time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evergraph.errors import EvergraphError, first_line, is_out_of_memory

TIMEOUT = timedelta(minutes=10)  # how long a process waits for another one before it gives up
GO_ON = "the same command goes on with as many processes (run: with --resume)"  # advice in error messages
LOST = re.compile(r"gloo|nccl|connect|peer|socket|broken pipe|time[d ]*out|abort|store", re.IGNORECASE)
SMALL = 2**14  # numbers up to which a sum takes one exchange, of all numbers between all processes


class ConnectionLostError(EvergraphError):
    """Raised if another process is gone or cannot be reached."""


class Workers:
    """A single process, as without torchrun."""

    rank: int = 0
    size: int = 1

    def share(self, number: int) -> slice:
        """Return this process's share of `number` items: consecutive ones; shares differ by at most one item."""
        return share_of(number, self.rank, self.size)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums over all processes, added in their order; the same bits everywhere."""
        return list(tensors)

    def stack(self, rows: Tensor, total: int) -> Tensor:
        """Return the rows of all processes, concatenated; each has its share of `total` rows."""
        return rows

    def swap(self, rows: Tensor, to: int, back: int, number: int | None = None) -> Tensor:
        """Send rows to process `to` and return those that process `back` sends: `number` of them, if known."""
        return rows

    def begin_swap(self, rows: Tensor, to: int, back: int, received: Tensor) -> Callable[[], Tensor]:
        """Begin a swap; the returned function waits for its end and returns `received`. All swap in the same order."""
        return lambda: received.copy_(rows)

    def everywhere(self, value: Any) -> Any:
        """Return the first process's value; those of the others are ignored."""
        return value

    def same(self, tensors: Sequence[Tensor]) -> None:
        """Copy the first process's values into the tensors of all processes."""

    def barrier(self) -> None:
        """Wait for all processes."""


class ProcessGroup(Workers):
    """The processes of torch.distributed's default group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum all tensors of the same type and device in one exchange."""
        summed: list[Tensor | None] = [None] * len(tensors)
        kinds = dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors)
        for dtype, device in kinds:
            places = [i for i, tensor in enumerate(tensors) if (tensor.dtype, tensor.device) == (dtype, device)]
            parts = self._sum(torch.cat([tensors[i].reshape(-1) for i in places])).split(
                [tensors[i].numel() for i in places]
            )
            for i, part in zip(places, parts):
                summed[i] = part.view(tensors[i].shape)
        return [tensor for tensor in summed if tensor is not None]

    def _sum(self, flat: Tensor) -> Tensor:
        if flat.numel() <= SMALL:
            return _in_order(self._gather(flat).view(self.size, -1))
        # each process sums one part of the numbers, and all exchange their sums
        part = -(-flat.numel() // self.size)
        padded = torch.nn.functional.pad(flat, (0, part * self.size - flat.numel()))
        received = torch.empty_like(padded)
        with _told():
            dist.all_to_all_single(received, padded)
        return self._gather(_in_order(received.view(self.size, part)))[: flat.numel()]

    def stack(self, rows: Tensor, total: int) -> Tensor:
        """Gather the shares, padded to one length for the exchange."""
        most = -(-total // self.size)
        counts = [len(range(*share_of(total, rank, self.size).indices(total))) for rank in range(self.size)]
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: rows.size(0)] = rows
        gathered = self._gather(padded.reshape(-1)).view(self.size, most, *rows.shape[1:])
        return torch.cat([part[:count] for part, count in zip(gathered, counts)])

    def swap(self, rows: Tensor, to: int, back: int, number: int | None = None) -> Tensor:
        """Swap rows; their number is sent first if it is unknown."""
        if to == self.rank:
            return rows
        if number is None:
            count = torch.tensor([rows.size(0)])
            number = int(self.begin_swap(count, to, back, torch.empty_like(count))())
        return self.begin_swap(rows, to, back, rows.new_empty(number, *rows.shape[1:]))()

    def begin_swap(self, rows: Tensor, to: int, back: int, received: Tensor) -> Callable[[], Tensor]:
        """Begin to send and receive at once, in the background; nothing is sent if there are no rows."""
        sent = rows.contiguous()
        with _told():
            exchanges = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, back)]
            begun = dist.batch_isend_irecv([one for one in exchanges if one.tensor.numel()])

        def wait(_kept: Tensor = sent) -> Tensor:
            with _told():
                for exchange in begun:
                    exchange.wait()
            return received

        return wait

    def everywhere(self, value: Any) -> Any:
        """Broadcast a Python object; the processes run one program and trust one another."""
        box = [value]
        with _told():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def same(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast each tensor."""
        with _told(), torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().contiguous()
                dist.broadcast(sent, src=0)
                tensor.copy_(sent)

    def barrier(self) -> None:
        """Gather from all processes; after a broadcast the sender would not have waited for the others."""
        self._gather(torch.zeros(1))

    def _gather(self, flat: Tensor) -> Tensor:
        gathered = flat.new_empty(self.size * flat.numel())
        with _told():
            _all_gather(gathered, flat.contiguous())
        return gathered


class _told:  # noqa: N801  # reads as a phrase
    """Turns a lost connection into a one-line error; others, such as a lack of memory, stay what they are."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if isinstance(error, RuntimeError) and _is_lost(error):
            raise ConnectionLostError(
                f"another process of this run is gone or cannot be reached ({_reason(error)}); {GO_ON}"
            ) from None


def _is_lost(error: RuntimeError) -> bool:
    """Whether an error of torch.distributed is about the other processes; Gloo's are plain ones of many wordings."""
    if is_out_of_memory(error) or str(error).startswith("CUDA error"):
        return False
    return isinstance(error, dist.DistError) or LOST.search(str(error)) is not None


def _reason(error: RuntimeError) -> str:
    """Return a library's message without the locations in its own source."""
    return first_line(RuntimeError(re.sub(r"^(\[[^]]*/[^]]*\] )+", "", str(error))))


# all_gather_into_tensor is called all_gather_single since torch 2.12
_all_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)

ALONE = Workers()
_current: Workers = ALONE
_store: dist.Store | None = None


def workers() -> Workers:
    """Return the processes that this one works with: itself alone until `join_workers` is called."""
    return _current


def launched() -> int:
    """Return the number of processes that torchrun (or `--processes`) started together; 1 without it."""
    try:
        return max(int(os.environ.get("WORLD_SIZE", "1")), 1) if "MASTER_ADDR" in os.environ else 1
    except ValueError:
        return 1


def join_workers(timeout: timedelta = TIMEOUT) -> Workers:
    """Join the other processes that torchrun started, to work on one learner together: each step is divided.

    From then on all of them must make the same calls with the same data. Gloo is used between CPUs, NCCL between GPUs.
    Without torchrun nothing changes.

    Args:
        timeout: how long to wait for another process before giving up.
    """
    global _current, _store
    if launched() > 1 and _current is ALONE:
        with _told():
            if not dist.is_initialized():
                backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                _store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
                dist.init_process_group(backend, store=_store, rank=rank, world_size=size, timeout=timeout)
            _current = ProcessGroup()
    return _current


def leave_workers() -> None:
    """Leave the other processes when all work is done."""
    global _current, _store
    if _current is not ALONE:
        dist.destroy_process_group()
    _current, _store = ALONE, None


def speaks_first() -> bool:
    """Return whether this process is the first to report that the run has failed; one line is enough."""
    if _store is None:
        return int(os.environ.get("RANK", "0")) == 0 or launched() == 1
    try:
        return bool(_store.add("evergraph/failed", 1) == 1)
    except RuntimeError:  # the store is gone with its process
        return int(os.environ.get("RANK", "0")) <= 1


def share_of(number: int, rank: int, size: int) -> slice:
    """Return the consecutive items out of `number` that a process takes; the first processes may take one more."""
    each, more = divmod(number, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


def _in_order(rows: Tensor) -> Tensor:
    """Return the sum of the rows, added one after the other."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
