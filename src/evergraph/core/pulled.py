"""A term of an objective that is known by its gradient at the outputs alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Pulled(torch.autograd.Function):
    """The value as it is; backwards, a cotangent at the outputs besides."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, outputs: Tensor, cotangent: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor, None]:
        (cotangent,) = ctx.saved_tensors
        return cotangents[0], cotangents[0] * cotangent, None


def pulled_along(value: Tensor, outputs: Tensor, cotangent: Tensor) -> Tensor:
    """The value, with a gradient that has the cotangent at the outputs added: both go back in one pass."""
    pulled: Tensor = _Pulled.apply(value, outputs, cotangent.detach())
    return pulled
