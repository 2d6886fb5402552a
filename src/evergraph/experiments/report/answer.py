"""The report's first screen: which method without old data is best, what it forgets and what it costs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from evergraph.evaluation import within_noise
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
"""Colours (style % 8) and markers of methods that meet in most reports; every other name has its own by its hash."""
COLOURS = 8
MOST_STYLES = 48  # eight colours, each with six markers
CEILING, OLD_DATA = "ceiling", "old data"


def style_of(method: str) -> int:
    """A method's colour and marker, the same in every report."""
    return STYLES.get(method, 8 + zlib.crc32(method.encode()) % (MOST_STYLES - 8))


def role_of(access: Mapping[str, Any]) -> str:
    """`ceiling` for a method that trains on all old data, `old data` for one that keeps some of it, else nothing.

    Results of version 0.1 do not say whether all data is used: there, who keeps graphs does.
    """
    keeps = access.get("keeps", ())
    if access.get("all_data", "graphs" in keeps):
        return CEILING
    return OLD_DATA if keeps_old_data({"access": access}) else ""


def answers(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each stream and test graph: the best run without old data, those within noise of it, and the ceiling.

    Runs are named by their position in the list. Nothing is said where metrics differ, or where only a ceiling was run.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault((run["stream"], str(run["protocol"].get("test_graph", ""))), []).append(number)
    found = []
    for (stream, test_graph), members in groups.items():
        members = [number for number in members if runs[number]["metrics"]["ap"]["mean"] is not None]
        rivals = [number for number in members if not runs[number]["role"]]
        if not rivals or len({runs[number]["metric"]["name"] for number in members}) > 1:
            continue
        sign = 1 if runs[rivals[0]]["metric"]["higher_is_better"] else -1
        value = {number: sign * runs[number]["metrics"]["ap"]["mean"] for number in members}
        best = max(rivals, key=value.__getitem__)
        paired = {
            str(number): runs[number]["metrics"]["ap"]["values"]
            for number in rivals
            if runs[number]["seeds"] == runs[best]["seeds"] and None not in runs[number]["metrics"]["ap"]["values"]
        }
        tied = within_noise(paired, str(best)) if str(best) in paired else {}
        ceilings = [number for number in members if runs[number]["role"] == CEILING]
        found.append(
            {
                "stream": stream,
                "test_graph": test_graph,
                "best": best,
                "rivals": len(rivals),
                "tied": [int(number) for number, told in tied.items() if told and int(number) != best],
                "told": bool(tied) and all(told is not None for told in tied.values()),
                "ceiling": max(ceilings, key=value.__getitem__, default=None),
            }
        )
    return found
