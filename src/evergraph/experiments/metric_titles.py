"""How tables, figures and the report name the metric of a result, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evergraph.evaluation import METRICS

PLAIN = "accuracy"
"""The metric that tables need not name."""


def describe_metric(result: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the metric of a result's matrices: name, title, the title's quantity and unit, and which way is better.

    Results of version 0.1 name no metric and hold accuracies. The title of an unregistered metric is its name.
    """
    name = str(result.get("protocol", {}).get("metric", PLAIN))
    metric = METRICS.get(name)
    if metric is None:
        return {"name": name, "title": name, "quantity": name, "unit": "", "higher_is_better": True}
    keys = ("title", "quantity", "unit", "higher_is_better")
    return {"name": name, **{key: getattr(metric, key) for key in keys}}


def common_metric(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Description of the metric of several results; a generic one if they do not share it."""
    found = [describe_metric(run) for run in runs]
    if all(metric == found[0] for metric in found):
        return found[0]
    return {"name": "value", "title": "metric", "quantity": "metric", "unit": "", "higher_is_better": None}


def with_direction(metric: Mapping[str, Any]) -> str:
    """The title of a metric, with a word on errors."""
    return f"{metric['title']}, lower is better" if metric["higher_is_better"] is False else str(metric["title"])


def direction_of(name: str) -> str:
    """The title of the metric of this name, with a word on errors."""
    return with_direction(describe_metric({"protocol": {"metric": name}}))
