"""One seed of a run: learns the tasks in turn, measures after each, and saves its state so that it can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evergraph.data import Part, Task, TaskStream, leak_score
from evergraph.errors import EvergraphError
from evergraph.evaluation import METRICS
from evergraph.experiments.loggers.base import Logging
from evergraph.experiments.run_folder import Row, SeedRecord
from evergraph.experiments.specification import RunSpec
from evergraph.methods.state import count_bytes
from evergraph.persistence.checkpoint import INDEX, remove_tree
from evergraph.persistence.files import make_folder, remove_scratch, write_atomically
from evergraph.persistence.reading import as_csv, exists, read_record, write_record
from evergraph.persistence.run_files import MATRIX
from evergraph.training import Learner, Progress
from evergraph.training.driver import Driver
from evergraph.training.side_by_side import clock

OnProgress = Callable[[int, int, int, int, int], None]
"""Called as (seed number, task, number of tasks, epoch, number of epochs)."""


class SeedRun:
    """All tasks of one seed, from where an earlier attempt left off.

    The learner and the rows measured so far are saved in one atomic write, so they are always consistent.
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
        self.mark = {"run": mark, "seed": seed}  # stored in every part of the seed's folder
        self.checkpoint = folder / "checkpoint"
        self.driver = Driver(self.checkpoint, advice="; the run can go on with --resume when there is room")
        self.clock = clock()

    def finish(self) -> dict[str, Any]:
        """Learn the remaining tasks; return the seed's matrix, log and seconds."""
        done = self._read_finished()
        if done is not None:
            remove_tree(self.checkpoint)
            return done
        learner = self.spec.learner(self.seed, self.tasks.problem)
        state: dict[str, Any] = {"matrix": [], "also_tested": {name: [] for name in self.spec.also_test}}
        state |= {"validation": [], "log": [], "kept_bytes": [], "model_bytes": [], "seconds": 0.0, "finished": False}
        state |= {"arrived": 0, **self.mark}  # what `learn` was called with for all tasks measured so far
        if (self.checkpoint / INDEX).exists():
            learner = self._load()
            state = learner.notes
        state.setdefault("task_classes", task_contents(self.tasks))  # not in checkpoints of earlier versions
        if "arrived" not in state:  # nor is this
            state["arrived"] = sum(len(self._arrivals(earlier)) for earlier in range(len(state["matrix"])))
        for index in range(len(state["matrix"]), len(self.tasks)):
            self._learn(learner, index, state)
        state["leak"] = self._leak()
        state["finished"] = True
        write_atomically(self.folder / "log.csv", _log_table(state["log"]))
        write_record(self.folder / MATRIX, state)  # from here on the seed is done
        remove_tree(self.checkpoint)
        return state

    def _learn(self, learner: Learner, index: int, state: dict[str, Any]) -> None:
        """Learn one task, whole or in pieces, and append its row."""

        def on_epoch(progress: Progress, epochs: int) -> None:
            if self.on_progress is not None:
                self.on_progress(self.number, index, len(self.tasks), progress.epoch, epochs)
            self.logging.epoch(self.seed, index, len(state["log"]) + progress.epoch, progress.log[-1])

        def notes() -> dict[str, Any]:
            now = clock()
            state["seconds"] += now - self.clock
            self.clock = now
            return state

        for arrived in self._arrivals(index)[learner.num_tasks - state["arrived"] :]:
            log = self.driver.learn(learner, arrived, on_epoch=on_epoch, notes=notes)
            state["log"] += [{"task": index, **row} for row in log]
        state["arrived"] = learner.num_tasks
        state["matrix"].append(self._row(learner, index, self.tasks.test_graph))
        for name in self.spec.also_test:
            state["also_tested"][name].append(self._row(learner, index, name))
        if self.spec.validate:
            state["validation"].append(self._row(learner, index, self.tasks.test_graph, "val"))
        # the growth of the model since the first task counts as kept, too
        sizes = state.setdefault("model_bytes", [])
        sizes.append(count_bytes(dict(learner.model.state_dict())))
        state["kept_bytes"].append(learner.method.kept_bytes() + sizes[-1] - sizes[0])
        state.setdefault("steps", []).append(learner.history[-1]["steps"])
        metric = METRICS[self.spec.metric or learner.problem.metric]
        self.logging.task(self.seed, state["matrix"], higher_is_better=metric.higher_is_better)
        self.driver.commit(learner, notes)
        write_record(self.folder / MATRIX, state)

    def _arrivals(self, index: int) -> list[Task]:
        """What `learn` is called with for a task: the whole task, or its pieces if tasks have no boundaries."""
        task = self.tasks[index]
        return list(task.pieces(self.spec.pieces)) if self.spec.pieces else [task]

    def _row(self, learner: Learner, index: int, test_graph: str, part: Part = "test") -> Row:
        """Measure the row of an accuracy matrix after a task."""
        metric, after = self.spec.metric or None, index if self.spec.pieces else None
        measured = learner.evaluate(self.tasks, metric=metric, test_graph=test_graph, part=part, after=after)
        values: Row = [*measured.accuracies]
        return values + [None] * (len(self.tasks) - len(values))

    def _leak(self) -> dict[str, float]:
        """Leak score of each test graph, if classes define the tasks and predictions are among those of all tasks.

        Runs by which settings are chosen do not look at test nodes.
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
        """Raise if a part of the folder belongs to another run or another seed."""
        if any(record.get(key) != value for key, value in self.mark.items()):
            raise EvergraphError(f"{place} is another run's or another seed's; {advice}")

    def _read_finished(self) -> dict[str, Any] | None:
        """Return the seed's result if it is done, else None."""
        path, advice = self.folder / MATRIX, f"remove {self.folder} to begin seed {self.seed} anew"
        if not exists(path):
            return None
        state = read_record(path, SeedRecord, advice)
        self._check_mark(state, path, advice)
        return state if state["finished"] else None


def task_contents(tasks: TaskStream) -> list[list[str]]:
    """What each task brings: its classes or, if tasks share classes, the value of the attribute that defines it."""
    if tasks.scenario.by_attribute:
        return [[name] for name in tasks.task_names]
    names = tasks.graph.class_names
    return [[str(names[position]) for position in classes] for classes in tasks.tasks_classes]


def seed_is_done(folder: Path, seed: int) -> bool:
    """Whether a seed of a run has all its results."""
    path = folder / f"seed-{seed}" / MATRIX
    return path.exists() and read_record(path, SeedRecord, f"remove {path.parent} to begin the seed anew")["finished"]


def _log_table(log: list[dict[str, Any]]) -> str:
    """The log as CSV, with a column for every key of any epoch; empty where an epoch lacks the key."""
    columns = list(dict.fromkeys(key for row in log for key in row)) or ["task", "epoch", "loss"]
    return as_csv(columns, ([row.get(key, "") for key in columns] for row in log))
