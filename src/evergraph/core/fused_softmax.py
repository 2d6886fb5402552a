"""Cross entropy, divergences, Fisher products and drawn scores over the units in scope, on a GPU in a kernel each.

Written out the loss is five kernels forwards and five backwards, of which none takes longer than its launch.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from evergraph.core.pulled import is_one
from evergraph.core.row_pieces import fused_kernels
from evergraph.core.tangent_products import in_rows, members_at

KINDS = frozenset({torch.float32, torch.float64})
MOST_UNITS = 1024  # that a program reads at once


def fused_softmax_suits(outputs: Tensor) -> bool:
    """Whether these are outputs that the kernels are for: on a GPU, not too many units."""
    kind = outputs.dtype in KINDS and 0 < outputs.size(1) <= MOST_UNITS
    return kind and outputs.size(0) > 0 and fused_kernels(outputs.device)


class _CrossEntropy(torch.autograd.Function):
    """−log p(y) of each row, with p − onehot(y) from the same kernel; the second output takes no gradient."""

    @staticmethod
    def forward(outputs: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        from evergraph.core.softmax_kernel import cross_entropy

        return cross_entropy(in_rows(outputs), targets.contiguous(), mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        outputs, targets, mask = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(outputs, targets, mask, output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None, None]:
        outputs, targets, mask, gradient = ctx.saved_tensors
        if cotangents[0] is None:
            return None, None, None
        if is_one(cotangents[0]):
            return gradient, None, None
        if torch.is_grad_enabled():  # a gradient that is itself to be differentiated
            p = (outputs if mask is None else outputs + mask).softmax(1)
            gradient = p - torch.nn.functional.one_hot(targets, outputs.size(1)).to(p.dtype)
        return cotangents[0].unsqueeze(1) * gradient, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], outputs: Tensor, targets: Tensor, mask: Tensor | None) -> Any:
        z, y = (members_at(0, value, dim, info.batch_size) for value, dim in zip((outputs, targets), in_dims))
        found = _CrossEntropy.apply(z.flatten(0, 1), y.flatten(), mask)
        return tuple(each.unflatten(0, z.shape[:2]) for each in found), (0, 0)


class _Divergence(torch.autograd.Function):
    """KL(q ‖ p) of each row, with (p − q) / T from the same kernel; the second output and q take no gradient."""

    @staticmethod
    def forward(outputs: Tensor, reference: Tensor, mask: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
        from evergraph.core.softmax_kernel import divergence

        return divergence(in_rows(outputs), in_rows(reference), mask, temperature)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        outputs, reference, mask, ctx.temperature = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(outputs, reference, mask, output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        outputs, reference, mask, gradient = ctx.saved_tensors
        if cotangents[0] is None:
            return None, None, None, None
        if torch.is_grad_enabled():  # a gradient that is itself to be differentiated
            p, q = ((z if mask is None else z + mask).div(ctx.temperature).softmax(1) for z in (outputs, reference))
            gradient = (p - q) / ctx.temperature
        return cotangents[0].unsqueeze(1) * gradient, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], outputs: Tensor, reference: Tensor, *constants: Any) -> Any:
        z, old = (members_at(0, value, dim, info.batch_size) for value, dim in zip((outputs, reference), in_dims))
        found = _Divergence.apply(z.flatten(0, 1), old.flatten(0, 1), *constants)
        return tuple(each.unflatten(0, z.shape[:2]) for each in found), (0, 0)


class _ByRows(torch.autograd.Function):
    """What a kernel makes of each row of the outputs and of another matrix; takes no gradient."""

    @staticmethod
    def forward(outputs: Tensor, other: Tensor, mask: Tensor | None, kernel: str, numbers: tuple[float, ...]) -> Tensor:
        from evergraph.core import softmax_kernel

        found: Tensor = getattr(softmax_kernel, kernel)(in_rows(outputs), in_rows(other), mask, *numbers)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], outputs: Tensor, other: Tensor, *constants: Any) -> Any:
        z, u = (members_at(0, value, dim, info.batch_size) for value, dim in zip((outputs, other), in_dims))
        return _ByRows.apply(z.flatten(0, 1), u.flatten(0, 1), *constants).unflatten(0, z.shape[:2]), 0


for _forward in (_CrossEntropy.forward, _Divergence.forward, _ByRows.forward):  # torch would find it out at every call
    vars(_forward)["__signature__"] = inspect.signature(_forward)


def cross_entropy(outputs: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """−log p(y) of each row.

    Args:
        outputs: that the kernel suits.
        targets: the unit y of each row.
        mask: added to each row: minus infinity at units out of scope, else zero; None where all are in scope.
    """
    losses: Tensor = _CrossEntropy.apply(outputs, targets, mask)[0]
    return losses


def divergence(outputs: Tensor, reference: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
    """KL(softmax(reference / T) ‖ softmax(outputs / T)) of each row; of the reference no gradient is recorded."""
    reference = reference.detach()
    if outputs.dtype != torch.float32:  # numbers that kernels are given are
        outputs, reference, temperature = outputs / temperature, reference / temperature, 1.0
    losses: Tensor = _Divergence.apply(outputs, reference, mask, temperature)[0]
    return losses


def fisher_product(outputs: Tensor, tangents: Tensor, mask: Tensor | None, scale: float | Tensor = 1.0) -> Tensor:
    """scale · H u of each row with H = diag(p) − p pᵀ; no gradient is recorded."""
    in_kernel = outputs.dtype == torch.float32 and not isinstance(scale, Tensor)  # kernels take float32 numbers
    numbers = (scale if in_kernel else 1.0,)
    found: Tensor = _ByRows.apply(outputs.detach(), tangents.detach(), mask, "fisher_product", numbers)
    return found if in_kernel else scale * found


def sampled_score(outputs: Tensor, thresholds: Tensor, mask: Tensor | None) -> Tensor:
    """onehot(y) − p of each row, y drawn from p by a number between 0 and 1; no gradient is recorded."""
    found: Tensor = _ByRows.apply(outputs.detach(), thresholds, mask, "sampled_score", ())
    return found
