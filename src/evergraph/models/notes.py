"""What a model notes at a batch in a training pass, for methods that read values on the way to its outputs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from evergraph.core.params import Direction

FIRST_LAYER = "first layer"
"""A `FirstLayer`, by models whose outputs depend on their first weight matrix through that layer's output alone."""


class FirstLayer(NamedTuple):
    """What a pass in training mode notes at its batch.

    Args:
        weight: the first layer's.
        out: its output.
        propagated: whether the inputs were propagated before, so that the layer is a plain product.
        direction: along which the pass carried a tangent; None for none.
        tangent: the output's.
    """

    weight: Tensor
    out: Tensor
    propagated: bool
    direction: Direction | None = None
    tangent: Tensor | None = None
