"""Estimated time of the paper's Coauthor-CS table on a CPU, from a few epochs of every row, with and without C kernels.

`python -m benchmarks.paper_table --data-root DATA` times each row's epochs task by task (processor time, one thread),
multiplies by the protocol's number of epochs, runs and trials, and leaves out the trainings that runs share.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from evergraph.core.shortcuts import FAST_PATHS, fast_paths
from evergraph.data.streams import TaskStream
from evergraph.experiments.paper.protocol import Protocol
from evergraph.experiments.specification import RunSpec
from evergraph.training import Progress

BEFORE = {"lwf": ("compiled", "structure")}  # fast paths off in the figures "before", if not just `compiled`
EPOCHS, UNTIL_FULL = 3, 8  # epochs of each task that are run; and with a queue, which has to fill
LAST = 2  # the last of these epochs, which are averaged
IN_COMMON = {"joint": 0, "online-ewc": 2}  # shared tasks that a row need not train; 1 for other rows


class Row:
    """A row of the table: its processor seconds per epoch, task by task, and outside its epochs.

    Args:
        spec: the specification of its run.
        stream: the tasks.
    """

    def __init__(self, spec: RunSpec, stream: TaskStream) -> None:
        queue = spec.settings.get("estimator") == "queue"
        spec = replace(spec, training=replace(spec.training, epochs=UNTIL_FULL if queue else EPOCHS))
        learner, self.epoch, self.besides = spec.learner(0, stream.problem), list[float](), 0.0
        for index in range(len(stream)):
            task, marks = stream[index], [time.process_time()]

            def on_epoch(progress: Progress, epochs: int, marks: list[float] = marks) -> None:
                marks.append(time.process_time())

            learner.learn(task, on_epoch)
            epochs = [after - before for before, after in itertools.pairwise(marks[1:])]
            self.epoch.append(statistics.fmean(epochs[-LAST:]))
            trained = marks[-1] - marks[1]
            for test_graph in ("task", "seen"):
                learner.evaluate(stream, test_graph=test_graph)
            learner.evaluate(stream, test_graph="task", part="val")
            self.besides += time.process_time() - marks[0] - trained - epochs[0]


def table_seconds(rows: dict[str, Row], protocol: Protocol, *, shared: bool) -> float:
    """Processor seconds of the whole table.

    Args:
        rows: measured rows by name.
        protocol: the protocol whose rows, seeds, epochs and trials are counted.
        shared: whether trainings that rows share are run once: the first task of a seed, the second of both kinds of
            EWC, and the trial whose settings are chosen.
    """
    epochs, total = protocol.content["training"]["epochs"], 0.0
    for name, row in protocol.rows().items():
        trials = protocol.content["search"]["trials"] if "space" in row else 0
        runs = protocol.seeds + trials - (shared and trials > 0)
        own = rows[name].epoch[IN_COMMON.get(row["method"], 1) if shared else 0 :]
        total += runs * (sum(own) * epochs + rows[name].besides)
    return total + (epochs * protocol.seeds * rows["finetune"].epoch[0] if shared else 0)


def main() -> None:
    """Measure and print the figures of all rows and of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="all by default; the table is added up only if there are all")
    parser.add_argument("--data-root", help="folder of the datasets")
    parser.add_argument("--now-alone", action="store_true", help="only with the kernels")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    protocol = Protocol.load("paper", "coauthor-cs", 3, "cpu")
    names = asked.rows or list(protocol.rows())
    specs = {name: protocol.spec(row, [0]) for name, row in protocol.rows(names).items()}
    stream = specs[names[0]].make_stream(0, asked.data_root)
    found: dict[str, dict[str, Row]] = {"before": {}, "now": {}}
    Row(replace(specs[names[0]], training=replace(specs[names[0]].training, epochs=1)), stream)  # loads libraries
    for name, spec in specs.items():
        off = BEFORE.get(spec.method, ("compiled",))
        for when in ("now",) if asked.now_alone else ("before", "now"):
            without = fast_paths(*(path for path in FAST_PATHS if path not in off))
            with without if when == "before" else nullcontext():
                found[when][name] = Row(spec, stream)
        now = found["now"][name]
        ratio = sum(found["before"][name].epoch) / sum(now.epoch) if found["before"] else float("nan")
        taken = f"{sum(now.epoch):7.2f} s an epoch, {now.besides:4.1f} s besides"
        print(f"{name:28s}{taken}, {ratio:.2f} times as fast as before", flush=True)
    summary: dict[str, Any] = {}
    if not asked.rows:
        if found["before"]:
            summary["before_minutes_two_cores"] = table_seconds(found["before"], protocol, shared=False) / 120
        summary["not_shared_minutes_two_cores"] = table_seconds(found["now"], protocol, shared=False) / 120
        summary["now_minutes_two_cores"] = table_seconds(found["now"], protocol, shared=True) / 120
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
