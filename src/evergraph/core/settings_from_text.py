"""Settings given as text, as on the command line: converted to the types that they are declared with."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from evergraph.core.settings import UNDECLARED, declarations, settings_of, words_of
from evergraph.errors import EvergraphError, shown, unknown


def configure(kind: type, name: str, settings: Mapping[str, Any]) -> Any:
    """Make an instance of `kind`, named `name` in messages, with text converted to the type of each setting."""
    known = settings_of(kind)
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {name}", key, known or ["(none)"])
    return kind(**{key: parse_setting(kind, key, value, owner=name) for key, value in settings.items()})


def parse_setting(called: Callable[..., Any], key: str, value: Any, *, owner: str) -> Any:
    """Convert a setting of a class or function from text to its declared type, else to the type of its default."""
    if not isinstance(value, str):
        return value
    signature, declared = declarations(called)
    default, kind = signature.parameters[key].default, declared.get(key, UNDECLARED)
    if kind is UNDECLARED:
        kind = UNDECLARED if default is UNDECLARED else type(default)
    return parse_text(owner, key, value, kind, default)


def parse_text(owner: str, key: str, text: str, kind: Any, default: Any) -> Any:
    """Convert text to what a declaration asks for."""
    try:
        return _parse(text, kind)
    except (ValueError, KeyError):
        raise EvergraphError(
            f"{owner}: {key}={shown(text)} must be {words_of(kind)} (the default is {default!r})"
        ) from None


def _parse(text: str, kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        return _parse(text, get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        choices = [choice for choice in get_args(kind) if choice is not type(None)]
        if type(None) in get_args(kind) and text.lower() == "none":
            return None
        if str in choices:
            return text
        return _parse(text, choices[0]) if len(choices) == 1 else _guess(text)
    if get_origin(kind) is Literal:
        named = [c for c in get_args(kind) if c == text or (type(c) is not str and str(c).lower() == text.lower())]
        return named[0] if named else text
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    if kind in (int, float):
        return kind(text)
    if get_origin(kind) is tuple:
        return tuple(_parse(item, get_args(kind)[0]) for item in text.split(","))
    if get_origin(kind) in (list, Sequence):
        return [_parse(item, get_args(kind)[0]) for item in text.split(",")]
    if kind in (list, tuple):
        return [_guess(item) for item in text.split(",")]
    return _guess(text) if kind is type(None) else text


def _guess(text: str) -> Any:
    """Convert text to none, a truth value, a whole number or a number."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if text.lstrip("+-").isdecimal() else float(text)
