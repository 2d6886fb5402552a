"""Inner products between nodes in linear blocks, without computing the blocks: (P^k X̂)(P^k X̂)ᵀ = P^k (X̂ X̂ᵀ) P^kᵀ.

With n nodes and thousands of words the left side costs n² products of rows that propagation has filled; the right side
costs one product of sparse rows, and then a propagation of rows and of columns for each step of the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from evergraph.core.dense_algebra import outer_product
from evergraph.core.side_by_side import side_by_side
from evergraph.core.sparse import Features, SparseMatrix
from evergraph.core.symmetric import pack, unpack
from evergraph.models.feature_blocks import Block, unit_rows


class Products(NamedTuple):
    """Inner products between some nodes in a linear block.

    Args:
        between: the inner products of the nodes' rows, a packed matrix (`core.symmetric`).
        words: number of columns with a non-zero entry at any counted node.
    """

    between: Tensor
    words: int


def linear_products(
    x: Features, operator: SparseMatrix, blocks: Sequence[Block], nodes: Tensor, counted: Tensor
) -> list[Products]:
    """Return the inner products between `nodes` in linear blocks with rows of unit length.

    Args:
        x: features of all nodes.
        operator: A + I.
        blocks: the blocks.
        nodes: nodes between which products are computed.
        counted: nodes at which non-zero columns are counted.
    """
    own, degree = unit_rows(x), operator.row_sums().unsqueeze(1)
    known: dict[tuple[int, float | None], Tensor] = {(0, None): _between_all(own)}
    found = []
    for block in blocks:
        balance = block.balance if block.depth else None
        step = block.operator(operator, degree)
        met = torch.zeros(operator.num_rows, 1, dtype=operator.dtype, device=operator.device)
        met[counted] = 1
        for depth in range(1, block.depth + 1):
            met = (step.t() @ met > 0).to(met.dtype)
            if (depth, balance) not in known:
                before = known[(depth - 1, balance if depth > 1 else None)]
                known[depth, balance] = step @ (step @ before).T.contiguous()
        products = known[block.depth, balance]
        over = 1 / products.diagonal().clamp(min=0).sqrt().clamp(min=1e-12)
        between = products[nodes][:, nodes] * over[nodes].unsqueeze(1) * over[nodes]
        found.append(Products(pack(between), _words(own, met.reshape(-1) > 0)))
    return found


def _between_all(own: Features) -> Tensor:
    """Return X̂ X̂ᵀ."""
    if not isinstance(own, SparseMatrix):
        return unpack(outer_product(own)).to(own.dtype)
    entries = own.to_scipy()
    half = entries.shape[0] // 2
    found = side_by_side([partial(_times_all, entries, slice(half)), partial(_times_all, entries, slice(half, None))])
    return torch.from_numpy(np.concatenate(found)).to(own.device, own.dtype)


def _times_all(entries: scipy.sparse.csr_matrix, some: slice) -> np.ndarray:
    """Return the inner products of some rows with all rows."""
    found: np.ndarray = (entries[some] @ entries.T).toarray()
    return found


def _words(own: Features, met: Tensor) -> int:
    """Number of columns with a non-zero entry at any of the nodes in the mask `met`."""
    if not isinstance(own, SparseMatrix):
        return int((own[met] != 0).any(0).sum())
    return int(torch.unique(own.indices[met[own.row_of_entry()] & (own.values != 0)]).numel())
