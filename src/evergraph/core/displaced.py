"""How far parameters stand from their anchors: on a GPU two parameters in one kernel, which takes as long as one."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evergraph.core.row_pieces import fused_kernels
from evergraph.core.tangent_products import members_at


class _Against(torch.autograd.Function):
    """total − count · W of each W and the total that follows it; takes no gradient."""

    @staticmethod
    def forward(count: int, *values: Tensor) -> tuple[Tensor, ...]:
        from evergraph.core.layer_kernel import against

        laid_out = [value.detach().contiguous() for value in values]
        return against(laid_out[::2], laid_out[1::2], count)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], count: int, *values: Tensor) -> Any:
        places = [0 if dim is None else dim for dim in in_dims[1::2]]  # where each W has its members
        sides = (
            members_at(places[number // 2], value, dim, info.batch_size)
            for number, (value, dim) in enumerate(zip(values, in_dims[1:]))
        )
        return _Against.apply(count, *sides), tuple(places)


vars(_Against.forward)["__signature__"] = inspect.signature(_Against.forward)  # found out once


def against_anchors(weights: Sequence[Tensor], count: int, totals: Sequence[Tensor]) -> list[Tensor]:
    """−D for D = count · W − total of each parameter; no gradient is recorded."""
    if fused_kernels(weights[0].device):
        return list(_Against.apply(count, *(value for pair in zip(weights, totals) for value in pair)))
    return [torch.sub(total, weight.detach(), alpha=count) for weight, total in zip(weights, totals)]
