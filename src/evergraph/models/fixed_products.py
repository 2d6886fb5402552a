"""Products with fixed weights: computed once for all nodes of a graph, cached for the lifetime of its batcher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from evergraph.core.capabilities import capable
from evergraph.core.features import product
from evergraph.core.tangent_products import Rows
from evergraph.data.batching import Batch, Neighbourhoods

LARGEST = 2**29  # a product is kept if it takes at most this many bytes


@dataclass(eq=False)
class _Product:
    """A product and the weight it was computed with."""

    weight: Tensor
    version: int
    propagate: bool
    product: Tensor
    nodes: Tensor | None = None
    rows: Tensor | None = None  # rows of the product at these nodes

    def is_of(self, weight: Tensor, propagate: bool) -> bool:
        """Whether it is the product with this weight.

        A weight is recognized as the same tensor in the same version. A parameter is compared by value, since
        fused optimizers and CUDA graphs change parameters without a new version.
        """
        if self.propagate != propagate:
            return False
        if weight.requires_grad:
            return self.weight.shape == weight.shape and torch.equal(self.weight, weight)
        return self.weight is weight and self.version == weight._version


_products: WeakKeyDictionary[Neighbourhoods, _Product] = WeakKeyDictionary()


_given: Tensor | None = None


@contextmanager
def given_rows(rows: Tensor | None) -> Iterator[None]:
    """Context in which `fixed_rows` returns these rows: for stacked steps, in which every member has its own rows."""
    global _given
    before, _given = _given, rows
    try:
        yield
    finally:
        _given = before


def fixed_rows(batch: Batch, weight: Tensor, number: int, *, propagate: bool) -> Rows | None:
    """Return the rows of `fixed_product` at the batch's first `number` nodes; selected once for a lasting batch."""
    if _given is not None:
        return Rows(_given)
    assert batch.source is not None
    product = fixed_product(batch.source, weight, propagate=propagate)
    if product is None or not batch.lasting:
        return None if product is None else Rows(product, batch.nodes[:number])
    kept = _products[batch.source]
    if kept.rows is None or kept.nodes is not batch.nodes:
        kept.rows, kept.nodes = product.index_select(0, batch.nodes[:number]), batch.nodes
    return Rows(kept.rows)


def fixed_product(batcher: Neighbourhoods, weight: Tensor, *, propagate: bool) -> Tensor | None:
    """Return X W (or Ã X W) at all nodes, cached while W stays the same; None if it is too large to keep."""
    kept = _products.get(batcher)
    if kept is None or not kept.is_of(weight, propagate):
        if weight.element_size() * batcher.operator.num_rows * weight.size(1) > LARGEST:
            return None
        product = batcher.x @ weight.detach()
        product = batcher.operator @ product if propagate else product
        known_by = weight.detach().clone() if weight.requires_grad else weight
        kept = _products[batcher] = _Product(known_by, weight._version, propagate, product)
    return kept.product


def first_layer_product(model: nn.Module, batch: Batch, weight: Tensor) -> Tensor:
    """Compute a model's first layer (its capability `first_layer`) with another weight matrix; records no gradient."""
    first_layer = capable(model, "first_layer")
    assert first_layer is not None
    for matrix in reversed(first_layer(batch)):
        weight = product(matrix, weight)
    return weight
