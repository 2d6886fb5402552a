"""Cost model of the closed form over a graph in parts: bytes, traffic and seconds per process, from a few constants.

For n nodes with d neighbours each, F features, D random features, C classes, k propagation steps and P processes:

    rows        n/P                                      per process
    propagate   k · (n/P) · d · F · c_edge               c_edge: seconds per neighbour and feature
                + k · 4F (n/P) / b                       one machine: rows shared with the other processes, at b bytes
                                                         per second
                or + e T (1/s + 1/w)                     one process per machine: e exchanges; a processor sends and
                                                         receives s bytes per second, the network w
    traffic     T = 4F · h, h = (n/P) (P − 1)            in each exchange: each other process needs a row with
                · (1 − e^(−d/P))                         probability 1 − e^(−d/P), if neighbours are anywhere; within
                                                         a machine nothing is sent
    sums        (n/P) · D · (D + F) · c_sums             Gram matrix over training and validation nodes, features
    test        (n/P) · D · (F + C) · c_test
    read        (n/P) · (4F + 4d) · c_read
    bytes       (n/P) · (4F · 6 + 4d + 32)               features as read, of length one, propagated; edges; labels
                + (n/P) · 4F                             one process: columns being computed
                + (n/P) · 4 min(F, 32)                   one machine: the shared columns
                + (n/P) · (4P + 3 · 64) + 4h             one process per machine: edges by owner, with the rows' starts
                                                         for each; three times 16 columns in transit; the indices of
                                                         the rows that are sent

The constants are fitted to small runs; the model then predicts the other runs, and its errors are reported.
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

STEPS = 4  # propagation steps: two balances, two steps each
EXCHANGES = 3  # exchanges of rows: both balances begin with the same rows
COPIES = 6  # copies of the features: as read, of length one, four propagated
LABELS = 32  # bytes per node: its class, split and number, and where its neighbours begin
CLASSES = 16
PHASES = ("read", "propagate", "sums", "test")
NETWORK = 1.25e9  # bytes per second for each process: 10 Gbit/s


@dataclass(frozen=True)
class Workload:
    """The size of a graph and of the features made from it."""

    nodes: int
    neighbours: float
    features: int
    hidden: int


@dataclass(frozen=True)
class Run:
    """A measured run: its kind (`strong` or `weak` scaling, or rows `sent`), processes, workload and measurements."""

    kind: str
    processes: int
    workload: Workload
    found: dict[str, Any]

    @property
    def sent(self) -> bool:
        """Whether rows were sent, as between machines or if memory could not be shared."""
        return bool(self.found.get("sent_mb"))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"scaling": self.kind, "processes": self.processes, "nodes": self.workload.nodes, **self.found}


def units(work: Workload, processes: int) -> dict[str, float]:
    """Work of a process in each phase, in units of constant cost."""
    rows = work.nodes / processes
    return {
        "read": rows * 4 * (work.features + work.neighbours),
        "propagate": STEPS * rows * work.neighbours * work.features,
        "sums": rows * work.hidden * (work.hidden + work.features),
        "test": rows * work.hidden * (work.features + CLASSES),
    }


def traffic(work: Workload, processes: int) -> float:
    """Bytes that a process sends in one exchange of rows, if neighbours and the other processes are anywhere."""
    needed = 1 - math.exp(-work.neighbours / processes)
    return work.nodes / processes * (processes - 1) * needed * 4 * work.features


def shown(work: Workload, processes: int) -> float:
    """Bytes that a process shares with the others on its machine in one step."""
    return work.nodes / processes * 4 * work.features if processes > 1 else 0.0


def worker_bytes(work: Workload, processes: int, sent: bool = False) -> float:
    """Bytes of the graph that a process holds while it propagates, when it holds most.

    Shared memory counts once. `sent`: the processes share no memory, as on separate machines.
    """
    rows, row = work.nodes / processes, 4 * work.features
    kept = rows * (COPIES * row + 4 * work.neighbours + LABELS)
    if processes == 1:
        return kept + rows * row
    if not sent:
        return kept + rows * 4 * min(work.features, COLUMNS_SHOWN)
    numbers = traffic(work, processes) / work.features  # the indices of the rows that are sent, 4 bytes each
    under_way = rows * 3 * 4 * min(work.features, COLUMNS_AT_ONCE)
    return kept + rows * 4 * processes + numbers + under_way


@dataclass(frozen=True)
class Constants:
    """Seconds per unit of each phase, and bytes per second that a process shares with others, and sends and receives.

    `sent` is the processor's rate of packing, copying and unpacking, however fast the network.
    """

    seconds: dict[str, float]
    shown: float = math.inf
    sent: float = math.inf

    def predict(self, work: Workload, processes: int, network: float | None = None) -> dict[str, float]:
        """Predict the seconds of each phase on one machine; with `network` bytes per second, on a machine each."""
        found = {name: self.seconds[name] * amount for name, amount in units(work, processes).items()}
        if network is None:
            found["propagate"] += STEPS * shown(work, processes) / self.shown
        elif processes > 1:
            found["propagate"] += EXCHANGES * traffic(work, processes) * (1 / self.sent + 1 / network)
        return found


def fitted(runs: Sequence[Run], clock: str = "") -> tuple[Constants, list[Run]]:
    """Fit the constants to the smallest runs, also returned: of one process, of several, and of several that send rows.

    With the clock `own_` they are the processor time of the busiest process, else wall-clock time.
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
    """The constants, and for every other run the prediction, the measurement and the relative error.

    Empty without runs of one process and of several.
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
"""Graphs too large to be measured here; each edge is read in both directions."""


def plan(constants: Constants, network: float = NETWORK, counts: Sequence[int] = (8, 32, 128)) -> str:
    """Predictions for the graphs of `PLANS`, as a Markdown table; each process has its own machine."""
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
    """Predictions for the runs that the model was not fitted to, as a Markdown table."""
    rows = []
    for row in sorted(model["runs"], key=lambda row: (row["processes"], row["nodes"])):
        seconds = [f"{row['said']:.1f}", f"{row['took']:.1f}", f"{row['error']:+.0%}"]
        memory = [f"{row['mb_said']:,.0f}", f"{row['mb_took']:,.0f}", f"{row['mb_error']:+.0%}"]
        rows.append([str(row["processes"]), f"{row['nodes']:,}", *seconds, *memory])
    head = ["processes", "nodes", "seconds said", "measured", "error", "MB said", "measured", "error"]
    return markdown(head, rows, names=0)


def main() -> None:
    """Print scaling, errors and the plan from a file written by `evergraph bench --distributed --save`.

    The plan uses processor time; a second argument sets the network's bytes per second for each process.
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
