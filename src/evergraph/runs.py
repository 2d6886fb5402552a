"""Runs: a stream, a method, some seeds; a folder that holds what came of it. Resumable, never half-finished."""

from __future__ import annotations

import csv
import io
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import evergraph
from evergraph.checkpoint import write_atomically
from evergraph.data.stream import TaskStream, TestGraph, stream
from evergraph.errors import EvergraphError, first_line
from evergraph.learner import Learner, pick_device
from evergraph.methods import make_method
from evergraph.models import make_model
from evergraph.results import average_forgetting, average_performance, mean_std
from evergraph.training import Progress, Training

ROW = list[float | None]
OnProgress = Callable[[int, int, int, int, int], None]
"""Called as (seed number, task, number of tasks, epoch, number of epochs)."""


@dataclass
class RunSpec:
    """Everything a run's numbers depend on, as plain values.

    Args:
        source: a stream's name or path.
        stream: settings of the stream (`order`, `test_graph`, `classes_per_task`, …).
        method: the method's name.
        settings: the method's hyper-parameters.
        model: the model's name.
        model_settings: the model's hyper-parameters.
        training: how a task is trained.
        seeds: one run each.
        device: `auto`, `cpu` or `cuda`.
        also_test: further test graphs on which the same learner is measured.
    """

    source: str
    stream: dict[str, Any] = field(default_factory=dict)
    method: str = "curvature"
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = "gcn"
    model_settings: dict[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    seeds: list[int] = field(default_factory=lambda: [0])
    device: str = "auto"
    also_test: list[TestGraph] = field(default_factory=list)

    def learner(self, seed: int) -> Learner:
        """A learner that has learned nothing yet."""
        model = make_model(self.model, **self.model_settings)
        return Learner(model, make_method(self.method, self.settings), self.training, device=self.device, seed=seed)

    def make_stream(self, seed: int, data_root: str | Path | None) -> TaskStream:
        """The stream as this seed splits it."""
        return stream(self.source, seed=seed, data_root=data_root, **self.stream)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "training": self.training.protocol()}


