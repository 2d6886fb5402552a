"""Products with weights that stand still: computed once for all nodes of a graph, kept as long as its batcher lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from evergraph.data.batching import Neighbourhoods

LARGEST = 2**29  # bytes that a product may take to be kept


@dataclass(eq=False)
class _Product:
    """A product and the weight it was made with."""

    weight: Tensor
    version: int
    propagate: bool
    product: Tensor

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
def given_product(product: Tensor | None) -> Iterator[None]:
    """Within it, `product` is the one that stands still: for steps of several members, which hold one each."""
    global _given
    before, _given = _given, product
    try:
        yield
    finally:
        _given = before


def fixed_product(batcher: Neighbourhoods, weight: Tensor, *, propagate: bool) -> Tensor | None:
    """X W (or Ã X W) at all nodes, from the last call where W is the same; None where it is too large to keep."""
    if _given is not None:
        return _given
    kept = _products.get(batcher)
    if kept is None or not kept.is_of(weight, propagate):
        if weight.element_size() * batcher.operator.num_rows * weight.size(1) > LARGEST:
            return None
        product = batcher.x @ weight.detach()
        product = batcher.operator @ product if propagate else product
        known_by = weight.detach().clone() if weight.requires_grad else weight
        kept = _products[batcher] = _Product(known_by, weight._version, propagate, product)
    return kept.product
