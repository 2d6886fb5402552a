"""Symmetric matrices stored as their lower triangle, and sums of them restricted to some rows and columns.

A packed matrix is one flat tensor: panels of `PANEL` rows, each from the first column to the panel's diagonal block,
which is stored whole. It takes half as many numbers as the square matrix, plus half a panel's height per row. All
functions that read packed matrices read square ones too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.compiled import Kernels, few_columns, kernels
from evergraph.core.side_by_side import WORTH_SHARING, side_by_side

PANEL = 256  # rows of a panel
JOBS = 4  # into which the product of a large matrix with few columns is divided
FEW_RUNS = 16  # runs of contiguous rows up to which blocks are read in place; beyond, they are gathered


class Panel(NamedTuple):
    """Rows `start` to `stop` of a symmetric matrix.

    Args:
        start: the first row.
        stop: one past the last row.
        entries: (stop − start) × stop numbers, a view; the last stop − start columns are the diagonal block.
    """

    start: int
    stop: int
    entries: Tensor


class Run(NamedTuple):
    """Contiguous rows among those selected: `start` to `stop`; `source` is the matrix row of the first."""

    start: int
    stop: int
    source: int

    @property
    def at(self) -> slice:
        """The rows of the matrix."""
        return slice(self.source, self.source + self.stop - self.start)

    @property
    def place(self) -> slice:
        """Their places among those selected."""
        return slice(self.start, self.stop)

    def within(self, first: int, last: int) -> Run | None:
        """The part of the run that lies in rows `first` to `last` of the matrix; None if there is none."""
        begin, end = max(self.source, first), min(self.at.stop, last)
        return Run(self.start + begin - self.source, self.start + end - self.source, begin) if begin < end else None


class Block(NamedTuple):
    """Entries at rows `down` and columns `across` of a matrix; `diagonal` if they belong to a diagonal block."""

    down: Run
    across: Run
    entries: Tensor
    diagonal: bool


def packed_size(num_rows: int) -> int:
    """How many numbers a packed matrix of `num_rows` rows has."""
    whole, rest = divmod(num_rows, PANEL)
    return PANEL**2 * whole * (whole + 1) // 2 + rest * num_rows


def num_rows(matrix: Tensor) -> int:
    """The number of rows of a packed or square matrix: the inverse of `packed_size`."""
    if matrix.dim() == 2:
        return matrix.size(0)
    whole = (math.isqrt(1 + 8 * matrix.numel() // PANEL**2) - 1) // 2
    left = matrix.numel() - packed_size(whole * PANEL)  # rest² + whole · PANEL · rest
    rows = whole * PANEL + (math.isqrt((whole * PANEL) ** 2 + 4 * left) - whole * PANEL) // 2
    assert packed_size(rows) == matrix.numel()
    return rows


def panels(matrix: Tensor) -> list[Panel]:
    """The panels of a packed or square matrix, as views."""
    rows, found, offset = num_rows(matrix), [], 0
    for start in range(0, rows, PANEL):
        stop = min(start + PANEL, rows)
        if matrix.dim() == 2:
            entries = matrix[start:stop, :stop]
        else:
            entries = matrix[offset : offset + (stop - start) * stop].view(stop - start, stop)
        found.append(Panel(start, stop, entries))
        offset += (stop - start) * stop
    return found


def pack(matrix: Tensor) -> Tensor:
    """A symmetric matrix packed; one that is packed already is returned as it is."""
    if matrix.dim() == 1:
        return matrix
    packed = large.empty((packed_size(matrix.size(0)),), matrix.dtype, matrix.device)
    for panel, source in zip(panels(packed), panels(matrix)):
        panel.entries.copy_(source.entries)
    return packed


def unpack(matrix: Tensor) -> Tensor:
    """The square matrix of a packed one, a new tensor."""
    return SymmetricSum([matrix]).formed()


def leading(matrix: Tensor, rows: int) -> Tensor:
    """The first panels of a packed matrix, as many as hold its first `rows` rows: a packed matrix too, and a view."""
    return matrix[: packed_size(min(-(-rows // PANEL) * PANEL, num_rows(matrix)))]


def entries_at(matrix: Tensor, rows: slice, columns: slice) -> Tensor:
    """The entries at contiguous rows and columns of a packed or square matrix, a copy."""
    found = matrix.new_empty(rows.stop - rows.start, columns.stop - columns.start)
    wanted, others = Run(0, found.size(0), rows.start), Run(0, found.size(1), columns.start)
    for panel in panels(matrix):
        own = wanted.within(panel.start, panel.stop), others.within(0, panel.stop)
        flipped = wanted.within(0, panel.start), others.within(panel.start, panel.stop)
        if own[0] and own[1]:
            entries = panel.entries[own[0].source - panel.start : own[0].at.stop - panel.start, own[1].at]
            found[own[0].place, own[1].place] = entries
        if flipped[0] and flipped[1]:
            entries = panel.entries[flipped[1].source - panel.start : flipped[1].at.stop - panel.start, flipped[0].at]
            found[flipped[0].place, flipped[1].place] = entries.T
    return found


def full_rows(matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of the square matrix, a panel at a time: which they are, and a copy of them."""
    every = panels(matrix)
    for number, panel in enumerate(every):
        rows = slice(panel.start, panel.stop)
        yield rows, torch.cat([panel.entries, *(later.entries[:, rows].T for later in every[number + 1 :])], dim=1)


