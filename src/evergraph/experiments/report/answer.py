"""The report's first screen: which method without old data is best, what it forgets and what it costs."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from evergraph.evaluation import mean_std, within_noise
from evergraph.experiments import told
from evergraph.experiments.method_table import keeps_old_data

STYLES = {
    "auto": 0,
    "analytic": 5,
    "curvature": 1,
    "stand-in-curvature": 3,
    "ewc": 2,
    "lwf": 4,
    "finetune": 6,
    "joint": 7,
}
"""Colours (style % 8) and markers of methods that are in most reports; every other name gets its own by hash."""
COLOURS = 8
MOST_STYLES = 48  # eight colours, each with six markers
CEILING, OLD_DATA = "ceiling", "old data"


def style_of(method: str) -> int:
    """A method's style (colour and marker), the same in every report."""
    return STYLES.get(method, 8 + zlib.crc32(method.encode()) % (MOST_STYLES - 8))


def role_of(result: Mapping[str, Any]) -> str:
    """`ceiling` for a method that trains on all old data, `old data` for one that keeps some of it, else empty.

    A method that keeps something and declares nothing is `undeclared`.

    Results of version 0.1 do not say whether all data is used: there, a method that keeps graphs uses all.
    """
    access, keeps = result.get("access", {}), told.keeps(result)
    if access.get("all_data", "graphs" in keeps.split(", ")):
        return CEILING
    if keeps == told.UNDECLARED:
        return keeps
    return OLD_DATA if keeps_old_data(result) else ""


def answers(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each stream and test graph: the best method without old data, those within noise of it, and the ceiling.

    Runs that differ only in the class order count as one method's. Methods are compared, and paired, over the orders
    and seeds that all of them have; if there are none, noise cannot be estimated. A method is identified by the index
    of its first run in the list. There is no answer where metrics differ, or where no method without old data was run.
    """
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for number, run in enumerate(runs):
        if run["metrics"]["ap"]["mean"] is not None:
            group = groups.setdefault((run["stream"], str(run["protocol"].get("test_graph", ""))), {})
            group.setdefault(_but_for_order(run), []).append(number)
    found = []
    for (stream, test_graph), group in groups.items():
        teams = {members[0]: members for members in group.values()}
        measured = {first: _by_order_and_seed(runs, members) for first, members in teams.items()}
        rivals = [first for first in teams if not runs[first]["role"]]
        metrics = {runs[first]["metric"]["name"]: runs[first]["metric"] for first in teams}
        shared = set.intersection(*(set(measured[first]) for first in rivals)) if rivals else set()
        if not rivals or len(metrics) > 1:
            continue
        sign = -1 if next(iter(metrics.values()))["higher_is_better"] is False else 1
        paired = {str(first): [measured[first][key] for key in sorted(shared)] for first in rivals}
        level = {first: _mean(paired[str(first)] or measured[first].values()) for first in rivals}
        best = max(rivals, key=lambda first: sign * level[first])
        ceilings = [first for first in teams if runs[first]["role"] == CEILING]
        ceiling = max(ceilings, key=lambda first: sign * _mean(measured[first].values()), default=None)
        tied = within_noise(paired, str(best)) if shared else {}
        found.append(
            {
                "stream": stream,
                "test_graph": test_graph,
                "best": best,
                "rivals": len(rivals),
                "tied": [int(number) for number, chance in tied.items() if chance and int(number) != best],
                "told": bool(tied) and all(chance is not None for chance in tied.values()),
                "ceiling": ceiling,
                "alone": [first for first in teams if _is_alone(runs, first, teams)],
                "pooled": {first: _pooled(runs, teams[first]) for first in (best, ceiling) if first is not None},
            }
        )
    return found


def _but_for_order(run: Mapping[str, Any]) -> str:
    """Everything a run's numbers depend on besides its class order and its seeds, as text."""
    protocol = {key: value for key, value in run["protocol"].items() if key != "order"}
    settings = (run["method"], run.get("hyperparameters", {}), run.get("model", {}), protocol)
    return json.dumps(settings, sort_keys=True, default=str)


def _by_order_and_seed(runs: Sequence[Mapping[str, Any]], members: Sequence[int]) -> dict[tuple[str, int], float]:
    """AP of each run that has one, by class order and seed."""
    return {
        (str(runs[number]["protocol"].get("order", "")), seed): value
        for number in members
        for seed, value in zip(runs[number]["seeds"], runs[number]["metrics"]["ap"]["values"])
        if value is not None
    }


def _is_alone(runs: Sequence[Mapping[str, Any]], first: int, teams: Mapping[int, list[int]]) -> bool:
    """Whether the method's name distinguishes these runs from all others of the stream and test graph."""
    return sum(runs[other]["method"] == runs[first]["method"] for other in teams) == 1


def _pooled(runs: Sequence[Mapping[str, Any]], members: Sequence[int]) -> dict[str, Any]:
    """AP and AF over all orders and seeds, total seconds, and the maximum of the bytes kept."""
    own = [runs[number] for number in members]
    metrics: dict[str, Any] = {}
    for name in ("ap", "af"):
        values = [value for run in own for value in run["metrics"][name]["values"] if value is not None]
        metrics[name] = mean_std(values) if values else {"mean": None}
    seconds, kept = ([run[key] for run in own if run.get(key) is not None] for key in ("seconds", "kept_bytes"))
    return {
        "seeds": [seed for run in own for seed in run["seeds"]],
        "metrics": metrics,
        "seconds": sum(seconds) if len(seconds) == len(own) else None,
        "kept_bytes": max(kept) if len(kept) == len(own) else None,
    }


def _mean(values: Collection[float]) -> float:
    return sum(values) / max(len(values), 1)
