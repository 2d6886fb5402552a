"""Search spaces: ranges and choices for the settings of a method, its training and its model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evergraph.core.settings import settings_of
from evergraph.core.settings_from_text import parse_text
from evergraph.errors import EvergraphError, shown, unknown
from evergraph.experiments.specification import RunSpec
from evergraph.methods import METHODS, make_method, parts_of, preferred_model
from evergraph.models import MODELS
from evergraph.training import Training

Point = dict[str, Any]
"""One value for each searched setting."""
DIGITS = 4  # significant digits of a value, so that the printed value is the one that was run
MODEL = "model."  # prefix of the model's settings


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, on a linear or, with `log`, a logarithmic scale."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def at(self, position: float) -> float:
        """The value at a position between 0 (`low`) and 1 (`high`)."""
        if self.log:
            return self.rounded(math.exp(math.log(self.low) + position * math.log(self.high / self.low)))
        return self.rounded(self.low + position * (self.high - self.low))

    def rounded(self, value: float) -> float:
        """The value as it is run: rounded to `DIGITS` digits and clipped to the range."""
        value = min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)
        return round(value) if self.integer else value

    def position(self, value: float) -> float:
        """The position of a value in the range, between 0 and 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ascending(self) -> Range:
        """The range itself."""
        return self

    def extremes(self) -> tuple[Any, ...]:
        """Both ends."""
        return self.at(0.0), self.at(1.0)

    def as_json(self) -> Any:
        """Plain values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Choices:
    """A list of values to choose from."""

    values: tuple[Any, ...]

    def at(self, position: float) -> Any:
        """The value at a position between 0 and 1, where each value has an equal share."""
        return self.values[min(int(position * len(self.values)), len(self.values) - 1)]

    def rounded(self, value: Any) -> Any:
        """The value itself."""
        return value

    def position(self, value: Any) -> float:
        """The position of a value in the list, between 0 and 1."""
        return self.values.index(value) / max(len(self.values) - 1, 1)

    def ascending(self) -> Choices:
        """Numbers from the smallest to the largest; other values as they are listed."""
        return Choices(tuple(sorted(self.values))) if all(isinstance(v, (int, float)) for v in self.values) else self

    def extremes(self) -> tuple[Any, ...]:
        """All values, since any of them may be invalid."""
        return self.values

    def as_json(self) -> Any:
        """Plain values."""
        return list(self.values)


Dimension = Range | Choices


@dataclass(frozen=True)
class Space:
    """The settings that are searched.

    Args:
        dimensions: the range or the choices of each setting.
        places: where each setting belongs: `settings` (the method's), `training` or `model_settings`.
        hold: settings that set the strength of retention: the larger, the stronger.
    """

    dimensions: Mapping[str, Dimension]
    places: Mapping[str, str]
    hold: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: RunSpec, changes: Mapping[str, str] | None = None, fixed: Iterable[str] = ()) -> Space:
        """The space that a run's method declares, without fixed settings; `changes` override or add dimensions.

        Args:
            spec: the run; settings that it gives the method or the model are fixed.
            changes: ranges such as `0.1:100:log` or choices such as `2,4,8`, by setting.
            fixed: training settings that are not searched.
        """
        method, changes = make_method(spec.method, spec.settings), changes or {}
        given = {*spec.settings, *fixed, *(MODEL + key for key in spec.model_settings)}
        for key in changes:
            if _is_given(key, spec.method, given):
                raise EvergraphError(f"{key} is both set and searched; give it a value or a range, not both")
        declared = {key: method.search_space[key] for key in cls.open_settings(spec, fixed)}
        homes = {key: _home(spec, key) for key in [*declared, *changes]}
        dimensions: dict[str, Dimension] = {
            key: _declared(f"{spec.method}: search_space[{key!r}]", values, homes[key][1])
            for key, values in declared.items()
        }
        dimensions |= {key: parse_dimension(key, text, homes[key][1]) for key, text in changes.items()}
        if not dimensions:
            raise EvergraphError(f"{spec.method}: nothing is left to search; name a setting with --space")
        hold = tuple(key for key in method.hold if key in dimensions)
        dimensions |= {key: dimensions[key].ascending() for key in hold}
        return cls(dimensions, {key: homes[key][0] for key in dimensions}, hold)

    @staticmethod
    def has(spec: RunSpec, key: str) -> bool:
        """Whether a run's method, training or model has a setting of this name."""
        return any(key in defaults for _, defaults in _homes(spec))

    @staticmethod
    def open_settings(spec: RunSpec, fixed: Iterable[str] = ()) -> list[str]:
        """The settings that a run's method declares for a search, without fixed ones."""
        given = {*spec.settings, *fixed, *(MODEL + key for key in spec.model_settings)}
        space = make_method(spec.method, spec.settings).search_space
        return [key for key in space if not _is_given(key, spec.method, given)]

    @property
    def size(self) -> float:
        """Number of points; infinite if there is a range."""
        return math.prod(len(d.values) if isinstance(d, Choices) else math.inf for d in self.dimensions.values())

    def at(self, positions: Iterable[float]) -> Point:
        """The point at the given positions between 0 and 1, one for each setting."""
        return {key: dimension.at(u) for (key, dimension), u in zip(self.dimensions.items(), positions)}

    def point_of(self, spec: RunSpec) -> Point:
        """The values that a run has without a search: those it sets, else the defaults."""
        given = {
            "settings": spec.settings,
            "training": dataclasses.asdict(spec.training),
            "model_settings": {MODEL + key: value for key, value in spec.model_settings.items()},
        }
        return {key: given[self.places[key]].get(key, _home(spec, key)[1]) for key in self.dimensions}

    def strength_of(self, point: Point) -> float:
        """Strength of a point's retention (`hold`), between 0 and 1; 0 if no searched setting affects it."""
        return sum(self.dimensions[key].position(point[key]) for key in self.hold) / max(len(self.hold), 1)

    def split(self, point: Point) -> dict[str, dict[str, Any]]:
        """A point's values, grouped by where they belong."""
        places: dict[str, dict[str, Any]] = {"settings": {}, "training": {}, "model_settings": {}}
        for key, value in point.items():
            places[self.places[key]][key.removeprefix(MODEL)] = value
        return places

    def apply(self, spec: RunSpec, point: Point) -> RunSpec:
        """Return the run with a point's settings."""
        chosen = self.split(point)
        return dataclasses.replace(
            spec,
            settings={**spec.settings, **chosen["settings"]},
            training=dataclasses.replace(spec.training, **chosen["training"]),
            model_settings={**spec.model_settings, **chosen["model_settings"]},
        )

    def run_options(self, point: Point) -> list[str]:
        """The options of `evergraph run` that set a point's values."""
        words = []
        for place, values in self.split(point).items():
            for key, value in values.items():
                if place == "training":
                    flag = f"--{key.replace('_', '-')}"
                    words += ([flag] if value else []) if isinstance(value, bool) else [flag, _text(value)]
                else:
                    words += ["--set" if place == "settings" else "--model-set", f"{key}={_text(value)}"]
        return words

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {key: dimension.as_json() for key, dimension in self.dimensions.items()}


def parse_dimension(key: str, text: str, default: Any = 0.0) -> Dimension:
    """Parse `LOW:HIGH`, `LOW:HIGH:log` or comma-separated choices; values have the type of the setting's default."""
    if ":" not in text:
        return Choices(tuple(parse_text("--space", key, item, type(default), default) for item in text.split(",")))
    low, high, *scale = text.split(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise EvergraphError(f"--space {key}={text!r}: {low!r} to {high!r} is not a range of numbers") from None
    if scale not in ([], ["log"]):
        raise EvergraphError(f"--space {key}={text!r} is not LOW:HIGH, LOW:HIGH:log or a,b,c")
    log = bool(scale)
    if not bounds[0] < bounds[1] or not all(map(math.isfinite, bounds)) or (log and bounds[0] <= 0):
        raise EvergraphError(
            f"--space {key}={text!r}: the low end must be below the high end{' and above 0' if log else ''}"
        )
    return Range(*bounds, log=log, integer=_is_whole(default))


def _declared(owner: str, values: Any, default: Any) -> Dimension:
    """Convert a method's declaration: a pair is a range (log-uniform; uniform from 0), a list holds choices."""
    if isinstance(values, list) and values:
        return Choices(tuple(values))
    numbers = isinstance(values, tuple) and all(isinstance(end, (int, float)) for end in values)
    if not numbers or len(values) != 2 or not -math.inf < values[0] < values[1] < math.inf:
        raise EvergraphError(
            f"{owner} is {shown(values)}; it must be a pair of numbers, the lower one first, or a list of choices"
        )
    return Range(values[0], values[1], log=values[0] > 0, integer=_is_whole(default))


def _is_whole(default: Any) -> bool:
    """Whether a setting with this default takes whole numbers."""
    return isinstance(default, int) and not isinstance(default, bool)


def _is_given(key: str, method: str, given: set[str]) -> bool:
    """Whether a setting already has a value: under its own name, its part's, or the plain name for all parts."""
    return bool({key, f"{method}.{key}", key if key.startswith(MODEL) else key.rpartition(".")[2]} & given)


def _homes(spec: RunSpec) -> list[tuple[str, dict[str, Any]]]:
    """The places that a run's settings belong to, each with its settings' defaults."""
    method: dict[str, Any] = {}
    for part in parts_of(spec.method):
        known = settings_of(METHODS[part])
        method |= known | {f"{part}.{name}": default for name, default in known.items()}
    model = settings_of(MODELS[spec.model or preferred_model(spec.method)])
    training = {field.name: field.default for field in dataclasses.fields(Training)}
    of_model = {MODEL + name: default for name, default in model.items()}
    return [("settings", method), ("training", training), ("model_settings", of_model)]


def _home(spec: RunSpec, key: str) -> tuple[str, Any]:
    """Where a setting belongs, and its default there."""
    for place, defaults in _homes(spec):
        if key in defaults:
            return place, defaults[key]
    plain = [name for _, defaults in _homes(spec) for name in defaults if "." not in name or name.startswith(MODEL)]
    raise unknown(f"setting of {spec.method}", key, plain)


def _text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
