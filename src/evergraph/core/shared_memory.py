"""Memory shared by the processes of one machine, so that nothing has to be sent between them.

Which processes are on one machine is found by trial: each creates a small file in memory, and those that can open each
other's share memory. Linux has two kinds of such files. One has no name, is opened by its process's ID, and can be as
large as memory allows. The other is in /dev/shm, which is small in many containers, and is used if a process may not
open another one's files. Neither outlives the processes: the first kind ends with them, the second is unlinked as soon
as all have opened it.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import torch
from torch import Tensor

from evergraph.core.shortcuts import fast
from evergraph.core.workers import Workers
from evergraph.errors import first_line, tell

FOLDER = "/dev/shm"  # files in it have random names, and only their owner can open them
NOWHERE = (0, 0, 0)  # the address of no file


class MemoryFile:
    """A file in memory: created by this process, or by another process that has sent its address."""

    def __init__(self, address: Sequence[int] | None = None) -> None:
        process, number, token = address or (os.getpid(), 0, secrets.randbits(62))
        self.name = f"evergraph-{token:x}"
        self.number = self._make() if address is None else self._open(process, number)
        self.address = (process, self.number, token)

    def _make(self) -> int:
        return os.memfd_create(self.name)

    def _open(self, process: int, number: int) -> int:
        path = f"/proc/{process}/fd/{number}"
        if self.name not in os.readlink(path):
            raise FileNotFoundError(path)  # this process ID belongs to another process here
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file; memory that is mapped from it stays."""
        os.close(self.number)


class NamedFile(MemoryFile):
    """A file in memory that has a name, in `/dev/shm`."""

    def _make(self) -> int:
        return os.open(f"{FOLDER}/{self.name}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _open(self, process: int, number: int) -> int:
        return os.open(f"{FOLDER}/{self.name}", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file and remove its name."""
        super().close()
        with suppress(OSError):
            os.unlink(f"{FOLDER}/{self.name}")


def machines(group: Workers) -> tuple[list[list[int]], type[MemoryFile]]:
    """Return the processes of each machine that can share memory, and the kind of file that they can share."""
    for kind in (MemoryFile, NamedFile) if group.size > 1 and fast("shared") else ():
        file = _attempt(kind)
        addresses = group.stack(torch.tensor([file.address if file else NOWHERE]), group.size).tolist()
        seen = [rank == group.rank and file is not None for rank in range(group.size)]
        for rank, address in enumerate(addresses):
            other = None if rank == group.rank else _attempt(kind, address)
            if other is not None:
                seen[rank] = True
                os.close(other.number)
        table = group.stack(torch.tensor([seen]), group.size).tolist()
        if file is not None:
            file.close()
        found = [_alike(table, rank) for rank in range(group.size)]
        if any(len(ranks) > 1 for ranks in found):
            return [ranks for rank, ranks in enumerate(found) if ranks[0] == rank], kind
    return [[rank] for rank in range(group.size)], MemoryFile


def _alike(table: list[list[bool]], rank: int) -> list[int]:
    """Return the processes that see the same files as this one, and each other's."""
    mine = table[rank]
    return [i for i, row in enumerate(table) if i == rank or (row == mine and mine[i] and row[rank])]


def _attempt(kind: type[MemoryFile], address: Sequence[int] | None = None) -> MemoryFile | None:
    try:
        return kind(address)
    except (OSError, AttributeError):  # not found, not permitted, or not on this system
        return None


class Board:
    """Rows that all processes of a machine can read; each process writes its own.

    Args:
        group: all processes; they create a board together, and show rows equally often.
        starts: the first row of each process, and the total number of rows.
        dtype: type of the numbers.
        width: returns the largest number of columns to show at once, given the number of machines.
    """

    def __init__(self, group: Workers, starts: Sequence[int], dtype: torch.dtype, width: Callable[[int], int]) -> None:
        self.group, self.dtype = group, dtype
        self._sizes = [last - first for first, last in pairwise(starts)]
        self.machines, kind = machines(group)
        self.width = width(len(self.machines))
        self._memory = self._shared(kind) if self._is_shared else None
        if self._memory is None:
            self.machines = [[rank] for rank in range(group.size)]
            self.width = width(group.size)

    @property
    def ranks(self) -> list[int]:
        """The processes of this machine."""
        return next(ranks for ranks in self.machines if self.group.rank in ranks)

    @property
    def num_rows(self) -> int:
        """Number of rows of all processes of this machine."""
        return sum(self._sizes[rank] for rank in self.ranks)

    def start_of(self, rank: int) -> int:
        """Return the first row of a process of this machine."""
        return sum(self._sizes[other] for other in self.ranks if other < rank)

    def show(self, rows: Tensor, space: Tensor) -> Tensor:
        """Write this process's rows, and return those of the whole machine; valid until the next rows are shown.

        A process that is alone on its machine writes them to its own `space`.
        """
        if self._is_shared:
            self.group.barrier()  # until all have read the last rows
        memory = space if self._memory is None or len(self.ranks) == 1 else self._memory
        shown = memory[: self.num_rows * rows.size(1)].view(self.num_rows, rows.size(1))
        shown.narrow(0, self.start_of(self.group.rank), rows.size(0)).copy_(rows)
        if self._is_shared:
            self.group.barrier()
        return shown

    @property
    def _is_shared(self) -> bool:
        """Whether any processes, on whatever machine, share memory."""
        return len(self.machines) < self.group.size

    def _shared(self, kind: type[MemoryFile]) -> Tensor | None:
        """Return memory for the rows of this machine's processes; None in all processes if any cannot get it."""
        row, rank = self.width * self.dtype.itemsize, self.group.rank
        file, memory, reason = None, torch.empty(0, dtype=self.dtype), ""
        try:
            if rank == self.ranks[0] and len(self.ranks) > 1:
                file = kind()
                os.truncate(file.number, self.num_rows * row)
        except OSError as error:
            reason = first_line(error)
        addresses = self.group.stack(torch.tensor([file.address if file else NOWHERE]), self.group.size).tolist()
        try:
            if len(self.ranks) > 1 and not reason:
                file = file or kind(addresses[self.ranks[0]])
                # raises if there is not enough memory, where writing to it would crash
                os.posix_fallocate(file.number, self.start_of(rank) * row, self._sizes[rank] * row)
                memory = torch.frombuffer(mmap.mmap(file.number, self.num_rows * row), dtype=self.dtype)
        except (OSError, ValueError) as error:
            reason = first_line(error)
        failures = int(self.group.sum([torch.tensor([bool(reason)], dtype=torch.long)])[0])
        if file is not None:
            file.close()
        if failures and rank == 0:
            tell(
                f"{self.num_rows * row / 2**20:.0f} MB of memory cannot be shared by the processes of a machine"
                f"{f' ({reason})' if reason else ''}; they send rows to one another, which takes longer"
            )
        return None if failures else memory
