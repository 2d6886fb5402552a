"""Labels of runs: the method's name, with what distinguishes the run from others of the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_NAMED = 6  # settings in a label


def labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The method's name, with the settings that distinguish it from other runs of the method; at worst a number."""
    settings = [flat(run) for run in runs]
    found = []
    for run, own in zip(runs, settings):
        alike = [other for other, one in zip(settings, runs) if one["method"] == run["method"] and other != own]
        extra: list[str] = []
        for key, value in own.items():
            apart = [other for other in alike if other.get(key) != value]
            if apart and len(extra) < MOST_NAMED:
                extra.append(f"{key.split('.')[-1]} {value}")
                alike = [other for other in alike if other not in apart]
        found.append(f"{run['method']} ({', '.join(extra)})" if extra else str(run["method"]))
    for label in set(found):
        same = [i for i, other in enumerate(found) if other == label]
        for number, i in enumerate(same if len(same) > 1 else [], start=1):
            found[i] = f"{label} #{number}"
    return found


def flat(run: Mapping[str, Any]) -> dict[str, str]:
    """Everything that a run's numbers depend on, as text under dotted names."""
    found = {"stream": str(run["stream"]), "seeds": ", ".join(map(str, run["seeds"]))}
    for group in ("protocol", "model", "hyperparameters"):
        found |= {f"{group}.{key}": as_text(value) for key, value in run.get(group, {}).items()}
    if found.get("protocol.stream") == found["stream"]:
        del found["protocol.stream"]
    return found


def as_text(value: Any) -> str:
    """A setting's value as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={as_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(as_text, value))
    return (
        {True: "yes", False: "no", None: "none"}.get(value, str(value))
        if isinstance(value, (bool, type(None)))
        else f"{value}"
    )