def run(
    spec: RunSpec,
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Run a specification into a folder and return its result, which is also `result.json` there.

    The folder has `run.json` (the specification and the versions) from the start; for each seed
    `seed-N/matrix.json`, `seed-N/log.csv` and, until the seed is done, a checkpoint; and `result.json`
    only when everything is done. With `resume` a stopped run goes on where it was.
    """
    folder = _open_folder(Path(out), spec, resume)
    if (folder / "result.json").exists():
        return read_result(folder)
    # everything that can be wrong with the input is found before anything is written
    device = pick_device(spec.device)
    first = spec.make_stream(spec.seeds[0], data_root)
    learner = spec.learner(spec.seeds[0])
    _write_new(folder, spec)
    results = []
    for number, seed in enumerate(spec.seeds):
        tasks = first if number == 0 else spec.make_stream(seed, data_root)
        results.append(_run_seed(spec, folder / f"seed-{seed}", tasks, seed, number, on_progress))
    matrices = [result["matrix"] for result in results]
    result = {
        "stream": spec.source,
        "method": spec.method,
        "hyperparameters": learner.method.hyperparameters(),
        "model": {"name": spec.model, **learner.model.hyperparameters()},
        "protocol": {**first.protocol(), **spec.training.protocol()},
        "seeds": spec.seeds,
        **_summary(matrices),
        "also_tested": {name: _summary([result["also_tested"][name] for result in results]) for name in spec.also_test},
        "validation": [result["validation"] for result in results],
        "task_classes": [list(map(str, task.class_names)) for task in first],
        "seconds": sum(result["seconds"] for result in results),
        "device": describe_device(device),
        "versions": versions(),
        "run_dir": str(folder),
    }
    write_atomically(folder / "result.json", json.dumps(result, indent=1))
    return result


def _summary(matrices: list[list[ROW]]) -> dict[str, Any]:
    return {
        "ap": mean_std([average_performance(matrix) for matrix in matrices]),
        "af": mean_std([average_forgetting(matrix) for matrix in matrices]),
        "matrices": matrices,
    }


def _run_seed(
    spec: RunSpec, folder: Path, tasks: TaskStream, seed: int, number: int, on_progress: OnProgress | None
) -> dict[str, Any]:
    """All tasks of one seed, from wherever an earlier attempt left off."""
    _make_folder(folder)
    matrix_file, checkpoint = folder / "matrix.json", folder / "checkpoint"
    empty: dict[str, Any] = {"matrix": [], "also_tested": {name: [] for name in spec.also_test}, "log": []}
    state: dict[str, Any] = {**empty, "validation": [], "seconds": 0.0, "finished": False}
    learner = spec.learner(seed)
    if matrix_file.exists():
        state = json.loads(matrix_file.read_text())
        if state["finished"]:
            return state
    if (checkpoint / "learner.json").exists():
        learner = Learner.load(checkpoint, device=spec.device)
        # a kill between the row's file and the checkpoint leaves one row too many: it is measured again
        state["matrix"] = state["matrix"][: learner.num_tasks]
        state["also_tested"] = {name: rows[: learner.num_tasks] for name, rows in state["also_tested"].items()}
        state["log"] = [row for row in state["log"] if row["task"] < learner.num_tasks]
    else:
        state = {**state, **empty}
    clock = time.perf_counter()
    saved = time.perf_counter()
    for index in range(learner.num_tasks, len(tasks)):

        def on_epoch(progress: Progress, epochs: int, index: int = index) -> None:
            nonlocal saved
            if on_progress is not None:
                on_progress(number, index, len(tasks), progress.epoch, epochs)
            if time.perf_counter() - saved > CHECKPOINT_SECONDS:
                learner.save(checkpoint)
                saved = time.perf_counter()

        log = learner.learn(learner.tasks_of(tasks)[index], on_epoch)
        state["matrix"].append(_row(learner, tasks, tasks.test_graph))
        for name in spec.also_test:
            state["also_tested"][name].append(_row(learner, tasks, name))
        state["validation"] = learner.validation_accuracies
        state["log"] += [{"task": index, **row} for row in log]
        state["seconds"] += time.perf_counter() - clock
        clock = time.perf_counter()
        state["finished"] = index == len(tasks) - 1
        write_atomically(matrix_file, json.dumps(state))
        if not state["finished"]:
            learner.save(checkpoint)
            saved = time.perf_counter()
    write_atomically(folder / "log.csv", _as_csv(state["log"]))
    for file in checkpoint.glob("*") if checkpoint.exists() else ():
        file.unlink()
    if checkpoint.exists():
        checkpoint.rmdir()
    return state


def _row(learner: Learner, tasks: TaskStream, test_graph: TestGraph) -> ROW:
    """The newest row of an accuracy matrix."""
    accuracies: ROW = [*learner.evaluate(tasks, test_graph=test_graph).accuracies]
    return accuracies + [None] * (len(tasks) - len(accuracies))


CHECKPOINT_SECONDS = 20.0  # within a task, at most so much work is lost


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["task", "epoch", "loss"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _open_folder(folder: Path, spec: RunSpec, resume: bool) -> Path:
    """Refuse to mix two runs in one folder."""
    config = folder / "run.json"
    if not config.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise EvergraphError(f"{folder} exists and is not a run's folder; name another with --out")
        return folder
    if not resume:
        raise EvergraphError(f"{folder} holds a run already; add --resume to go on with it, or name another with --out")
    try:
        saved = json.loads(config.read_text())["spec"]
    except (ValueError, KeyError):
        raise EvergraphError(f"{config} is damaged; name another folder with --out") from None
    wanted = json.loads(json.dumps(spec.as_dict()))
    if saved != wanted:
        keys = [key for key in wanted if saved.get(key) != wanted[key]]
        raise EvergraphError(f"{folder} holds a run with other settings ({', '.join(keys)}); name another with --out")
    return folder


def _write_new(folder: Path, spec: RunSpec) -> None:
    _make_folder(folder)
    if not (folder / "run.json").exists():
        content = {
            "spec": spec.as_dict(),
            "versions": versions(),
            "device": describe_device(pick_device(spec.device)),
        }
        write_atomically(folder / "run.json", json.dumps(content, indent=1))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvergraphError(f"cannot write to {folder} ({first_line(error)}); name another with --out") from None


def read_result(folder: str | Path) -> dict[str, Any]:
    """A finished run's result."""
    path = Path(folder) / "result.json"
    if not path.exists():
        state = "a run that is not finished" if (Path(folder) / "run.json").exists() else "no run"
        raise EvergraphError(f"{folder} holds {state}; finish it with --resume or name a run's folder")
    try:
        result = json.loads(path.read_text())
        if not {"matrices", "ap", "af", "method", "protocol"} <= result.keys():
            raise ValueError("keys are missing")
    except (ValueError, AttributeError) as error:
        raise EvergraphError(f"{path} is damaged ({first_line(error)})") from None
    return {**result, "run_dir": str(folder)}


def default_folder(source: str, method: str) -> Path:
    """A new folder under `runs/`, named after the stream, the method and the time."""
    name = f"{Path(source.split(':')[0]).stem}-{method}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def versions() -> dict[str, str]:
    """Versions of everything a number may depend on."""
    found = {"evergraph": evergraph.__version__, "python": platform.python_version()}
    for package in ("torch", "torch_geometric", "numpy", "scipy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def describe_device(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)"
