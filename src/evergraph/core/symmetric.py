"""Sums of symmetric matrices among some of their rows and columns, read where they stand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.compiled import Kernels, few_columns, kernels

PANEL = 512  # rows that are converted at once
FEW_RUNS = 16  # of rows side by side, up to which they are read run by run; beyond, they are gathered


class Run(NamedTuple):
    """Rows side by side: their places among those chosen, and the first one's place among all."""

    start: int
    stop: int
    source: int

    @property
    def at(self) -> slice:
        """Where they stand among all."""
        return slice(self.source, self.source + self.stop - self.start)


def runs_of(rows: Tensor) -> list[Run]:
    """Ascending rows as runs."""
    ends = torch.nonzero(rows.diff() != 1).reshape(-1).add(1).tolist()
    limits = itertools.pairwise([0, *ends, rows.numel()])
    return [Run(start, stop, int(rows[start])) for start, stop in limits if stop > start]


def among(matrix: Tensor, rows: Tensor, total: Tensor | None = None) -> Tensor:
    """A copy of a matrix among some rows and columns, which mostly stand side by side: a gather is slow.

    With `total` it is added to that.
    """
    runs = runs_of(rows)
    if len(runs) > FEW_RUNS:
        rows = rows.to(matrix.device)
        found = matrix[rows].index_select(1, rows)
        return found if total is None else total.add_(found)
    found = large.empty((rows.numel(), rows.numel()), matrix.dtype, matrix.device) if total is None else total
    for down, across in itertools.product(runs, runs):
        place = found[down.start : down.stop, across.start : across.stop]
        part = matrix[down.at, across.at]
        place.copy_(part) if total is None else place.add_(part)
    return found


class SymmetricSum:
    """Σ of symmetric matrices of one shape, among some rows and columns.

    Args:
        parts: the matrices; each is symmetric.
        rows: which rows and columns are read, ascending; None for all.
    """

    def __init__(self, parts: Sequence[Tensor], rows: Tensor | None = None) -> None:
        rows = torch.arange(parts[0].size(0)) if rows is None else rows
        self.size, self.rows, self.parts = rows.numel(), rows.cpu(), list(parts)
        self.runs = runs_of(self.rows)
        if len(self.runs) > FEW_RUNS:
            self.parts, self.rows = [self.formed()], torch.arange(self.size)
            self.runs = runs_of(self.rows)

    def formed(self) -> Tensor:
        """The sum in float64, a new matrix."""
        total = among(self.parts[0], self.rows).double()
        for part in self.parts[1:]:
            among(part, self.rows, total)
        return total

    def diagonal(self) -> Tensor:
        """The sum's diagonal, in float64."""
        return torch.stack([part.diagonal().double() for part in self.parts]).sum(0)[self.rows.to(self.parts[0].device)]

    def single_triangle(self, shift: float) -> np.ndarray:
        """The sum plus shift · I in float32, its lower triangle alone: what is above is anything."""
        found = large.array((self.size, self.size), np.dtype(np.float32))
        for down in self._panels():
            for across in self.runs:
                stop = min(across.stop, down.stop)
                if across.start < stop:
                    at = slice(across.source, across.source + stop - across.start)
                    first, *others = (part[down.at, at].numpy() for part in self.parts)
                    found[down.start : down.stop, across.start : stop] = sum(others, first)
        np.fill_diagonal(found, self.diagonal().numpy() + shift)
        return found

    def product(self, columns: Tensor) -> Tensor:
        """The sum times some columns, in float64, on any device."""
        if columns.device.type == "cpu":
            return torch.from_numpy(self.times(columns.numpy()))
        return self.formed() @ columns

    def times(self, columns: np.ndarray) -> np.ndarray:
        """The sum times some columns, in float64."""
        compiled = kernels(torch.float64, torch.int64)
        few = few_columns(columns, np.dtype(np.float64)) if compiled is not None else None
        if (
            compiled is not None
            and few is not None
            and all(part.dtype == torch.float64 and part.stride(1) == 1 for part in self.parts)
        ):
            return self._times_few(compiled, few)[:, : columns.shape[1]]
        found = np.zeros(columns.shape)
        for down, across, part in itertools.product(self._panels(), self.runs, self.parts):
            rows = part[down.at, across.at].numpy().astype(np.float64, copy=False)
            found[down.start : down.stop] += rows @ columns[across.start : across.stop]
        return found

    def _times_few(self, compiled: Kernels, columns: np.ndarray) -> np.ndarray:
        """As `times`, of few columns."""
        found = np.zeros_like(columns)
        for down, across, part in itertools.product(self.runs, self.runs, self.parts):
            out = found[down.start : down.stop]
            compiled.add_product(out, part[down.at, across.at].numpy(), columns[across.start : across.stop])
        return found

    def _panels(self) -> Iterator[Run]:
        """The rows, some at a time."""
        for run in self.runs:
            for start in range(run.start, run.stop, PANEL):
                yield Run(start, min(start + PANEL, run.stop), run.source + start - run.start)
