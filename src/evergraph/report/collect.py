"""Finds finished runs on the disk and gathers what a page shows of them. Nothing is trained or recomputed."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evergraph.errors import EvergraphError
from evergraph.results import (
    as_array,
    average_anytime,
    average_forgetting,
    average_performance,
    learning_accuracy,
    mean_std,
)
from evergraph.runs import read_result

MOST_POINTS = 600  # of one learning curve; a page has no more pixels
METRICS: dict[str, Callable[[Any], float]] = {
    "ap": average_performance,
    "af": average_forgetting,
    "anytime": average_anytime,
    "learning": learning_accuracy,
}


def find_runs(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The folders of finished and of unfinished runs in or below the paths.

    A path may be a run's folder, or one that holds several (a comparison). A run named itself must be finished.
    """
    finished: dict[Path, None] = {}
    unfinished: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise EvergraphError(f"no folder {path}; name the folder of a run or of a comparison")
        if (path / "run.json").exists() or (path / "result.json").exists():
            read_result(path)  # an unfinished or damaged one is named here
            finished[path] = None
            continue
        below = sorted({file.parent for name in ("run.json", "result.json") for file in path.rglob(name)})
        found = {folder: (folder / "result.json").exists() for folder in below}
        if not any(found.values()):
            state = "only runs that are not finished; finish them with --resume" if found else "no run"
            raise EvergraphError(f"{path} holds {state}; name the folder of a finished run")
        finished |= dict.fromkeys(folder for folder, done in found.items() if done)
        unfinished |= dict.fromkeys(folder for folder, done in found.items() if not done)
    return list(finished), list(unfinished)


def read_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """One entry a run and test graph: what was asked for, what came of it, its learning curves."""
    entries = []
    for folder in folders:
        result = read_result(folder)
        curves = [curve for seed in result["seeds"] if (curve := _curve(folder, seed)) is not None]
        entries.append(_entry(folder, result, result, curves))
        for name, other in result.get("also_tested", {}).items():
            tested = {**result, "protocol": {**result["protocol"], "test_graph": name}}
            entries.append(_entry(folder, tested, other, curves))
    for entry, label in zip(entries, _labels(entries)):
        entry["label"] = label
    return entries


def _entry(
    folder: Path, result: dict[str, Any], tested: dict[str, Any], curves: list[dict[str, Any]]
) -> dict[str, Any]:
    matrices = [[[_number(value) for value in row] for row in matrix] for matrix in tested["matrices"]]
    metrics = {}
    for name, function in METRICS.items():
        values = [function(as_array(matrix)) for matrix in matrices]
        metrics[name] = {**mean_std(values), "values": values}
    return {
        "folder": str(folder),
        "stream": str(result["stream"]),
        "method": str(result["method"]),
        "hyperparameters": result.get("hyperparameters", {}),
        "model": result.get("model", {}),
        "protocol": result["protocol"],
        "seeds": result["seeds"],
        "seconds": result.get("seconds"),
        "device": result.get("device"),
        "versions": result.get("versions", {}),
        "tasks": [", ".join(map(str, names)) for names in _task_classes(result, len(matrices[0]))],
        "matrices": matrices,
        "metrics": {name: _finite(value) for name, value in metrics.items()},
        "curves": curves,
    }


def _task_classes(result: dict[str, Any], number: int) -> list[list[str]]:
    given = result.get("task_classes") or []
    return given if len(given) == number else [[] for _ in range(number)]


def _curve(folder: Path, seed: int) -> dict[str, Any] | None:
    """A seed's per-epoch log as columns, thinned out where it is long; None where the folder has none."""
    path = folder / f"seed-{seed}" / "log.csv"
    if not path.exists():
        return None
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        columns = (
            {key: [float(row[key]) if row[key] else math.nan for row in rows] for key in rows[0] if key} if rows else {}
        )
    except (TypeError, ValueError, KeyError):
        raise EvergraphError(f"{path} is damaged; remove it to make the page without this learning curve") from None
    if not {"task", "epoch", "loss"} <= columns.keys():
        return None
    keep = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).astype(int))
    return {
        "seed": seed,
        "step": [int(i) + 1 for i in keep],
        "task": [int(columns["task"][i]) for i in keep],
        **{key: [_number(columns[key][i], 5) for i in keep] for key in ("loss", "validation_loss") if key in columns},
    }


def _labels(entries: list[dict[str, Any]]) -> list[str]:
    """The method's name, with whatever sets apart runs of one method; at worst a number."""
    settings = [flat(entry) for entry in entries]
    labels = []
    for entry, own in zip(entries, settings):
        alike = [other for other, one in zip(settings, entries) if one["method"] == entry["method"]]
        different = [key for key in own if any(other.get(key) != own[key] for other in alike)]
        extra = ", ".join(f"{key.split('.')[-1]} {own[key]}" for key in different[:4])
        labels.append(f"{entry['method']} ({extra})" if extra else entry["method"])
    for label in set(labels):
        same = [i for i, other in enumerate(labels) if other == label]
        for number, i in enumerate(same if len(same) > 1 else [], start=1):
            labels[i] = f"{label} #{number}"
    return labels


def flat(entry: dict[str, Any]) -> dict[str, str]:
    """All that a run's number depends on, as text under dotted names."""
    found = {"stream": entry["stream"], "seeds": ", ".join(map(str, entry["seeds"]))}
    for group in ("protocol", "model", "hyperparameters"):
        found |= {f"{group}.{key}": _text(value) for key, value in entry[group].items()}
    return found


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return (
        {True: "yes", False: "no", None: "none"}.get(value, str(value))
        if isinstance(value, (bool, type(None)))
        else f"{value}"
    )


def _number(value: Any, digits: int = 6) -> float | None:
    """A number short enough for a page; None where there is none."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    return {key: [_number(v) for v in item] if isinstance(item, list) else _number(item) for key, item in value.items()}
