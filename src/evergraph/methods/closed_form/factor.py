"""What G and B are products of: rows of features and their targets, each times the root of its weight."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.dense_algebra import product, symmetric_sum


class Factor(NamedTuple):
    """S and T, with G = SᵀS and B = SᵀT."""

    rows: Tensor
    targets: Tensor

    def stacked(self, other: Factor) -> Factor:
        """The factor of the sums of both."""
        return Factor(large.stacked([self.rows, other.rows]), large.stacked([self.targets, other.targets]))

    def gram(self) -> Tensor:
        """G, packed, in float64; its products are as exact as the rows."""
        return symmetric_sum(self.rows)

    def cross(self) -> Tensor:
        """B, likewise."""
        return product(self.rows.T, self.targets).double()

    def replaced(self, other: Factor, before: Factor, whole: Factor) -> Factor:
        """`before` and another factor behind it; in the place of this one, the last of `whole`, where it is as high."""
        if other.rows.shape != self.rows.shape:
            return before.stacked(other)
        self.rows.copy_(other.rows)
        self.targets.copy_(other.targets)
        return whole

    def last(self, number: int) -> tuple[Factor, Factor]:
        """The factor without its last rows, and of these alone."""
        first = self.rows.size(0) - number
        parts = (part.split([first, number]) for part in self)
        (kept_rows, last_rows), (kept_targets, last_targets) = parts
        return Factor(kept_rows, kept_targets), Factor(last_rows, last_targets)


def weighed(rows: Tensor, targets: Tensor, weights: Tensor | None, units: int, in_place: bool = False) -> Factor:
    """The factor of some examples: √w φ and √w onehot(y); of rows of labels or numbers, φ and y as they are.

    Args:
        rows: the features φ.
        targets: of each example its output unit, or its row of labels or numbers.
        weights: w of each example; None where they have rows, which weigh 1.
        units: how many output units there are.
        in_place: write over the features.
    """
    if weights is None:
        return Factor(rows, torch.nn.functional.pad(targets, (0, units - targets.size(1))).to(rows.dtype))
    root = weights.sqrt().unsqueeze(1)
    one_hot = torch.nn.functional.one_hot(targets, units).to(rows.dtype)
    scaled = rows if in_place else large.empty(rows.shape, rows.dtype, rows.device)
    return Factor(torch.mul(rows, root.to(rows.dtype), out=scaled), one_hot * root.to(rows.dtype))
