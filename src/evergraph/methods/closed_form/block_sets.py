"""Sets of feature blocks that a head may read, and the choice among them by validation hits.

A set is a named selection of blocks, one boolean per block. A hit is a correctly classified validation node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evergraph.models.feature_blocks import Block

GRID = (0.05, 0.2, 1.0, 5.0, 25.0, 125.0, 625.0)
"""Ridges to try; without validation nodes 1 is chosen."""
MIXED, OWN = "smooth", "own"
PREFERRED = GRID.index(1.0)
SMALLEST = 0.05  # share of a head in a blend; smaller ones are left out


def head_sets(blocks: Sequence[Block]) -> dict[str, list[bool]]:
    """Return the sets of blocks that a head may read, by name. The first wins ties; duplicates are dropped.

    `smooth`: random features of nodes mixed with their neighbours; best if neighbours are alike.
    `smooth and own`: these, and random features of the node alone.
    `all`: every block.
    `apart`: a node's own features and its neighbours', side by side and not mixed.
    `linear`: only the linear blocks.
    `own`: a node's own features; best if its neighbours are uninformative.
    """
    return _distinct(
        {
            MIXED: [block.mixes and not block.linear for block in blocks],
            "smooth and own": [(block.mixes or not block.depth) and not block.linear for block in blocks],
            "all": [True for _ in blocks],
            "apart": [not block.mixes for block in blocks],
            "linear": [block.linear for block in blocks],
            OWN: [not block.depth for block in blocks],
        }
    )


def own_sets(blocks: Sequence[Block]) -> dict[str, list[bool]]:
    """Return sets of blocks of a node's own features, which no edge can mislead; of near equals the first is used."""
    return _distinct(
        {
            "own random": [not block.depth and not block.linear for block in blocks],
            OWN: [not block.depth for block in blocks],
            "own linear": [not block.depth and block.linear for block in blocks],
        }
    )


def vote_sets(blocks: Sequence[Block], own: Sequence[bool]) -> list[list[bool]]:
    """Return the blocks that each voice of the vote reads; a voice is one of the heads that the vote adds up.

    The voices read nodes mixed with their neighbours up to two steps away, up to one step away, and own features. If
    no block mixes, the blocks of the neighbours alone are read instead.
    """
    deep = [block.mixes for block in blocks]
    if not any(deep):
        deep = [block.depth > 0 for block in blocks]
    near = [read and block.depth == 1 for read, block in zip(deep, blocks)]
    distinct: list[list[bool]] = []
    for voice in (deep, near, list(own)):
        if any(voice) and voice not in distinct:
            distinct.append(voice)
    return distinct


def _distinct(sets: dict[str, list[bool]]) -> dict[str, list[bool]]:
    distinct: dict[str, list[bool]] = {}
    for name, chosen in sets.items():
        if any(chosen) and chosen not in distinct.values():
            distinct[name] = chosen
    return distinct


def highest(known: Mapping[int, float]) -> int:
    """Return the place with the largest value; ties go to the one nearest to 1 in the grid, then to the first."""
    return max(known, key=lambda place: (known[place], -abs(place - PREFERRED)))


def next_places(known: Mapping[int, float], places: int, start: int | None = None) -> list[int]:
    """Return where to look next for the top of a hill over a grid of `places`, given what is known; empty if found.

    The search begins with a place that was the top before and its neighbours, or with all places but the ends, and
    goes on with the neighbours of the highest place so far.
    """
    every = range(places)
    if not known and start is None:
        return list(every[1:-1]) or list(every)
    top = highest(known) if known else start
    return [place for place in every if abs(place - (top or 0)) <= 1 and place not in known]


def leader(counts: Mapping[str, int], names: Sequence[str]) -> str:
    """Return the set with most hits; the first if tied."""
    return max(names, key=lambda name: (counts[name], -names.index(name)))


def behind_leader(counts: Mapping[str, int], names: Sequence[str], validated: int) -> dict[str, float]:
    """Return how far each set's hits are below the leader's, in standard errors."""
    best = counts[leader(counts, names)]
    return {name: (best - counts[name]) / _error(best, counts[name], validated) for name in names}


def _error(hits: int, others: int, validated: int) -> float:
    """Return the standard error of a difference between two sets' hits: the root of both sets' misses."""
    return float(max(2 * validated - hits - others, 1) ** 0.5)


def near_leader(counts: Mapping[str, int], names: Sequence[str], validated: int) -> list[str]:
    """Return the sets whose hits are within a standard error of the leader's."""
    return [name for name, behind in behind_leader(counts, names, validated).items() if behind <= 1]


def blend_shares(counts: Mapping[str, int], names: Sequence[str], validated: int) -> dict[str, float]:
    """Return the share of each set's head in a blend: e^(−b²/2), b standard errors behind the leader; at least 5 %."""
    odds = {name: math.exp(-(behind**2) / 2) for name, behind in behind_leader(counts, names, validated).items()}
    odds = {name: each for name, each in odds.items() if each >= SMALLEST * sum(odds.values())}
    return {name: each / sum(odds.values()) for name, each in odds.items()}


def cheapest_near(counts: Mapping[str, int], names: Sequence[str], cost: Mapping[str, int], validated: int) -> str:
    """Return the cheapest set near the leader."""
    return min(near_leader(counts, names, validated), key=lambda name: (cost[name], -counts[name]))


def still_open(counts: Mapping[str, int], names: Sequence[str], kept: str, validated: int, hardly: float) -> list[str]:
    """Return the sets that may turn out to be better than one that is kept anyway: those near the leader.

    There are none if the leader is ahead of it by no more than the share `hardly` of the validation nodes, a standard
    error included.
    """
    best, own = counts[leader(counts, names)], counts[kept]
    gain = best - own + _error(best, own, validated)
    return near_leader(counts, names, validated) if gain > hardly * validated else []


def first_near(counts: Mapping[str, int], names: Sequence[str], validated: int) -> str:
    """Return the first set near the leader."""
    return near_leader(counts, names, validated)[0]
