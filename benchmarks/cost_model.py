"""What the closed form over a graph in parts costs: bytes, traffic and seconds for each process, from few constants.

For n nodes with d neighbours each, F features, D random features, k propagation steps and P processes:

    rows        n/P                                     a process's own
    propagate   k · (n/P) · d · F · c_edge               c_edge: seconds per neighbour and feature
                + k · 4F (n/P) / b                       one machine: rows that a process shows the others, b bytes a
                                                         second
                or + e T (1/s + 1/w)                     a machine each: e exchanges, s bytes a second sent and received
                                                         by a processor, w by the network
    traffic     T = 4F · h, h = (n/P) (P − 1)            in each exchange: each of the others needs a row with
                · (1 − e^(−d/P))                         probability 1 − e^(−d/P), where neighbours are anywhere; within
                                                         a machine nothing is sent
    sums        (n/P) · D · (D + F) · c_sums             Gram matrix over training and validation nodes, features
    test        (n/P) · D · (F + C) · c_test
    read        (n/P) · (4F + 4d) · c_read
    bytes       (n/P) · (4F · 6 + 4d + 32)               features as read, of length one, propagated; edges; labels
                + (n/P) · 4F                             one process: columns at work
                + (n/P) · 4 min(F, 32)                   one machine: the columns that are shown
                + (n/P) · (4P + 3 · 64) + 4h             a machine each: edges by owner, with the rows' starts for each;
                                                         three times 16 columns under way; which rows are sent

The constants are taken from small runs; the model then says the others, and how far it is off.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import markdown
from evergraph.models.parts import COLUMNS_AT_ONCE, COLUMNS_SHOWN

STEPS = 4  # of propagation: two balances, two steps each
EXCHANGES = 3  # of rows: both balances begin with the same ones
COPIES = 6  # of the features: as read, of length one, four propagated
LABELS = 32  # bytes: class, split and number of a node, and where its neighbours begin
CLASSES = 16
PHASES = ("read", "propagate", "sums", "test")
NETWORK = 1.25e9  # bytes a second for each process: 10 Gbit/s


@dataclass(frozen=True)
class Workload:
    """A graph and the features that are made of it."""

    nodes: int
    neighbours: float
    features: int
    hidden: int


@dataclass(frozen=True)
class Run:
    """A measured run: `strong` or `weak` scaling, or rows that are `sent`; processes, what was run, what was found."""

    kind: str
    processes: int
    workload: Workload
    found: dict[str, Any]

    @property
    def sent(self) -> bool:
        """Whether rows were sent, as between machines, or where memory could not be shared."""
        return bool(self.found.get("sent_mb"))

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
    """Bytes that a process sends in one exchange of rows, where neighbours and the other processes are anywhere."""
    needed = 1 - math.exp(-work.neighbours / processes)
    return work.nodes / processes * (processes - 1) * needed * 4 * work.features


def shown(work: Workload, processes: int) -> float:
    """Bytes that a process shows the others of its machine in one step."""
    return work.nodes / processes * 4 * work.features if processes > 1 else 0.0


def worker_bytes(work: Workload, processes: int, sent: bool = False) -> float:
    """Bytes that a process holds of the graph while it propagates, which is when it holds most.

    What processes share counts once. `sent`: they do not share, as on machines of their own.
    """
    rows, row = work.nodes / processes, 4 * work.features
    kept = rows * (COPIES * row + 4 * work.neighbours + LABELS)
    if processes == 1:
        return kept + rows * row
    if not sent:
        return kept + rows * 4 * min(work.features, COLUMNS_SHOWN)
    numbers = traffic(work, processes) / work.features  # 4 bytes for each row that is sent
    under_way = rows * 3 * 4 * min(work.features, COLUMNS_AT_ONCE)
    return kept + rows * 4 * processes + numbers + under_way


@dataclass(frozen=True)
class Constants:
    """Seconds per unit of each phase, and bytes a second that a process shows others, and sends and receives.

    `sent` is what a processor can do, of packing, copying and unpacking, however fast the network.
    """

    seconds: dict[str, float]
    shown: float = math.inf
    sent: float = math.inf

    def predict(self, work: Workload, processes: int, network: float | None = None) -> dict[str, float]:
        """Seconds of each phase on one machine; on one each with a network of so many bytes a second."""
        found = {name: self.seconds[name] * amount for name, amount in units(work, processes).items()}
        if network is None:
            found["propagate"] += STEPS * shown(work, processes) / self.shown
        elif processes > 1:
            found["propagate"] += EXCHANGES * traffic(work, processes) * (1 / self.sent + 1 / network)
        return found


def fitted(runs: Sequence[Run], clock: str = "") -> tuple[Constants, list[Run]]:
    """The constants by the smallest runs: of one process, of several, and of several that send rows, if any.

    With the clock `own_` they are the processor time of the busiest process, else the time that passes.
    """

    def smallest(chosen: Callable[[Run], bool]) -> Run | None:
        return min(filter(chosen, runs), key=lambda run: (run.processes, run.workload.nodes), default=None)

    alone = smallest(lambda run: run.processes == 1)
    assert alone is not None
    amounts = units(alone.workload, 1)
    seconds = {name: alone.found[f"{clock}{name}_seconds"] / amounts[name] for name in PHASES}

    def rate(run: Run | None, transferred: Callable[[Workload, int], float]) -> float:
        if run is None:
            return math.inf
        own = seconds["propagate"] * units(run.workload, run.processes)["propagate"]
        return transferred(run.workload, run.processes) / max(run.found[f"{clock}propagate_seconds"] - own, 1e-3)

    sharing, sending = smallest(lambda run: run.processes > 1 and not run.sent), smallest(lambda run: run.sent)
    showing = rate(sharing, lambda work, processes: STEPS * shown(work, processes))
    line = rate(sending, lambda work, processes: EXCHANGES * traffic(work, processes))
    return Constants(seconds, showing, line), [run for run in (alone, sharing, sending) if run is not None]


def compare_with_model(runs: Sequence[Run], clock: str = "") -> dict[str, Any]:
    """The constants, and for every other run what the model says, what was measured, and the relative error.

    Nothing without runs of one process and of several.
    """
    if not any(run.processes == 1 for run in runs) or not any(run.processes > 1 for run in runs):
        return {}
    constants, used = fitted(runs, clock)
    rows, met = [], {(run.sent, run.processes, run.workload) for run in used}
    for run in runs:
        if (run.sent, run.processes, run.workload) in met:
            continue
        met.add((run.sent, run.processes, run.workload))
        said = sum(constants.predict(run.workload, run.processes, math.inf if run.sent else None).values())
        took = run.found[f"{clock}seconds"]
        row = {"processes": run.processes, "nodes": run.workload.nodes, "said": said, "took": took}
        bytes_said = worker_bytes(run.workload, run.processes, run.sent) / 2**20
        row |= {"error": said / took - 1, "mb_said": bytes_said, "mb_took": run.found["own_mb"]}
        rows.append({**row, "mb_error": bytes_said / run.found["own_mb"] - 1})
    rates = {"shown": constants.shown, "sent": constants.sent}
    measured = {name: rate for name, rate in rates.items() if rate < math.inf}
    return {"seconds_per_unit": constants.seconds, "bytes_per_second": measured, "runs": rows}


PLANS = {
    "ogbn-papers100M": Workload(111_059_956, 2 * 1_615_685_872 / 111_059_956, 128, 1280),
    "10 G edges": Workload(500_000_000, 40.0, 128, 1280),
}
"""Graphs past our machines: each edge is read in both directions."""


def plan(constants: Constants, network: float = NETWORK, counts: Sequence[int] = (8, 32, 128)) -> str:
    """What the model says of the graphs past our machines, as a Markdown table; a process has a machine to itself."""
    rows = []
    for name, work in PLANS.items():
        for count in counts:
            said = constants.predict(work, count, network)
            memory, sent = (value / 2**30 for value in (worker_bytes(work, count, sent=True), traffic(work, count)))
            minutes = [said["propagate"] / 60, said["sums"] / 60, sum(said.values()) / 60]
            rows.append([name, str(count), f"{memory:.1f}", f"{sent:.1f}", *(f"{value:.1f} min" for value in minutes)])
    head = ["graph", "processes", "GB a process", "GB sent an exchange, each", "propagate", "sums", "whole"]
    return markdown(head, rows)


def scaling_table(figures: dict[str, Any]) -> str:
    """The runs as a Markdown table: seconds, speed-up or efficiency, memory; processor time in brackets."""
    rows = []
    for run in sorted(figures["runs"], key=lambda run: (run["scaling"], run["processes"])):
        kind, count = run["scaling"], run["processes"]
        share = f"{figures[f'memory_share_{count}']:.2f}" if kind == "strong" else ""
        numbers = [f"{run['seconds']:.1f} ({run['own_seconds']:.1f})"]
        ratios = (figures.get(f"{kind}_{count}"), figures.get(f"{kind}_{count}_own_time"))
        numbers.append("" if None in ratios else "{:.2f} ({:.2f})".format(*ratios))
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

    The plan has processor time, and a network of as many bytes a second for each process as a second argument says.
    """
    from benchmarks.distributed import closed_form_figures, workload

    figures = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    runs = [Run(run["scaling"], run["processes"], workload(run["nodes"]), run) for run in figures["runs"]]
    figures |= closed_form_figures(runs)
    print(scaling_table(figures), end="\n\n")
    for name, clock in (("model", "by the clock"), ("model_own", "by processor time")):
        print(f"The model, {clock}:", error_table(figures[name]), sep="\n\n", end="\n\n")
    model = figures["model_own"]
    network = float(sys.argv[2]) if len(sys.argv) > 2 else NETWORK
    print(plan(Constants(model["seconds_per_unit"], **model["bytes_per_second"]), network))


if __name__ == "__main__":
    main()
