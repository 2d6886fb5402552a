"""Learned state: fields that are saved, restored after a failure, and grown with the output layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

import torch
from torch import Tensor

from evergraph.core.params import Params
from evergraph.core.settings import checked

Growth = Literal["zeros", "values"]


@checked
def state(
    empty: Callable[[], Any],
    *,
    like: Literal["params"] | None = None,
    new: Growth = "zeros",
    replaced: bool = False,
) -> Any:
    """Declare a dataclass field as learned state: `importance_: Params = state(dict, like="params")`.

    Args:
        empty: creates the state of a method that has learned nothing: `dict`, `list`, a function without arguments.
        like: `params` for tensors with the names and shapes of parameters, alone, in lists or in dictionaries: they
            grow with the output layer. Other state does not change, unless its method overrides `grow`.
        new: initial values at new output units: `zeros`, or the new parameters' own `values` (anchors, teachers).
        replaced: the method replaces this state and never writes into it, so the state before a task need not be
            copied to be restored after a failure. For large state.
    """
    metadata = {"like": like, "new": new, "replaced": replaced}
    return field(default_factory=empty, init=False, repr=False, compare=False, metadata=metadata)


def grown(value: Any, before: Params, after: Params, new: Growth, name: str = "") -> Any:
    """Return state declared `like="params"`, grown with the parameters; `name` is its key."""
    if isinstance(value, dict):
        return {key: grown(item, before, after, new, key) for key, item in value.items()}
    if isinstance(value, list):
        return [grown(item, before, after, new, name) for item in value]
    if not isinstance(value, Tensor) or name not in before or value.shape != before[name].shape:
        return value
    wide = after[name].detach().clone() if new == "values" else torch.zeros_like(after[name])
    wide[tuple(slice(size) for size in value.shape)] = value
    return wide


def copied(value: Any) -> Any:
    """Return a copy that shares no tensors."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value.clone() if isinstance(value, Tensor) else value


def held(value: Any) -> Any:
    """Return the state in new containers, with CPU tensors copied and those on other devices shared."""
    if isinstance(value, dict):
        return {key: held(item) for key, item in value.items()}
    if isinstance(value, list):
        return [held(item) for item in value]
    return value.clone() if isinstance(value, Tensor) and value.device.type == "cpu" else value


def count_bytes(value: Any) -> int:
    """Return the size of a state in bytes: its tensors, 8 bytes for every other number, and strings in UTF-8."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(count_bytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(count_bytes(item) for item in value)
    if isinstance(value, str):
        return len(value.encode())
    return 8 if isinstance(value, (int, float)) else 0
