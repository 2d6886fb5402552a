"""Factors of G and B: rows of features and their targets, each times the square root of its weight."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.dense_algebra import product, symmetric_sum
from evergraph.core.symmetric import runs_of


class Factor(NamedTuple):
    """A factor of the sums: S and T with G = SᵀS and B = SᵀT."""

    rows: Tensor
    targets: Tensor

    def stacked(self, other: Factor) -> Factor:
        """Return the factor of the sum of both."""
        return Factor(large.stacked([self.rows, other.rows]), large.stacked([self.targets, other.targets]))

    def gram(self) -> Tensor:
        """Return G, packed, in float64; products are formed in the type of the rows."""
        return symmetric_sum(self.rows)

    def cross(self) -> Tensor:
        """Return B in float64, likewise."""
        return product(self.rows.T, self.targets).double()

    def scores(self, head: Tensor, features: Tensor) -> Tensor:
        """Return the scores of the rows by a head that reads only the given features, in the type of the rows."""
        read = head.to(self.rows.dtype)
        return torch.stack([product(self.rows[:, run.at], read[run.at]) for run in runs_of(features.cpu())]).sum(0)

    def replaced(self, other: Factor, before: Factor, whole: Factor) -> Factor:
        """Return `before` followed by `other`, written over this factor, the end of `whole`, if the shapes agree."""
        if other.rows.shape != self.rows.shape:
            return before.stacked(other)
        self.rows.copy_(other.rows)
        self.targets.copy_(other.targets)
        return whole

    def last(self, number: int) -> tuple[Factor, Factor]:
        """Split off the last `number` rows: return the factor without them, and that of these rows alone."""
        first = self.rows.size(0) - number
        parts = (part.split([first, number]) for part in self)
        (kept_rows, last_rows), (kept_targets, last_targets) = parts
        return Factor(kept_rows, kept_targets), Factor(last_rows, last_targets)


def weighed(rows: Tensor, targets: Tensor, weights: Tensor | None, units: int, in_place: bool = False) -> Factor:
    """Return the factor of some examples: √w φ and √w onehot(y), or φ and y for rows of labels or numbers.

    Args:
        rows: the features φ.
        targets: the output unit of each example, or its row of labels or numbers.
        weights: w of each example; None for rows of labels or numbers, which have weight 1.
        units: number of output units.
        in_place: overwrite the features.
    """
    if weights is None:
        return Factor(rows, torch.nn.functional.pad(targets, (0, units - targets.size(1))).to(rows.dtype))
    root = weights.sqrt().unsqueeze(1)
    one_hot = torch.nn.functional.one_hot(targets, units).to(rows.dtype)
    scaled = rows if in_place else large.empty(rows.shape, rows.dtype, rows.device)
    return Factor(torch.mul(rows, root.to(rows.dtype), out=scaled), one_hot * root.to(rows.dtype))
