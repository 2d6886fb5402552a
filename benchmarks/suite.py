"""Speed benchmarks: every figure of `evergraph bench`, measured in one process with the contenders taking turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.baselines import has_pyg_sampler
from benchmarks.closed_form import auto_figures, auto_streams
from benchmarks.figures import Figures, ahead_figures, fisher_figures, sampler_figures, scaling_figures, step_figures
from benchmarks.gpu import gpu_figures
from benchmarks.large import large_figures
from benchmarks.methods import MOST_OVER_PLAIN, gpu_method_figures, method_figures
from benchmarks.resident import resident_megabytes
from benchmarks.setting import coauthor
from evergraph.data.streams import TaskStream

TASK = 2  # of the five tasks of Coauthor-CS: 2,070 nodes, the smallest


@dataclass(frozen=True)
class Target:
    """A figure's bound and meaning; a bound in seconds applies to the full graph, which `--quick` does not measure."""

    bound: float | None
    at_most: bool
    about: str
    full_size: bool = False

    def met(self, value: float) -> bool | None:
        """Whether a value meets the bound; None if there is no bound."""
        if self.bound is None:
            return None
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        return "reported" if self.bound is None else f"{'≤' if self.at_most else '≥'} {self.bound:g}"


TARGETS: dict[str, Target] = {
    "curvature_exact_over_plain": Target(1.5, True, "regularized step over a plain one, batch assembly included"),
    "queue_over_exact": Target(None, True, "the paper's queue (M = 128) over the exact estimator"),
    "tasks_50_over_2": Target(1.05, True, "exact step with 50 past tasks over 2: time"),
    "tasks_50_over_2_memory": Target(1.05, True, "exact step with 50 past tasks over 2: bytes kept"),
    "pyg_over_evergraph": Target(4, False, "dense-feature PyG GCN step over ours, plain"),
    "cut_ahead_over_plain": Target(1, True, "with --threads 2: an epoch with batches cut ahead over one without"),
    "ewc_10_tasks_over_plain": Target(1.3, True, "EWC step with 10 past tasks over a plain one"),
    "fisher_diagonal_over_epoch": Target(10, True, "exact per-node Fisher diagonal over a training epoch"),
    "resident_mb": Target(1000, True, "peak memory of a whole Coauthor-CS run"),
    "epoch_scaling": Target(1.3, True, "epoch at 1M nodes, 10M edges over 100k, 1M, per node"),
    "auto_learn_seconds": Target(8, True, "on two threads: seconds in which auto learns Coauthor-CS", full_size=True),
    "auto_learn_over_epoch": Target(None, True, "the same over a GCN's plain training, one epoch a task"),
    "auto_digits_seconds": Target(1.5, True, "on two threads: seconds in which auto learns the digits", full_size=True),
    "auto_digits_over_epoch": Target(None, True, "the same over a GCN's plain training, one epoch a task"),
    "auto_predict_seconds": Target(
        2,
        True,
        "on two threads: seconds in which auto predicts all of Coauthor-CS, edges between tasks",
        full_size=True,
    ),
    "auto_predict_over_gcn": Target(None, True, "the same over a GCN's prediction"),
    "auto_node_ms": Target(20, True, "on two threads: ms for one node of it, from a loaded learner", full_size=True),
    "auto_node_over_gcn": Target(None, True, "the same over a GCN's prediction"),
    "sampler_nodes_per_second": Target(None, False, "neighbour sampling, fan-out 10, 25"),
    "sampler_scipy_nodes_per_second": Target(None, False, "the same with scipy rows"),
    "sampler_pyg_nodes_per_second": Target(None, False, "the same with PyG"),
    "large_train_mb": Target(5000, True, "peak memory, 2.4M nodes and 60M edges from disk"),
    "large_train_seconds": Target(720, True, "its five tasks, one epoch each, tests included"),
    "gpu_pyg_over_evergraph": Target(5, False, "on the GPU: eager PyG step over ours, ogbn-arxiv's size"),
    "gpu_plain_us": Target(90, True, "on the GPU: µs of a plain captured step, ogbn-arxiv's size, one behind another"),
    "gpu_plain_kernels": Target(None, True, "on the GPU: kernels of such a step"),
    "gpu_curvature_over_plain": Target(1.2, True, "on the GPU: regularized step over a plain one"),
    "gpu_eager_over_captured": Target(None, False, "on the GPU: our eager step over the captured one"),
    "gpu_loss_difference": Target(
        1e-3, True, "on the GPU: largest relative difference of epoch losses, captured or not"
    ),
    "gpu_15_seeds_over_one": Target(
        3, True, "on the GPU: 15 seeds side by side in one process over one, Coauthor-CS's size"
    ),
    "gpu_15_settings_over_one": Target(
        3, True, "on the GPU: three seeds of five strengths side by side over one run, Coauthor-CS's size"
    ),
    "gpu_stream_seconds": Target(60, True, "on the GPU: 6-task stream of ogbn-arxiv's size, 50 epochs a task"),
}


