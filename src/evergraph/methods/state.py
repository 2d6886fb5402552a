"""Learned state: fields that are saved, restored after a failure, and grown with the output layer."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
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
        like: `params` for tensors with the names and shapes of parameters, alone or in lists, tuples or dictionaries:
            they grow with the output layer. Other state does not change, unless its method overrides `grow`.
        new: initial values at new output units: `zeros`, or the new parameters' own `values` (anchors, teachers).
        replaced: the method replaces this state and never writes into it, so the state before a task need not be
            copied to be restored after a failure. For large state.
    """
    metadata = {"like": like, "new": new, "replaced": replaced}
    return field(default_factory=empty, init=False, repr=False, compare=False, metadata=metadata)


def grown(value: Any, before: Params, after: Params, new: Growth, name: str = "") -> Any:
    """Return state declared `like="params"`, grown with the parameters; `name` is its key."""
    if isinstance(value, (dict, list, tuple)):
        return _rebuilt(value, lambda item, key: grown(item, before, after, new, name if key is None else key))
    if not isinstance(value, Tensor) or name not in before or value.shape != before[name].shape:
        return value
    wide = after[name].detach().clone() if new == "values" else torch.zeros_like(after[name])
    wide[tuple(slice(size) for size in value.shape)] = value
    return wide


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the state in new containers of the same types, with its tensors changed."""
    if isinstance(value, (dict, list, tuple)):
        return _rebuilt(value, lambda item, _: with_tensors(item, change))
    return change(value) if isinstance(value, Tensor) else value


def copied(value: Any) -> Any:
    """Return a copy that shares no tensors."""
    return with_tensors(value, Tensor.clone)


def held(value: Any) -> Any:
    """Return the state in new containers, with CPU tensors copied and those on other devices shared."""
    return with_tensors(value, lambda tensor: tensor.clone() if tensor.device.type == "cpu" else tensor)


def _rebuilt(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Return a container of the same type with changed items; `change` is given each item and its key, if any."""
    if isinstance(value, tuple):
        items = [change(item, None) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    new = copy(value)  # with what else it holds: the factory of a defaultdict
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        new[key] = change(item, key if isinstance(value, dict) else None)
    return new


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
