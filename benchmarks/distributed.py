"""Several processes: training with two over one, and the closed form over a graph in parts with one to many."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cost_model import Run, Workload, compare_with_model
from benchmarks.generated_parts import FEATURES, MATCHINGS, write_generated
from benchmarks.resident import Peak, child_environment
from evergraph.errors import EvergraphError

NODES, HIDDEN = 10_000_000, 80
SECONDS = 300.0  # time limit of a run
LEAST_MB = 2**-8  # a page: counted for a run whose peak is not above that of the small graph before it


# work of a child process


def _closed_form(folder: str) -> dict[str, Any]:
    """Read, propagate, sum and solve, and predict the test nodes; return the seconds of each phase and the peak memory.

    Processor time is that of the busiest process, without waiting.
    """
    import torch

    import evergraph as eg
    from evergraph.core.workers import workers
    from evergraph.data.parts import read_parts, task_of_parts
    from evergraph.models.parts import propagated
    from evergraph.training.parts import accuracy_on_parts

    group, small = workers(), eg.stream("sbm:nodes=8000,classes=16,features=32")
    with Peak() as before:
        _learner().learn(small[0])  # loads libraries and allocates their buffers
    seconds, own_seconds = dict[str, float](), dict[str, float]()
    with Peak(group.size) as peak:
        clock, own_clock = time.perf_counter(), time.process_time() - peak.seconds

        def lap(name: str) -> None:
            nonlocal clock, own_clock
            own_now = time.process_time() - peak.seconds
            group.barrier()
            now = time.perf_counter()
            seconds[name], clock = now - clock, now
            own_seconds[name], own_clock = own_now - own_clock, time.process_time() - peak.seconds

        graph, _ = read_parts(folder)
        task = task_of_parts(graph)
        test, task.test = task.test, task.test[:0]  # measured apart from learning
        learner = _learner()
        lap("read")
        model: Any = learner.model
        propagated(graph, model.propagated_inputs(), torch.float32, model.input_scaling())
        lap("propagate")
        learner.learn(task)
        lap("sums")
        accuracy = accuracy_on_parts(learner, graph, test)
        lap("test")
    own = torch.tensor([[peak.megabytes, before.megabytes, *own_seconds.values()]], dtype=torch.float64)
    of_all = group.stack(own, group.size)
    sent = int(group.sum([torch.tensor([graph.cache["bytes_sent"]])])[0]) / group.size
    return {
        **{f"{name}_seconds": value for name, value in seconds.items()},
        "seconds": sum(seconds.values()),
        **{f"own_{name}_seconds": float(of_all[:, 2 + i].max()) for i, name in enumerate(own_seconds)},
        "own_seconds": float(of_all[:, 2:].max(0).values.sum()),
        "peak_mb": float(of_all[:, 0].max()),
        "own_mb": max(float((of_all[:, 0] - of_all[:, 1]).max()), LEAST_MB),
        "sent_mb": sent / 2**20,
        "accuracy": accuracy,
    }


def _closed_form_sent(folder: str) -> dict[str, Any]:
    """The same with rows sent between processes, as between machines."""
    from evergraph.core.shortcuts import FAST_PATHS, fast_paths

    with fast_paths(*(name for name in FAST_PATHS if name != "shared")):
        return _closed_form(folder)


def _learner() -> Any:
    import evergraph as eg

    return eg.Learner(eg.RandomFeatures(hidden=HIDDEN), eg.Analytic(ridge=0.2), device="cpu")


def _training(method: str) -> dict[str, Any]:
    """Wall-clock and processor seconds of an epoch of 8 batches of 2,048 seeds, on the second task."""
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
    """Run a child process, such as `closed-form FOLDER` or `training METHOD`; the first one prints the result."""
    import torch

    from evergraph.core.workers import join_workers

    torch.set_num_threads(1)
    group = join_workers()
    jobs = {"closed-form": _closed_form, "closed-form-sent": _closed_form_sent, "training": _training}
    found = jobs[sys.argv[1]](sys.argv[2])
    if group.rank == 0:
        print(json.dumps(found), flush=True)
    os._exit(0)


def together(processes: int, *words: object, seconds: float = SECONDS) -> dict[str, Any]:
    """Run child processes, for at most `seconds`, and return what the first one printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**child_environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        shared.setdefault("GLOO_SOCKET_IFNAME", "lo")  # exists without a network, too
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
        printed, _ = children[0].communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise EvergraphError(f"bench: {processes} processes took longer than {seconds:.0f} s") from None
    finally:
        for child in children:
            if children[0].returncode != 0:
                child.kill()
            child.wait()
    if children[0].returncode or not printed:
        raise EvergraphError(f"bench: {processes} processes failed with status {children[0].returncode}")
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


# measurements


