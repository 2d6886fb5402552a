"""Checks for non-finite numbers in losses, parameters, the state of methods and predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from evergraph.errors import is_ours


def is_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all tensors hold only finite numbers."""
    return all(_sums_up(tensor) or bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _sums_up(tensor: Tensor) -> bool:
    """Return whether the sum is finite: then all numbers are. (The sum of finite numbers may still overflow.)"""
    return bool(torch.isfinite(tensor.sum()))


def has_nan(value: Any) -> bool:
    """Return whether a tree of tensors and plain values has a NaN (infinities may be intended: a mask, a record)."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and not _sums_up(value) and bool(torch.isnan(value).any())
    if isinstance(value, dict):
        return any(has_nan(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(has_nan(item) for item in value)
    return isinstance(value, float) and math.isnan(value)


def is_overflow(error: Exception) -> bool:
    """Return whether an error reports a number out of the range of its type (a strength of 1e300 in float32).

    An error of a plug-in's own code speaks for itself.
    """
    return is_ours(error) and (isinstance(error, OverflowError) or "without overflow" in str(error))


def is_prediction(outputs: Tensor) -> bool:
    """Return whether outputs can be compared: minus infinity rules out a class, all else must be finite."""
    return not bool(torch.isnan(outputs).any() or torch.isposinf(outputs).any())


def nan_unless_finite(watched: Tensor, answer: Tensor) -> Tensor:
    """Return `answer`, or NaN if `watched` is not finite, without waiting for the device."""
    return torch.add(answer, watched.detach().reshape(answer.shape), alpha=0)
