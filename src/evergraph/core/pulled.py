"""Backward passes from a value: a term that is known by its gradient at the outputs alone, and the 1 that they begin
with.

A backward pass begins with 1, and a loss that is a sum hands it on as it is, so that a gradient that is known already
would be multiplied by ones, in kernels that take no longer than their launch. `pull_back` notes where the one of a
pass under way stands, and `is_one` knows it there. The one is torch's own: to compare one of ours with the value's
shape, torch would import its symbolic shapes, and sympy with them, for seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evergraph.core.tangent_products import members_at

_under_way: dict[int, Tensor] = {}  # the ones of backward passes by where they stand, as long as these run


class _Beginning(torch.autograd.Function):
    """The value as it is; backwards, the one of the pass is noted."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, noted: list[int]) -> Tensor:
        ctx.noted = noted
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        (one,) = cotangents
        ctx.noted.append(place := one.data_ptr())
        _under_way[place] = one  # kept, so that nothing else comes to stand there
        return one, None


def pull_back(value: Tensor) -> None:
    """`value.backward()`."""
    noted: list[int] = []
    try:
        (_Beginning.apply(value, noted) if value.numel() == 1 else value).backward()  # torch says what is wrong
    finally:
        for place in noted:
            _under_way.pop(place, None)


def gradients(outputs: Tensor, inputs: Sequence[Tensor], cotangent: Tensor) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad(outputs, inputs, cotangent)`, without torch's look at shapes.

    The graph stays; an input that outputs do not depend on has None.
    """
    value = pulled_along(outputs.new_zeros(()), outputs, cotangent)
    return torch.autograd.grad(value, inputs, retain_graph=True, allow_unused=True)


def is_one(cotangent: Tensor) -> bool:
    """Whether this is the one that a backward pass under way began with, perhaps seen as a larger tensor."""
    if torch.is_grad_enabled() or torch._C._functorch.is_functorch_wrapped_tensor(cotangent):
        return False
    return cotangent.numel() > 0 and cotangent.data_ptr() in _under_way


class _Pulled(torch.autograd.Function):
    """The value as it is; backwards, a cotangent at the outputs besides. Several values have a cotangent each."""

    @staticmethod
    def forward(value: Tensor, outputs: Tensor, cotangent: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor, None]:
        (cotangent,) = ctx.saved_tensors
        if is_one(cotangents[0]):
            return cotangents[0], cotangent, None
        shape = *cotangents[0].shape, *[1] * (cotangent.dim() - cotangents[0].dim())
        return cotangents[0], cotangents[0].reshape(shape) * cotangent, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *values: Tensor) -> tuple[Tensor, int]:
        sides = (members_at(0, value, dim, info.batch_size) for value, dim in zip(values, in_dims))
        return _Pulled.apply(*sides), 0


def pulled_along(value: Tensor, outputs: Tensor, cotangent: Tensor) -> Tensor:
    """The value, with a gradient that has the cotangent at the outputs added: both go back in one pass."""
    pulled: Tensor = _Pulled.apply(value, outputs, cotangent.detach())
    return pulled
