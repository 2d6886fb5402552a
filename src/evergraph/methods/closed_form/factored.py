"""Sums kept as factors while there are fewer nodes than features, without a features × features matrix.

With n nodes and D > n features, G = Σ w φ φᵀ has rank at most n, and G = SᵀS for a matrix S with n rows. The S that is
kept has orthogonal rows: the eigenvectors of G times the roots of their eigenvalues, task by task. It is a function of
the task's G, so it reveals no more about the nodes than G does: no node is kept. With targets T such that B = SᵀT, the
ridge solution on any subset J of the features is

    W_J = S_Jᵀ (S_J S_Jᵀ + λ I)⁻¹ T,

where S_J S_Jᵀ is the sum of one n × n matrix per block of features: all choices of blocks share the same few matrices,
which are packed as their lower triangles (`core.symmetric`). If J has fewer features than there are rows, the head
comes from G over J instead, the smaller matrix then (`narrow`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.dense_algebra import EXACT, by_blas, eigen, outer_product, product
from evergraph.core.side_by_side import side_by_side
from evergraph.core.symmetric import SymmetricSum, entries_at, leading, packed_size, runs_of, unpack
from evergraph.methods.closed_form.factor import Factor
from evergraph.methods.closed_form.narrow import NarrowSums
from evergraph.methods.closed_form.sums import HeadRequest, RidgeSystem, met, solved


def rotated(factor: Factor) -> Factor:
    """Return a factor of the same sums with orthogonal rows, Uᵀ S with S Sᵀ = U E Uᵀ; null directions are dropped.

    An error in U's orthogonality changes the sums by the same share of their longest direction, and a small ridge
    reads directions a thousandth of a per cent as long: hence eigenvectors in float64, whatever the type of the rows.
    What is dropped is within the rounding error of the longest direction.
    """
    length, directions = eigen(unpack(outer_product(factor.rows)))
    smallest = length[-1:].clamp(min=0) * torch.finfo(factor.rows.dtype).eps
    directions = directions[:, length > smallest].to(factor.rows.dtype)
    return Factor(product(directions.T, factor.rows), product(directions.T, factor.targets))


AT_ONCE = 256  # rows of a factor that are squared at once

Key = tuple[tuple[str, ...], tuple[int, ...], float, float | None]
"""Parts, blocks, ridge and relative error of a solution, None for a rough one."""

Asked = tuple[HeadRequest, dict[float, bool]]
"""A request, and for each of its ridges whether a rough solution will do."""


@dataclass(eq=False)
class FactoredSums:
    """Solves for heads from the factors of several parts.

    Args:
        factors: the factor of each part.
        block_of_row: the block of each feature; -1 for the column of ones.
        room: bytes that cached products may take; None for no limit.
    """

    factors: dict[str, Factor]
    block_of_row: Tensor
    room: int | None = None
    _products: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _diagonals: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _blocks_of_rows: dict[bytes, list[int]] = field(default_factory=dict, repr=False)
    _found: dict[Key, Tensor] = field(default_factory=dict, repr=False)  # a narrow head, or a combination of rows
    _narrow_sums: NarrowSums | None = field(default=None, repr=False)

    def solve(self, wanted: HeadRequest, error: float = EXACT) -> list[Tensor]:
        """Return the head for each ridge from the sums of the request's parts, on its features only."""
        found = torch.cat(self._solved(wanted, error), dim=1)
        kept, read = [self.factors[part] for part in wanted.parts], self._read(wanted)
        heads = found.new_zeros(self.block_of_row.numel(), found.size(1))
        if self._is_narrow(wanted):
            heads[read.to(heads.device)] = found
        else:
            weights = found.split([factor.rows.size(0) for factor in kept])
            for run in runs_of(read):
                for factor, own in zip(kept, weights):
                    heads[run.at] += product(factor.rows[:, run.at].T, own.to(factor.rows.dtype))
        return list(heads.split(kept[0].targets.size(1), dim=1))

    def centred(self, mean: Tensor) -> FactoredSums:
        """Return the sums of targets less `mean` times the last feature, the column of ones; products are shared."""
        centred = {
            part: Factor(rows, (targets.double() - rows[:, -1:].double() * mean).to(targets.dtype))
            for part, (rows, targets) in self.factors.items()
        }
        shared = (self._products, self._diagonals, self._blocks_of_rows)
        return FactoredSums(centred, self.block_of_row, self.room, *shared)

    def scores(self, wanted: HeadRequest, error: float, of: str, last: int) -> Iterator[Tensor]:
        """Yield the scores of the last rows of part `of` by the head of each ridge.

        Wide heads are not formed if products between rows are kept.
        """
        blocks = self.blocks(wanted.rows)
        if self._is_narrow(wanted) or not self._products.keys() >= set(blocks):
            asked = self.factors[of].last(last)[1]
            yield from (asked.scores(head, self._read(wanted)) for head in self.solve(wanted, error))
            return
        combinations = self._solved(wanted, error)
        seen = torch.stack([self._between(block, wanted.parts, of, last) for block in blocks]).sum(0)
        for combined in combinations:
            yield product(seen, combined.to(seen.dtype))

    def _solved(self, wanted: HeadRequest, error: float) -> list[Tensor]:
        """Return what is found for each ridge: a narrow head on its features alone, else its combination of rows.

        The combination is (S_J S_Jᵀ + λ I)⁻¹ T; the head is S_Jᵀ times it.
        """
        self.solve_ahead([wanted], error)
        found = [self._known(wanted, ridge, error) for ridge in wanted.ridges]
        return [one for one in found if one is not None]

    def solve_ahead(self, wanted: Sequence[HeadRequest], error: float) -> None:
        """Solve for all that will be requested, all of the same parts, as much at once as there is room for."""
        new = dict[tuple[int, ...], Asked]()  # by blocks
        for each in wanted:
            for ridge in self._unknown(each, error).ridges:
                _, rough = new.setdefault((*self.blocks(each.rows),), (each, {}))
                rough[ridge] = each.rough and rough.get(ridge, True)
        narrow, wide = (
            [one for one in new.values() if self._is_narrow(one[0]) == is_narrow] for is_narrow in (True, False)
        )
        if narrow:
            self._find_narrow(narrow, error)
        self._multiply({block for each, _ in wide for block in self.blocks(each.rows)})
        at_once = self._at_once(wide[0][0].parts) if wide else 1
        for start in range(0, len(wide), at_once):
            some = wide[start : start + at_once]
            self._find(some, self._systems([each for each, _ in some]), error)

    def _find_narrow(self, asked: Sequence[Asked], error: float) -> None:
        """Solve for narrow heads, and keep the sums over their features if there is room."""
        sums = self._narrow([block for each, _ in asked for block in self.blocks(each.rows)])
        systems, orders = zip(*(sums.system(each.parts, self._read(each)) for each, _ in asked))
        self._find(asked, systems, error, orders)
        self._narrow_sums = sums if self.room is None or self._held() + sums.nbytes <= self.room else None

    def _find(
        self, asked: Sequence[Asked], systems: Sequence[RidgeSystem], error: float, orders: Sequence[Tensor] = ()
    ) -> None:
        """Solve the system of each request with its ridges, and keep the solutions.

        `orders` are the places of a narrow system's features among those of the request.
        """
        found = solved([(own, *pair) for own, (_, rough) in zip(systems, asked) for pair in rough.items()], error)
        places = [(number, ridge) for number, (_, rough) in enumerate(asked) for ridge in rough]
        for (number, ridge), one in zip(places, found):
            key = self._key(asked[number][0], ridge, error if one.exact else None)
            self._found[key] = one.found
            if orders:
                self._found[key] = torch.empty_like(one.found)
                self._found[key][orders[number].to(one.found.device)] = one.found

    def _is_narrow(self, wanted: HeadRequest) -> bool:
        """Return whether a request reads fewer features than its parts have rows."""
        rows = sum(self.factors[part].rows.size(0) for part in wanted.parts)
        return self._read(wanted).numel() < rows

    def _read(self, wanted: HeadRequest) -> Tensor:
        """Return the features that a request reads."""
        return torch.arange(self.block_of_row.numel()) if wanted.rows is None else wanted.rows.cpu()

    def _narrow(self, blocks: Sequence[int]) -> NarrowSums:
        """Return the sums over the features of `blocks`, and perhaps of more."""
        known = self._narrow_sums
        if known is not None and known.blocks >= set(blocks):
            return known
        every = sorted({*blocks, *(known.blocks if known is not None else ())})
        columns = torch.nonzero(torch.isin(self.block_of_row, torch.tensor(every))).reshape(-1)
        return NarrowSums(self.factors, columns, every)

    def _unknown(self, wanted: HeadRequest, error: float) -> HeadRequest:
        """Return the request without the ridges whose solutions are known."""
        ridges = dict.fromkeys(wanted.ridges)
        return wanted._replace(ridges=[ridge for ridge in ridges if self._known(wanted, ridge, error) is None])

    def _known(self, wanted: HeadRequest, ridge: float, error: float) -> Tensor | None:
        """Return a known solution; a rough one only if that will do."""
        rough = self._found.get(self._key(wanted, ridge, None)) if wanted.rough else None
        return self._found.get(self._key(wanted, ridge, error), rough)

    def _key(self, wanted: HeadRequest, ridge: float, error: float | None) -> Key:
        return (*wanted.parts,), (*self.blocks(wanted.rows),), ridge, error

    def blocks(self, rows: Tensor | None) -> list[int]:
        """Return the blocks that contain the features `rows`."""
        rows = torch.arange(self.block_of_row.numel()) if rows is None else rows.cpu()
        key = rows.numpy().tobytes()
        if key not in self._blocks_of_rows:
            self._blocks_of_rows[key] = torch.unique(self.block_of_row[rows]).tolist()
        return self._blocks_of_rows[key]

    def _systems(self, wanted: Sequence[HeadRequest]) -> list[RidgeSystem]:
        """Return the system of each request, all of the same parts; every block is multiplied only once."""
        parts = wanted[0].parts
        kept, blocks = [self.factors[part] for part in parts], [self.blocks(each.rows) for each in wanted]
        totals = dict[int, Tensor]()
        for number in sorted(set().union(*blocks)):
            found = self._product(number, parts)
            for asker, read in enumerate(blocks):
                if number in read and asker in totals:
                    totals[asker] += found
                elif number in read:
                    totals[asker] = large.copied(found)
        targets = torch.cat([factor.targets for factor in kept])
        squares = torch.stack([self._squares(factor) for factor in kept]).sum(0)
        read_squares = [squares if each.rows is None else squares[each.rows.to(squares.device)] for each in wanted]
        every_row = torch.arange(targets.size(0))  # a total may have further ones, to the end of a panel
        return [
            RidgeSystem.of(SymmetricSum([totals[asker]], every_row), targets.double(), own, met(targets))
            for asker, own in enumerate(read_squares)
        ]

    def products(self, block: int) -> Tensor:
        """Return S_b S_bᵀ over the rows of all parts, packed."""
        self._multiply({block})
        return self._product(block, list(self.factors))

    def squares(self, parts: Sequence[str], rows: Tensor) -> Tensor:
        """Return Σ w φ² of the features `rows` over `parts`."""
        return torch.stack([self._squares(self.factors[part]) for part in parts]).sum(0)[rows.to(self._device)]

    @property
    def _device(self) -> torch.device:
        return next(iter(self.factors.values())).rows.device

    def _squares(self, factor: Factor) -> Tensor:
        """Return the diagonal of the factor's G."""
        known = self._diagonals.get(id(factor.rows))
        if known is None:
            pieces = factor.rows.split(AT_ONCE)
            known = self._diagonals[id(factor.rows)] = sum(piece.square().sum(0).double() for piece in pieces)
        return known

    def _columns(self, block: int) -> slice:
        """Return the columns of a block, which are contiguous."""
        columns = torch.nonzero(self.block_of_row == block).reshape(-1)
        return slice(int(columns[0]), int(columns[-1]) + 1)

    def _place(self, parts: Sequence[str]) -> slice:
        """Return the place of consecutive parts among the rows of all parts."""
        names = list(self.factors)
        first, last = names.index(parts[0]), names.index(parts[-1])
        assert names[first : last + 1] == list(parts)
        ends = [0, *torch.tensor([factor.rows.size(0) for factor in self.factors.values()]).cumsum(0).tolist()]
        return slice(ends[first], ends[last + 1])

    def _bytes(self, parts: Iterable[str]) -> tuple[int, int]:
        """Return the bytes of a packed and of a square matrix over the rows of `parts`."""
        rows = [self.factors[part].rows for part in parts]
        number, size = sum(part.size(0) for part in rows), rows[0].element_size()
        return max(size * packed_size(number), 1), size * number**2

    def _at_once(self, parts: Sequence[str]) -> int:
        """Return how many systems there is room for, besides kept products, a new one and factorizations."""
        if self.room is None:
            return sys.maxsize
        packed, square = self._bytes(parts)
        left = self.room - self._held() - self._narrow_bytes() - packed
        return max((left - torch.get_num_threads() * square) // packed, 1)

    def _keeps(self) -> bool:
        """Return whether there is room for the products of all blocks, a system and its factorization."""
        blocks, (packed, square) = int(self.block_of_row.max()) + 2, self._bytes(self.factors)
        return self.room is None or (blocks + 1) * packed + square + self._narrow_bytes() <= self.room

    def _held(self) -> int:
        """Return the bytes of the products that are kept."""
        return sum(product.nbytes for product in self._products.values())

    def _narrow_bytes(self) -> int:
        """Return the bytes of the narrow sums that are kept."""
        return self._narrow_sums.nbytes if self._narrow_sums is not None else 0

    def _multiply(self, blocks: set[int]) -> None:
        """Form the products of blocks over the rows of all parts, side by side, if there is room to keep them."""
        new = sorted(blocks - set(self._products)) if self._keeps() else []
        jobs = [partial(self._fresh_product, block, list(self.factors)) for block in new]
        on_cpu = all(by_blas(factor.rows) for factor in self.factors.values())
        self._products.update(zip(new, side_by_side(jobs) if on_cpu else [job() for job in jobs]))

    def _fresh_product(self, block: int, parts: Sequence[str]) -> Tensor:
        rows = [self.factors[part].rows[:, self._columns(block)] for part in parts]
        if by_blas(*rows):  # may run in a job of `side_by_side`, which is for numpy
            return outer_product(torch.from_numpy(np.concatenate([part.numpy() for part in rows])))
        return outer_product(torch.cat(rows))

    def _product(self, block: int, parts: Sequence[str]) -> Tensor:
        """Return S_b S_bᵀ over the rows of `parts`, and perhaps some that follow, packed."""
        place = self._place(parts)
        if block not in self._products or place.start:
            return self._fresh_product(block, parts)
        return leading(self._products[block], place.stop)

    def _between(self, block: int, parts: Sequence[str], of: str, last: int) -> Tensor:
        """Return a block's products between the last rows of part `of` and the rows of `parts`."""
        end = self._place([of]).stop
        return entries_at(self._products[block], slice(end - last, end), self._place(parts))
