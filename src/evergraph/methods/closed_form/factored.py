"""The Gram matrix of a graph with fewer nodes than features, as a product of its factor: no features × features matrix.

With n nodes and D > n features G = Σ w φ φᵀ has rank n at most, and G = SᵀS for a matrix S of n rows. What is kept is
the S whose rows are orthogonal: the eigenvectors of G times the roots of their eigenvalues, task by task. It is a
function of the task's G, so that it says of the nodes what G says and no more: no node is kept. With the targets T that
make B = SᵀT, the ridge solution on any subset of features J is

    W_J = S_Jᵀ (S_J S_Jᵀ + λ I)⁻¹ T,

where S_J S_Jᵀ is the sum of one n × n matrix for each block of features: every choice of blocks comes from the same
few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from evergraph.core.dense_algebra import EXACT, ROUGH, eigen, product, symmetric_product
from evergraph.core.finite import is_finite
from evergraph.errors import DivergedError
from evergraph.methods.closed_form.factor import Factor
from evergraph.methods.closed_form.sums import solutions


def rotated(factor: Factor) -> Factor:
    """The same sums from orthogonal rows, Uᵀ S with S Sᵀ = U E Uᵀ; directions without length are dropped.

    What U lacks of being orthogonal changes the sums by as much of their longest direction, and a small ridge reads
    directions of a thousandth of a per cent of that: hence eigenvectors in float64, whatever the rows are in. What is
    dropped is a rounding error of the longest.
    """
    length, directions = eigen(symmetric_product(factor.rows.T).double())
    smallest = length[-1:].clamp(min=0) * torch.finfo(factor.rows.dtype).eps
    directions = directions[:, length > smallest].to(factor.rows.dtype)
    return Factor(product(directions.T, factor.rows), product(directions.T, factor.targets))


@dataclass(eq=False)
class FactoredSums:
    """Solves for heads from the factors of some parts.

    Args:
        factors: by part.
        block_of_row: the block of each feature; -1 for the column of ones.
    """

    factors: dict[str, Factor]
    block_of_row: Tensor
    _products: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _diagonals: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def solve(
        self, ridges: Sequence[float], parts: Sequence[str], rows: Tensor | None = None, error: float = EXACT
    ) -> list[Tensor]:
        """As `sums.solve`: the head for each ridge from the sums of some parts, reading the features `rows` alone."""
        rows = torch.arange(self.block_of_row.numel()) if rows is None else rows.cpu()
        blocks, kept = torch.unique(self.block_of_row[rows]).tolist(), [self.factors[part] for part in parts]
        combined = torch.cat(self._combinations(ridges, parts, rows, error), dim=1)
        weights = combined.split([factor.rows.size(0) for factor in kept])
        heads = combined.new_zeros(self.block_of_row.numel(), combined.size(1))
        for block in blocks:
            columns = self._columns(block)
            for factor, own in zip(kept, weights):
                heads[columns] += product(factor.rows[:, columns].T, own.to(factor.rows.dtype))
        return list(heads.split(kept[0].targets.size(1), dim=1))

    def scores(
        self, ridges: Sequence[float], parts: Sequence[str], rows: Tensor, of: str, last: int
    ) -> Iterator[Tensor]:
        """What the head of each ridge gives the last rows of part `of`, without the head itself."""
        blocks = torch.unique(self.block_of_row[rows.cpu()]).tolist()
        end = self._place([of]).stop
        seen = torch.stack([self._product(block)[end - last : end, self._place(parts)] for block in blocks]).sum(0)
        for combined in self._combinations(ridges, parts, rows.cpu(), ROUGH):
            yield product(seen, combined.to(seen.dtype))

    def _combinations(self, ridges: Sequence[float], parts: Sequence[str], rows: Tensor, error: float) -> list[Tensor]:
        """(S_J S_Jᵀ + λ I)⁻¹ T for each ridge: the head is S_Jᵀ times it."""
        blocks, kept = torch.unique(self.block_of_row[rows]).tolist(), [self.factors[part] for part in parts]
        size, place = sum(factor.rows.size(0) for factor in kept), self._place(parts)
        total = kept[0].rows.new_zeros(size, size)
        for block in blocks:
            total += self._product(block)[place, place]
        total = total.double()
        if not is_finite([total]):
            raise DivergedError("the closed form's sums are not finite numbers; are the features finite?")
        targets = torch.cat([factor.targets for factor in kept])
        square = torch.stack([self._squares(factor) for factor in kept]).sum(0)[rows.to(total.device)]
        classes = max(int((targets != 0).any(0).sum()), 1)
        unit = float(square[square > 0].mean()) / classes
        return list(solutions(total, ridges, unit, targets.double(), error))

    def _squares(self, factor: Factor) -> Tensor:
        """The diagonal of the factor's G."""
        known = self._diagonals.get(id(factor.rows))
        if known is None:
            known = self._diagonals[id(factor.rows)] = factor.rows.square().sum(0).double()
        return known

    def _columns(self, block: int) -> slice:
        """Where the features of a block stand: side by side."""
        columns = torch.nonzero(self.block_of_row == block).reshape(-1)
        return slice(int(columns[0]), int(columns[-1]) + 1)

    def _place(self, parts: Sequence[str]) -> slice:
        """Where the rows of some parts, which follow each other, stand among those of all."""
        names = list(self.factors)
        first, last = names.index(parts[0]), names.index(parts[-1])
        assert names[first : last + 1] == list(parts)
        ends = [0, *torch.tensor([factor.rows.size(0) for factor in self.factors.values()]).cumsum(0).tolist()]
        return slice(ends[first], ends[last + 1])

    def _product(self, block: int) -> Tensor:
        """S_b S_bᵀ over the rows of all parts."""
        if block not in self._products:
            rows = torch.cat([factor.rows[:, self._columns(block)] for factor in self.factors.values()])
            self._products[block] = symmetric_product(rows.T)
        return self._products[block]
