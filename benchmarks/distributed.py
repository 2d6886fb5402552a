"""Several processes: how much faster two train than one, and the closed form over a graph in parts from one to many.

The graph is made in parts, by as many processes as there are cores. Its edges are ten random permutations of the
nodes, which every process can compute, and invert, for its own rows: nothing is exchanged or sorted, and neighbours
are anywhere, which is the worst case for an exchange of rows. Eight of ten keep the class (homophily 0.8).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cost_model import Run, Workload, compare_with_model
from benchmarks.resident import child_environment, peak_megabytes
from evergraph.data.parts import write_part, write_parts_header
from evergraph.errors import EvergraphError

NODES, MATCHINGS, CLASSES, FEATURES, HIDDEN = 10_000_000, 10, 16, 32, 80
KEEP_CLASS = 8  # of the permutations
SECONDS = 300  # that one run may take


def write_generated(folder: Path, nodes: int, parts: int, workers: int) -> Path:
    """A graph in parts with `MATCHINGS` undirected edges a node, each part made by itself."""
    nodes -= nodes % (CLASSES * parts)
    folder.mkdir(parents=True)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(_make_part, [str(folder)] * parts, [nodes] * parts, [parts] * parts, range(parts)))
    starts = [number * (nodes // parts) for number in range(parts)]
    write_parts_header(folder, "generated", list(range(CLASSES)), FEATURES, starts)
    return folder


def _make_part(folder: str, nodes: int, parts: int, number: int) -> None:
    size = nodes // parts
    rows = np.arange(number * size, (number + 1) * size, dtype=np.int64)
    random = np.random.default_rng([3, number])
    y = (rows % CLASSES).astype(np.int64)
    means = np.random.default_rng(0).standard_normal((CLASSES, FEATURES)).astype(np.float32) * 0.1
    x = random.standard_normal((size, FEATURES), dtype=np.float32) + means[y]
    neighbours = np.empty((size, 2 * MATCHINGS), dtype=np.int32)
    for which, (factor, inverse, shift) in enumerate(_permutations(nodes)):
        kept = which < KEEP_CLASS
        place, base = (rows // CLASSES, nodes // CLASSES) if kept else (rows, nodes)
        to = (place * factor + shift) % base
        back = (place - shift) * inverse % base
        neighbours[:, 2 * which] = to * CLASSES + y if kept else to
        neighbours[:, 2 * which + 1] = back * CLASSES + y if kept else back
    split = np.digitize(random.random(size), [0.6, 0.8]).astype(np.int8)
    indptr = np.arange(size + 1, dtype=np.int64) * (2 * MATCHINGS)
    arrays = {"y": y, "split": split, "indptr": indptr, "indices": neighbours.reshape(-1), "x": x}
    write_part(Path(folder), number, arrays)


def _permutations(nodes: int) -> list[tuple[int, int, int]]:
    """(a, a⁻¹, c) of the permutations u → a u + c of all nodes, or of those of a class."""
    random, found = np.random.default_rng(5), []
    for which in range(MATCHINGS):
        base = nodes // CLASSES if which < KEEP_CLASS else nodes
        # below 2^31, so that products with numbers of nodes below 2^31 fit into 64 bits
        factor = int(random.integers(base // 3, base))
        while np.gcd(factor, base) != 1:
            factor += 1
        found.append((factor, pow(factor, -1, base), int(random.integers(base))))
    return found


# what a process does


def _closed_form(folder: str) -> dict[str, Any]:
    """Read, propagate, add up, solve, predict the test nodes; seconds of each, and the peak of memory."""
    import torch

    import evergraph as eg
    from evergraph.core.workers import workers
    from evergraph.data.parts import read_parts, task_of_parts
    from evergraph.models.parts import propagated
    from evergraph.training.parts import accuracy_on_parts

    small = eg.stream("sbm:nodes=8000,classes=16,features=32")
    _learner().learn(small[0])  # libraries are loaded and have their buffers
    group, before, clock = workers(), peak_megabytes(), time.perf_counter()
    seconds, own_seconds = dict[str, float](), dict[str, float]()
    own_clock = time.process_time()

    def lap(name: str) -> None:
        nonlocal clock, own_clock
        own_now = time.process_time()
        group.barrier()
        now = time.perf_counter()
        seconds[name], clock = now - clock, now
        own_seconds[name], own_clock = own_now - own_clock, time.process_time()

    graph, _ = read_parts(folder)
    task, test = task_of_parts(graph)
    learner = _learner()
    lap("read")
    propagated(graph, learner.model.propagated_inputs(), torch.float32)  # type: ignore[operator]
    lap("propagate")
    learner.learn(task)
    lap("sums")
    accuracy = accuracy_on_parts(learner, graph, test)
    lap("test")
    memory = torch.tensor([peak_megabytes(), before, *own_seconds.values()], dtype=torch.float64).unsqueeze(0)
    peaks = group.stack(memory, group.size)
    sent = int(group.sum([torch.tensor([graph.cache["bytes_sent"]])])[0]) / group.size
    return {
        **{f"{name}_seconds": value for name, value in seconds.items()},
        "seconds": sum(seconds.values()),
        **{f"own_{name}_seconds": float(peaks[:, 2 + i].max()) for i, name in enumerate(own_seconds)},
        "own_seconds": float(peaks[:, 2:].max(0).values.sum()),  # processor time of the busiest process: no waiting
        "peak_mb": float(peaks[:, 0].max()),
        "own_mb": float((peaks[:, 0] - peaks[:, 1]).max()),
        "sent_mb": sent / 2**20,
        "accuracy": accuracy,
    }


def _learner() -> Any:
    import evergraph as eg

    return eg.Learner(eg.RandomFeatures(hidden=HIDDEN), eg.Analytic(ridge=0.2), device="cpu")


def _training(method: str) -> dict[str, Any]:
    """Seconds of an epoch of 8 batches of 2,048 seeds, on the wall and of this process's own time; the second task."""
    import torch

    import evergraph as eg
    from evergraph.core.workers import workers
    from evergraph.data.datasets.sbm import sbm

    graph = sbm(nodes=200_000, classes=4, degree=10, features=128, signal=1.0, seed=0)
    group, marks = workers(), list[tuple[float, float]]()
    learner = eg.Learner(eg.GCN(hidden=256), method, batch_size=2048, epochs=1, device="cpu", label_scope="seen")
    tasks = [eg.Task.of(graph, names) for names in (graph.class_names[:2], graph.class_names[2:])]
    for task in tasks:
        task.train, task.test = task.train[: 8 * 2048], task.test[:0]
    learner.learn(tasks[0])
    learner.training = eg.Training(**{**vars(learner.training), "epochs": 6})
    learner.learn(tasks[1], lambda progress, epochs: marks.append((time.perf_counter(), time.process_time())))
    gaps = np.diff(np.array(marks), axis=0)
    own = group.stack(torch.from_numpy(gaps[:, 1]).unsqueeze(0), group.size).max(0).values  # the busiest process
    return {"seconds": float(np.median(gaps[:, 0])), "own_seconds": float(own.median())}


