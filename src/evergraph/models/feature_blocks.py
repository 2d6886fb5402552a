"""Blocks of fixed features: how far each propagates, with which operator, and what it computes from the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergraph.core.features import Features, as_dense
from evergraph.core.sparse import SparseMatrix
from evergraph.errors import EvergraphError

OTHERS = "others"
LINEAR = "linear"


@dataclass(frozen=True)
class Block:
    """One block of features: H = P^k X̂ with rows of unit length, passed through random ReLUs or used as it is.

    With a number b, P = D^(b−1) (A + I) D^(−b): a node is mixed with its neighbours. With `others`, P = D⁻¹ A: the mean
    of the neighbours without the node itself, so that information of a node and of its neighbours stays separate.

    Args:
        depth: number of propagation steps k; with 0 the block has a node's own features, whatever P.
        balance: b, or None for `others`.
        linear: use H itself instead of random ReLUs of it.
    """

    depth: int
    balance: float | None = 0.5
    linear: bool = False

    @classmethod
    def of(cls, written: Sequence[Any]) -> Block:
        """Make a block from `[depth, balance]`, `[depth, "others"]` or either with a third word, `"linear"`."""
        depth, balance, *rest = written
        if rest not in ([], [LINEAR]) or int(depth) != depth or depth < 0:
            raise ValueError(written)
        return cls(int(depth), None if balance == OTHERS else float(balance), bool(rest))

    def written(self) -> list[Any]:
        """Return the list from which `of` makes this block."""
        return [self.depth, OTHERS if self.balance is None else self.balance, *([LINEAR] if self.linear else [])]

    @property
    def mixes(self) -> bool:
        """Whether a node is mixed with its neighbours: then every further step says less about the node itself."""
        return self.depth > 0 and self.balance is not None

    def operator(self, matrix: SparseMatrix, degree: Tensor) -> SparseMatrix:
        """Return P, given A + I and the row sums for all its columns; if it has fewer rows, they are the first."""
        row, degree = matrix.row_of_entry(), degree.reshape(-1)
        if self.balance is not None:
            arriving, leaving = degree ** (self.balance - 1), degree**-self.balance
            return matrix.with_values(matrix.values * arriving[row] * leaving[matrix.indices])
        others = row != matrix.indices
        indptr = torch.nn.functional.pad(others.cumsum(0), (1, 0))[matrix.indptr]
        values = (matrix.values * over_others(degree)[row])[others]
        return SparseMatrix(indptr, matrix.indices[others], values, matrix.num_columns)


def parse_blocks(blocks: Sequence[Any]) -> list[Block]:
    """Parse blocks from a setting."""
    try:
        return [block if isinstance(block, Block) else Block.of(block) for block in blocks]
    except (TypeError, ValueError):
        raise EvergraphError(
            f"random features: blocks={blocks!r} is not a list of pairs (depth, balance), e.g. [1, 0.5], "
            '[1, "others"] or [0, 0.5, "linear"]'
        ) from None


def over_others(degree: Tensor) -> Tensor:
    """Return one over the sum of the neighbours' weights, from row sums of A + I; 0 without neighbours."""
    others = (degree - 1).clamp(min=0)
    return torch.where(others > 1e-6, 1 / others.clamp(min=1e-6), torch.zeros_like(others))


def unit_rows(x: Features) -> Features:
    """Scale the rows of X to unit length; empty rows stay empty."""
    if not isinstance(x, SparseMatrix):
        return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)
    length = x.with_values(x.values.square()).row_sums().sqrt().clamp(min=1e-12)
    return x.with_values(x.values / length[x.row_of_entry()])


