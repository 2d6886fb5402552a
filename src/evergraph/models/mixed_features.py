"""Random and exact features side by side, for `auto` to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from evergraph.core.settings import NonNegative, NonNegativeInt, PositiveInt
from evergraph.models.base import MODELS
from evergraph.models.random_features import BLOCKS, RandomFeatures

MIXED: tuple[tuple[Any, ...], ...] = (
    *BLOCKS, (1, "others"), (2, "others"), (0, 0.5, "linear"), (1, "others", "linear"), (2, "others", "linear"),
)  # fmt: skip


@MODELS.register(name="mixed-features")
class MixedFeatures(RandomFeatures):
    """`random-features` with more blocks: neighbours separate from the node itself, and exact linear blocks.

    In addition to the blocks of `random-features` it has random features of the neighbours' mean without the node
    itself, after one and two steps, and linear blocks of a node's own features and of the same two means.

    Args:
        hidden: number of random features, all random blocks together; by default 7,168 of nodes, unless the method
            chooses more (`choose_width`), and of graphs and links as in `random-features`.
        blocks: as in `random-features`.
        linear_width: largest number of columns of a linear block; 0 for as many as the features have.
        kept: which of the blocks are still present; empty for all.
        lift: as in `random-features`.
        scales: as in `random-features`.
        block_width: as in `random-features`.
    """

    default_hidden: ClassVar[int] = 7168

    def __init__(
        self,
        hidden: PositiveInt | None = None,
        blocks: Sequence[Sequence[Any]] = MIXED,
        linear_width: NonNegativeInt = 0,
        kept: Sequence[bool] = (),
        lift: NonNegative | None = None,
        scales: bool | Sequence[Sequence[float]] = True,
        block_width: NonNegativeInt = 0,
    ) -> None:
        super().__init__(hidden, blocks, linear_width, kept, lift, scales, block_width)
