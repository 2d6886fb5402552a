"""Capabilities: what a class can do beyond its contract, declared by the class and lost when it is overridden.

A fast path is correct only for the code it was written for. `GCN.joint_forward` computes what `GCN.logits`
computes, and its tangent; a subclass with its own `logits` inherits the method but must not inherit the
claim. So a capability names the methods it rests on, and holds for an object only as long as none of them is
overridden below the class that declares it, or replaced on the object itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evergraph.errors import EvergraphError, shown

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class No:
    """A capability's negative answer, with the reason; false in conditions.

    Args:
        reason: why not, in words that can follow a colon.
    """

    reason: str

    def __bool__(self) -> bool:
        return False


Answer = bool | No
"""The answer of a capability that is a question: yes, no, or no with a reason."""


def capability(*, rests_on: Sequence[str], through: str = "") -> Callable[[Function], Function]:
    """Declare a method as a capability that holds as long as the methods named in `rests_on` are not overridden.

    With `through`, the attribute of that name needs the same capability: for wrappers, which pass it on.
    """
    names = rests_on if isinstance(rests_on, (tuple, list)) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise EvergraphError(
            f'capability: rests_on={shown(rests_on)} must name the methods it rests on, e.g. ("forward", "logits")'
        )

    def declare(function: Function) -> Function:
        function.rests_on = tuple(names)  # type: ignore[attr-defined]
        function.through = through  # type: ignore[attr-defined]
        return function

    return declare


def capable(owner: Any, name: str) -> Callable[..., Any] | None:
    """Return the owner's capability of that name as a bound method; None if it has none or it no longer holds."""
    lineage = type(owner).__mro__
    for position, kind in enumerate(lineage):
        if name not in vars(kind):
            continue
        rests_on = getattr(vars(kind)[name], "rests_on", None)
        if rests_on is None:
            return None
        for method in rests_on:
            if not hasattr(kind, method) and not hasattr(owner, method):  # a mixin may rest on what it is mixed with
                raise EvergraphError(f"capability {name!r} of {kind.__name__} rests on {method!r}, which it lacks")
        younger = [*lineage[:position], owner]  # classes that may override the methods, and the object itself
        if any(method in vars(place) for place in younger for method in rests_on):
            return None
        if getattr(owner, "_forward_hooks", None) or getattr(owner, "_forward_pre_hooks", None):
            return None  # torch modules: a hook changes what a call computes
        through = vars(kind)[name].through
        if through and capable(getattr(owner, through), name) is None:
            return None
        bound: Callable[..., Any] = getattr(owner, name)
        return bound
    return None
