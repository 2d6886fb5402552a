"""Blocks of fixed features: how far each looks, through which edges, and what it makes of what it sees there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergraph.core.sparse import Features, SparseMatrix, as_dense
from evergraph.errors import EvergraphError

OTHERS = "others"
LINEAR = "linear"


@dataclass(frozen=True)
class Block:
    """One block of features: H = P^k X̂, its rows of length one, seen through random ReLUs or as it is.

    With a number b, P = D^(b−1) (A + I) D^(−b): a node is mixed with its neighbours. With `others`, P = D⁻¹ A: the mean
    of the neighbours without the node itself, so that what a node says and what its neighbours say stay apart.

    Args:
        depth: steps of propagation k; with 0 it is a node's own features, whatever P.
        balance: b, or None for `others`.
        linear: the features themselves in place of random ReLUs of them.
    """

    depth: int
    balance: float | None = 0.5
    linear: bool = False

    @classmethod
    def of(cls, written: Sequence[Any]) -> Block:
        """From `[depth, balance]`, `[depth, "others"]` or either with a third word, `"linear"`."""
        depth, balance, *rest = written
        if rest not in ([], [LINEAR]) or int(depth) != depth or depth < 0:
            raise ValueError(written)
        return cls(int(depth), None if balance == OTHERS else float(balance), bool(rest))

    def written(self) -> list[Any]:
        """The list that makes it again."""
        return [self.depth, OTHERS if self.balance is None else self.balance, *([LINEAR] if self.linear else [])]

    @property
    def mixes(self) -> bool:
        """Whether a node is mixed with its neighbours: then depth after depth says less about the node itself."""
        return self.depth > 0 and self.balance is not None

    def operator(self, matrix: SparseMatrix, degree: Tensor) -> SparseMatrix:
        """P, from A + I and the row sums of all its columns' nodes; where it has fewer rows, they are the first."""
        row, degree = matrix.row_of_entry(), degree.reshape(-1)
        if self.balance is not None:
            arriving, leaving = degree ** (self.balance - 1), degree**-self.balance
            return matrix.with_values(matrix.values * arriving[row] * leaving[matrix.indices])
        others = row != matrix.indices
        indptr = torch.nn.functional.pad(others.cumsum(0), (1, 0))[matrix.indptr]
        values = (matrix.values * over_others(degree)[row])[others]
        return SparseMatrix(indptr, matrix.indices[others], values, matrix.num_columns)


def parse_blocks(blocks: Sequence[Any]) -> list[Block]:
    """Blocks as a setting gives them."""
    try:
        return [block if isinstance(block, Block) else Block.of(block) for block in blocks]
    except (TypeError, ValueError):
        raise EvergraphError(
            f"random features: blocks={blocks!r} is not a list of pairs (depth, balance), e.g. [1, 0.5], "
            '[1, "others"] or [0, 0.5, "linear"]'
        ) from None


def over_others(degree: Tensor) -> Tensor:
    """One over the neighbours' weights, from row sums of A + I; 0 where there are none."""
    others = (degree - 1).clamp(min=0)
    return torch.where(others > 1e-6, 1 / others.clamp(min=1e-6), torch.zeros_like(others))


def unit_rows(x: Features) -> Features:
    """X with rows of length one; empty rows stay empty."""
    if not isinstance(x, SparseMatrix):
        return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)
    length = x.with_values(x.values.square()).row_sums().sqrt().clamp(min=1e-12)
    return x.with_values(x.values / length[x.row_of_entry()])


@dataclass(frozen=True)
class Layout:
    """How a model's features fall into blocks.

    Args:
        blocks: all blocks that there ever were.
        kept: which of them there are.
        widths: the number of features of each block that there is; a column of ones follows the last.
        linear_width: columns of a linear block.
    """

    blocks: tuple[Block, ...]
    kept: tuple[bool, ...]
    widths: tuple[int, ...]
    linear_width: int

    @property
    def width(self) -> int:
        """The number of features, the column of ones included."""
        return sum(self.widths) + 1

    @property
    def present(self) -> list[Block]:
        """The blocks that there are."""
        return [block for block, keep in zip(self.blocks, self.kept) if keep]

    def has(self, chosen: Sequence[bool]) -> bool:
        """Whether all of some blocks, a choice among all, are there."""
        return all(keep for choice, keep in zip(chosen, self.kept) if choice)

    def among_present(self, chosen: Sequence[bool]) -> list[bool]:
        """A choice among all blocks as one among those that there are."""
        return [choice for choice, keep in zip(chosen, self.kept) if keep]

    def sets_among_present(self, sets: dict[str, list[bool]]) -> dict[str, list[bool]]:
        """Likewise, of several choices."""
        return {name: self.among_present(chosen) for name, chosen in sets.items()}


@dataclass(frozen=True)
class Hashing:
    """A sparse sketch of words: column j goes, with a random sign, to one of `width` columns; or to its own, exactly.

    Feature hashing (Weinberger et al., ICML 2009). For rows x and y of length one the product of their sketches has
    mean x·y and a standard deviation of at most √(2 / width), and none where there are no more columns than `width`.
    Widths below the number of columns are powers of two, and a narrower sketch is a sum of columns of a wider one:
    `fold` takes sums over features to a narrower sketch, to what they would be had it been used from the beginning.

    Args:
        in_channels: columns of X.
        width: columns of the sketch.
        seed: of places and signs.
    """

    in_channels: int
    width: int
    seed: int

    @classmethod
    def within(cls, in_channels: int, limit: int, seed: int) -> Hashing:
        """The widest that has no more than `limit` columns."""
        return cls(in_channels, in_channels if in_channels <= limit else 2 ** (max(limit, 1).bit_length() - 1), seed)

    @property
    def exact(self) -> bool:
        """Whether it is no sketch at all."""
        return self.width >= self.in_channels

    def map(self) -> tuple[Tensor, Tensor]:
        """The column that each word goes to, and its sign."""
        if self.exact:
            return torch.arange(self.in_channels), torch.ones(self.in_channels)
        generator = torch.Generator().manual_seed(self.seed)
        place = torch.randint(2**31, (self.in_channels,), generator=generator)
        sign = torch.randint(2, (self.in_channels,), generator=generator) * 2 - 1
        return place % self.width, sign.float()

    def apply(self, x: Features) -> Tensor:
        """The sketch of rows, dense."""
        if self.exact:
            return as_dense(x)
        place, sign = (part.to(x.device) for part in self.map())
        if isinstance(x, SparseMatrix):
            values = x.values * sign[x.indices].to(x.dtype)
            return SparseMatrix(x.indptr, place[x.indices], values, self.width).dense()
        return x.new_zeros(x.size(0), self.width).index_add_(1, place, x * sign.to(x.dtype))

    def fold(self, narrower: Hashing, rows: Tensor, dim: int) -> Tensor:
        """Sums over this sketch's columns, which stand along `dim`, taken to a narrower one."""
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
