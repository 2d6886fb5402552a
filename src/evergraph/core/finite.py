"""The one guard for numbers that are not finite: a loss, parameters, what a method keeps, predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def is_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all tensors hold finite numbers."""
    return all(_sums_up(tensor) or bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _sums_up(tensor: Tensor) -> bool:
    """Whether the sum is finite: then all numbers are. (A sum may overflow where they are.)"""
    return bool(torch.isfinite(tensor.sum()))


def has_nan(value: Any) -> bool:
    """Whether there is a NaN in a tree of tensors and plain values (an infinity may be meant: a mask, a record)."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and not _sums_up(value) and bool(torch.isnan(value).any())
    if isinstance(value, dict):
        return any(has_nan(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(has_nan(item) for item in value)
    return isinstance(value, float) and math.isnan(value)


def is_overflow(error: Exception) -> bool:
    """Whether an error says that a number left the range of its type (a strength of 1e300 against float32)."""
    return isinstance(error, OverflowError) or "without overflow" in str(error)


def is_prediction(outputs: Tensor) -> bool:
    """Whether outputs can be compared: minus infinity rules a class out, all else must be finite."""
    return not bool(torch.isnan(outputs).any() or torch.isposinf(outputs).any())


def nan_unless_finite(watched: Tensor, answer: Tensor) -> Tensor:
    """The answer; NaN where what is watched is no finite number. Nobody waits for either."""
    return torch.add(answer, watched.detach().reshape(answer.shape), alpha=0)