def main() -> None:
    """What a child process does: `closed-form FOLDER` or `training METHOD`; the first prints what came of it."""
    import torch

    from evergraph.core.workers import join_workers

    torch.set_num_threads(1)
    group = join_workers()
    found = {"closed-form": _closed_form, "training": _training}[sys.argv[1]](sys.argv[2])
    if group.rank == 0:
        print(json.dumps(found), flush=True)
    os._exit(0)


def together(processes: int, *words: object) -> dict[str, Any]:
    """What the first of some processes printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**child_environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from benchmarks.distributed import main; main()", *map(str, words)]
    children = [
        subprocess.Popen(
            command,
            env={**shared, "WORLD_SIZE": str(processes), "RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        printed, _ = children[0].communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise EvergraphError(f"bench: {processes} processes took longer than {SECONDS} s") from None
    finally:
        for child in children:
            child.kill() if child.poll() is None and children[0].returncode else child.wait()
    if children[0].returncode or not printed:
        raise EvergraphError(f"bench: {processes} processes failed with status {children[0].returncode}")
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


# what is measured


def distributed_figures(
    *,
    nodes: int = NODES,
    counts: Sequence[int] = (1, 2, 4, 8),
    training: bool = True,
    folder: Path | None = None,
    on_part: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Training with two processes over one; the closed form with `counts` processes, strong and weak scaling.

    Args:
        nodes: of the largest graph; it has ten undirected edges a node.
        counts: numbers of processes; the largest has the largest graph in weak scaling.
        training: whether training steps are measured too.
        folder: where the graphs are written and left; a temporary one by default.
        on_part: told what is measured.
    """
    say, begun = on_part or (lambda part: None), time.perf_counter()
    figures: dict[str, Any] = {"nodes": nodes, "edges": nodes * MATCHINGS, "cores": os.cpu_count()}
    for method in ("finetune", "curvature") if training else ():
        say(f"training with {method}, one process and two")
        one, two = (together(count, "training", method) for count in (1, 2))
        name = {"finetune": "plain", "curvature": "curvature"}[method]
        figures[f"{name}_two_over_one"] = one["seconds"] / two["seconds"]
        figures[f"{name}_two_over_one_own_time"] = one["own_seconds"] / two["own_seconds"]
        figures[f"{name}_epoch_seconds"] = [one["seconds"], two["seconds"]]
    most, runs = max(counts), list[Run]()
    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch)
        graphs: dict[int, Path] = {}
        for count in counts:
            size = nodes * count // most
            graphs[count] = place / f"generated-{size}"
            if not graphs[count].exists():
                say(f"writing {size:,} nodes")
                clock = time.perf_counter()
                write_generated(graphs[count], size, 2 * most, os.cpu_count() or 1)
                figures[f"write_{size}_seconds"] = time.perf_counter() - clock
        for count in sorted({*counts}, reverse=True):
            for kind, size_of in (("strong", most), ("weak", count)):
                if kind == "weak" and count == most:
                    continue  # the same as strong
                size = nodes * size_of // most
                say(f"closed form, {kind} scaling: {count} processes, {size:,} nodes")
                found = together(count, "closed-form", graphs[size_of])
                runs.append(Run(kind, count, Workload(size, 2 * MATCHINGS, FEATURES, HIDDEN), found))
                if count == most:
                    runs.append(Run("weak", count, runs[-1].workload, found))
    figures["runs"] = [run.as_dict() for run in runs]
    figures |= scaling(runs)
    figures["model"] = compare_with_model(runs)
    figures["model_own"] = compare_with_model(runs, "own_")
    figures["seconds"] = time.perf_counter() - begun
    return figures


def scaling(runs: Sequence[Run]) -> dict[str, Any]:
    """Speed-ups over one process, efficiency where the graph grows, and memory against an equal share."""
    strong = {run.processes: run.found for run in runs if run.kind == "strong"}
    weak = {run.processes: run.found for run in runs if run.kind == "weak"}
    figures: dict[str, Any] = {}
    for count, found in sorted(strong.items()):
        figures[f"strong_{count}"] = strong[min(strong)]["seconds"] / found["seconds"]
        # 1 is an equal share of what one process needs beyond an empty one
        figures[f"memory_share_{count}"] = found["own_mb"] * count / (strong[min(strong)]["own_mb"] * min(strong))
    for count, found in sorted(weak.items()):
        figures[f"weak_{count}"] = weak[min(weak)]["seconds"] / found["seconds"]
    if {1, 2} <= strong.keys():
        figures["closed_form_two_over_one"] = strong[1]["seconds"] / strong[2]["seconds"]
        figures["closed_form_two_over_one_own_time"] = strong[1]["own_seconds"] / strong[2]["own_seconds"]
    return figures
