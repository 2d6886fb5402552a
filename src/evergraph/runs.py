"""Runs: a stream, a method, some seeds; a folder that holds what came of it. Resumable, never half-finished."""

from __future__ import annotations

import csv
import io
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import evergraph
from evergraph.checkpoint import INDEX, make_folder, only_writer, remove_scratch, remove_tree, write_atomically
from evergraph.data.stream import Part, TaskStream, TestGraph, stream
from evergraph.errors import EvergraphError, first_line
from evergraph.learner import Learner, pick_device
from evergraph.loggers import Logger, Logging
from evergraph.methods import make_method, preferred_model
from evergraph.models import GraphModel, make_model
from evergraph.results import average_forgetting, average_performance, mean_std
from evergraph.saving import model_name
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
        model: the model's name; the one that the method prefers where it is empty.
        model_settings: the model's hyper-parameters.
        training: how a task is trained.
        seeds: one run each.
        device: `auto`, `cpu` or `cuda`.
        also_test: further test graphs on which the same learner is measured.
        validate: measure the accuracy matrix on validation nodes too, to choose settings by.
    """

    source: str
    stream: dict[str, Any] = field(default_factory=dict)
    method: str = "curvature"
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    model_settings: dict[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    seeds: list[int] = field(default_factory=lambda: [0])
    device: str = "auto"
    also_test: list[TestGraph] = field(default_factory=list)
    validate: bool = False

    def learner(self, seed: int) -> Learner:
        """A learner that has learned nothing yet."""
        model = model_for(self.method, self.model, self.model_settings)
        return Learner(model, make_method(self.method, self.settings), self.training, device=self.device, seed=seed)

    def make_stream(self, seed: int, data_root: str | Path | None) -> TaskStream:
        """The stream as this seed splits it."""
        return stream(self.source, seed=seed, data_root=data_root, **self.stream)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "training": self.training.protocol()}


def model_for(method: str, model: str = "", settings: dict[str, Any] | None = None) -> GraphModel:
    """The model named, or the one that the method prefers."""
    return make_model(model or preferred_model(method), **(settings or {}))


def run(
    spec: RunSpec,
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, Any]:
    """Run a specification into a folder and return its result, which is also `result.json` there.

    The folder has `run.json` (the specification and the versions) from the start; for each seed
    `seed-N/matrix.json`, `seed-N/log.csv` and, until the seed is done, a checkpoint; and `result.json`
    only when everything is done. With `resume` a stopped run goes on where it was, and ends in the same
    numbers as one that was never stopped.
    """
    folder = _open_folder(Path(out), spec, resume)
    if (folder / "result.json").exists():
        return read_result(folder)
    # everything that can be wrong with the input is found before anything is written
    device = pick_device(spec.device)
    first = spec.make_stream(spec.seeds[0], data_root)
    learner = spec.learner(spec.seeds[0])
    make_folder(folder, "name another with --out")
    with only_writer(folder), Logging(loggers) as logging:
        remove_scratch(folder)
        _write_new(folder, spec)
        logging.start(folder, {**spec.as_dict(), "hyperparameters": learner.method.hyperparameters()})
        results = []
        for number, seed in enumerate(spec.seeds):
            tasks = first if number == 0 else spec.make_stream(seed, data_root)
            one = _SeedRun(spec, folder / f"seed-{seed}", tasks, seed, number, on_progress, logging)
            results.append(one.finish())
        result = _result(spec, folder, first, learner, device, results)
        logging.finish(result)
        write_atomically(folder / "result.json", json.dumps(result, indent=1))
    return result


def run_seed(spec: RunSpec, out: str | Path, seed: int, *, data_root: str | Path | None = None) -> None:
    """One seed of a run into the run's folder, for processes side by side; `run` with `resume` then finds it done."""
    folder = _open_folder(Path(out), spec, resume=True)
    tasks = spec.make_stream(seed, data_root)
    spec.learner(seed)
    own = folder / f"seed-{seed}"
    make_folder(folder, "name another with --out")
    _write_new(folder, spec)
    make_folder(own)
    with only_writer(own), Logging(()) as logging:
        _SeedRun(spec, own, tasks, seed, spec.seeds.index(seed), None, logging).finish()


