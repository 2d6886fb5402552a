"""Backward passes from a value: a term that is known by its gradient at the outputs alone, and the 1 that they begin
with.

A backward pass begins with 1, and a loss that is a sum hands it on as it is, so that a gradient that is known already
would be multiplied by ones, in kernels that take no longer than their launch. All passes of `pull_back` on a device
begin with one and the same 1, which `is_one` knows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evergraph.core.tangent_products import members_at

_ones: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def pull_back(value: Tensor) -> None:
    """`value.backward()`."""
    if value.numel() != 1:
        value.backward()  # torch says what is wrong
    value.backward(_one_like(value).expand(value.shape))


def _one_like(value: Tensor) -> Tensor:
    """The 1 of a device and a type of numbers; another, should anybody have written to it."""
    one = _ones.get(kind := (value.device, value.dtype))
    if one is None or one._version:
        one = torch.ones((), device=value.device, dtype=value.dtype)
        if value.is_cuda and torch.cuda.is_current_stream_capturing():
            return one  # it is 1 in that recording alone
        if value.is_cuda:
            torch.cuda.current_stream(value.device).synchronize()  # other streams read it too
        _ones[kind] = one
    return one


def is_one(cotangent: Tensor) -> bool:
    """Whether this is the one that a backward pass began with, perhaps seen as a larger tensor."""
    if torch.is_grad_enabled() or torch._C._functorch.is_functorch_wrapped_tensor(cotangent):
        return False
    one = _ones.get((cotangent.device, cotangent.dtype))
    return one is not None and cotangent.numel() > 0 and cotangent.data_ptr() == one.data_ptr()


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
