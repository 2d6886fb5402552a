"""How many features a random block has if the user does not say: more than usual where that is cheap, or worth it.

- **Few nodes.** While there are fewer nodes than features the closed form keeps factors, whose cost is proportional to
  the number of features. So a stream that begins with a small graph begins with wide blocks, which are narrowed once
  that is no longer so, or no longer fits: the first features of a block are those of a narrower block.
- **Inputs of medium dimension.** With d columns, the second-order part of a random block's kernel has about d²/2
  dimensions. A block of the usual width covers these if columns are few; if they are thousands, as words are, no block
  covers more than the linear part. In between, as with embeddings, a wider block tells more classes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evergraph.models.feature_blocks import Block

USUAL = 1024  # features of a block by default, and the least to which a wider one is narrowed
FEW_COLUMNS = 64  # up to which the usual width covers the second-order part
MEDIUM_COLUMNS, WIDER = 512, (2048, 1536)  # number of columns up to which blocks may be wider, and the widths to try
FEW_NODES, WIDEST = 1024, 4096  # number of the first graph's nodes up to which blocks begin with the largest width
DRAWN = 2**28  # largest number of bytes of the projection to such blocks
GROWTH = 4  # how many times as large as the first graph a graph is whose features should still be at hand


class Limits(NamedTuple):
    """What limits the width of blocks.

    Args:
        at_first: whether the first task's sums over so many features take little memory.
        always: whether the sums over so many features fit into memory, however many nodes there are.
    """

    at_first: Callable[[int], bool]
    always: Callable[[int], bool]


def first_width(
    blocks: Sequence[Block], columns: int, nodes: int, limits: Limits, at_hand: Callable[[int], bool], size: int
) -> int:
    """Return how many features a random block begins with; 0 for no more than usual.

    Args:
        blocks: the blocks.
        columns: number of input columns.
        nodes: number of the first graph's nodes.
        limits: what limits the width.
        at_hand: whether so many features of so many times the nodes may be computed at once.
        size: bytes of a number.
    """
    random = sum(not block.linear for block in blocks)
    if columns <= FEW_COLUMNS or not random:
        return 0
    cheap = size * columns * random * WIDEST <= DRAWN
    if nodes <= FEW_NODES and cheap and limits.at_first(random * WIDEST + (len(blocks) - random) * columns):
        return WIDEST
    lasting = sum(not block.linear and (block.mixes or not block.depth) for block in blocks)  # of sets that always stay
    roomy = (each for each in WIDER if at_hand(GROWTH * random * each) and limits.always(1 + lasting * each))
    return next(roomy, 0) if columns <= MEDIUM_COLUMNS else 0


def lasting_width(drawn: int) -> int:
    """Return the width that a block which began with `drawn` features is meant to have with many nodes."""
    return USUAL if drawn == WIDEST else drawn
