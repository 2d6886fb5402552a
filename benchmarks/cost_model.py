"""What the closed form over a graph in parts costs: bytes, traffic and seconds for each process, from few constants.

For n nodes with d neighbours each, F features, D random features, k propagation steps and P processes:

    rows        n/P                                     a process's own
    propagate   k · (n/P) · d · F · c_edge + e T/b       c_edge: seconds per neighbour and feature; b: bytes a second
    traffic     T = 4F · h, h = (n/P) (P − 1)            in each of e exchanges: each of the others needs a row with
                · (1 − e^(−d/P))                         probability 1 − e^(−d/P), where neighbours are anywhere
    sums        (n/P) · D · (D + F) · c_sums             Gram matrix over training and validation nodes, features
    test        (n/P) · D · (F + C) · c_test
    read        (n/P) · (4F + 4d) · c_read
    bytes       (n/P) · (4F · 7 + 4d + 32)               one process: features as read, of length one, propagated and
                                                         at work; edges; labels
                (n/P) · (4F · 6 + 4d + 4P + 32)          several: edges by owner, with the rows' starts for each;
                + 4h + (n/P) · 3 · 64                    which rows are sent; three times 16 columns under way

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

from benchmarks.pages import markdown
from evergraph.models.parts import COLUMNS_AT_ONCE

STEPS = 4  # of propagation: two balances, two steps each
EXCHANGES = 3  # of rows: both balances begin with the same ones
COPIES = 6  # of the features: as read, of length one, four propagated
LABELS = 32  # bytes: class, split and number of a node, and where its neighbours begin
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
    """Bytes that a process sends in one exchange of rows, where neighbours are anywhere."""
    needed = 1 - math.exp(-work.neighbours / processes)
    return work.nodes / processes * (processes - 1) * needed * 4 * work.features


def worker_bytes(work: Workload, processes: int) -> float:
    """Bytes that a process holds of the graph while it propagates, which is when it holds most."""
    rows, row = work.nodes / processes, 4 * work.features
    kept = rows * (COPIES * row + 4 * work.neighbours + LABELS)
    if processes == 1:
        return kept + rows * row
    sent = traffic(work, processes) / work.features  # a number of 4 bytes for each row
    under_way = rows * 3 * 4 * min(work.features, COLUMNS_AT_ONCE)
    return kept + rows * 4 * processes + sent + under_way


@dataclass(frozen=True)
class Constants:
    """Seconds per unit of each phase, and bytes a second between processes."""

    seconds: dict[str, float]
    bandwidth: float

    def predict(self, work: Workload, processes: int) -> dict[str, float]:
        """Seconds of each phase."""
        found = {name: self.seconds[name] * amount for name, amount in units(work, processes).items()}
        found["propagate"] += EXCHANGES * traffic(work, processes) / self.bandwidth if processes > 1 else 0.0
        return found


def fitted(runs: Sequence[Run], clock: str = "") -> tuple[Constants, list[Run]]:
    """The constants by the smallest run, and the bandwidth by the smallest run of several processes.

    With the clock `own_` they are the processor time of the busiest process: the exchange then costs what copying does.
    """
    alone = min((run for run in runs if run.processes == 1), key=lambda run: run.workload.nodes)
    amounts = units(alone.workload, 1)
    seconds = {name: alone.found[f"{clock}{name}_seconds"] / amounts[name] for name in PHASES}
    pair = min((run for run in runs if run.processes > 1), key=lambda run: (run.processes, run.workload.nodes))
    own = seconds["propagate"] * units(pair.workload, pair.processes)["propagate"]
    extra = max(pair.found[f"{clock}propagate_seconds"] - own, 1e-3)
    return Constants(seconds, EXCHANGES * traffic(pair.workload, pair.processes) / extra), [alone, pair]


def compare_with_model(runs: Sequence[Run], clock: str = "") -> dict[str, Any]:
    """The constants, and for every other run what the model says, what was measured, and the relative error.

    Nothing without runs of one process and of several.
    """
    if not any(run.processes == 1 for run in runs) or not any(run.processes > 1 for run in runs):
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
    rows = []
    for name, work in PLANS.items():
        for count in counts:
            said = constants.predict(work, count)
            memory, sent = (value / 2**30 for value in (worker_bytes(work, count), traffic(work, count)))
            minutes = [said["propagate"] / 60, said["sums"] / 60, sum(said.values()) / 60]
            rows.append([name, str(count), f"{memory:.1f}", f"{sent:.1f}", *(f"{value:.1f} min" for value in minutes)])
    head = ["graph", "processes", "GB a process", "GB sent an exchange, each", "propagate", "sums", "whole"]
    return markdown(head, rows)


def scaling_table(figures: dict[str, Any]) -> str:
    """The runs as a Markdown table: seconds, speed-up or efficiency, memory; processor time in brackets."""
    rows = []
    for run in sorted(figures["runs"], key=lambda run: (run["scaling"], run["processes"])):
        kind, count = run["scaling"], run["processes"]
        ratio, own = figures[f"{kind}_{count}"], figures[f"{kind}_{count}_own_time"]
        share = f"{figures[f'memory_share_{count}']:.2f}" if kind == "strong" else ""
        numbers = [f"{run['seconds']:.1f} ({run['own_seconds']:.1f})", f"{ratio:.2f} ({own:.2f})"]
        memory = [f"{run['own_mb']:,.0f}", share, f"{run['peak_mb']:,.0f}"]
        rows.append([kind, str(count), f"{run['nodes']:,}", *numbers, *memory])
    head = ["scaling", "processes", "nodes", "seconds", "over one process"]
    return markdown([*head, "MB above libraries", "of equal share", "all MB"], rows)


def error_table(model: dict[str, Any]) -> str:
    """What the model says of the runs that it was not fitted to, as a Markdown table."""
    rows = []
    for row in sorted(model["runs"], key=lambda row: (row["processes"], row["nodes"])):
        seconds = [f"{row['said']:.1f}", f"{row['took']:.1f}", f"{row['error']:+.0%}"]
        memory = [f"{row['mb_said']:,.0f}", f"{row['mb_took']:,.0f}", f"{row['mb_error']:+.0%}"]
        rows.append([str(row["processes"]), f"{row['nodes']:,}", *seconds, *memory])
    head = ["processes", "nodes", "seconds said", "measured", "error", "MB said", "measured", "error"]
    return markdown(head, rows, names=0)


def main() -> None:
    """Print scaling, errors and the plan by a file that `evergraph bench --distributed --save` has written.

    With a second argument the plan has processor time, and a network of so many bytes a second for each process.
    """
    figures = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(scaling_table(figures), end="\n\n")
    for name, clock in (("model", "by the clock"), ("model_own", "by processor time")):
        print(f"The model, {clock}:", error_table(figures[name]), sep="\n\n", end="\n\n")
    if len(sys.argv) > 2:
        print(plan(Constants(figures["model_own"]["seconds_per_unit"], float(sys.argv[2]))))
    else:
        print(plan(Constants(figures["model"]["seconds_per_unit"], figures["model"]["bytes_per_second"])))


if __name__ == "__main__":
    main()
