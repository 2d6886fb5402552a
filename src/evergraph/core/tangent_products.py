"""Products with a constant matrix, and what a step needs besides: the product with a tangent.

Both are differentiable in the weights, and batched (`vmap`): a batch of weights stands side by side, in the middle
dimension.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evergraph.core.features import Features, product
from evergraph.core.row_pieces import fused_kernels
from evergraph.core.sparse import SparseMatrix

READ_OFTEN = 4  # entries in a column from which two dense factors are put side by side for one product


class Rows(NamedTuple):
    """Rows of a table: all of them, or the chosen ones."""

    table: Tensor
    chosen: Tensor | None = None

    def picked(self) -> Tensor:
        """As a matrix of their own."""
        return self.table if self.chosen is None else self.table.index_select(0, self.chosen)


class _PairProduct(torch.autograd.Function):
    """(A W, A Ẇ); the second is a tangent and takes no gradient.

    Where rows of W are read several times each, from one product A [W, Ẇ]; else putting the two side by side would
    cost more than it saves.
    """

    @staticmethod
    def forward(dense: Tensor, tangent: Tensor, matrix: SparseMatrix) -> tuple[Tensor, Tensor]:
        if matrix.nnz < READ_OFTEN * matrix.num_columns:
            return matrix.multiply(dense), matrix.multiply(tangent)
        both = matrix.multiply(torch.cat([dense, tangent], dim=-1))
        return both[..., : dense.size(-1)], both[..., dense.size(-1) :]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.matrix = inputs[2]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None, None]:
        if cotangents[0] is None:
            return None, None, None
        return ctx.matrix.t() @ cotangents[0].contiguous(), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], dense: Tensor, tangent: Tensor, matrix: SparseMatrix) -> Any:
        sides = (members_at(1, value, dim, info.batch_size) for value, dim in zip((dense, tangent), in_dims))
        return _PairProduct.apply(*sides, matrix), (1, 1)


class _AnchoredProduct(torch.autograd.Function):
    """(A W, A D) with D = count · W − total, from the product A D and from A total, which is known.

    Differentiable in W; A D is a tangent and takes no gradient. The other way round, A D as a difference of the known
    products, would lose all digits of a small D.
    """

    @staticmethod
    def forward(
        weight: Tensor,
        against: Tensor,
        at_total: Tensor,
        chosen: Tensor | None,
        matrix: Features,
        count: int,
        operator: Features | None,
    ) -> tuple[Tensor, Tensor]:
        moved = product(matrix, against)
        moved = moved if operator is None else product(operator, moved)
        if moved.dtype == torch.float32 and fused_kernels(moved.device):
            from evergraph.core.layer_kernel import apart

            return apart(moved.contiguous(), at_total.contiguous(), chosen, count)
        moved.neg_()
        return (Rows(at_total, chosen).picked() + moved).div_(count), moved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.matrix, ctx.operator = inputs[4], inputs[6]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if cotangents[0] is None:
            return (None,) * 7
        cotangent = cotangents[0].contiguous()
        if ctx.operator is not None:
            cotangent = _times(ctx.operator.t(), cotangent)
        return _times(ctx.matrix.t(), cotangent), None, None, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], weight: Tensor, against: Tensor, at_total: Tensor, *constants: Any
    ) -> Any:
        values = zip((weight, against, at_total), in_dims)
        sides = (members_at(1, value, dim, info.batch_size) for value, dim in values)
        return _AnchoredProduct.apply(*sides, *constants), (1, 1)


for _forward in (_PairProduct.forward, _AnchoredProduct.forward):  # torch would find it out at every call
    vars(_forward)["__signature__"] = inspect.signature(_forward)


def _times(matrix: Features, dense: Tensor) -> Tensor:
    """A product that can be differentiated in turn, as `product` is not."""
    return matrix @ dense if isinstance(matrix, SparseMatrix) else product(matrix, dense)


def members_at(place: int, value: Tensor, dim: int | None, size: int) -> Tensor:
    """What `vmap` hands over, with its members as the dimension of that place; None is a tensor that all share."""
    if dim is not None:
        return value.movedim(dim, place)
    return value.unsqueeze(place).expand(*value.shape[:place], size, *value.shape[place:])


def batched(cotangent: Tensor) -> bool:
    """Whether torch takes many cotangents at once: its own operations know how."""
    functorch = torch._C._functorch
    return functorch.is_batchedtensor(cotangent) or functorch.is_legacy_batchedtensor(cotangent)


def in_rows(matrix: Tensor) -> Tensor:
    """A constant with the numbers of a row side by side, for a kernel; rows may have gaps between them."""
    return matrix.detach() if matrix.stride(-1) == 1 else matrix.detach().contiguous()


def pair_product(matrix: Features, dense: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
    """(A W, A Ẇ) for constant A: differentiable in W, the tangent taken as a constant."""
    tangent = tangent.detach()
    if isinstance(matrix, SparseMatrix):
        made, moved = _PairProduct.apply(dense, tangent, matrix)
        return made, moved
    return matrix @ dense, matrix @ tangent


def anchored_product(
    matrix: Features, weight: Tensor, count: int, against: Tensor, at_total: Rows, operator: Features | None = None
) -> tuple[Tensor, Tensor]:
    """(A W, A D) for constant A and D = count · W − total, where A total is known: one product for both.

    `against` is −D. With an operator P both are multiplied by it from the left, and `at_total` is P A total.
    """
    made, moved = _AnchoredProduct.apply(weight, against, at_total.table, at_total.chosen, matrix, count, operator)
    return made, moved
