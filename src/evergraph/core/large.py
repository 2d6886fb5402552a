"""Large matrices on a CPU, in huge pages of memory that is reused while a learner learns.

New memory is slow: a matrix of 200 MB takes 50,000 page faults with pages of 4 KB, and on a virtual machine each page
may have to come from the host. numpy requests huge pages where the system has them (`madvise`), torch does not. Within
`reused`, the memory of a freed matrix is reused for the next matrix of about its size.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGE = 2**22  # bytes from which on numpy requests huge pages
WASTE = 1.25  # largest ratio of a reused block's size to the size needed
KINDS: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


class Pool:
    """A pool of memory blocks for reuse, active while it has users.

    Blocks in use and idle ones together never take more than was in use at once before: idle blocks of sizes that are
    no longer asked for are freed, the least recently used first.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.idle = list[np.ndarray]()  # blocks of bytes, the most recently used last
        self.users, self.lent, self.most = 0, 0, 0  # contexts in `reused`; bytes in use by arrays, now and at most

    def take(self, size: int) -> np.ndarray:
        """Return a block of `size` bytes or slightly more."""
        with self.lock:
            fitting = [block for block in self.idle if size <= block.nbytes <= WASTE * size]
            block = min(fitting, key=lambda block: block.nbytes, default=None)
            self.idle[:] = [other for other in self.idle if other is not block]
            self.lent += size if block is None else block.nbytes
            self.most = max(self.most, self.lent)
            while self.idle and sum(other.nbytes for other in self.idle) > self.most - self.lent:
                self.idle.pop(0)
            try:
                return np.empty(size, dtype=np.uint8) if block is None else block
            except MemoryError:
                self.lent -= size
                raise

    def give_back(self, block: np.ndarray) -> None:
        """Return a block to the pool."""
        with self.lock:
            self.lent -= block.nbytes
            if self.users:
                self.idle.append(block)

    def rest(self) -> None:
        """Free all idle blocks."""
        with self.lock:
            self.idle.clear()
            self.most = self.lent


class Lease:
    """The block of memory of an array; it returns to the pool when the last array over it is gone."""

    def __init__(self, pool: Pool, size: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
        self.block = pool.take(size)
        self.pool = pool
        at = (self.block.ctypes.data, False)
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": kind.str, "data": at}

    def __del__(self) -> None:
        if hasattr(self, "pool"):  # the allocation succeeded
            self.pool.give_back(self.block)


_pool = Pool()


@contextmanager
def reused() -> Iterator[None]:
    """Reuse memory within the context; idle memory is freed when the last such context ends."""
    with _pool.lock:
        _pool.users += 1
    try:
        yield
    finally:
        with _pool.lock:
            _pool.users -= 1
            if not _pool.users:
                _pool.rest()


def array(shape: Sequence[int], kind: np.dtype[Any]) -> np.ndarray:
    """Like `np.empty`."""
    size = math.prod(shape) * kind.itemsize
    if not _pool.users or size < LARGE:
        return np.empty(tuple(shape), dtype=kind)
    return np.asarray(Lease(_pool, size, tuple(shape), kind))


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Like `torch.empty`."""
    kind = KINDS.get(dtype)
    if kind is None or (device is not None and device.type != "cpu"):
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    return torch.from_numpy(array(shape, kind))


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Like `torch.zeros`."""
    return empty(shape, dtype, device).zero_()


def copied(matrix: Tensor) -> Tensor:
    """Like `matrix.clone()`."""
    return empty(matrix.shape, matrix.dtype, matrix.device).copy_(matrix)


def rows(matrix: Tensor, places: Tensor) -> Tensor:
    """Like `matrix.index_select(0, places)`."""
    if matrix.requires_grad or places.numel() * matrix[:1].nbytes < LARGE:
        return matrix.index_select(0, places)
    found = empty((places.numel(), *matrix.shape[1:]), matrix.dtype, matrix.device)
    return torch.index_select(matrix, 0, places, out=found)


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Like `torch.cat(parts)` for matrices of one type; a single one is not copied, unless it is a view of a larger."""
    filled = [part for part in parts if part.size(0)] or list(parts[:1])
    if len(filled) == 1 and filled[0].untyped_storage().nbytes() == filled[0].nbytes:
        return filled[0]
    height = sum(part.size(0) for part in filled)
    return torch.cat(filled, out=empty((height, *filled[0].shape[1:]), filled[0].dtype, filled[0].device))
