"""Methods, one file each. Importing them here registers them, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evergraph.core.settings import checked, settings_of
from evergraph.core.settings_from_text import configure
from evergraph.errors import EvergraphError, unknown
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, Context, Method, Replay, Step, View
from evergraph.methods.compose import Compose
from evergraph.methods.memory import MemoryMethod, Piece, ReplayMethod
from evergraph.methods.state import state

# isort: off
from evergraph.methods.finetune import Finetune
from evergraph.methods.joint import Joint
from evergraph.methods.ema import EMA
from evergraph.methods.online_curvature import (
    BatchCurvature,
    InterpolatedCurvature,
    OnlineCurvature,
    QueueCurvature,
    StandInCurvature,
)
from evergraph.methods.ewc import EWC
from evergraph.methods.online_ewc import OnlineEWC
from evergraph.methods.ewc_plus_plus import EWCPlusPlus
from evergraph.methods.kfac import KFAC
from evergraph.methods.mas import MAS
from evergraph.methods.si import SI
from evergraph.methods.lwf import LwF
from evergraph.methods.twp import TWP
from evergraph.methods.replay import AGEM, ERGNN, GEM, SEM, SSM, TEM, GDumb, Reservoir
from evergraph.methods.condensation import PUMA, CaT, DeLoMe
from evergraph.methods.logit_adjustment import LogitAdjustment
from evergraph.methods.projection import GPM, NCL
from evergraph.methods.isolation import FGN, HPN, PIGNN, TPP
from evergraph.methods.closed_form import Analytic, Auto
# isort: on


def register(kind: type[Method]) -> type[Method]:
    """Register a method of your own under its `name`. Usable as a decorator."""
    return METHODS.register(kind)


def parts_of(name: str) -> list[str]:
    """Split `a+b` into method names, each the longest known match, since names such as `ewc++` contain a plus."""
    if name in METHODS:
        return [name]
    begins = [known for known in METHODS if name.startswith(f"{known}+")]
    first = max(begins, key=len) if begins else name[:1] + name[1:].partition("+")[0]
    return [first, *parts_of(name[len(first) + 1 :])] if len(first) < len(name) else [name]


def preferred_model(name: str) -> str:
    """Return the default model of a learner with this method."""
    kinds = [METHODS[part] for part in parts_of(name)]
    return next((kind.model for kind in kinds if kind.model != Method.model), Method.model)


@checked
def make_method(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """Create a method by name; `a+b` composes several.

    A setting `b.key` goes to the part `b`, a plain `key` to every part that has it.
    """
    settings, used, methods = settings or {}, set(), []
    for part in parts_of(name):
        chosen = {}
        for key in settings_of(METHODS[part]):
            for full_key in (key, f"{part}.{key}"):
                if full_key in settings:
                    chosen[key] = settings[full_key]
                    used.add(full_key)
        methods.append(configure(METHODS[part], part, chosen))
    if unused := sorted(set(settings) - used):
        known = [key for part in parts_of(name) for key in settings_of(METHODS[part])]
        raise unknown(f"setting of {name}", unused[0], known or ["(none)"])
    return methods[0] if len(methods) == 1 else Compose(*methods)


def is_method(value: object) -> bool:
    """Return whether a value is a method object."""
    return isinstance(value, Method)


def as_method(method: Method | str | Any) -> Method:
    """Return the method itself, or create the one with that name."""
    if isinstance(method, str):
        return make_method(method)
    if not isinstance(method, Method):
        raise EvergraphError(f"a method is a name or an object such as eg.EWC(strength=100), not {method!r}")
    return method


__all__ = [
    "AGEM",
    "EMA",
    "ERGNN",
    "EWC",
    "FGN",
    "GEM",
    "GPM",
    "HPN",
    "KFAC",
    "MAS",
    "METHODS",
    "NCL",
    "PIGNN",
    "PUMA",
    "SEM",
    "SI",
    "SSM",
    "TEM",
    "TPP",
    "TWP",
    "Access",
    "Analytic",
    "Auto",
    "BatchCurvature",
    "CaT",
    "Compose",
    "Context",
    "DeLoMe",
    "EWCPlusPlus",
    "Finetune",
    "GDumb",
    "InterpolatedCurvature",
    "Joint",
    "LogitAdjustment",
    "LwF",
    "MemoryMethod",
    "Method",
    "OnlineCurvature",
    "OnlineEWC",
    "Piece",
    "QueueCurvature",
    "Replay",
    "ReplayMethod",
    "Reservoir",
    "StandInCurvature",
    "Step",
    "View",
    "as_method",
    "is_method",
    "make_method",
    "parts_of",
    "preferred_model",
    "register",
    "state",
]
