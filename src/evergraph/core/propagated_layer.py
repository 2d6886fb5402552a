"""(P [σ(H) 1]) W, a convolution after an activation that aggregates before it multiplies, and its tangent: in C.

Written out, it takes an activation, a column of ones, two products and as much again backward, each of which reads and
writes the whole layer; here each direction takes one pass over it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from evergraph.core.compiled import Kernels, readable
from evergraph.core.features import Features
from evergraph.core.sparse import SparseMatrix


def propagated_layer_suits(hidden: Tensor, operator: Features) -> bool:
    """Return whether kernels can read these matrices in a plain step, without a torch transform under way."""
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if transformed or not isinstance(operator, SparseMatrix):
        return False
    return _kernels(hidden, operator) is not None


def _kernels(hidden: Tensor, operator: SparseMatrix) -> Kernels | None:
    return operator.kernels_with(hidden) if readable(hidden) else None


class _PropagatedLayer(torch.autograd.Function):
    """(F W, Ḟ W + F Ẇ) with F = P [σ(H) 1] and Ḟ = P [Ḣ ∘ σ'(H) 0], or F W alone; tangents get no gradient."""

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, moved: Tensor | None, along: Tensor | None, operator: SparseMatrix
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        kernels = _kernels(hidden, operator)
        assert kernels is not None
        rows, moved_rows = kernels.activate(operator.parts(), hidden, None if moved is None else moved.contiguous())
        change = None
        if moved_rows is not None and along is not None:
            change = torch.addmm(moved_rows @ weight[:-1], rows, along)
        return rows @ weight, change, rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor | None, Tensor]) -> None:
        hidden, weight, _, _, ctx.operator = inputs
        ctx.save_for_backward(hidden, weight, output[2])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(tangent for tangent in output[1:] if tangent is not None))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        cotangent, (hidden, weight, rows) = cotangents[0], ctx.saved_tensors
        if cotangent is None:
            return None, None, None, None, None
        operator: SparseMatrix = ctx.operator
        at_rows, flipped = cotangent @ weight[:-1].T, operator.t()
        kernels = flipped.kernels_with(at_rows)
        if torch.is_grad_enabled() or kernels is None:  # a double backward pass, or many cotangents at once
            active = F.pad(F.relu(hidden), (0, 1), value=1.0)
            back = torch.ops.aten.threshold_backward(flipped @ at_rows, hidden, 0)
            return back, (operator @ active).T @ cotangent, None, None, None
        back = kernels.activate_back(flipped.parts(), at_rows.contiguous(), hidden.detach())
        return back, rows.T @ cotangent, None, None, None


vars(_PropagatedLayer.forward)["__signature__"] = inspect.signature(_PropagatedLayer.forward)  # computed only once


def propagated_layer(
    hidden: Tensor, weight: Tensor, operator: SparseMatrix, moved: Tensor | None = None, along: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return (P [σ(H) 1]) W and its tangent along Ḣ and Ẇ (None without them), for matrices that kernels can read.

    Args:
        hidden: H.
        weight: W, its last row the bias.
        operator: P.
        moved: Ḣ.
        along: Ẇ.
    """
    tangents = (None if value is None else value.detach() for value in (moved, along))
    made, change, _ = super(torch.autograd.Function, _PropagatedLayer).apply(hidden, weight, *tangents, operator)
    return made, change
