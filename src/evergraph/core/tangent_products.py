"""Products with a constant matrix, and what a step needs besides: the product with a tangent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evergraph.core.sparse import Features, SparseMatrix, product

READ_OFTEN = 4  # entries in a column from which two dense factors are put side by side for one product


class _PairProduct(torch.autograd.Function):
    """(A W, A Ẇ); the second is a tangent and takes no gradient.

    Where rows of W are read several times each, from one product A [W, Ẇ]; else putting the two side by side would
    cost more than it saves.
    """

    @staticmethod
    def forward(ctx: Any, dense: Tensor, tangent: Tensor, matrix: SparseMatrix) -> tuple[Tensor, Tensor]:
        ctx.matrix = matrix
        if matrix.nnz < READ_OFTEN * matrix.num_columns:
            product, moved = matrix.multiply(dense), matrix.multiply(tangent)
        else:
            both = matrix.multiply(torch.cat([dense, tangent], dim=1))
            product, moved = both[:, : dense.size(1)], both[:, dense.size(1) :]
        ctx.mark_non_differentiable(moved)
        return product, moved

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        return ctx.matrix.t() @ cotangents[0].contiguous(), None, None


class _AnchoredProduct(torch.autograd.Function):
    """(A W, A D) with D = count · W − total, from the product A D and from A total, which is known.

    Differentiable in W; A D is a tangent and takes no gradient. The other way round, A D as a difference of the known
    products, would lose all digits of a small D.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, matrix: Features, count: int, total: Tensor, at_total: Tensor, operator: Any
    ) -> tuple[Tensor, Tensor]:
        ctx.matrix, ctx.operator = matrix, operator
        moved = product(matrix, torch.sub(total, weight, alpha=count))  # −D in one pass over the weights
        moved = (moved if operator is None else product(operator, moved)).neg_()
        ctx.mark_non_differentiable(moved)
        return (at_total + moved).div_(count), moved

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        cotangent = cotangents[0].contiguous()
        if ctx.operator is not None:
            cotangent = ctx.operator.t() @ cotangent
        return ctx.matrix.t() @ cotangent, None, None, None, None, None


def pair_product(matrix: Features, dense: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
    """(A W, A Ẇ) for constant A: differentiable in W, the tangent taken as a constant."""
    tangent = tangent.detach()
    if isinstance(matrix, SparseMatrix):
        product, moved = _PairProduct.apply(dense, tangent, matrix)
        return product, moved
    return matrix @ dense, matrix @ tangent


def anchored_product(
    matrix: Features, weight: Tensor, count: int, total: Tensor, at_total: Tensor, operator: Features | None = None
) -> tuple[Tensor, Tensor]:
    """(A W, A D) for constant A and D = count · W − total, where A total is known: one product for both.

    With an operator P both are multiplied by it from the left, and `at_total` is P A total.
    """
    product, moved = _AnchoredProduct.apply(weight, matrix, count, total, at_total, operator)
    return product, moved