@dataclass(frozen=True)
class Layout:
    """How a model's features are divided into blocks.

    Args:
        blocks: all blocks, including dropped ones.
        kept: which of them are still present.
        widths: number of features of each present block; a column of ones follows the last.
        linear_width: number of columns of a linear block.
        block_width: number of features of a random block.
        lasting_width: number of features that it is meant to have with many nodes.
        narrowable: whether random blocks may be narrowed.
        wider: width of a random block over the usual one, if it is wider.
    """

    blocks: tuple[Block, ...]
    kept: tuple[bool, ...]
    widths: tuple[int, ...]
    linear_width: int
    block_width: int
    lasting_width: int
    narrowable: bool
    wider: float

    @property
    def lasting_widths(self) -> list[int]:
        """Number of features that each present block is meant to have with many nodes."""
        pairs = zip(self.widths, self.present)
        return [width if block.linear else min(width, self.lasting_width) for width, block in pairs]

    @property
    def width(self) -> int:
        """Number of features, including the column of ones."""
        return sum(self.widths) + 1

    @property
    def present(self) -> list[Block]:
        """The blocks that are still present."""
        return [block for block, keep in zip(self.blocks, self.kept) if keep]

    def has(self, chosen: Sequence[bool]) -> bool:
        """Whether all chosen blocks are present; `chosen` has one entry for each of all blocks."""
        return all(keep for choice, keep in zip(chosen, self.kept) if choice)

    def among_present(self, chosen: Sequence[bool]) -> list[bool]:
        """Restrict a choice among all blocks to the present ones."""
        return [choice for choice, keep in zip(chosen, self.kept) if keep]

    def sets_among_present(self, sets: dict[str, list[bool]]) -> dict[str, list[bool]]:
        """Like `among_present`, for several named choices."""
        return {name: self.among_present(chosen) for name, chosen in sets.items()}


@dataclass(frozen=True)
class Hashing:
    """A sparse sketch of columns: column j goes, with a random sign, to one of `width` columns, or exactly to its own.

    Feature hashing (Weinberger et al., ICML 2009). For rows x and y of unit length the product of their sketches has
    mean x·y and a standard deviation of at most √(2 / width), or zero if there are no more columns than `width`.
    Widths below the number of columns are powers of two, and a narrower sketch is a sum of columns of a wider one:
    `fold` converts sums over features to what they would be had the narrower sketch been used from the beginning.

    Args:
        in_channels: number of columns of X.
        width: number of columns of the sketch.
        seed: seed of the target columns and signs.
    """

    in_channels: int
    width: int
    seed: int

    @classmethod
    def within(cls, in_channels: int, limit: int, seed: int) -> Hashing:
        """Return the widest sketch with at most `limit` columns."""
        return cls(in_channels, in_channels if in_channels <= limit else 2 ** (max(limit, 1).bit_length() - 1), seed)

    @property
    def exact(self) -> bool:
        """Whether all columns are kept as they are, without sketching."""
        return self.width >= self.in_channels

    def map(self) -> tuple[Tensor, Tensor]:
        """Return the column of the sketch that each column goes to, and its sign."""
        if self.exact:
            return torch.arange(self.in_channels), torch.ones(self.in_channels)
        generator = torch.Generator().manual_seed(self.seed)
        place = torch.randint(2**31, (self.in_channels,), generator=generator)
        sign = torch.randint(2, (self.in_channels,), generator=generator) * 2 - 1
        return place % self.width, sign.float()

    def apply(self, x: Features) -> Tensor:
        """Return the sketch of rows as a dense matrix."""
        if self.exact:
            return as_dense(x)
        place, sign = (part.to(x.device) for part in self.map())
        if isinstance(x, SparseMatrix):
            values = x.values * sign[x.indices].to(x.dtype)
            return SparseMatrix(x.indptr, place[x.indices], values, self.width).dense()
        return x.new_zeros(x.size(0), self.width).index_add_(1, place, x * sign.to(x.dtype))

    def fold(self, narrower: Hashing, rows: Tensor, dim: int) -> Tensor:
        """Convert sums over this sketch's columns, along `dim`, to a narrower sketch."""
        if self.exact:
            place, sign = narrower.map()
        else:
            place, sign = torch.arange(self.width) % narrower.width, torch.ones(self.width)
        shape = [1] * rows.dim()
        shape[dim] = -1
        signed = rows * sign.to(rows).reshape(shape)
        size = list(rows.shape)
        size[dim] = narrower.width
        return rows.new_zeros(size).index_add_(dim, place.to(rows.device), signed)
