"""What the closed form over a graph in parts costs: bytes, traffic and seconds for each process, from few constants.

For n nodes with d neighbours each, F features, D random features, k propagation steps and P processes:

    rows        n/P                                     a process's own
    propagate   k · (n/P) · d · F · c_edge + T/b         c_edge: seconds per neighbour and feature; b: bytes a second
    traffic     T = k · 4F · (n/P) · Σ over the others   rows of it that they need: each needs a row with
                (P − 1)(1 − e^(−d/P))                    probability 1 − e^(−d/P), where neighbours are anywhere
    sums        (n/P) · D · (D + F) · c_sums             Gram matrix over training and validation nodes, features
    test        (n/P) · D · (F + C) · c_test
    read        (n/P) · (4F + 4d) · c_read
    bytes       (n/P) · (4F · copies + 12d)              propagated inputs, what is being added up, edges in 32 bits

The constants are taken from one small run; the model then says the others, and how far it is off.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 4  # of propagation: two balances, two steps each
COPIES = 8  # of the features: as read, of length one, four propagated, two at work in a step
CLASSES = 16
PHASES = ("read", "propagate", "sums", "test")


@dataclass(frozen=True)
class Workload:
    """A graph and the features that are made of it."""

    nodes: int
    neighbours: float
    features: int
    hidden: int


@dataclass(frozen=True)
class Run:
    """A measured run: `strong` or `weak` scaling, processes, what was run, what was found."""

    kind: str
    processes: int
    workload: Workload
    found: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"scaling": self.kind, "processes": self.processes, "nodes": self.workload.nodes, **self.found}


def units(work: Workload, processes: int) -> dict[str, float]:
    """How much of each phase a process has to do, in units whose cost is a constant."""
    rows = work.nodes / processes
    return {
        "read": rows * 4 * (work.features + work.neighbours),
        "propagate": STEPS * rows * work.neighbours * work.features,
        "sums": rows * work.hidden * (work.hidden + work.features),
        "test": rows * work.hidden * (work.features + CLASSES),
    }


def traffic(work: Workload, processes: int) -> float:
    """Bytes that a process sends for one step of propagation, where neighbours are anywhere."""
    needed = 1 - math.exp(-work.neighbours / processes)
    return work.nodes / processes * (processes - 1) * needed * 4 * work.features


def worker_bytes(work: Workload, processes: int) -> float:
    """Bytes that a process holds of the graph."""
    rows = work.nodes / processes
    return rows * (4 * work.features * COPIES + 8 * work.neighbours + 4 * work.neighbours)


@dataclass(frozen=True)
class Constants:
    """Seconds per unit of each phase, and bytes a second between processes."""

    seconds: dict[str, float]
    bandwidth: float

    def predict(self, work: Workload, processes: int) -> dict[str, float]:
        """Seconds of each phase."""
        found = {name: self.seconds[name] * amount for name, amount in units(work, processes).items()}
        found["propagate"] += STEPS * traffic(work, processes) / self.bandwidth if processes > 1 else 0.0
        return found


def fitted(runs: Sequence[Run], clock: str = "") -> tuple[Constants, list[Run]]:
    """The constants by the smallest run, and the bandwidth by the smallest run of several processes.

    With the clock `own_` they are the processor time of the busiest process: the exchange then costs what copying does.
    """
    ordered = sorted(runs, key=lambda run: (run.workload.nodes / run.processes, run.workload.nodes))
    alone = min((run for run in runs if run.processes == 1), key=lambda run: run.workload.nodes)
    amounts = units(alone.workload, 1)
    seconds = {name: alone.found[f"{clock}{name}_seconds"] / amounts[name] for name in PHASES}
    several = [run for run in ordered if run.processes > 1]
    used = [alone]
    bandwidth = math.inf
    if several:
        pair = min(several, key=lambda run: (run.processes, run.workload.nodes))
        own = seconds["propagate"] * units(pair.workload, pair.processes)["propagate"]
        extra = max(pair.found[f"{clock}propagate_seconds"] - own, 1e-3)
        bandwidth = STEPS * traffic(pair.workload, pair.processes) / extra
        used.append(pair)
    return Constants(seconds, bandwidth), used


def compare_with_model(runs: Sequence[Run], clock: str = "") -> dict[str, Any]:
    """The constants, and for every other run what the model says, what was measured, and the relative error."""
    if not any(run.processes == 1 for run in runs):
        return {}
    constants, used = fitted(runs, clock)
    rows, met = [], {(run.processes, run.workload) for run in used}
    for run in runs:
        if (run.processes, run.workload) in met:
            continue
        met.add((run.processes, run.workload))
        said = sum(constants.predict(run.workload, run.processes).values())
        took = run.found[f"{clock}seconds"]
        row = {"processes": run.processes, "nodes": run.workload.nodes, "said": said, "took": took}
        bytes_said = worker_bytes(run.workload, run.processes) / 2**20
        row |= {"error": said / took - 1, "mb_said": bytes_said, "mb_took": run.found["own_mb"]}
        rows.append({**row, "mb_error": bytes_said / run.found["own_mb"] - 1})
    return {"seconds_per_unit": constants.seconds, "bytes_per_second": constants.bandwidth, "runs": rows}


PLANS = {
    "ogbn-papers100M": Workload(111_059_956, 2 * 1_615_685_872 / 111_059_956, 128, 1280),
    "10 G edges": Workload(500_000_000, 40.0, 128, 1280),
}
"""Graphs past our machines: each edge is read in both directions."""


def plan(constants: Constants, counts: Sequence[int] = (8, 32, 128)) -> str:
    """What the model says of the graphs past our machines, as a Markdown table; a process has one core."""
    lines = [
        "| graph | processes | GB a process | GB sent a step, each | propagate | sums | whole |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, work in PLANS.items():
        for count in counts:
            said = constants.predict(work, count)
            memory, sent = (value / 2**30 for value in (worker_bytes(work, count), traffic(work, count)))
            minutes = [said["propagate"] / 60, said["sums"] / 60, sum(said.values()) / 60]
            shown = " | ".join(f"{value:.1f} min" for value in minutes)
            lines.append(f"| {name} | {count} | {memory:.1f} | {sent:.1f} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Print the plan by the constants in a file that `evergraph bench --distributed --json` has written.

    With a second argument: processor time, and a network of so many bytes a second for each process.
    """
    figures = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if len(sys.argv) > 2:
        print(plan(Constants(figures["model_own"]["seconds_per_unit"], float(sys.argv[2]))))
    else:
        print(plan(Constants(figures["model"]["seconds_per_unit"], figures["model"]["bytes_per_second"])))


if __name__ == "__main__":
    main()
