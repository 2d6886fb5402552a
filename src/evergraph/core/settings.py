"""How settings are declared, and how every constructor checks its arguments.

A setting is declared by its annotation, as a field of a dataclass or an argument of `__init__` or of a function:

    strength: NonNegative = 1.0                                # a finite number of at least 0
    heads: PositiveInt = 8                                     # a whole number of at least 1
    margin: Annotated[float, Bounds(above=0, at_most=0.5)]     # any other range
    labels: Literal["sample", "exact"] = "exact"               # a choice

`float` alone is any finite number and `int` any whole number of 64 bits; a class accepts its instances. Annotations
that cannot be evaluated are not checked, and neither are settings left at their defaults.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import sys
import types
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

from evergraph.errors import EvergraphError, is_out_of_memory, shown, unknown

UNDECLARED = inspect.Parameter.empty
LARGEST = 2**63 - 1  # larger whole numbers fit into no array or tensor


@dataclass(frozen=True)
class Bounds:
    """The range of a number: `Annotated[float, Bounds(at_least=0, below=1)]`.

    Args:
        at_least: the smallest allowed number.
        above: exclusive lower bound.
        at_most: the largest allowed number.
        below: exclusive upper bound.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def allow(self, number: float) -> bool:
        """Return whether a number lies within the bounds."""
        return (
            (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        named = {"of at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        return " and ".join(f"{words} {_figure(bound)}" for words, bound in named.items() if bound is not None)


def _figure(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


@dataclass(frozen=True)
class NotEmpty:
    """For lists: `Annotated[list[int], NotEmpty()]`."""

    def allow(self, values: Sequence[Any]) -> bool:
        """Return whether there is an item."""
        return len(values) > 0

    def __str__(self) -> str:
        return "that is not empty"


NonNegative = Annotated[float, Bounds(at_least=0)]
"""A number of at least 0."""
Positive = Annotated[float, Bounds(above=0)]
"""A number above 0."""
Fraction = Annotated[float, Bounds(at_least=0, at_most=1)]
"""A number between 0 and 1, both included."""
BelowOne = Annotated[float, Bounds(at_least=0, below=1)]
"""A number of at least 0 and below 1."""
NonNegativeInt = Annotated[int, Bounds(at_least=0)]
"""A whole number of at least 0."""
PositiveInt = Annotated[int, Bounds(at_least=1)]
"""A whole number of at least 1."""
ClassCount = Annotated[int, Bounds(at_least=1, at_most=10_000_000)]
"""Number of outputs of a network; many more would end the process without a message."""
Depth = Annotated[int, Bounds(at_least=1, at_most=10_000)]
"""Number of layers of a network; many more would take forever to build."""
Seed = Annotated[int, Bounds(at_least=0, below=2**32)]
"""A whole number that every random number generator accepts."""


MARKS = (Bounds, NotEmpty)


class Checked(ABCMeta):
    """Metaclass of classes whose constructors accept only what their settings declare."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments, then construct."""
        given = check_arguments(cls, cls.__name__, args, kwargs)
        try:
            return super().__call__(*given.args, **given.kwargs)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            sizes = ", ".join(f"{key}={value!r}" for key, value in given.arguments.items() if isinstance(value, int))
            raise EvergraphError(f"{cls.__name__}: not enough memory for {sizes[:200]}; take smaller numbers") from None

    @property
    def __signature__(cls) -> inspect.Signature:
        """Signature of the constructor, for help pages and editors."""
        if cls.__init__ is object.__init__:  # type: ignore[misc]
            return inspect.Signature()
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:], return_annotation=UNDECLARED)


Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """Decorate a function to accept only what its arguments declare."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = check_arguments(function, function.__name__, args, kwargs)
        return function(*given.args, **given.kwargs)

    return wrapper  # type: ignore[return-value]


def check_arguments(
    called: Callable[..., Any], owner: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call, converted as declared; `owner` names the function or class in messages."""
    signature, declared = declarations(called)
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        known = [name for name, p in signature.parameters.items() if p.kind is not p.VAR_POSITIONAL]
        for key in kwargs:
            if key not in known:
                raise unknown(f"setting of {owner}", key, known or ["(none)"]) from None
        raise EvergraphError(f"{owner}: {error}") from None
    for name, value in given.arguments.items():
        if (kind := declared.get(name, UNDECLARED)) is not UNDECLARED:
            default = signature.parameters[name].default
            same = value is default or (type(value) is type(default) and _equal(value, default))
            given.arguments[name] = value if same else check_setting(owner, name, value, kind)
    return given


def check_setting(owner: str, name: str, value: Any, kind: Any) -> Any:
    """Return a value converted as declared (a NumPy number to Python's, a list to a tuple), or raise the error."""
    found, fits = _conform(value, kind)
    if not fits:
        words = words_of(kind)
        if "whole number" in words and isinstance(value, int) and abs(value) > LARGEST:
            words += " and below 2^63"
        raise EvergraphError(f"{owner}: {name}={shown(value)} must be {words}")
    return found


def misfit(value: Any, kind: Any) -> str:
    """Return why a value that was read does not fit its declaration (`TypedDict`s key by key); empty if it does."""
    if not is_typeddict(kind):
        return "" if _conform(value, kind)[1] else f"{shown(value)} must be {words_of(kind)}"
    if not isinstance(value, dict):
        return f"{shown(value)} must be an object"
    for key, declared in _keys_of(kind).items():
        if key not in value:
            if key in kind.__required_keys__:
                return f"there is no {key!r}"
        elif not _conform(value[key], declared)[1]:
            return f"{key}={shown(value[key])} must be {words_of(declared)}"
    return ""


@functools.cache
def _keys_of(kind: Any) -> dict[str, Any]:
    """Return the declaration of each key of a `TypedDict`."""
    return get_type_hints(kind, include_extras=True)


def _conform(value: Any, kind: Any) -> tuple[Any, bool]:
    """Return the value converted as declared, and whether it fits the declaration."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *marks = get_args(kind)
        found, fits = _conform(value, inner)
        return found, fits and all(mark.allow(found) for mark in marks if isinstance(mark, MARKS))
    if origin in (Union, types.UnionType):
        tries = [_conform(value, choice) for choice in get_args(kind)]
        return next(((found, True) for found, fits in tries if fits), (value, False))
    if origin is Literal:
        return value, any(type(value) is type(choice) and value == choice for choice in get_args(kind))
    if origin is list or (origin is tuple and get_args(kind)[1:] == (...,)):
        if not isinstance(value, (list, tuple)):
            return value, False
        parts = [_conform(item, get_args(kind)[0]) for item in value]
        return origin(found for found, _ in parts), all(fits for _, fits in parts)
    if origin is Sequence:
        fits = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        return value, fits and all(_conform(item, get_args(kind)[0])[1] for item in value)
    if origin is dict:
        fits = isinstance(value, dict) and all(_conform(item, get_args(kind)[1])[1] for item in value.values())
        return value, fits
    if is_typeddict(kind):
        return value, not misfit(value, kind)
    is_bool = isinstance(value, (bool, np.bool_))
    if kind is bool:
        return (bool(value), True) if is_bool else (value, False)
    if kind is int:
        fits = isinstance(value, numbers.Integral) and not is_bool and abs(int(value)) <= LARGEST
        return (int(value), True) if fits else (value, False)
    if kind is float:
        if not isinstance(value, numbers.Real) or is_bool:
            return value, False
        try:
            return float(value), math.isfinite(value)
        except OverflowError:  # a whole number too large for a float
            return value, False
    if kind is str:
        return value, isinstance(value, str)
    if kind is None or kind is type(None):
        return value, value is None
    kind = origin or kind
    return value, kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def words_of(kind: Any, which: str = "") -> str:
    """Return what a declaration asks for, in words; `which` limits it further."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        return words_of(inner, which + "".join(f" {mark}" for mark in marks if isinstance(mark, MARKS)))
    if get_origin(kind) in (Union, types.UnionType):
        choices = sorted(get_args(kind), key=lambda choice: choice is not type(None))
        return " or ".join(words_of(choice) for choice in choices) + which
    if get_origin(kind) is Literal:
        return f"one of: {', '.join(str(choice) or repr(choice) for choice in get_args(kind))}{which}"
    if get_origin(kind) in (list, tuple, Sequence):
        return f"a list{which}, each item {words_of(get_args(kind)[0])}"
    words: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    words |= {type(None): "None", Callable: "a function or a class"}
    said = words.get(get_origin(kind) or kind) or f"of type {getattr(get_origin(kind) or kind, '__name__', kind)}"
    return said + which


def _equal(value: Any, default: Any) -> bool:
    try:
        return bool(value == default)
    except Exception:  # arrays and others whose comparison is not a single truth value
        return False


_known: weakref.WeakKeyDictionary[Any, tuple[inspect.Signature, dict[str, Any]]] = weakref.WeakKeyDictionary()


def declarations(called: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return the signature of a class or function, and the declaration of each argument that has one."""
    if called not in _known:
        signature = inspect.signature(called)
        declared = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                for annotation, namespace in _annotations(called, name):
                    declared[name] = _resolved(annotation, namespace)
                    break
        _known[called] = signature, declared
    return _known[called]


def _annotations(called: Any, name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield an argument's annotations, with the names that they may use; for a dataclass, the nearest class first."""
    if isinstance(called, type) and _made_by_dataclass(called):
        for kind in called.__mro__:
            if name in (own := inspect.get_annotations(kind)):
                functions = [f.__globals__ for f in vars(kind).values() if inspect.isfunction(f)]
                module = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
                names = {key: value for space in [*functions, module] for key, value in space.items()}
                yield own[name], {**names, **vars(kind)}
    else:
        function: Any = vars(_owner(called))["__init__"] if isinstance(called, type) else inspect.unwrap(called)
        if name in getattr(function, "__annotations__", {}):
            yield function.__annotations__[name], function.__globals__


def _made_by_dataclass(kind: type) -> bool:
    """Return whether a class's constructor was generated by `@dataclass`."""
    parameters = vars(_owner(kind)).get("__dataclass_params__")
    return parameters is not None and bool(parameters.init)


def _owner(kind: type) -> type:
    """Return the class that defines a class's constructor."""
    return next(base for base in kind.__mro__ if "__init__" in vars(base))


def _resolved(annotation: Any, namespace: dict[str, Any]) -> Any:
    """Evaluate an annotation if it is text; one that cannot be evaluated counts as undeclared."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {**namespace})
    except Exception:  # a name imported under TYPE_CHECKING, or no longer defined
        return UNDECLARED


# settings as text: the command line and configuration files give strings


def is_zero(number: float) -> bool:
    """Whether a setting is zero. A tensor, of stacked learners that differ in it, is not (`Method.step_factors`)."""
    return isinstance(number, (int, float)) and number == 0


def settings_of(kind: type) -> dict[str, Any]:
    """Return a class's constructor arguments and their defaults (`inspect.Parameter.empty` if there is none)."""
    if kind.__init__ is object.__init__:  # type: ignore[misc]
        return {}
    parameters = inspect.signature(kind).parameters.values()
    return {p.name: p.default for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def settings_kept(made: Any, *, all_of_them: bool = True) -> dict[str, Any]:
    """Return the settings that an object was made with, from its attributes of the same names; all, or those it has."""
    known = settings_of(type(made))
    missing = [name for name in known if not hasattr(made, name)]
    if missing and all_of_them:
        raise EvergraphError(
            f"{type(made).__name__} does not keep its setting {missing[0]!r}, which would be lost when it is saved; "
            f"store it as self.{missing[0]}"
        )
    return {name: getattr(made, name) for name in known if name not in missing}