def clear(matrix: Tensor, rows: Tensor) -> None:
    """Set rows, given as a mask, and the same columns to zero."""
    for panel in panels(matrix):
        panel.entries[rows[panel.start : panel.stop]] = 0.0
        panel.entries[:, rows[: panel.stop]] = 0.0


def diagonal(matrix: Tensor) -> Tensor:
    """The diagonal of a packed or square matrix, a copy."""
    return torch.cat([panel.entries[:, panel.start :].diagonal() for panel in panels(matrix)])


def runs_of(rows: Tensor) -> list[Run]:
    """Rows as runs of contiguous ascending ones."""
    ends = torch.nonzero(rows.diff() != 1).reshape(-1).add(1).tolist()
    limits = itertools.pairwise([0, *ends, rows.numel()])
    return [Run(start, stop, int(rows[start])) for start, stop in limits if stop > start]


class SymmetricSum:
    """A sum of symmetric matrices of one size, restricted to some rows and the same columns.

    Args:
        parts: the matrices, packed or square.
        rows: which rows and columns to read; None for all. If they are not ascending, they come in few runs.
    """

    def __init__(self, parts: Sequence[Tensor], rows: Tensor | None = None) -> None:
        rows = torch.arange(num_rows(parts[0])) if rows is None else rows
        self.size, self.rows, self.parts = rows.numel(), rows.cpu(), list(parts)
        self.runs = runs_of(self.rows)
        if len(self.runs) > FEW_RUNS:
            self.parts, self.rows = [self._gathered()], torch.arange(self.size)
            self.runs = runs_of(self.rows)

    def leads(self, other: SymmetricSum) -> bool:
        """Whether this matrix is the leading part of another one, or all of it."""
        alike = len(self.parts) == len(other.parts) and all(own is its for own, its in zip(self.parts, other.parts))
        return alike and torch.equal(self.rows, other.rows[: self.size])

    def formed(self) -> Tensor:
        """The sum as a new square matrix in float64."""
        total = large.empty((self.size, self.size), torch.float64, self.parts[0].device)
        for number, part in enumerate(self.parts):
            for down, across, entries, in_diagonal in self._blocks(part):
                places = [(total[down.place, across.place], entries)]
                if not in_diagonal:
                    places.append((total[across.place, down.place], entries.T))
                for place, new in places:
                    place.add_(new) if number else place.copy_(new)
        return total

    def diagonal(self) -> Tensor:
        """The sum's diagonal in float64."""
        return torch.stack([diagonal(part).double() for part in self.parts]).sum(0)[self.rows.to(self.parts[0].device)]

    def single_triangle(self, shift: float) -> np.ndarray:
        """The sum plus shift · I in float32. Only its lower triangle is set; the rest is undefined."""
        found = large.array((self.size, self.size), np.dtype(np.float32))
        for blocks in zip(*(self._blocks(part) for part in self.parts), strict=True):
            down, across, _, _ = blocks[0]
            *others, last = (block.entries.numpy() for block in blocks)
            place = found[down.place, across.place]
            if down.start < across.start:  # rows are not ascending
                place = found[across.place, down.place].T
            if others:
                first = sum(others[1:], others[0])  # of two parts: the first itself, without a matrix for the sum
                np.add(first, last, out=place, casting="same_kind")
            else:
                place[...] = last
        np.fill_diagonal(found, self.diagonal().numpy() + shift)
        return found

    def product(self, columns: Tensor) -> Tensor:
        """The sum times `columns` in float64, on any device."""
        if columns.device.type == "cpu":
            return torch.from_numpy(self.times(columns.numpy()))
        return self.formed() @ columns

    def times(self, columns: np.ndarray) -> np.ndarray:
        """The sum times `columns` in float64, on a CPU."""
        compiled = kernels(torch.float64, torch.int64)
        few = few_columns(columns, np.dtype(np.float64)) if compiled is not None else None
        if (
            compiled is not None
            and few is not None
            and all(part.dtype in large.KINDS and part.stride(-1) == 1 for part in self.parts)
        ):
            return self._times_few(compiled, few)[:, : columns.shape[1]]
        found = np.zeros(columns.shape)
        for part in self.parts:
            for down, across, entries, in_diagonal in self._blocks(part):
                block = entries.numpy().astype(np.float64, copy=False)
                found[down.place] += block @ columns[across.place]
                if not in_diagonal:
                    found[across.place] += block.T @ columns[down.place]
        return found

    def _times_few(self, compiled: Kernels, columns: np.ndarray) -> np.ndarray:
        """`times` for few columns: every entry is read once, for both triangles.

        The blocks of a large matrix are divided into a few jobs, as many whatever the number of threads.
        """
        blocks = [block for part in self.parts for block in self._blocks(part)]
        jobs = min(JOBS, len(blocks)) if self.size**2 * columns.shape[1] > WORTH_SHARING / 4 else 1

        def some(first: int) -> np.ndarray:
            found = np.zeros_like(columns)
            for down, across, entries, in_diagonal in blocks[first::jobs]:
                flipped = None if in_diagonal else (found[across.place], columns[down.place])
                compiled.add_product(found[down.place], entries.numpy(), columns[across.place], flipped)
            return found

        total, *others = side_by_side([partial(some, first) for first in range(jobs)]) if jobs > 1 else [some(0)]
        for other in others:
            total += other
        return total

    def _blocks(self, part: Tensor) -> Iterator[Block]:
        """The blocks of the lower triangle among the selected rows; diagonal blocks come whole."""
        for panel in panels(part):
            for run in self.runs:
                if (down := run.within(panel.start, panel.stop)) is None:
                    continue
                own = panel.entries[down.source - panel.start : down.at.stop - panel.start]
                for other in self.runs:
                    for first, last in ((0, panel.start), (panel.start, panel.stop)):
                        if (across := other.within(first, last)) is not None:
                            yield Block(down, across, own[:, across.at], first == panel.start)

    def _gathered(self) -> Tensor:
        """The sum as a square matrix in float64, where runs are too many to read one by one."""
        first = self.parts[0]
        total = torch.zeros(self.size, self.size, dtype=torch.float64, device=first.device)
        for panel in (panel for part in self.parts for panel in panels(part)):
            start, stop = torch.searchsorted(self.rows, torch.tensor([panel.start, panel.stop])).tolist()
            down, across = self.rows[start:stop].to(first.device) - panel.start, self.rows[:stop].to(first.device)
            entries = panel.entries[down].index_select(1, across)
            total[start:stop, :stop] += entries
            total[:start, start:stop] += entries[:, :start].T
        return total
