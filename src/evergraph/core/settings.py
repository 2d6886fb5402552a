"""Settings from text: the command line and configuration files give strings, constructors want numbers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from evergraph.errors import EvergraphError, unknown

WORDS = {bool: "true or false", int: "a whole number", float: "a number", type(None): "a number, true, false or none"}


def settings_of(kind: type) -> dict[str, Any]:
    """A class's constructor arguments and their defaults (`inspect.Parameter.empty` where there is none)."""
    if kind.__init__ is object.__init__:  # type: ignore[misc]
        return {}
    parameters = inspect.signature(kind).parameters.values()
    return {p.name: p.default for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def configure(kind: type, name: str, settings: Mapping[str, Any]) -> Any:
    """An instance of `kind`, which people call `name`, with text turned into the type of each setting's default."""
    known = settings_of(kind)
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {name}", key, known or ["(none)"])
    return kind(**{key: parse_setting(name, key, value, known[key]) for key, value in settings.items()})


def parse_setting(owner: str, key: str, value: Any, default: Any) -> Any:
    """A setting as the type of its default; what is not text is taken as it is."""
    if not isinstance(value, str) or isinstance(default, str):
        return value
    try:
        if isinstance(default, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if default is None:
            return _guess(value)
        if isinstance(default, (list, tuple)):
            return [_guess(item) for item in value.split(",")]
        return type(default)(value)
    except (ValueError, KeyError):
        raise EvergraphError(
            f"{owner}: {key}={value!r} is not {WORDS.get(type(default), 'possible')} (the default is {default!r})"
        ) from None


def _guess(text: str) -> Any:
    """Text as none, a truth value, a whole number or a number."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if text.lstrip("+-").isdecimal() else float(text)
