"""The function by which all models apply a weight matrix, and recorders of its products and of hidden layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from evergraph.core.features import Features
from evergraph.core.params import Direction


class Product(NamedTuple):
    """A weight matrix, the rows that it multiplied, and the resulting rows.

    A row belongs to a node of the batch or, with `of_examples`, to an example (a link) of it.
    """

    weight: Tensor
    rows: Features
    out: Tensor
    of_examples: bool = False


_products: list[Product] | None = None


@contextmanager
def recorded_products() -> Iterator[list[Product]]:
    """Record the product of every `linear` within the context in the list that it yields."""
    global _products
    _products = []
    try:
        yield _products
    finally:
        _products = None


def recording() -> bool:
    """Return whether products are being recorded: layers then aggregate first, so that a row is a node."""
    return _products is not None


class Layer(NamedTuple):
    """The output of a hidden layer, before activation.

    Args:
        out: the output.
        direction: the direction of the tangent that the pass computed; None for none.
        tangent: the output's tangent.
    """

    out: Tensor
    direction: Direction | None = None
    tangent: Tensor | None = None


_layers: list[Layer] | None = None


@contextmanager
def noted_layers(wanted: bool = True) -> Iterator[list[Layer]]:
    """Record the outputs of hidden layers within the context in the list that it yields, if wanted."""
    global _layers
    found: list[Layer] = []
    before, _layers = _layers, found if wanted else None
    try:
        yield found
    finally:
        _layers = before


def noted(hidden: Tensor, direction: Direction | None = None, tangent: Tensor | None = None) -> Tensor:
    """Return the output of a hidden layer, and record it if `noted_layers` is active."""
    if _layers is not None:
        _layers.append(Layer(hidden, direction, tangent))
    return hidden


def linear(x: Features, weight: Tensor, *, of_examples: bool = False) -> Tensor:
    """Return X W; with `of_examples` the rows are examples, not nodes."""
    out = x @ weight
    if _products is not None:
        _products.append(Product(weight, x, out, of_examples))
    return out