def bench(
    *,
    quick: bool = False,
    large: bool = False,
    device: torch.device | str = "cpu",
    data_root: str | Path | None = None,
    threads: int = 1,
    on_part: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure all figures; return one dictionary, flat except for figures by method.

    See `TARGETS` for what they mean and docs/performance.md for measured values.

    Args:
        quick: fewer repetitions and a smaller pair of graphs for the scaling.
        large: also write and train a graph of ogbn-products' size; takes a quarter of an hour or more.
        device: where to measure; a GPU has figures of its own.
        data_root: folder of the datasets; without Coauthor-CS a generated graph like it is used.
        threads: threads of torch; one is the steadiest on a shared machine.
        on_part: called with the name of each part before it runs.
    """
    device = torch.device(device)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    start = time.perf_counter()
    found: dict[str, Any] = {}
    try:
        for part, measure in _parts(quick, large, device, data_root, threads, found):
            if on_part is not None:
                on_part(part)
            found |= measure()
    finally:
        torch.set_num_threads(before)
    found["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    found |= {"threads": threads, "quick": quick, "seconds": time.perf_counter() - start}
    return found


def _parts(
    quick: bool, large: bool, device: torch.device, data_root: str | Path | None, threads: int, found: dict[str, Any]
) -> Iterator[tuple[str, Callable[[], Figures]]]:
    graph, found["graph"] = coauthor(data_root)
    found["pyg_sampler"] = "NeighborLoader" if has_pyg_sampler() else "k_hop_subgraph (all neighbours; no pyg-lib)"
    seconds = 2.0 if quick else 20.0
    task = TaskStream(graph, 3)[TASK]
    if device.type == "cuda":
        yield "GPU", lambda: gpu_figures(device, quick)
        yield "every method's step on the GPU", lambda: gpu_method_figures(TaskStream(graph, 3), seconds / 40, device)
        return
    yield "training steps", lambda: step_figures(task, seconds)
    if threads > 1:
        yield "batches cut ahead", lambda: ahead_figures(task, seconds)
    yield "every method's step", lambda: method_figures(TaskStream(graph, 3), seconds / 10, torch.device("cpu"))
    yield "Fisher diagonal", lambda: fisher_figures(task, seconds)
    yield "memory of a run", lambda: {"resident_mb": resident_megabytes(data_root, 1 if quick else 5, threads)}
    yield "auto", lambda: auto_figures(*auto_streams(data_root, quick))
    yield "neighbour sampling", lambda: sampler_figures(seconds / 4, 20_000 if quick else 100_000)
    sizes = (20_000, 200_000) if quick else (100_000, 1_000_000)
    yield "scaling", lambda: scaling_figures(seconds, sizes)
    if large:
        yield "a graph larger than memory", large_figures


__all__ = ["MOST_OVER_PLAIN", "TARGETS", "Target", "bench"]
