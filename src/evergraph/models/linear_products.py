"""Products of linear blocks between nodes, without the blocks: (P^k X̂)(P^k X̂)ᵀ = P^k (X̂ X̂ᵀ) P^kᵀ.

With n nodes and thousands of words the left side costs n² products of rows that neighbours have filled; the right side
one product of sparse rows, and then a step of propagation down and across for each step of the block.
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
from evergraph.models.feature_blocks import Block, unit_rows


class Products(NamedTuple):
    """What a linear block says of some nodes.

    Args:
        between: the products of their rows.
        words: how many columns are not zero at all of the nodes that are counted.
    """

    between: Tensor
    words: int


def linear_products(
    x: Features, operator: SparseMatrix, blocks: Sequence[Block], nodes: Tensor, counted: Tensor
) -> list[Products]:
    """The products of linear blocks, rows of length one, between `nodes`; columns are counted at the nodes `counted`.

    Args:
        x: features of all nodes.
        operator: A + I.
        blocks: the blocks.
        nodes: between which nodes.
        counted: at which of all nodes.
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
        found.append(Products(between, _words(own, met.reshape(-1) > 0)))
    return found


def _between_all(own: Features) -> Tensor:
    """X̂ X̂ᵀ."""
    if not isinstance(own, SparseMatrix):
        return outer_product(own)
    entries = own.to_scipy()
    half = entries.shape[0] // 2
    found = side_by_side([partial(_times_all, entries, slice(half)), partial(_times_all, entries, slice(half, None))])
    return torch.from_numpy(np.concatenate(found)).to(own.device, own.dtype)


def _times_all(entries: scipy.sparse.csr_matrix, some: slice) -> np.ndarray:
    """Products of some rows with all."""
    found: np.ndarray = (entries[some] @ entries.T).toarray()
    return found


def _words(own: Features, met: Tensor) -> int:
    """How many columns have an entry at some nodes."""
    if not isinstance(own, SparseMatrix):
        return int((own[met] != 0).any(0).sum())
    return int(torch.unique(own.indices[met[own.row_of_entry()] & (own.values != 0)]).numel())
