"""The figures that need a GPU: steps replayed as CUDA graphs against eager ones, and a stream of ogbn-arxiv's size."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.baselines import pyg_step
from benchmarks.setting import Steps, coauthor_like, make_context, remember
from benchmarks.timing import Contender, alternate
from evergraph.core.shortcuts import FAST_PATHS, fast_paths, tensor_cores
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph
from evergraph.data.streams import TaskStream
from evergraph.data.tasks import Task
from evergraph.methods import Finetune, OnlineCurvature
from evergraph.methods.base import Method
from evergraph.models.gcn import GCN
from evergraph.training.executors.captured import CapturedExecutor
from evergraph.training.executors.cuda_graphs import can_capture
from evergraph.training.learner import Learner
from evergraph.training.side_by_side import side_by_side
from evergraph.training.step import train_step

Figures = dict[str, float]


def arxiv_like(quick: bool) -> Graph:
    """169,343 nodes, 1.2 million edges, 128 features, 36 classes; if `quick`, a tenth of the nodes and edges."""
    return sbm(nodes=16_934 if quick else 169_343, classes=36, degree=14, features=128, signal=3.0, seed=0)


class Replayed:
    """Training steps as in the training loop on a GPU: replayed, with batch assembly and optimizer."""

    def __init__(self, steps: Steps) -> None:
        context, method = steps.context, steps.method
        assert can_capture(context, method, "padded")
        self.executor = CapturedExecutor(context, lambda batch: train_step(context, method, batch, steps.optimizer))
        self.pieces = list(self.executor.batches(torch.cat(steps.pieces)))
        with tensor_cores(context.device):  # as in the training loop
            for _ in range(3):  # every shape is run, watched, then captured
                for piece in self.pieces:
                    self.executor.step(piece)
        self.done = 0

    def __call__(self) -> object:
        """Take one step."""
        self.done += 1
        return self.executor.step(self.pieces[self.done % len(self.pieces)])


def gpu_figures(device: torch.device, quick: bool) -> Figures:
    """All figures of the GPU."""
    stream = TaskStream(arxiv_like(quick), 6)
    found = _step_figures(stream[1], device, 2.0 if quick else 5.0)
    found |= _kernel_figures(stream[1], device)
    found["gpu_loss_difference"] = _loss_difference(stream, device)
    found |= side_by_side_figures(device, quick)
    clock = time.perf_counter()
    learner = Learner(GCN(), OnlineCurvature(), epochs=5 if quick else 50, device=str(device))
    average = sum(learner.fit(stream).evaluate(stream).accuracies) / len(stream)
    torch.cuda.synchronize(device)
    return {**found, "gpu_stream_seconds": time.perf_counter() - clock, "gpu_stream_average_accuracy": average}


def _kernel_figures(task: Task, device: torch.device) -> Figures:
    """Microseconds of consecutive steps, and the number of kernels in each."""
    from benchmarks.gpu_steps import step_figures  # imports this module

    found: Figures = {}
    for name, method in (("plain", "finetune"), ("exact", "curvature")):
        figures = step_figures(task, method, device)
        found |= {f"gpu_{name}_{key}": figures[key] for key in ("us", "device_us", "kernels")}
    return found


def side_by_side_figures(device: torch.device, quick: bool, members: int = 15) -> Figures:
    """Time of several seeds, and of three seeds of several strengths, stacked in one process, over one run.

    Exact curvature on a graph of Coauthor-CS's size.
    """
    graph, epochs = coauthor_like(), 50 if quick else 200

    def learn(seed: int, strength: float = 0.1) -> None:
        stream = TaskStream(graph, 3, seed=seed)
        Learner(GCN(), OnlineCurvature(strength), epochs=epochs, device=str(device), seed=seed).fit(stream)

    def seconds(jobs: list[Callable[[], None]]) -> float:
        clock = time.perf_counter()
        for outcome in side_by_side(jobs, device, kin=["all"] * len(jobs)):
            if isinstance(outcome, Exception):
                raise outcome
        return time.perf_counter() - clock

    learn(0)  # loads libraries
    alone = seconds([partial(learn, 0)])
    seeds = seconds([partial(learn, seed) for seed in range(members)])
    strengths = seconds([partial(learn, number % 3, 0.1 * (1 + number // 3)) for number in range(members)])
    return {
        f"gpu_{members}_seeds_over_one": seeds / alone,
        f"gpu_{members}_settings_over_one": strengths / alone,
        "gpu_one_seed_seconds": alone,
    }


def _steps(task: Task, device: torch.device, method: Method, past: int) -> Steps:
    context = make_context(GCN(), task, past, str(device))
    return Steps(context, remember(method, context, past))


def _step_figures(task: Task, device: torch.device, seconds: float) -> Figures:
    plain = _steps(task, device, Finetune(), 0)
    exact = _steps(task, device, OnlineCurvature(), 2)
    contenders: dict[str, Contender] = {
        "plain_eager": plain,
        "exact_eager": exact,
        "pyg": pyg_step(plain),
        "plain": Replayed(_steps(task, device, Finetune(), 0)),
        "exact": Replayed(_steps(task, device, OnlineCurvature(), 2)),
    }
    found = alternate(contenders, seconds=seconds, device=device)
    return {
        "gpu_pyg_over_evergraph": found["pyg"] / found["plain"],
        "gpu_pyg_over_evergraph_curvature": found["pyg"] / found["exact"],
        "gpu_curvature_over_plain": found["exact"] / found["plain"],
        "gpu_eager_over_captured": found["plain_eager"] / found["plain"],
        "gpu_eager_over_captured_curvature": found["exact_eager"] / found["exact"],
        "gpu_plain_step_ms": 1e3 * found["plain"],
        "gpu_pyg_step_ms": 1e3 * found["pyg"],
    }


def _loss_difference(stream: TaskStream, device: torch.device) -> float:
    """Largest relative difference of an epoch's loss, captured against eager: two tasks with `curvature`, same seed."""
    logs = []
    for names in (FAST_PATHS, tuple(name for name in FAST_PATHS if name != "capture")):
        with fast_paths(*names):
            learner = Learner(GCN(), OnlineCurvature(), epochs=3, device=str(device))
            logs.append([row["loss"] for index in range(2) for row in learner.learn(stream[index])])
    return max(abs(a - b) / abs(b) for a, b in zip(*logs))


def main() -> None:
    """Print the GPU's figures as one line of JSON: `python -m benchmarks.gpu [--quick]`."""
    print(json.dumps(gpu_figures(torch.device("cuda"), "--quick" in sys.argv[1:])))


if __name__ == "__main__":
    main()
