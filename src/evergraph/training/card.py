"""The model card: what was learned when, from how many examples, how well, and what is kept of it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evergraph.data import Task
from evergraph.data.outline import outline
from evergraph.methods.access import Access
from evergraph.methods.state import count_bytes
from evergraph.training.calibration import temperature_of
from evergraph.training.unknown import familiar_of

FALSE_ALARMS = 0.05
"""Default share of examples of known classes that may be flagged as unknown."""


def task_card(task: Task) -> dict[str, Any]:
    """Describe a task for its record: when it was learned, from which graph, and how many examples each class has.

    Also which stream it is a task of, by a hash, and whether that stream's tasks share nodes (`joined`). By its
    `outline` the graph is recognized in another order, with other labels or another split, and with more nodes.
    """
    parts = {"training": task.train, "validation": task.val, "test": task.test}
    card: dict[str, Any] = {
        "learned": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "graph": task.graph.name,
        "examples": dict(zip(parts, _over_all(task, [nodes.numel() for nodes in parts.values()]))),
        "stream": None if task.origin is None else task.origin[0],
        "joined": task.joined,
    }
    if task.graph.has_classes:
        own = torch.bincount(task.graph.y[task.train], minlength=task.graph.num_classes)
        sizes = _over_all(task, own.tolist())
        card["classes"] = [[task.graph.class_names[place], sizes[place]] for place in task.class_positions]
    if (sums := outline(task)) is not None:
        card["outline"] = sums.whole()
    return card


def _over_all(task: Task, counts: list[int]) -> list[int]:
    """Sum counts over all processes, if the task's graph is partitioned; else return them unchanged."""
    if task.graph.rows is None:
        return counts
    total: list[int] = task.graph.rows.group.sum([torch.tensor(counts)])[0].tolist()
    return total


def learner_card(
    records: Sequence[Mapping[str, Any]], access: Access | None, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe what is kept of all tasks, and what was fitted to their validation examples."""
    familiar = familiar_of(records)
    above = math.inf if familiar is None else familiar.threshold(FALSE_ALARMS)
    kept = {key.rstrip("_"): size for key, value in state.items() if (size := count_bytes(value)) > 8}
    return {
        "keeps": list(access.keeps) if access is not None else None,
        "kept_bytes": kept,
        "temperature": temperature_of(records),
        "unknown_above": above if math.isfinite(above) else None,  # infinite if there are too few examples
        "false_alarms": FALSE_ALARMS,
        "forgotten": sum(int(record.get("forgotten_examples", 0)) for record in records),
    }
