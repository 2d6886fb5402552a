"""The one way in which models here apply a weight matrix, and a recorder of where they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from evergraph.core.sparse import Features

_products: list[tuple[Tensor, Features, Tensor]] | None = None


@contextmanager
def recorded_products() -> Iterator[list[tuple[Tensor, Features, Tensor]]]:
    """Within it, every `linear` of a forward pass leaves (weight, input rows, output rows) in the list."""
    global _products
    _products = []
    try:
        yield _products
    finally:
        _products = None


def recording() -> bool:
    """Whether products are being recorded: then layers aggregate first, so that a row is a node."""
    return _products is not None


def linear(x: Features, weight: Tensor) -> Tensor:
    """X W."""
    out = x @ weight
    if _products is not None:
        _products.append((weight, x, out))
    return out
