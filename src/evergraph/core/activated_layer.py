"""P [σ(H) 1] W, a convolution applied to the activated layer before it, and its tangent: a few kernels on a GPU.

Written out, it takes an activation, a column of ones and a product, and twice that with a mask for the tangent: some
fifteen kernels in the forward pass, of one or two microseconds each, the time in which a GPU reads such a matrix once.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.features import Features, product
from evergraph.core.row_pieces import fused_kernels
from evergraph.core.shortcuts import rounded_products
from evergraph.core.tangent_products import batched, members_at

MOST_UNITS, MOST_INPUTS = 128, 1024  # largest layer that the kernels support


def fused_layer_suits(hidden: Tensor, weight: Tensor) -> bool:
    """Return whether the kernels support these matrices: of a training step, float32, on a GPU, not too wide."""
    inputs, units = weight.shape[-2] - 1, weight.shape[-1]
    sizes = inputs % 16 == 0 and 0 < inputs <= MOST_INPUTS and units <= MOST_UNITS and hidden.size(0) > 0
    kind = hidden.dtype == weight.dtype == torch.float32
    return sizes and kind and torch.is_grad_enabled() and fused_kernels(hidden.device)


class _ActivatedLayer(torch.autograd.Function):
    """(P Z, P Ż) with Z = [σ(H) 1] W and Ż = [Ḣ ∘ σ'(H) 0] W + [σ(H) 1] Ẇ, or P Z alone; tangents get no gradient.

    `against` is −Ẇ. Several networks are stacked along the middle dimension of every matrix.
    """

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, moved: Tensor | None, against: Tensor | None, operator: Features
    ) -> tuple[Tensor, Tensor | None]:
        from evergraph.core.layer_kernel import forwards

        tangents = None
        if moved is not None and against is not None:
            tangents = _by_network(moved), _by_network(against)
        made = forwards(_by_network(hidden), _by_network(weight), tangents, _precision())
        put_out = product(operator, made.flatten(1)).unflatten(1, made.shape[1:])
        sides = [side if hidden.dim() == 3 else side.squeeze(1) for side in put_out.unbind(1)]
        return sides[0], sides[1] if len(sides) == 2 else None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> None:
        hidden, weight, _, _, ctx.operator = inputs
        ctx.save_for_backward(hidden, weight)
        ctx.set_materialize_grads(False)
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        from evergraph.core.layer_kernel import backwards

        cotangent, (hidden, weight) = cotangents[0], ctx.saved_tensors
        if cotangent is None:
            return None, None, None, None, None
        if torch.is_grad_enabled() or batched(cotangent):
            return *_written_out(cotangent, hidden, weight, ctx.operator), None, None, None
        h, w = _by_network(hidden), _by_network(weight)
        back = product(ctx.operator.t(), cotangent.flatten(1)).view(h.size(0), *w.shape[1:])
        at_hidden, at_weight = backwards(back, h, w, _precision())
        return at_hidden.view_as(hidden), at_weight.view_as(weight), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *values: Any) -> Any:
        *matrices, operator = values
        sides = (
            value if value is None else members_at(1, value, dim, info.batch_size)
            for value, dim in zip(matrices, in_dims)
        )
        put_out = _ActivatedLayer.apply(*sides, operator)
        return put_out, (1, None if put_out[1] is None else 1)


vars(_ActivatedLayer.forward)["__signature__"] = inspect.signature(_ActivatedLayer.forward)  # computed only once


def _written_out(cotangent: Tensor, hidden: Tensor, weight: Tensor, operator: Features) -> tuple[Tensor, Tensor]:
    """Return the gradients at H and W by torch operations, which can be differentiated again and batched."""
    back = (operator.t() @ cotangent.flatten(1)).unflatten(1, weight.shape[1:])
    at_active = torch.einsum("r...c,k...c->r...k", back, weight[:-1])
    at_hidden = torch.ops.aten.threshold_backward(at_active, hidden, 0)
    at_rows = torch.einsum("r...k,r...c->k...c", F.relu(hidden), back)
    return at_hidden, torch.cat([at_rows, back.sum(0, keepdim=True)])


def _by_network(matrix: Tensor) -> Tensor:
    """Return the matrix, contiguous, with the networks as its middle dimension, which is added if missing."""
    return (matrix if matrix.dim() == 3 else matrix.unsqueeze(1)).detach().contiguous()


def _precision() -> str:
    """Return how products in a kernel round their factors: as torch does or, if torch does not round, to 22 bits.

    Triton multiplies unrounded float32 numbers without tensor cores, twenty times slower; on AMD GPUs it has to.
    """
    if rounded_products():
        return "tf32"
    return "tf32x3" if torch.version.hip is None else "ieee"


def activated_layer(
    hidden: Tensor, weight: Tensor, operator: Features, moved: Tensor | None = None, against: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return P [σ(H) 1] W and its tangent along Ḣ and Ẇ (None without them), for matrices that the kernels support.

    Args:
        hidden: H.
        weight: W, its last row the bias.
        operator: P.
        moved: Ḣ.
        against: −Ẇ.
    """
    tangents = (None if value is None else value.detach() for value in (moved, against))
    made, change = _ActivatedLayer.apply(hidden, weight, *tangents, operator)
    return made, change
