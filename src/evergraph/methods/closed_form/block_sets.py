"""Which blocks of features a head may read, and the validation counts that choose among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evergraph.models.feature_blocks import Block

GRID = (0.05, 0.2, 1.0, 5.0, 25.0, 125.0, 625.0)
"""Ridges that are tried; without a validation node 1 is taken."""
MIXED, OWN = "smooth", "own"
PREFERRED = GRID.index(1.0)


def head_sets(blocks: Sequence[Block]) -> dict[str, list[bool]]:
    """Sets of blocks that a head may read, by name; of equals the first is taken. Sets that are equal come once.

    `smooth`: nodes mixed with their neighbours, as random features; right where neighbours are alike.
    `smooth and own`: the same beside a node's own features.
    `apart`: what a node says and what its neighbours say, side by side.
    `linear`: the same, linear blocks alone.
    `all`: every block.
    `own`: a node's own features; right where its neighbours say nothing.
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
    """Sets of blocks of a node's own features, for the head that no edge can mislead; of near equals the first."""
    return _distinct(
        {
            "own random": [not block.depth and not block.linear for block in blocks],
            OWN: [not block.depth for block in blocks],
            "own linear": [not block.depth and block.linear for block in blocks],
        }
    )


def vote_sets(blocks: Sequence[Block], own: Sequence[bool]) -> list[list[bool]]:
    """The voices of the vote: nodes mixed with their neighbours up to two steps, up to one, and their own features.

    Where no block mixes, neighbours speak for themselves.
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


def best_ridge(hits: Sequence[int]) -> int:
    """The place in the grid with most hits; of equals the one nearest to 1, the larger of two."""
    return max(range(len(hits)), key=lambda place: (hits[place], -abs(place - min(PREFERRED, len(hits) - 1)), place))


def climbed(value: Callable[[int], float], places: int) -> int:
    """The place in the grid from which no step to a neighbour is a step up; it starts in the middle."""
    known = {places // 2: value(places // 2)}
    while True:
        best = max(known, key=lambda place: known[place])
        new = [place for place in (best - 1, best + 1) if 0 <= place < places and place not in known]
        if not new:
            return best
        known[new[0]] = value(new[0])


def leader(counts: Mapping[str, Sequence[int]], names: Sequence[str]) -> str:
    """The set with most hits at its best ridge; the first of equals."""
    return max(names, key=lambda name: (max(counts[name]), -names.index(name)))


def near_leader(counts: Mapping[str, Sequence[int]], names: Sequence[str], validated: int) -> list[str]:
    """The sets whose hits are within a standard error, the root of both sets' misses, of the leader's."""
    best = max(counts[leader(counts, names)])
    error = {name: max(2 * validated - best - max(counts[name]), 0) ** 0.5 for name in names}
    return [name for name in names if max(counts[name]) >= best - error[name]]


def cheapest_near(
    counts: Mapping[str, Sequence[int]], names: Sequence[str], cost: Mapping[str, int], validated: int
) -> str:
    """The cheapest set near the leader."""
    return min(near_leader(counts, names, validated), key=lambda name: (cost[name], -max(counts[name])))


def first_near(counts: Mapping[str, Sequence[int]], names: Sequence[str], validated: int) -> str:
    """The first set near the leader."""
    return near_leader(counts, names, validated)[0]
