"""Methods, one file each, and the list of them by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from evergraph.errors import EvergraphError, unknown
from evergraph.methods.analytic import Analytic
from evergraph.methods.auto import Auto
from evergraph.methods.base import Compose, Context, Method, Step
from evergraph.methods.curvature import OnlineCurvature
from evergraph.methods.ema import EMA
from evergraph.methods.ewc import EWC
from evergraph.methods.ewc_plus_plus import EWCPlusPlus
from evergraph.methods.finetune import Finetune
from evergraph.methods.joint import Joint
from evergraph.methods.kfac import KFAC
from evergraph.methods.lwf import LwF
from evergraph.methods.mas import MAS
from evergraph.methods.online_ewc import OnlineEWC
from evergraph.methods.si import SI
from evergraph.methods.twp import TWP

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        Finetune,
        Joint,
        EMA,
        OnlineCurvature,
        EWC,
        OnlineEWC,
        EWCPlusPlus,
        KFAC,
        MAS,
        SI,
        LwF,
        TWP,
        Analytic,
        Auto,
    )
}


def register(kind: type[Method]) -> type[Method]:
    """Put a method of your own on the list, under its `name`. Usable as a decorator."""
    if METHODS.get(kind.name, kind) is not kind:
        raise EvergraphError(f"there is a method {kind.name!r} already; give yours another name")
    METHODS[kind.name] = kind
    return kind


def preferred_model(name: str) -> str:
    """The model that a run with this method takes where none is named."""
    kinds = [METHODS[part] for part in name.split("+") if part in METHODS]
    return next((kind.model for kind in kinds if kind.model != Method.model), Method.model)


def make_method(name: str, settings: dict[str, Any] | None = None) -> Method:
    """A method by its name; `a+b` composes several, settings then go to `b.key` or to every part that has the key."""
    settings = dict(settings or {})
    parts = name.split("+") if name not in METHODS else [name]
    if "" in parts or any(part not in METHODS for part in parts):
        missing = next(part for part in parts if part not in METHODS)
        raise unknown("method", missing, METHODS)
    made, used = [], set()
    for part in parts:
        own = {}
        for f in dataclasses.fields(METHODS[part]):  # type: ignore[arg-type]
            for key in (f.name, f"{part}.{f.name}"):
                if f.init and key in settings:
                    own[f.name] = _coerce(part, f.name, settings[key], f.default)
                    used.add(key)
        made.append(METHODS[part](**own))
    if unused := sorted(set(settings) - used):
        known = [f.name for part in parts for f in dataclasses.fields(METHODS[part]) if f.init]  # type: ignore[arg-type]
        raise unknown(f"setting of {name}", unused[0], known or ["(none)"])
    return made[0] if len(made) == 1 else Compose(*made)


def _coerce(method: str, key: str, value: Any, default: Any) -> Any:
    """A setting as the type of its default: the command line gives text."""
    if not isinstance(value, str) or isinstance(default, str):
        return value
    try:
        if isinstance(default, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if default is None:
            return None if value.lower() == "none" else float(value)
        return type(default)(value)
    except (ValueError, KeyError):
        raise EvergraphError(
            f"{method}: {key}={value!r} is not a {type(default).__name__} (the default is {default!r})"
        ) from None


__all__ = [
    "EMA",
    "EWC",
    "KFAC",
    "MAS",
    "METHODS",
    "SI",
    "TWP",
    "Analytic",
    "Auto",
    "Compose",
    "Context",
    "EWCPlusPlus",
    "Finetune",
    "Joint",
    "LwF",
    "Method",
    "OnlineCurvature",
    "OnlineEWC",
    "Step",
    "make_method",
    "register",
]
