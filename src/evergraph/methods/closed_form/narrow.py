"""Heads that read fewer features than there are rows in the factors: G over their features is the smaller matrix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from evergraph.core.symmetric import SymmetricSum, runs_of
from evergraph.methods.closed_form.factor import Factor
from evergraph.methods.closed_form.sums import RidgeSystem, Sums, constant_first, met


class NarrowSums:
    """The sums over the features of some blocks, formed from factors part by part when they are first read.

    Args:
        factors: the factor of each part.
        columns: the features of the blocks, in ascending order.
        blocks: the blocks.
    """

    def __init__(self, factors: Mapping[str, Factor], columns: Tensor, blocks: Collection[int]) -> None:
        self.factors, self.columns, self.blocks = factors, columns, set(blocks)
        self._sums = dict[str, Sums]()

    @property
    def nbytes(self) -> int:
        """Bytes of the sums formed so far."""
        return sum(part.nbytes for sums in self._sums.values() for part in sums)

    def of(self, part: str) -> Sums:
        """Return the sums of a part."""
        if part not in self._sums:
            rows, targets = self.factors[part]
            read = Factor(torch.cat([rows[:, run.at] for run in runs_of(self.columns)], dim=1), targets)
            self._sums[part] = Sums(read.gram(), read.cross())
        return self._sums[part]

    def system(self, parts: Sequence[str], rows: Tensor) -> tuple[RidgeSystem, Tensor]:
        """Return the system of the head on the features `rows`, and the place of each of its features among them.

        Systems that read the same first features share a factorization, hence another order than that of `rows`.
        """
        sums = [self.of(part) for part in parts]
        places = constant_first(torch.searchsorted(self.columns, rows), self.columns.numel())
        matrix = SymmetricSum([part.gram for part in sums], places)
        targets = torch.stack([part.cross for part in sums]).sum(0)[places.to(sums[0].cross.device)]
        classes = met(torch.cat([self.factors[part].targets for part in parts]))
        return RidgeSystem.of(matrix, targets, matrix.diagonal(), classes), places.argsort().argsort()
