"""Detection of classes that were never learned: how strange an example looks, and the threshold for flagging it.

A method describes how strange an example looks by one or two numbers (its largest score and its leverage for the closed
form, its confidence otherwise). For the validation examples of every task, these numbers are counted in a table, as
computed by heads that have not learned from them; the counts of all tasks give the share of known examples that look
less strange. The score is a mixture of those shares, and its threshold leaves a given share of the validation examples
above it. The mixture is learned too: an arriving task consists of classes not learned yet, so before it is learned, it
shows which mixture separates its examples best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 256
NEARLY = 1e-9  # distance to the end of a bin, which belongs to the next one
RANGES = {2: ((-2.0, 1.0), (-5.0, 5.0)), 1: ((-25.0, 5.0),)}
"""Expected range of each number, keyed by how many there are; values outside are counted in the outermost bin."""
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidate weights of the second number in the score."""
TIES = 1e-3  # breaks ties between examples in bins without known ones

Cells = list[list[int]]
"""The non-empty cells of a table: bin indices, then the count."""


def confidence(outputs: Tensor) -> Tensor:
    """One number per example, larger for stranger ones: −log p/(1 − p) of its most probable class."""
    z = outputs.double()
    best = z.max(1)
    others = z.scatter(1, best.indices.unsqueeze(1), -torch.inf).logsumexp(1) if z.size(1) > 1 else best.values
    return (others - best.values).unsqueeze(1)


def counted(values: Tensor) -> Cells:
    """Count examples by the bins of their numbers."""
    bins = _positions(values).long().clamp(0, BINS - 1)
    cells, counts = torch.unique(bins, dim=0, return_counts=True)
    return torch.cat([cells, counts.unsqueeze(1)], dim=1).tolist()


def _positions(values: Tensor) -> Tensor:
    """Convert numbers to units of bins, clamped to the table."""
    low, high = torch.tensor(RANGES[values.size(1)], dtype=torch.float64).T
    return ((values.double() - low) / (high - low) * BINS).clamp(0, BINS - NEARLY)


@dataclass(frozen=True)
class Familiar:
    """Distribution of the numbers that describe known examples.

    Args:
        cells: bin indices of the non-empty cells, a row each.
        counts: number of examples in each cell.
        mixture: weight of the second number in the score.
    """

    cells: Tensor
    counts: Tensor
    mixture: float

    @classmethod
    def of(cls, tables: Sequence[Cells], mixture: float) -> Familiar | None:
        """Merge the tables of all tasks; None if there are none."""
        rows = [row for table in tables for row in table]
        if not rows:
            return None
        table = torch.tensor(rows, dtype=torch.float64)
        return cls(table[:, :-1], table[:, -1], mixture)

    def score(self, values: Tensor) -> Tensor:
        """Mixture of the shares of known examples that look less strange, from 0 to 1.

        A thousandth of the numbers themselves is added, which orders examples beyond all known ones: so the most
        familiar are a little below 0 or the strangest a little above 1.
        """
        if not values.numel():
            return torch.zeros(0, dtype=torch.float64)
        positions = _positions(values)
        return self._mixed(positions, self._values(positions))  # clamped as the known examples are

    def threshold(self, false_alarms: float) -> float:
        """Score that at most a share `false_alarms` of known examples exceeds.

        The ⌈(n + 1)(1 − α)⌉-th smallest of n scores, so that a new example of the same distribution exceeds it with
        probability at most α (split conformal prediction; Vovk et al. 2005).
        """
        ends = self.cells + 1 - NEARLY  # the strangest that an example of the cell can be
        scores = self._mixed(ends, self._values(ends))
        order = scores.argsort()
        total = float(self.counts.sum())
        rank = math.ceil((total + 1) * (1 - false_alarms))
        if rank > total:
            return math.inf
        reached = torch.searchsorted(self.counts[order].cumsum(0), torch.tensor(float(rank), dtype=torch.float64))
        return float(scores[order][min(int(reached), len(order) - 1)])

    def _mixed(self, positions: Tensor, values: Tensor) -> Tensor:
        shares = []
        for column in range(positions.size(1)):
            sizes = torch.zeros(BINS, dtype=torch.float64)
            sizes.index_add_(0, self.cells[:, column].long(), self.counts)
            below = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]) / sizes.sum()
            number = positions[:, column].long().clamp(max=BINS - 1)
            inside = positions[:, column] - number
            shares.append(below[number] + inside * (below[number + 1] - below[number]) + TIES * values[:, column])
        second = shares[1] if len(shares) > 1 else shares[0]
        return (1 - self.mixture) * shares[0] + self.mixture * second

    @staticmethod
    def _values(positions: Tensor) -> Tensor:
        low, high = torch.tensor(RANGES[positions.size(1)], dtype=torch.float64).T
        return low + positions / BINS * (high - low)


def separations(tables: Sequence[Cells], strangers: Tensor) -> list[float]:
    """For each mixture, the AUROC of unknown against known examples, times the number of unknown ones."""
    found = []
    for mixture in MIXTURES:
        familiar = Familiar.of(tables, mixture)
        assert familiar is not None
        known = familiar._mixed(familiar.cells + 0.5, familiar._values(familiar.cells + 0.5))
        score = familiar.score(strangers)
        order = known.argsort()
        mass = torch.cat([torch.zeros(1, dtype=torch.float64), familiar.counts[order].cumsum(0)])
        below = mass[torch.searchsorted(known[order].contiguous(), score)]
        upto = mass[torch.searchsorted(known[order].contiguous(), score, right=True)]
        found.append(float(((below + upto) / 2).sum()) / float(mass[-1]))
    return found


def in_words(threshold: float | None, false_alarms: float) -> str:
    """Say which examples are flagged; a threshold that is infinite, or None, flags none."""
    none = threshold is None or math.isinf(threshold)
    flagged = "too few validation examples to flag any" if none else f"flagged above {threshold:.3g}"
    return f"{flagged}, at {100 * false_alarms:g} % false alarms"


def familiar_of(records: Sequence[Mapping[str, Any]]) -> Familiar | None:
    """Distribution of known examples from the records of all tasks, with the best mixture so far, by default ½."""
    votes = [sum(column) for column in zip(*(record["separations"] for record in records if record.get("separations")))]
    mixture = MIXTURES[max(range(len(votes)), key=lambda i: votes[i])] if votes else 0.5
    return Familiar.of([record["familiar"] for record in records if record.get("familiar")], mixture)
