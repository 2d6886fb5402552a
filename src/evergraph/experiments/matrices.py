"""Numbers that tables, figures and the report derive from the accuracy matrices of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evergraph.evaluation import as_array, average_performance, mean_std
from evergraph.experiments.metric_titles import describe_metric

PERCENT = (0.0, 100.0)


def by_metric(runs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The results of each metric, by its name."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(describe_metric(run)["name"], []).append(run)
    return groups


def value_limits(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Limits of the scale that several results share: 0 to 100 for percentages, else the range of the values."""
    if all(describe_metric(run)["unit"] == "%" for run in runs):
        return PERCENT
    values = np.concatenate([as_array(matrix).ravel() for run in runs for matrix in run["matrices"]])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else PERCENT
    return (low, high) if low < high else (low, low + 1)


def mean_matrix(result: dict[str, Any]) -> np.ndarray:
    """A result's accuracy matrix, averaged over its seeds."""
    return np.mean([as_array(matrix) for matrix in result["matrices"]], axis=0)


def change_matrix(matrix: Any) -> np.ndarray:
    """Entry [t, i]: the change on task i since it was learned, M[t, i] − M[i, i]; NaN before it was learned."""
    array = as_array(matrix)
    return np.where(np.tri(len(array), dtype=bool), array - np.diag(array), np.nan)


def anytime_curve(matrices: Sequence[Any]) -> list[dict[str, float]]:
    """AP after each task: mean and standard deviation over the seeds' matrices."""
    number = len(matrices[0])
    return [mean_std([average_performance(matrix, after) for matrix in matrices]) for after in range(number)]
