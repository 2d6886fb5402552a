"""Time of an epoch of each row of the paper's Coauthor-CS table on a GPU, three seeds at a time.

    python -m benchmarks.gpu_rows --data-root DATA [--tasks 3] [--kernels 8] [ROW …]     # about four seconds a row

One process at a time, on the third task: milliseconds per epoch by the clock and by the kernels alone, the number of
kernels, and the seconds outside the epochs of three tasks (set-up, recording of steps, ends of tasks, tests). `--tasks`
chooses another task, `--kernels` lists the longest kernels, in milliseconds per epoch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from evergraph.data.streams import TaskStream
from evergraph.experiments.paper.protocol import Protocol
from evergraph.experiments.specification import RunSpec
from evergraph.training import Progress
from evergraph.training.side_by_side import together

EPOCHS, TRACED = 40, 4  # epochs of each task; and how many of the last task's are profiled


class Epochs:
    """Trains one row on the first tasks, and times and profiles the epochs of the last one."""

    def __init__(self, spec: RunSpec, tasks: int) -> None:
        self.spec, self.tasks, self.epoch, self.besides = spec, tasks, 0.0, 0.0
        self.profile = profile(activities=[ProfilerActivity.CUDA])
        self.how = ""

    def seed(self, number: int, stream: TaskStream) -> None:
        """Train one seed on its tasks; the first seed keeps the time."""
        learner = self.spec.learner(number, stream.problem)
        for index in range(self.tasks):
            marks = list[float]()

            def on_epoch(progress: Progress, epochs: int, index: int = index, marks: list[float] = marks) -> None:
                torch.cuda.synchronize()
                if number == 0 and index == self.tasks - 1 and progress.epoch == EPOCHS - TRACED:
                    marks.append(time.perf_counter())
                    self.profile.start()
                elif number == 0 and index == self.tasks - 1 and progress.epoch == EPOCHS:
                    self.profile.stop()
                elif progress.epoch < EPOCHS - TRACED:
                    marks.append(time.perf_counter())

            begun = time.perf_counter()
            learner.learn(stream[index], on_epoch)
            for graph in ("task", "seen"):
                learner.evaluate(stream, test_graph=graph)
            if number == 0:
                self.epoch = _median_length(marks)
                self.besides += time.perf_counter() - begun - EPOCHS * self.epoch
        self.how = learner.history[-1]["steps"]


def _median_length(marks: list[float]) -> float:
    return statistics.median(after - before for before, after in itertools.pairwise(marks))


def figures(spec: RunSpec, stream_of: dict[int, TaskStream], tasks: int, longest: int) -> dict[str, Any]:
    """Time and kernels of the last task's epochs."""
    epochs = Epochs(spec, tasks)
    begun = time.perf_counter()
    together([partial(epochs.seed, seed, stream_of[seed]) for seed in spec.seeds], torch.device("cuda"))
    total = time.perf_counter() - begun
    kernels = [event for event in epochs.profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    times: Counter[str] = Counter()
    for event in kernels:
        times[event.name[:60]] += event.device_time
    found = {kernel: round(spent / TRACED / 1e3, 3) for kernel, spent in times.most_common(longest)}
    return {
        "epoch_ms": round(1e3 * epochs.epoch, 2),
        "device_ms": round(sum(event.device_time for event in kernels) / TRACED / 1e3, 2),
        "kernels": round(len(kernels) / TRACED),
        "seconds": round(total, 2),
        "besides": round(epochs.besides, 2),
        "how": epochs.how,
        **({"longest_ms": found} if longest else {}),
    }


def main() -> None:
    """Print a line of JSON for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--data-root")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=0)
    asked = parser.parse_args()
    protocol = Protocol.load("paper", "coauthor-cs", asked.seeds, "cuda")
    streams: dict[int, TaskStream] = {}
    for name, row in protocol.rows(asked.rows or None).items():
        spec = protocol.spec(row, range(asked.seeds))
        spec = replace(spec, training=replace(spec.training, epochs=EPOCHS))
        streams = streams or {seed: spec.make_stream(seed, asked.data_root) for seed in spec.seeds}
        print(json.dumps({"row": name, **figures(spec, streams, asked.tasks, asked.kernels)}), flush=True)


if __name__ == "__main__":
    main()
