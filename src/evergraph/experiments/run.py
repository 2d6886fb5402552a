"""Runs: a stream, a method, some seeds; a folder that holds what came of it. Resumable, never half-finished."""

from __future__ import annotations

import csv
import io
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TypedDict

import torch

from evergraph.core.settings import NotEmpty, checked
from evergraph.data import DATASETS, Part, TaskStream, find_graph, leak_score
from evergraph.data.files import content_mark
from evergraph.errors import EvergraphError
from evergraph.evaluation import METRICS, mean_std, summarize
from evergraph.experiments.loggers.base import Logger, Logging
from evergraph.experiments.specification import RunSpec
from evergraph.experiments.told import other_test_nodes
from evergraph.methods.state import count_bytes
from evergraph.persistence.checkpoint import INDEX, remove_tree
from evergraph.persistence.files import (
    holds_something,
    make_folder,
    only_writer,
    remove_scratch,
    taken_folder,
    write_atomically,
)
from evergraph.persistence.reading import HASH, as_json, content_hash, exists, read_json, read_record, write_record
from evergraph.training import Learner, Progress, pick_device
from evergraph.training.driver import Driver
from evergraph.training.snapshot import model_name
from evergraph.version import __version__

ROW = list[float | None]
OnProgress = Callable[[int, int, int, int, int], None]
"""Called as (seed number, task, number of tasks, epoch, number of epochs)."""


Matrix = list[list[float | None]]


class RunRecord(TypedDict):
    """What `run.json` holds."""

    spec: dict[str, Any]
    graph: str
    versions: dict[str, str]
    device: str


class SeedRecord(TypedDict):
    """What `matrix.json` holds."""

    matrix: Matrix
    also_tested: dict[str, Matrix]
    validation: Matrix
    log: list[dict[str, Any]]
    kept_bytes: list[int]
    seconds: float
    finished: bool
    run: str
    seed: int


class ResultRecord(TypedDict):
    """What `result.json` holds at least."""

    stream: str
    method: str
    matrices: Annotated[list[Matrix], NotEmpty()]
    ap: dict[str, float]
    af: dict[str, float]
    protocol: dict[str, Any]
    seeds: Annotated[list[int], NotEmpty()]


@checked
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

    Args:
        spec: what to run.
        out: the folder; a new one, or that of the same run with `resume`.
        data_root: folder of the datasets.
        resume: go on with a run that was stopped.
        on_progress: called after every epoch.
        loggers: where else the numbers go.
    """
    folder = Path(out)
    with taken_folder(folder, lambda: check_folder(folder, spec, resume), advice="name another with --out"):
        return finish_run(spec, folder, data_root=data_root, on_progress=on_progress, loggers=loggers)


def finish_run(
    spec: RunSpec,
    folder: Path,
    *,
    data_root: str | Path | None = None,
    on_progress: OnProgress | None = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, Any]:
    """What is left of a run, in a folder that the caller has checked and holds."""
    if (done := finished_result(folder, spec)) is not None:
        return done
    # everything that can be wrong with the input is found before anything is written
    device = pick_device(spec.device)
    spec.check()
    first = spec.make_stream(spec.seeds[0], data_root)
    learner = spec.learner(spec.seeds[0], first.problem)
    with Logging(loggers) as logging:
        mark = _write_new(folder, spec, first)
        logging.start(folder, {**spec.as_dict(), "hyperparameters": learner.method.hyperparameters()})
        results = []
        for number, seed in enumerate(spec.seeds):
            tasks = first if number == 0 else spec.make_stream(seed, data_root)
            check_same_graph(tasks.graph_mark, first.graph_mark, folder)
            one = _SeedRun(spec, folder / f"seed-{seed}", tasks, seed, number, on_progress, logging, mark)
            results.append(one.finish())
        result = {**_result(spec, folder, first, learner, device, results), "run": mark, "graph": first.graph_mark}
        logging.finish(result)
        write_record(folder / "result.json", result, indent=1)
    return result


def run_seed(spec: RunSpec, out: str | Path, seed: int, *, data_root: str | Path | None = None) -> None:
    """One seed of a run into the run's folder, for processes side by side; `finish_run` then finds it done."""
    folder, seed_folder = Path(out), Path(out) / f"seed-{seed}"
    check_folder(folder, spec, resume=True)
    spec.check()
    tasks = spec.make_stream(seed, data_root)
    make_folder(folder, "name another with --out")
    mark = _write_new(folder, spec, tasks)
    make_folder(seed_folder)
    with only_writer(seed_folder), Logging(()) as logging:
        _SeedRun(spec, seed_folder, tasks, seed, spec.seeds.index(seed), None, logging, mark).finish()


