"""How much a memory may hold, and which examples have to go when it is full."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.errors import EvergraphError
from evergraph.methods.memory.piece import Piece

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
MOST_BYTES = 2**62  # a larger limit makes no difference, and this one fits into a torch integer


@dataclass(frozen=True)
class Budget:
    """A limit on the whole memory, whatever the number of tasks and classes; exactly one of the three is set.

    Args:
        num_bytes: size of all kept tensors, as stored.
        share: share of the nodes of all task graphs met so far. If examples are nodes, only the examples count, not
            their surroundings; otherwise all kept nodes count.
        per_class: number of examples of each class; their surroundings do not count.
    """

    num_bytes: int | None = None
    share: float | None = None
    per_class: int | None = None

    @classmethod
    def of(cls, owner: str, memory: str | int, per_class: int) -> Budget:
        """Create a budget from a method's settings: `memory` (`2MB`, a number of bytes or `1%`), else `per_class`."""
        text = str(memory).strip().lower().replace("_", "")
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|[a-z]*)", text)
        if not text:
            return cls(per_class=per_class)
        if match is None or match[2] not in {*UNITS, "%"} or not 0 < float(match[1]) < math.inf:
            raise EvergraphError(
                f"{owner}: memory={memory!r} is not an amount; e.g. 2MB, 500KB, a number of bytes, or 1% of the nodes"
            )
        if match[2] == "%":
            if float(match[1]) > 100:
                raise EvergraphError(f"{owner}: memory={memory!r} must be at most 100%")
            return cls(share=float(match[1]) / 100)
        return cls(num_bytes=min(int(float(match[1]) * UNITS[match[2]]), MOST_BYTES))

    def most_examples(self, nodes_met: int, sizes: Tensor) -> int:
        """Return an upper limit on the examples of one class; `sizes` are lower bounds on each example's bytes."""
        if self.per_class is not None:
            return self.per_class
        if self.share is not None:
            return self.nodes(nodes_met)
        assert self.num_bytes is not None
        return max(1, int((sizes.sort().values.cumsum(0) <= self.num_bytes).sum()))

    def nodes(self, nodes_met: int) -> int:
        """Return the share as a number of nodes."""
        assert self.share is not None
        return max(1, round(self.share * nodes_met))

    def holds(self, pieces: Sequence[Piece], nodes_met: int) -> bool:
        """Return whether the pieces are within the limit in bytes or nodes."""
        if self.num_bytes is not None:
            return sum(piece.num_bytes for piece in pieces) <= self.num_bytes
        if self.share is not None:
            counted = (piece.num_examples if piece.level == "node" else piece.num_nodes for piece in pieces)
            return sum(counted) <= self.nodes(nodes_met)
        return True

    def fit(self, owner: str, pieces: Sequence[Piece], nodes_met: int, classes_met: int) -> list[Piece]:
        """Return as much of the pieces as the budget holds, in the order of `turns`; empty pieces are dropped.

        Raises if not a single example fits.
        """
        turn_of = turns(pieces)
        total = sum(piece.num_examples for piece in pieces)
        if self.per_class is not None:
            return _first(pieces, turn_of, self._within_class(pieces, classes_met))
        low, high = 0, total  # bisect for the largest number that fits: longer prefixes take more
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.holds(_first(pieces, turn_of, middle), nodes_met)
            low, high = (middle, high) if fits else (low, middle - 1)
        if not low:
            amount = f"{self.num_bytes} bytes" if self.num_bytes is not None else f"{self.nodes(nodes_met)} nodes"
            smallest = min(piece.take(torch.zeros(1, dtype=torch.long)).num_bytes for piece in pieces)
            raise EvergraphError(
                f"{owner}: a memory of {amount} cannot hold a single example (one takes {smallest} bytes); give more"
            )
        return _first(pieces, turn_of, low)

    def _within_class(self, pieces: Sequence[Piece], classes_met: int) -> int:
        """Return the number of turns with at most `per_class` per class; on average, if examples are kept at random."""
        assert self.per_class is not None
        counts = torch.bincount(torch.cat([piece.units for piece in pieces]))
        if any(piece.key is not None for piece in pieces):  # kept at random, over all classes
            return min(self.per_class * classes_met, int(counts.sum()))
        return int(counts.clamp(max=self.per_class).sum())


def turns(pieces: Sequence[Piece]) -> list[Tensor]:
    """Return the position of each example in one order over all pieces; examples kept longest come first.

    The order follows the random keys, if any. Otherwise classes take turns, each with its first example, then each
    with its second, and so on, so that every prefix of the order is balanced; a class with examples in several
    pieces takes them from each piece in turn.
    """
    unit = torch.cat([piece.units for piece in pieces])
    sizes = [piece.num_examples for piece in pieces]
    if any(piece.key is not None for piece in pieces):
        order = torch.cat([piece.key for piece in pieces if piece.key is not None]).argsort(stable=True)
    else:
        rank = torch.cat([_rank_within(piece.units) for piece in pieces])
        by_rank = rank.argsort(stable=True)
        rank[by_rank] = _rank_within(unit[by_rank])  # rank within the class, over all pieces
        order = rank.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    return list(place.split(sizes))


def _rank_within(units: Tensor) -> Tensor:
    """Return how many earlier entries equal each entry."""
    order = units.argsort(stable=True)
    counts = torch.bincount(units)
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])[:-1]
    rank = torch.empty_like(units)
    rank[order] = torch.arange(units.numel()) - start[units[order]]
    return rank


def _first(pieces: Sequence[Piece], turn_of: list[Tensor], number: int) -> list[Piece]:
    """Return the examples with the first turns; empty pieces are dropped."""
    chosen = [torch.nonzero(turn < number).reshape(-1) for turn in turn_of]
    return [piece.take(examples) for piece, examples in zip(pieces, chosen) if examples.numel()]