def _result(
    spec: RunSpec,
    folder: Path,
    first: TaskStream,
    learner: Learner,
    device: torch.device,
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    """What `result.json` holds."""
    matrices = [result["matrix"] for result in results]
    return {
        "stream": spec.source,
        "method": spec.method,
        "hyperparameters": learner.method.hyperparameters(),
        "model": {"name": model_name(learner.model), **learner.model.hyperparameters()},
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


def _summary(matrices: list[list[ROW]]) -> dict[str, Any]:
    return {
        "ap": mean_std([average_performance(matrix) for matrix in matrices]),
        "af": mean_std([average_forgetting(matrix) for matrix in matrices]),
        "matrices": matrices,
    }


class _SeedRun:
    """All tasks of one seed, from wherever an earlier attempt left off.

    The learner and the rows measured so far are saved in one atomic write, so they always fit together.
    """

    def __init__(
        self,
        spec: RunSpec,
        folder: Path,
        tasks: TaskStream,
        seed: int,
        number: int,
        on_progress: OnProgress | None,
        logging: Logging,
    ) -> None:
        make_folder(folder)
        remove_scratch(folder)
        self.spec, self.folder, self.tasks, self.seed, self.number = spec, folder, tasks, seed, number
        self.on_progress, self.logging = on_progress, logging
        self.checkpoint = folder / "checkpoint"
        self.clock = self.saved = time.perf_counter()
        self.pause = CHECKPOINT_SECONDS

    def finish(self) -> dict[str, Any]:
        """Learn the tasks that remain; returns the seed's matrix, log and seconds."""
        state: dict[str, Any] = {"matrix": [], "also_tested": {name: [] for name in self.spec.also_test}}
        state |= {"validation": [], "log": [], "seconds": 0.0, "finished": False}
        done = self._read_finished()
        if done is not None:
            remove_tree(self.checkpoint)
            return done
        learner = self.spec.learner(self.seed)
        if (self.checkpoint / INDEX).exists():
            learner = self._load()
            state = learner.notes
        for index in range(learner.num_tasks, len(self.tasks)):
            self._learn(learner, index, state)
        state["finished"] = True
        write_atomically(self.folder / "log.csv", _as_csv(state["log"]))
        write_atomically(self.folder / "matrix.json", json.dumps(state))  # from here on the seed is done
        remove_tree(self.checkpoint)
        return state

    def _learn(self, learner: Learner, index: int, state: dict[str, Any]) -> None:
        """One task, and its row."""

        def on_epoch(progress: Progress, epochs: int) -> None:
            if self.on_progress is not None:
                self.on_progress(self.number, index, len(self.tasks), progress.epoch, epochs)
            self.logging.epoch(self.seed, index, len(state["log"]) + progress.epoch, progress.log[-1])
            if time.perf_counter() - self.saved > self.pause:
                self._save(learner, state)

        log = learner.learn(learner.tasks_of(self.tasks)[index], on_epoch)
        state["matrix"].append(_row(learner, self.tasks, self.tasks.test_graph))
        for name in self.spec.also_test:
            state["also_tested"][name].append(_row(learner, self.tasks, name))
        if self.spec.validate:
            state["validation"].append(_row(learner, self.tasks, self.tasks.test_graph, "val"))
        state["log"] += [{"task": index, **row} for row in log]
        self.logging.task(self.seed, state["matrix"])
        self._save(learner, state)
        write_atomically(self.folder / "matrix.json", json.dumps(state))

    def _save(self, learner: Learner, state: dict[str, Any]) -> None:
        begun = time.perf_counter()
        state["seconds"] += begun - self.clock
        self.clock = begun
        try:
            learner.save(self.checkpoint, notes=state)
        except EvergraphError as error:
            raise EvergraphError(f"{error}; the run can go on with --resume when there is room") from None
        self.saved = time.perf_counter()
        if CHECKPOINT_SECONDS:  # on a slow disk save less often, so that it takes no more than a tenth of the time
            self.pause = max(CHECKPOINT_SECONDS, 10 * (self.saved - begun))

    def _load(self) -> Learner:
        try:
            return Learner.load(self.checkpoint, device=self.spec.device)
        except EvergraphError as error:
            raise EvergraphError(f"{error}; remove {self.checkpoint} to begin seed {self.seed} anew") from None

    def _read_finished(self) -> dict[str, Any] | None:
        """The seed's result, if it is done."""
        try:
            state: dict[str, Any] = json.loads((self.folder / "matrix.json").read_text())
            return state if state["finished"] else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise EvergraphError(
                f"{self.folder / 'matrix.json'} is damaged ({first_line(error)}); remove {self.folder} "
                f"to begin seed {self.seed} anew"
            ) from None


def _row(learner: Learner, tasks: TaskStream, test_graph: TestGraph, part: Part = "test") -> ROW:
    """The newest row of an accuracy matrix."""
    accuracies: ROW = [*learner.evaluate(tasks, test_graph=test_graph, part=part).accuracies]
    return accuracies + [None] * (len(tasks) - len(accuracies))


CHECKPOINT_SECONDS = 20.0  # within a task, at most so much work is lost; 0 saves after every epoch


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["task", "epoch", "loss"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def holds_something(folder: Path) -> bool:
    """Whether it is taken; what a killed process leaves before its first file is whole begins with a dot."""
    return folder.exists() and (not folder.is_dir() or any(path.name[0] != "." for path in folder.iterdir()))


def _open_folder(folder: Path, spec: RunSpec, resume: bool) -> Path:
    """Refuse to mix two runs in one folder."""
    config = folder / "run.json"
    if not config.exists():
        if holds_something(folder) and not config.exists():  # another seed's process may have begun the run just now
            raise EvergraphError(f"{folder} exists and is not a run's folder; name another with --out")
        return folder
    if not resume:
        raise EvergraphError(f"{folder} holds a run already; add --resume to go on with it, or name another with --out")
    try:
        saved = json.loads(config.read_text())["spec"]
    except (ValueError, KeyError):
        raise EvergraphError(f"{config} is damaged; name another folder with --out") from None
    wanted = json.loads(json.dumps(spec.as_dict()))
    keys = [key for key in wanted if saved.get(key) != wanted[key] and key != "device"]  # a run may go on elsewhere
    if keys:
        raise EvergraphError(f"{folder} holds a run with other settings ({', '.join(keys)}); name another with --out")
    return folder


def _write_new(folder: Path, spec: RunSpec) -> None:
    """What the run is, written once; a run resumed under other versions says so."""
    path = folder / "run.json"
    now = {"versions": versions(), "device": describe_device(pick_device(spec.device))}
    if not path.exists():
        content = {"spec": spec.as_dict(), **now}
    else:
        content = json.loads(path.read_text())
        if now in ({key: content[key] for key in now}, content.get("resumed_with")):
            return
        content["resumed_with"] = now
    write_atomically(path, json.dumps(content, indent=1))


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
