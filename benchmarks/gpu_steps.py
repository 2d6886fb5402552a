"""What a captured step consists of: its time, its kernels and the longest of them, with dense and sparse inputs.

    python -m benchmarks.gpu_steps [--data-root DATA] [--all] [METHOD …]     # on a GPU, about 40 seconds

Streams: ogbn-arxiv's size (dense inputs) and Coauthor-CS (sparse ones; a generated graph like it if its file is not
available). Methods: by default `finetune` and `curvature`. Steps follow one another as in training, so that time in
which Python keeps the device waiting counts; `device_us` is the sum of the kernels alone. `--all` lists the kernels of
a step in order.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import arxiv_like
from benchmarks.setting import Steps, coauthor, make_context, remember
from evergraph.core.shortcuts import FAST_PATHS, fast_paths, tensor_cores
from evergraph.data.streams import TaskStream
from evergraph.data.tasks import Task
from evergraph.methods import make_method
from evergraph.models.gcn import GCN
from evergraph.training.executors import Executor, executor_for
from evergraph.training.step import train_step

EPOCHS, SECONDS = 3, 1.0  # epochs until every shape is captured; seconds of timing


class TrainingSteps:
    """Epochs of steps by the executor that the training loop would choose."""

    def __init__(self, task: Task, name: str, device: torch.device) -> None:
        past = 0 if name == "finetune" else 2
        context = make_context(GCN(), task, past, str(device))
        steps = Steps(context, remember(make_method(name), context, past))
        self.context = context
        step = partial(train_step, context, steps.method, optimizer=steps.optimizer)
        self.executor: Executor = executor_for(context, steps.method, step)
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        for _ in range(EPOCHS):
            self.epoch()

    def epoch(self) -> int:
        """Run one epoch as in the training loop; return its number of steps."""
        seeds, number = self.context.train, 0
        order = torch.randperm(seeds.numel()).to(seeds.device)
        with tensor_cores(seeds.device):
            for batch in self.executor.batches(seeds[order]):
                self.total += self.executor.step(batch)
                number += 1
        return number


def step_figures(task: Task, name: str, device: torch.device, in_order: bool = False) -> dict[str, Any]:
    """Microseconds of a step, its number of kernels, and the times of the longest kernels, or of each in order."""
    steps = TrainingSteps(task, name, device)
    torch.cuda.synchronize(device)
    number, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        number += steps.epoch()
        torch.cuda.synchronize(device)
    microseconds = 1e6 * (time.perf_counter() - begin) / number
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        number = steps.epoch()
        torch.cuda.synchronize(device)
    kernels = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    times: Counter[str] = Counter()
    for event in kernels:
        times[event.name] += event.device_time
    longest = {kernel[:60]: round(spent / number, 1) for kernel, spent in times.most_common(8)}
    last = sorted(kernels, key=lambda event: event.time_range.start)[-round(len(kernels) / number) :]
    found = {
        "us": round(microseconds, 1),
        "device_us": round(sum(times.values()) / number, 1),
        "kernels": round(len(kernels) / number, 1),
        "how": steps.executor.how(),
        "longest_us": longest,
    }
    if in_order:
        found["in_order"] = [(event.name[:90], round(event.device_time, 1)) for event in last]
    steps.executor.close()
    return found


def main() -> None:
    """Print one line of JSON for each stream, method and form of inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=["finetune", "curvature"])
    parser.add_argument("--data-root")
    parser.add_argument("--all", action="store_true", help="list the kernels of a step in order")
    given = parser.parse_args()
    device = torch.device("cuda")
    words, source = coauthor(given.data_root)
    tasks = {"arxiv-size": TaskStream(arxiv_like(quick=False), 6)[1], source: TaskStream(words, 3)[2]}
    for stream, task in tasks.items():
        forms = {"sparse": FAST_PATHS, "dense": tuple(name for name in FAST_PATHS if name != "sparse")}
        for form, names in forms.items():
            if stream == "arxiv-size" and form == "sparse":
                continue  # its inputs are dense anyway
            for method in given.methods:
                with fast_paths(*names):
                    found = step_figures(task, method, device, given.all)
                print(json.dumps({"stream": stream, "inputs": form, "method": method, **found}), flush=True)


if __name__ == "__main__":
    main()
