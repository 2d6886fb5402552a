"""Products with weights that stand still: computed once for all nodes of a graph, kept as long as its batcher lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from evergraph.core.capabilities import capable
from evergraph.core.sparse import product
from evergraph.core.tangent_products import Rows
from evergraph.data.batching import Batch, Neighbourhoods

LARGEST = 2**29  # bytes that a product may take to be kept


@dataclass(eq=False)
class _Product:
    """A product and the weight it was made with."""

    weight: Tensor
    version: int
    propagate: bool
    product: Tensor
    nodes: Tensor | None = None
    rows: Tensor | None = None  # of the product, at these nodes

    def is_of(self, weight: Tensor, propagate: bool) -> bool:
        """Whether it is the product with this weight.

        A weight is known again by being the same tensor in the same version. A parameter is compared by value:
        fused optimizers and CUDA graphs move parameters without telling.
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
    """Within it, `fixed_rows` answers these: for steps of several members, of which each has its own."""
    global _given
    before, _given = _given, rows
    try:
        yield
    finally:
        _given = before


def fixed_rows(batch: Batch, weight: Tensor, number: int, *, propagate: bool) -> Rows | None:
    """The rows of `fixed_product` at the batch's first nodes; of a batch that lasts they are picked once."""
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
    """X W (or Ã X W) at all nodes, from the last call where W is the same; None where it is too large to keep."""
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
    """A model's first layer (its capability `first_layer`) with another weight matrix; no gradient is recorded."""
    first_layer = capable(model, "first_layer")
    assert first_layer is not None
    for matrix in reversed(first_layer(batch)):
        weight = product(matrix, weight)
    return weight
