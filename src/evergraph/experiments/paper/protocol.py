"""The protocols `paper` and `best` as they stand in their files, turned into cells to run."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from evergraph.errors import unknown
from evergraph.evaluation import average_performance
from evergraph.experiments.cells import Cell, Choice
from evergraph.experiments.selection.rule import new_task_accuracy
from evergraph.experiments.specification import RunSpec
from evergraph.training import Training

PROTOCOLS = ("paper", "best")
DATASETS = ("coauthor-cs", "corafull", "arxiv", "corafull-knn", "amazon-computers")
PAPER_DATASETS = ("corafull", "arxiv", "coauthor-cs")


def read(name: str) -> dict[str, Any]:
    """A file of this package: a protocol, or `printed`, the paper's own table."""
    return tomllib.loads((files("evergraph.experiments.paper") / f"{name}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Protocol:
    """A protocol for one dataset: what every row has in common, and the rows."""

    name: str
    dataset: str
    content: dict[str, Any]
    seeds: int
    device: str = "auto"

    @classmethod
    def load(cls, name: str, dataset: str, seeds: int, device: str = "auto") -> Protocol:
        """Read a protocol; a table `[datasets.NAME]` in its file overrides settings for one dataset."""
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS)
        if dataset not in DATASETS:
            raise unknown("dataset", dataset, (*DATASETS, "all"))
        content = read(name)
        for section, values in content.get("datasets", {}).get(dataset, {}).items():
            content[section] = _merge(content[section], values)
        return cls(name, dataset, content, seeds, device)

    def rows(self, wanted: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """The rows asked for, in the file's order."""
        rows: dict[str, dict[str, Any]] = self.content["rows"]
        for row in wanted or ():
            if row not in rows:
                raise unknown(f"row of protocol {self.name}", row, rows)
        return {name: row for name, row in rows.items() if not wanted or name in wanted}

    def spec(self, row: dict[str, Any], seeds: Sequence[int], **settings: Any) -> RunSpec:
        """What is run for a row."""
        stream = dict(self.content["stream"])
        other = "seen" if stream["test_graph"] == "task" else "task"
        return RunSpec(
            source=self.dataset,
            stream=stream,
            method=row["method"],
            settings={**row.get("settings", {}), **settings},
            model_settings=dict(self.content["model"]),
            training=Training(**{**self.content["training"], **row.get("training", {})}),
            seeds=list(seeds),
            device=self.device,
            also_test=[other],
            validate=True,
        )

    def key(self, name: str) -> str:
        """What a cell is called."""
        return f"{self.name}/{self.dataset}/{name}"

    def folder(self, out: Path) -> Path:
        """Where the tables and figures go."""
        return out / self.name / self.dataset

    def cells(self, wanted: Sequence[str] | None = None) -> list[Cell]:
        """The table's cells whose settings are all known from the start."""
        rows = self.rows(wanted)
        return [
            Cell(self.key(name), self.spec(row, range(self.seeds))) for name, row in rows.items() if "choose" not in row
        ]

    def choices(self, wanted: Sequence[str] | None = None) -> list[Choice]:
        """The rows that choose among settings, each with one trial per candidate (first seed) and its rule."""
        return [self._choice(name, row) for name, row in self.rows(wanted).items() if "choose" in row]

    def _choice(self, name: str, row: dict[str, Any]) -> Choice:
        settings = [dict(zip(row["choose"], values)) for values in itertools.product(*row["choose"].values())]
        trials = tuple(
            Cell(self.key(f"choose/{name}@{_label(tried)}"), self.spec(row, [0], **tried)) for tried in settings
        )
        rule = RULES[self.content["rule"]]

        def choose(results: dict[str, dict[str, Any]]) -> Cell:
            best = rule([results[trial.key] for trial in trials])
            return Cell(self.key(name), self.spec(row, range(self.seeds), **settings[best]))

        return Choice(trials, choose)

    def study_cells(self) -> dict[str, dict[str, dict[str, Cell]]]:
        """For each study its rows, each with one cell per value; a row's own value is the table's cell."""
        return {name: self._study(name, study) for name, study in self.content.get("studies", {}).items()}

    def _study(self, name: str, study: dict[str, Any]) -> dict[str, dict[str, Cell]]:
        cells: dict[str, dict[str, Cell]] = {}
        for row_name in study.get("rows") or [study["row"]]:
            row = self.content["rows"][row_name]
            cells[row["title"]] = {}
            for value in study["values"]:
                in_table = row.get("settings", {}).get(study["key"]) == value
                place = f"studies/{study['key']}/{row_name}@{value:g}"  # studies of one key share their cells
                key = self.key(row_name if in_table else place)
                cells[row["title"]][str(value)] = Cell(key, self.spec(row, range(self.seeds), **{study["key"]: value}))
        return cells


MARGIN = 0.05


def all_tasks(results: Sequence[dict[str, Any]]) -> int:
    """The candidate with the highest AP on validation nodes after the last task (old tasks' nodes included)."""
    means = [np.mean([average_performance(matrix) for matrix in result["validation"]]) for result in results]
    return int(np.argmax(means))


def current_task(results: Sequence[dict[str, Any]]) -> int:
    """The last candidate that learns new tasks nearly as well as the best of them, judged on validation nodes.

    Each task is judged right after it was learned, over all classes seen: nothing is asked of old nodes.
    Candidates are listed from the weakest hold on the past to the strongest, and the strongest that costs no more
    than a twentieth of the accuracy on new tasks is taken (the rule of De Lange et al., A Continual Learning Survey,
    TPAMI 2022, with their threshold as a constant).
    """
    means = [new_task_accuracy(result) for result in results]
    return max(number for number, mean in enumerate(means) if mean >= (1 - MARGIN) * max(means))


RULES = {"all-tasks": all_tasks, "current-task": current_task}


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merge(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


def _label(settings: dict[str, Any]) -> str:
    return ",".join(f"{key}={value:g}" for key, value in settings.items())