def distributed_figures(
    *,
    nodes: int = NODES,
    counts: Sequence[int] = (1, 2, 4, 8),
    training: bool = True,
    folder: Path | None = None,
    seconds: float | None = None,
    on_part: Callable[[str], None] | None = None,
    on_figures: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure training with two processes over one, and strong and weak scaling of the closed form.

    The processes share memory; in one more run, with the smallest of several counts, they send rows, as between
    machines. A run that fails, or has no time left, is listed under `missing`, and the others are still run.

    Args:
        nodes: number of nodes of the largest graph; it has ten undirected edges per node.
        counts: numbers of processes; the largest has the largest graph in weak scaling.
        training: whether to measure training steps, too.
        folder: where the graphs are written and kept; a temporary folder by default.
        seconds: time after which no run is begun or kept, including writing the graphs; unlimited by default.
        on_part: called with the name of each measurement.
        on_figures: called with all figures whenever there are new ones.
    """
    say, tell, begun = on_part or (lambda part: None), on_figures or (lambda figures: None), time.perf_counter()
    figures: dict[str, Any] = {"nodes": nodes, "edges": nodes * MATCHINGS, "cores": os.cpu_count(), "missing": []}

    def measured(about: str, count: int, *words: object) -> dict[str, Any] | None:
        say(about)
        left = SECONDS if seconds is None else min(SECONDS, begun + seconds - time.perf_counter())
        try:
            if left <= 0:
                raise EvergraphError("no time left")
            return together(count, *words, seconds=left)
        except EvergraphError as error:
            figures["missing"].append(f"{about}: {error}")
            return None

    for method, name in (("finetune", "plain"), ("curvature", "curvature")) if training else ():
        found = [measured(f"training with {method}, processes: {count}", count, "training", method) for count in (1, 2)]
        one, two = found
        if one and two:
            figures[f"{name}_two_over_one"] = one["seconds"] / two["seconds"]
            figures[f"{name}_two_over_one_own_time"] = one["own_seconds"] / two["own_seconds"]
            figures[f"{name}_epoch_seconds"] = [one["seconds"], two["seconds"]]
            tell(figures)
    most, runs = max(counts), list[Run]()
    with tempfile.TemporaryDirectory() as scratch:
        sizes = [nodes * count // most for count in counts]
        graphs = {size: (folder or Path(scratch)) / f"generated-{size}" for size in sizes}
        say(f"writing graphs of {', '.join(f'{size:,}' for size in sizes)} nodes")
        clock = time.perf_counter()
        write_generated({size: to for size, to in graphs.items() if not to.exists()}, 2 * most, os.cpu_count() or 1)
        figures["write_seconds"] = time.perf_counter() - clock
        for kind, count in _order(counts):
            size = nodes if kind == "strong" else nodes * count // most
            how = "rows sent" if kind == "sent" else f"{kind} scaling"
            about = f"closed form, {how}, processes: {count}, nodes: {size:,}"
            found = measured(about, count, "closed-form-sent" if kind == "sent" else "closed-form", graphs[size])
            if found is not None:
                runs.append(Run(kind, count, workload(size), found))
                if (kind, count) == ("strong", most):  # it counts as weak scaling, too
                    runs.append(Run("weak", count, runs[-1].workload, found))
                figures |= closed_form_figures(runs)
                figures["seconds"] = time.perf_counter() - begun
                tell(figures)
    figures["seconds"] = time.perf_counter() - begun
    tell(figures)
    return figures


def workload(nodes: int) -> Workload:
    """The workload of a generated graph with this number of nodes."""
    return Workload(nodes, 2 * MATCHINGS, FEATURES, HIDDEN)


def _order(counts: Sequence[int]) -> list[tuple[str, int]]:
    """The runs, most informative first: the most processes, one process, and the counts between."""
    ascending = sorted({*counts})
    order = [("strong", ascending[-1])]
    for count in ascending[:-1]:
        order += [("strong", count), ("weak", count)]
    return order + [("sent", count) for count in [count for count in ascending if count > 1][:1]]


def closed_form_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Figures of the closed form: the runs, their scaling, and the errors of the cost model."""
    return {
        "runs": [run.as_dict() for run in runs],
        **scaling(runs),
        "model": compare_with_model(runs),
        "model_own": compare_with_model(runs, "own_"),
    }


def scaling(runs: Sequence[Run]) -> dict[str, Any]:
    """Speed-ups over the fewest processes, efficiency if the graph grows, and memory relative to an equal share.

    `memory_share_P` is the largest peak of P processes over that of one, times P: 1 is an equal share. It counts memory
    above that of a process that has loaded its libraries and learned a small graph; `resident_share_P` counts all.
    """
    strong = {run.processes: run.found for run in runs if run.kind == "strong"}
    weak = {run.processes: run.found for run in runs if run.kind == "weak"}
    figures: dict[str, Any] = {}
    for count, found in sorted(strong.items()):
        least = strong[min(strong)]
        figures[f"strong_{count}"] = least["seconds"] / found["seconds"]
        figures[f"strong_{count}_own_time"] = least["own_seconds"] / found["own_seconds"]
        figures[f"memory_share_{count}"] = found["own_mb"] * count / (least["own_mb"] * min(strong))
        figures[f"resident_share_{count}"] = found["peak_mb"] * count / (least["peak_mb"] * min(strong))
    for count, found in sorted(weak.items()):
        figures[f"weak_{count}"] = weak[min(weak)]["seconds"] / found["seconds"]
        figures[f"weak_{count}_own_time"] = weak[min(weak)]["own_seconds"] / found["own_seconds"]
    if {1, 2} <= strong.keys():
        figures["closed_form_two_over_one"] = strong[1]["seconds"] / strong[2]["seconds"]
        figures["closed_form_two_over_one_own_time"] = strong[1]["own_seconds"] / strong[2]["own_seconds"]
    return figures
