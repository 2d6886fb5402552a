"""The protocols `paper`, `best` and `field`, read from their files and turned into cells to run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from evergraph.errors import EvergraphError, unknown
from evergraph.experiments.cells import Cell, Choice
from evergraph.experiments.comparison import training_groups
from evergraph.experiments.result_file import CHOOSING
from evergraph.experiments.selection.proposals import spread, whole
from evergraph.experiments.selection.rule import SELECTION_RULES, SelectionRule, Trial, final_performance
from evergraph.experiments.selection.space import Space
from evergraph.experiments.specification import RunSpec
from evergraph.methods import make_method
from evergraph.training import Training

PROTOCOLS = ("paper", "best", "field")
BOTH = ("paper", "best")
"""The protocols of the paper's own experiment."""
DATASETS = ("coauthor-cs", "corafull", "arxiv", "corafull-knn", "amazon-computers")
PAPER_DATASETS = ("corafull", "arxiv", "coauthor-cs")
TWIN_OF = "twin_of"
"""Key of a row that measures another one, which it names, on the other test graph."""


def read(name: str) -> dict[str, Any]:
    """Read a TOML file of this package: a protocol, or `printed`, the table as printed in the paper."""
    return tomllib.loads((files("evergraph.experiments.paper") / f"{name}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, eq=False)
class Protocol:
    """A protocol for one dataset: the settings that all rows share, and the rows."""

    name: str
    dataset: str
    content: dict[str, Any]
    seeds: int
    device: str = "auto"

    @classmethod
    def load(cls, name: str, dataset: str, seeds: int, device: str = "auto", rule: str | None = None) -> Protocol:
        """Read a protocol; a table `[datasets.NAME]` in its file overrides settings for one dataset.

        A row with `at_budgets` becomes one row for each of the file's `budgets`, set as `memory`. A row that has to be
        trained on the graph that it is tested on gets a twin for the other test graph.

        Args:
            name: `paper`, `best` or `field`.
            dataset: the stream.
            seeds: number of runs per row.
            device: where to train.
            rule: selection rule to use in place of the file's.
        """
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS)
        if dataset not in DATASETS:
            raise unknown("dataset", dataset, (*DATASETS, "all"))
        content = read(name)
        for section, values in content.get("datasets", {}).get(dataset, {}).items():
            content[section] = _merge(content[section], values) if isinstance(values, dict) else values
        content["rows"] = _at_budgets(content["rows"], content.get("budgets", []))
        content["rows"] = _on_each_graph(content["rows"], content["stream"]["test_graph"])
        if rule is not None:
            content["search"]["rule"] = SELECTION_RULES[rule].name
        return cls(name, dataset, content, seeds, device)

    def rows(self, wanted: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """The requested rows, in the file's order, and their twins; all by default, except hidden ones."""
        rows = {name: row for name, row in self.content["rows"].items() if not row.get("hidden")}
        for row in wanted or ():
            if row not in rows:
                raise unknown(f"row of protocol {self.name}", row, rows)
        chosen = {rows[row].get(TWIN_OF, row) for row in wanted or ()}
        return {name: row for name, row in rows.items() if wanted is None or row.get(TWIN_OF, name) in chosen}

    def measured(self, results: Mapping[str, dict[str, Any]], name: str, order: str = "") -> dict[str, Any] | None:
        """A row's result in one class order, with its twin's on the other graph; None if either is missing."""
        found = results.get(self.key(name, order))
        for twin, row in self.content["rows"].items():
            if found is not None and row.get(TWIN_OF) == name:
                beside = results.get(self.key(twin, order))
                graph = row["stream"]["test_graph"]
                found = None if beside is None else {**found, "also_tested": {**found["also_tested"], graph: beside}}
        return found

    @property
    def orders(self) -> list[str]:
        """The class orders in which every row is run; settings are chosen in the first."""
        return list(self.content.get("orders", ["labelled"]))

    def spec(self, row: dict[str, Any], seeds: Sequence[int], order: str = "", **settings: Any) -> RunSpec:
        """The specification of a row's run, in the protocol's first class order unless another is named."""
        stream = {**self.content["stream"], **row.get("stream", {}), **({"order": order} if order else {})}
        other = other_graph(stream["test_graph"])
        settings = {**row.get("settings", {}), **settings}
        own = make_method(row["method"], settings).training if self.content.get("own_training") else {}
        return RunSpec(
            source=self.dataset,
            stream=stream,
            method=row["method"],
            settings=settings,
            model=row.get("model", ""),
            model_settings=row.get("model_settings", dict(self.content["model"])),
            training=Training(**{**own, **self.content["training"], **row.get("training", {})}),
            seeds=list(seeds),
            device=self.device,
            also_test=row.get("also_test", self.content.get("also_test", [other])),
            validate=self.content.get("validate", True),
        )

    def key(self, name: str, order: str = "") -> str:
        """The key of a row's cell."""
        place = f"orders/{order.replace(':', '-')}/" if order and order != self.orders[0] else ""
        return f"{self.name}/{self.dataset}/{place}{name}"

    def folder(self, out: Path) -> Path:
        """The folder of the tables and figures."""
        return out / self.name / self.dataset

    def cells(self, wanted: Sequence[str] | None = None) -> list[Cell]:
        """The table's cells whose settings are known from the start."""
        rows = self.rows(wanted)
        return [
            Cell(self.key(name, order), self.spec(row, range(self.seeds), order))
            for name, row in rows.items()
            for order in self.orders
            if not self._searches(row)
        ]

    def choices(self, wanted: Sequence[str] | None = None) -> list[Choice]:
        """The rows whose settings are searched, each with its trials (first seed, first order) and its rule."""
        return [self._choice(name, row) for name, row in self.rows(wanted).items() if self._searches(row)]

    def _searches(self, row: dict[str, Any]) -> bool:
        return "space" in self.searched(row)[1]

    def searched(self, row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Name and content of the row whose trials choose a row's settings: the one named by `like`, or itself."""
        name = row.get("like") or next(name for name, other in self.content["rows"].items() if other is row)
        return name, self.content["rows"][name]

    def rule(self, row: dict[str, Any]) -> SelectionRule:
        """The rule that chooses a row's settings."""
        name = row.get("rule", self.content["search"]["rule"])
        rule: SelectionRule = AllTasks() if name == AllTasks.name else SELECTION_RULES[name]()
        if rule.proposes:
            raise EvergraphError(f"{name} brings its own trials, and all rows shall have the same; take another rule")
        return rule

    def space(self, row: dict[str, Any]) -> Space:
        """The search space of a row."""
        return Space.of(self.spec(row, [0]), row["space"], fixed=self.content["search"].get("fixed", ()))

    def searched_settings(self, row: dict[str, Any]) -> list[str]:
        """Names of the settings that are searched for a row."""
        return list(self.space(self.searched(row)[1]).dimensions) if self._searches(row) else []

    def _choice(self, name: str, row: dict[str, Any]) -> Choice:
        tried_row, tried = self.searched(row)
        spec, space, rule = self.spec(tried, [0]), self.space(tried), self.rule(tried)
        search = self.content["search"]
        small = space.size <= search["trials"]  # of equal trials the first is chosen, so their order is the protocol's
        points = list(whole(space)) if small else spread(space, search["trials"])
        if search.get("defaults_first"):
            defaults = space.point_of(spec)
            points = [defaults, *(point for point in points if point != defaults)][: search["trials"]]
        points_by_key = {self.key(f"{CHOOSING}/{tried_row}@{_label(point)}"): point for point in points}
        trial = replace(spec, also_test=search.get("also_test", spec.also_test))
        trials = tuple(Cell(key, rule.restrict(space.apply(trial, point))) for key, point in points_by_key.items())

        def choose(results: dict[str, dict[str, Any]]) -> list[Cell]:
            if self.goes_on and all("error" in results[trial.key] for trial in trials):
                return []  # the row has no cell; the table names the reason
            outcomes = [
                Trial(t.key, points_by_key[t.key], t.spec, None if "error" in results[t.key] else results[t.key])
                for t in trials
            ]
            chosen = rule.choose(space, outcomes).point
            return [
                Cell(self.key(name, order), space.apply(self.spec(row, range(self.seeds), order), chosen))
                for order in self.orders
            ]

        return Choice(trials, choose)

    @property
    def goes_on(self) -> bool:
        """Whether a failed cell is named in the table and the others go on; otherwise it ends the experiment."""
        return bool(self.content.get("goes_on"))

    def study_cells(self, wanted: Sequence[str] | None = None) -> dict[str, dict[str, dict[str, Cell]]]:
        """For each study its rows, each with one cell per value; for a row's own value, the table's cell."""
        studies = self.content.get("studies", {})
        return {name: self._study(name, study) for name, study in studies.items() if wanted is None or name in wanted}

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


def _at_budgets(rows: dict[str, Any], budgets: Sequence[str]) -> dict[str, Any]:
    """Expand each row with `at_budgets` into one row per budget."""
    expanded: dict[str, Any] = {}
    for name, row in rows.items():
        if not row.get("at_budgets"):
            expanded[name] = row
            continue
        for budget in budgets:
            settings = {**row.get("settings", {}), "memory": budget}
            expanded[f"{name}-{budget}"] = {**row, "title": f"{row['title']}, {budget}", "settings": settings}
    return expanded


def other_graph(test_graph: str) -> str:
    """The test graph that rows are measured on beside the protocol's own."""
    return "seen" if test_graph == "task" else "task"


def _on_each_graph(rows: dict[str, Any], test_graph: str) -> dict[str, Any]:
    """Give each row that one training cannot measure on both test graphs a twin, trained and tested on the other.

    Such a row reads earlier tasks again, on the graph that it is tested on. Its settings are chosen for each graph.
    Rows that say themselves where they are tested are left as they are.
    """
    other, expanded = other_graph(test_graph), dict[str, Any]()
    for name, row in rows.items():
        if "also_test" in row or len(training_groups(row["method"], row.get("settings", {}), [test_graph, other])) == 1:
            expanded[name] = row
            continue
        expanded[name] = {**row, "also_test": []}
        like = {"like": f"{row['like']}-{other}"} if "like" in row else {}
        stream = {**row.get("stream", {}), "test_graph": other}
        expanded[f"{name}-{other}"] = {**row, **like, "also_test": [], "stream": stream, TWIN_OF: name}
    return expanded


class AllTasks(SelectionRule):
    """AP on all tasks' validation nodes after the last task: for methods that keep all data, and as in the paper."""

    name = "all-tasks"
    about = "validation nodes of all tasks, kept to the end"

    def score(self, result: dict[str, Any]) -> float:
        """The final AP."""
        return final_performance(result)


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merge(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


def _label(settings: dict[str, Any]) -> str:
    words = {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in settings.items()}
    return ",".join(f"{key}={word}" for key, word in words.items())