def _result(
    spec: RunSpec,
    folder: Path,
    first: TaskStream,
    learner: Learner,
    device: torch.device,
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    """What `result.json` holds."""
    metric = spec.metric or learner.problem.metric
    access = learner.method.access

    def tested(test_graph: str, matrices: list[list[ROW]]) -> dict[str, Any]:
        scores = [result["leak"][test_graph] for result in results if test_graph in result.get("leak", {})]
        leak = {**mean_std(scores), "values": scores, "chance": 100 / len(first)} if scores else None
        reads = other_test_nodes(access, test_graph)
        return {**_measures(matrices, metric), "leak": leak, "test_nodes_read": reads}

    return {
        "stream": spec.source,
        "method": spec.method,
        "hyperparameters": learner.method.hyperparameters(),
        "model": {"name": model_name(learner.model), **learner.model.hyperparameters()},
        "protocol": {**first.protocol(), **spec.training.protocol(), "problem": learner.problem.name, "metric": metric},
        "seeds": spec.seeds,
        **tested(first.test_graph, [result["matrix"] for result in results]),
        "also_tested": {
            name: tested(name, [result["also_tested"][name] for result in results]) for name in spec.also_test
        },
        "validation": [result["validation"] for result in results],
        "task_classes": _contents(first),
        "access": access.as_dict(),
        "kept_bytes": [result["kept_bytes"] for result in results],
        "model_bytes": [result.get("model_bytes", []) for result in results],
        "seconds": sum(result["seconds"] for result in results),
        "device": describe_device(device),
        "versions": versions(),
        "run_dir": str(folder),
    }


def _contents(tasks: TaskStream) -> list[list[str]]:
    """What each task brings: its classes or, where tasks share them, the value of the attribute that makes it."""
    if tasks.scenario.by_attribute:
        return [[name] for name in tasks.task_names]
    return [list(map(str, task.class_names)) for task in tasks]


def _measures(matrices: list[list[ROW]], metric: str) -> dict[str, Any]:
    """Every summary of one matrix per seed, and the matrices themselves."""
    summaries = summarize(matrices, higher_is_better=METRICS[metric].higher_is_better)
    headline = {name: {key: summaries[name][key] for key in ("mean", "std")} for name in ("ap", "af")}
    return {**headline, "metrics": summaries, "matrices": matrices}


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
        mark: str,
    ) -> None:
        make_folder(folder)
        remove_scratch(folder)
        self.spec, self.folder, self.tasks, self.seed, self.number = spec, folder, tasks, seed, number
        self.on_progress, self.logging = on_progress, logging
        self.mark = {"run": mark, "seed": seed}  # every part of the seed's folder carries it
        self.checkpoint = folder / "checkpoint"
        self.driver = Driver(self.checkpoint, advice="; the run can go on with --resume when there is room")
        self.clock = time.perf_counter()

    def finish(self) -> dict[str, Any]:
        """Learn the tasks that remain; returns the seed's matrix, log and seconds."""
        done = self._read_finished()
        if done is not None:
            remove_tree(self.checkpoint)
            return done
        learner = self.spec.learner(self.seed, self.tasks.problem)
        state: dict[str, Any] = {"matrix": [], "also_tested": {name: [] for name in self.spec.also_test}}
        state |= {"validation": [], "log": [], "kept_bytes": [], "model_bytes": [], "seconds": 0.0, "finished": False}
        state |= self.mark
        if (self.checkpoint / INDEX).exists():
            learner = self._load()
            state = learner.notes
        for index in range(learner.num_tasks, len(self.tasks)):
            self._learn(learner, index, state)
        state["leak"] = self._leak()
        state["finished"] = True
        write_atomically(self.folder / "log.csv", _as_csv(state["log"]))
        write_record(self.folder / "matrix.json", state)  # from here on the seed is done
        remove_tree(self.checkpoint)
        return state

    def _learn(self, learner: Learner, index: int, state: dict[str, Any]) -> None:
        """One task, and its row."""

        def on_epoch(progress: Progress, epochs: int) -> None:
            if self.on_progress is not None:
                self.on_progress(self.number, index, len(self.tasks), progress.epoch, epochs)
            self.logging.epoch(self.seed, index, len(state["log"]) + progress.epoch, progress.log[-1])

        def notes() -> dict[str, Any]:
            now = time.perf_counter()
            state["seconds"] += now - self.clock
            self.clock = now
            return state

        log = self.driver.learn(learner, self.tasks[index], on_epoch=on_epoch, notes=notes)
        state["matrix"].append(self._row(learner, self.tasks.test_graph))
        for name in self.spec.also_test:
            state["also_tested"][name].append(self._row(learner, name))
        if self.spec.validate:
            state["validation"].append(self._row(learner, self.tasks.test_graph, "val"))
        state["log"] += [{"task": index, **row} for row in log]
        # what the model has grown by since the first task is kept too
        sizes = state.setdefault("model_bytes", [])
        sizes.append(count_bytes(dict(learner.model.state_dict())))
        state["kept_bytes"].append(learner.method.kept_bytes() + sizes[-1] - sizes[0])
        self.logging.task(self.seed, state["matrix"])
        self.driver.commit(learner, notes)
        write_record(self.folder / "matrix.json", state)

    def _row(self, learner: Learner, test_graph: str, part: Part = "test") -> ROW:
        """The newest row of an accuracy matrix."""
        metric = self.spec.metric or None
        values: ROW = [*learner.evaluate(self.tasks, metric=metric, test_graph=test_graph, part=part).accuracies]
        return values + [None] * (len(self.tasks) - len(values))

    def _leak(self) -> dict[str, float]:
        """How much each test graph gives away, where classes make the tasks and prediction is among those of all tasks.

        Runs that settings are chosen by do not look at test nodes.
        """
        scenario = self.tasks.scenario
        told_apart = not (scenario.task_known or scenario.by_attribute) and self.tasks.graph.level == "node"
        if self.spec.validate or not told_apart:
            return {}
        return {name: leak_score(self.tasks, name) for name in (self.tasks.test_graph, *self.spec.also_test)}

    def _load(self) -> Learner:
        advice = f"remove {self.checkpoint} to begin seed {self.seed} anew"
        try:
            learner = Learner.load(self.checkpoint, device=self.spec.device)
        except EvergraphError as error:
            raise EvergraphError(f"{error}; {advice}") from None
        self._check_mark(learner.notes, self.checkpoint, advice)
        return learner

    def _check_mark(self, record: Mapping[str, Any], place: Path, advice: str) -> None:
        """An error where a part of the folder is another run's or another seed's."""
        if any(record.get(key) != value for key, value in self.mark.items()):
            raise EvergraphError(f"{place} is another run's or another seed's; {advice}")

    def _read_finished(self) -> dict[str, Any] | None:
        """The seed's result, if it is done."""
        path, advice = self.folder / "matrix.json", f"remove {self.folder} to begin seed {self.seed} anew"
        if not exists(path):
            return None
        state = read_record(path, SeedRecord, advice)
        self._check_mark(state, path, advice)
        return state if state["finished"] else None


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["task", "epoch", "loss"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_folder(folder: Path, spec: RunSpec, resume: bool) -> None:
    """Refuse to mix two runs in one folder."""
    config = folder / "run.json"
    if not config.exists():
        if holds_something(folder) and not config.exists():  # another seed's process may have begun the run just now
            raise EvergraphError(f"{folder} exists and is not a run's folder; name another with --out")
        return
    if not resume:
        raise EvergraphError(f"{folder} holds a run already; add --resume to go on with it, or name another with --out")
    saved = read_record(config, RunRecord, "name another folder with --out")["spec"]
    if keys := spec.differences(saved):
        raise EvergraphError(f"{folder} holds a run with other settings ({', '.join(keys)}); name another with --out")


def check_same_graph(graph: str, known: str, place: str | Path) -> None:
    """An error where a run would be mixed from two graphs, given the marks of both."""
    if graph != known:
        raise EvergraphError(f"{place} was run on another graph: the file has changed since; name another with --out")


def check_graph(spec: RunSpec, known: str | None, place: str | Path) -> None:
    """An error where the graph file that a finished run was made of has changed; named datasets check their own."""
    if known is not None and spec.source.partition(":")[0] not in DATASETS:
        check_same_graph(
            content_mark(find_graph(spec.source, undirected=spec.stream.get("undirected"))[0]), known, place
        )


def _write_new(folder: Path, spec: RunSpec, tasks: TaskStream) -> str:
    """What the run is, written once; a run resumed under other versions says so. Returns the run's mark."""
    path = folder / "run.json"
    now = {"versions": versions(), "device": describe_device(pick_device(spec.device))}
    if not path.exists():
        content = {"spec": json.loads(as_json(spec.as_dict())), "graph": tasks.graph_mark, **now}
    else:
        content = read_record(path, RunRecord, "name another folder with --out")
        check_same_graph(tasks.graph_mark, content["graph"], folder)
        same = now in ({key: content[key] for key in now}, content.get("resumed_with"))
        if same and content["spec"].get("seeds") == spec.seeds:
            return run_mark(content)
        content["spec"]["seeds"] = spec.seeds
        content |= {} if same else {"resumed_with": now}
    write_record(path, content, indent=1)
    return run_mark(content)


def run_mark(record: Mapping[str, Any]) -> str:
    """What every part of a run carries: a hash of its settings and its graph; seeds and devices may be added later."""
    settings = {key: value for key, value in record["spec"].items() if key not in {"seeds", "device"}}
    return content_hash([settings, record["graph"]])


def finished_result(folder: Path, spec: RunSpec) -> dict[str, Any] | None:
    """The result of a run in its folder; None where it is not finished, or seeds were added to it."""
    if not (folder / "result.json").exists():
        return None
    result = read_result(folder)
    if result.get("seeds", spec.seeds) != spec.seeds:
        return None
    check_graph(spec, result.get("graph"), folder)
    return result


def read_result(folder: str | Path) -> dict[str, Any]:
    """A finished run's result."""
    path = Path(folder) / "result.json"
    if not path.exists():
        state = "a run that is not finished" if (Path(folder) / "run.json").exists() else "no run"
        raise EvergraphError(f"{folder} holds {state}; finish it with --resume or name a run's folder")
    result: dict[str, Any] = read_json(path, ResultRecord)
    if HASH in result or "run" in result:  # those of version 0.1 have none
        result = read_record(path, ResultRecord)
        config = Path(folder) / "run.json"
        if exists(config) and run_mark(read_record(config, RunRecord)) != result.get("run"):
            raise EvergraphError(f"{path} is another run's than {config}; restore it from a copy")
    return {**result, "run_dir": str(folder)}


def default_folder(source: str, method: str) -> Path:
    """A new folder under `runs/`, named after the stream, the method and the time."""
    name = f"{Path(source.split(':')[0]).stem[:80]}-{method[:80]}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def versions() -> dict[str, str]:
    """Versions of everything a number may depend on."""
    known_versions = {"evergraph": __version__, "python": platform.python_version()}
    for package in ("torch", "torch_geometric", "numpy", "scipy", "scikit-learn"):
        try:
            known_versions[package] = version(package)
        except PackageNotFoundError:
            known_versions[package] = "missing"
    return known_versions


def describe_device(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)"
