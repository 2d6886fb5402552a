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

from evergraph.core import large
from evergraph.core.dense_algebra import outer_product
from evergraph.core.features import Features
from evergraph.core.side_by_side import side_by_side
from evergraph.core.sparse import SparseMatrix
from evergraph.core.symmetric import packed_size, panels, unpack
from evergraph.models.feature_blocks import Block, unit_rows

AT_ONCE = 256  # rows of words that are multiplied with all others at once


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
        between = _cosines(known[block.depth, balance], nodes)
        found.append(Products(between, _words(own, met.reshape(-1) > 0)))
    return found


def _cosines(products: Tensor, nodes: Tensor) -> Tensor:
    """Return the inner products between `nodes` after scaling to unit length, packed."""
    over = (1 / products.diagonal().clamp(min=0).sqrt().clamp(min=1e-12))[nodes]
    found = large.empty((packed_size(nodes.numel()),), products.dtype, products.device)
    for panel in panels(found):
        rows, columns = slice(panel.start, panel.stop), slice(panel.stop)
        torch.index_select(products[nodes[rows]], 1, nodes[columns], out=panel.entries)
        panel.entries.mul_(over[rows].unsqueeze(1)).mul_(over[columns])
    return found


def _between_all(own: Features) -> Tensor:
    """Return X̂ X̂ᵀ."""
    if not isinstance(own, SparseMatrix):
        return unpack(outer_product(own)).to(own.dtype)
    entries = own.to_scipy()
    found = np.empty(2 * entries.shape[:1], dtype=entries.dtype)  # not kept for reuse: nothing else is as large
    pieces = [slice(start, start + AT_ONCE) for start in range(0, entries.shape[0], AT_ONCE)]
    side_by_side([partial(_write_products, entries, piece, found) for piece in pieces[::-1]])
    return torch.from_numpy(found).to(own.device, own.dtype)


def _write_products(entries: scipy.sparse.csr_matrix, some: slice, found: np.ndarray) -> None:
    """Write the inner products of some rows with all rows up to them, and the same the other way round."""
    products = (entries[some] @ entries[: some.stop].T).toarray()
    found[some, : some.stop] = products
    found[: some.start, some] = products[:, : some.start].T


def _words(own: Features, met: Tensor) -> int:
    """Number of columns with a non-zero entry at any of the nodes in the mask `met`."""
    if not isinstance(own, SparseMatrix):
        return int((own[met] != 0).any(0).sum())
    return int(torch.unique(own.indices[met[own.row_of_entry()] & (own.values != 0)]).numel())
