"""The rows of the outputs that a step reads, and of their tangent: picked by one kernel on a GPU."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from evergraph.core.row_pieces import fused_kernels
from evergraph.core.tangent_products import batched, in_rows, members_at


class _ChosenRows(torch.autograd.Function):
    """Rows of a table and of a second one, or of the first alone; the second gets no gradient.

    Several networks are stacked along the middle dimension of a table, and along the first of the chosen rows.
    """

    @staticmethod
    def forward(table: Tensor, other: Tensor | None, chosen: Tensor) -> tuple[Tensor, Tensor | None]:
        from evergraph.core.chosen_kernel import picked

        single = table.dim() == 2
        if table.dim() > 3:
            raise NotImplementedError("chosen rows under more than one vmap")
        beside = None if other is None else _with_networks(other)
        first, second = picked(_with_networks(table), beside, chosen.reshape(-1, chosen.size(-1)).contiguous())
        if not single:
            return first, second
        return first.squeeze(0), None if second is None else second.squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> None:
        table, _, chosen = inputs
        ctx.rows = table.size(0)
        ctx.save_for_backward(chosen)
        ctx.set_materialize_grads(False)
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None, None]:
        gradient, (chosen,) = cotangents[0], ctx.saved_tensors
        if gradient is None:
            return None, None, None
        if batched(gradient):  # many cotangents at once
            zeros = gradient.new_zeros(ctx.rows, *gradient.shape[1:])
            return zeros.index_add(0, chosen, gradient), None, None
        return _PutBack.apply(gradient, chosen, ctx.rows), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], table: Tensor, other: Tensor | None, chosen: Tensor) -> Any:
        tables = (
            value if value is None else members_at(1, value, dim, info.batch_size)
            for value, dim in zip((table, other), in_dims)
        )
        found = _ChosenRows.apply(*tables, members_at(0, chosen, in_dims[2], info.batch_size))
        return found, (0, None if other is None else 0)


class _PutBack(torch.autograd.Function):
    """The gradient at a table, given that at its chosen rows; differentiable in turn."""

    @staticmethod
    def forward(gradient: Tensor, chosen: Tensor, rows: int) -> Tensor:
        from evergraph.core.chosen_kernel import put

        single = gradient.dim() == 2
        made = put(in_rows(gradient.unsqueeze(0) if single else gradient), chosen.contiguous(), rows)
        return made.squeeze(1) if single else made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (chosen,) = ctx.saved_tensors
        return _ChosenRows.apply(cotangents[0], None, chosen)[0], None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], gradient: Tensor, chosen: Tensor, rows: int) -> tuple[Tensor, int]:
        sides = (members_at(0, value, dim, info.batch_size) for value, dim in zip((gradient, chosen), in_dims))
        return _PutBack.apply(*sides, rows), 1


for _forward in (_ChosenRows.forward, _PutBack.forward):  # torch would compute it at every call
    vars(_forward)["__signature__"] = inspect.signature(_forward)


def _with_networks(table: Tensor) -> Tensor:
    """Return the table with the networks as its middle dimension, which is added if missing."""
    return in_rows(table.unsqueeze(1) if table.dim() == 2 else table)


def chosen_rows(chosen: Tensor, table: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the chosen rows of a table, and of its tangent if there is one.

    Args:
        chosen: indices of the rows.
        table: the table; differentiable.
        other: the tangent, of the same shape; a constant.
    """
    suits = table.dim() == 2 and table.is_floating_point() and table.numel() and chosen.numel()
    if suits and forward_ad._current_level < 0 and fused_kernels(table.device):
        found: tuple[Tensor, Tensor | None] = _ChosenRows.apply(
            table, other if other is None else other.detach(), chosen
        )
        return found
    return table.index_select(0, chosen), None if other is None else other.index_select(0, chosen)
