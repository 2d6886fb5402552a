"""The one way in which models here apply a weight matrix, and a recorder of where they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from evergraph.core.params import Direction
from evergraph.core.sparse import Features


class Product(NamedTuple):
    """A weight matrix, the rows that it multiplied, and the rows that came out.

    A row belongs to a node of the batch, or with `of_examples` to an example (a link) of it.
    """

    weight: Tensor
    rows: Features
    out: Tensor
    of_examples: bool = False


_products: list[Product] | None = None


@contextmanager
def recorded_products() -> Iterator[list[Product]]:
    """Within it, every `linear` of a forward pass leaves its product in the list."""
    global _products
    _products = []
    try:
        yield _products
    finally:
        _products = None


def recording() -> bool:
    """Whether products are being recorded: then layers aggregate first, so that a row is a node."""
    return _products is not None


class Layer(NamedTuple):
    """What a hidden layer has put out, before activation.

    Args:
        out: its output.
        direction: along which the pass carried a tangent; None for none.
        tangent: the output's.
    """

    out: Tensor
    direction: Direction | None = None
    tangent: Tensor | None = None


_layers: list[Layer] | None = None


@contextmanager
def noted_layers(wanted: bool = True) -> Iterator[list[Layer]]:
    """Within it, a forward pass leaves what its hidden layers put out in the list, where wanted."""
    global _layers
    found: list[Layer] = []
    before, _layers = _layers, found if wanted else None
    try:
        yield found
    finally:
        _layers = before


def noted(hidden: Tensor, direction: Direction | None = None, tangent: Tensor | None = None) -> Tensor:
    """What a hidden layer has put out, noted where somebody wants to know."""
    if _layers is not None:
        _layers.append(Layer(hidden, direction, tangent))
    return hidden


def linear(x: Features, weight: Tensor, *, of_examples: bool = False) -> Tensor:
    """X W; `of_examples` says that the rows are examples, not nodes."""
    out = x @ weight
    if _products is not None:
        _products.append(Product(weight, x, out, of_examples))
    return out
