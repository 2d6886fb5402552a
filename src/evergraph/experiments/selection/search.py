"""Trials as cells of one folder, run in parallel; finished trials are not run again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from evergraph.errors import DivergedError
from evergraph.experiments.cells import Cell, run_cells
from evergraph.experiments.engines import MakeEngine
from evergraph.experiments.result_file import CELLS, known_result, read_results, write_results
from evergraph.experiments.selection.proposals import STUDY, Climb, Proposer, Spread
from evergraph.experiments.selection.rule import SelectionRule, Trial
from evergraph.experiments.selection.space import Point, Space
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_json, read_json

DIVERGED = "diverged.json"  # trials without a result, and the reasons
OnDone = Callable[[str, int], None]
"""Called as (a trial's name, trials done so far)."""


class Diverged(TypedDict):
    """What `diverged.json` holds of each trial without a result."""

    error: str
    spec: dict[str, Any]


@dataclass
class Search:
    """What a rule needs for a search: the space, the number of trials, and a folder in which trials are run.

    Args:
        spec: the run whose settings are searched.
        space: the search space.
        budget: number of trials allowed.
        folder: folder of the search, locked by the caller.
        jobs: number of parallel processes.
        engine: makes the engine that runs the trials, instead of processes on this machine.
        data_root: folder of the datasets.
        with_optuna: whether Optuna proposes trials if there is a score to maximize.
        on_done: called after every trial.
    """

    spec: RunSpec
    space: Space
    budget: int
    folder: Path
    jobs: int = 1
    engine: MakeEngine | None = None
    data_root: str | Path | None = None
    with_optuna: bool = False
    on_done: OnDone | None = None
    _done: dict[str, None] = field(default_factory=dict)

    @property
    def at_once(self) -> int:
        """Number of trials that keeps all processes busy, with one seed of a trial each."""
        return math.ceil(self.jobs / len(self.spec.seeds))

    def proposer(self, rule: SelectionRule) -> Proposer:
        """The proposer for a rule. A search that Optuna began goes on with it, even if all points can now be tried."""
        begun = (self.folder / STUDY).exists()
        if rule.climbs and self.with_optuna and (begun or self.space.size > self.budget):
            return Climb(self.space, self.budget, self.folder, self.at_once)
        return Spread(self.space, self.budget)

    def trial(self, rule: SelectionRule, name: str, point: Point, spec: RunSpec | None = None) -> Trial:
        """A trial to run: a point's settings, in a run restricted as the rule requires."""
        return Trial(f"{rule.scope}/{name}", point, rule.restrict(self.space.apply(spec or self.spec, point)))

    def run(self, rule: SelectionRule, trials: Sequence[Trial]) -> list[Trial]:
        """Run the trials, unless they were run before; return them with results. A diverged trial has no result."""
        entries, diverged = read_results(self.folder), self._diverged()

        def known(cell: Cell) -> dict[str, Any] | None:
            # with more trials, another one may have the name of one that diverged
            if (one := diverged.get(cell.key)) is not None and not cell.spec.differences(one["spec"]):
                return {"error": one["error"]}
            return known_result(entries, cell.key, cell.spec)

        def failed(cell: Cell, error: Exception) -> dict[str, Any] | None:
            if not isinstance(error, DivergedError):  # any other error is about the input or the machine
                return None
            diverged[cell.key] = {"error": str(error), "spec": cell.spec.as_dict()}
            write_atomically(self.folder / DIVERGED, as_json(diverged, indent=1))
            return {"error": str(error)}

        results = run_cells(
            [Cell(trial.key, trial.spec) for trial in trials],
            self.folder / CELLS,
            known=known,
            failed=failed,
            data_root=self.data_root,
            jobs=self.jobs,
            engine=self.engine,
            on_done=self._count,
        )
        done = [
            replace(trial, error=results[trial.key]["error"])
            if "error" in results[trial.key]
            else replace(trial, result=results[trial.key])
            for trial in trials
        ]
        scored = {
            trial.key: {
                **trial.result,
                "scores": {**trial.result.get("scores", {}), rule.name: rule.score(trial.result)},
            }
            for trial in done
            if trial.result is not None
        }
        write_results(self.folder, {trial.key: trial.spec for trial in done}, scored)
        return done

    def _count(self, key: str, done: int, total: int) -> None:
        if done and key not in self._done:
            self._done[key] = None
            if self.on_done is not None:
                self.on_done(key, len(self._done))

    def _diverged(self) -> dict[str, Diverged]:
        """Trials without a result; earlier versions noted only the error, and those trials are run again."""
        path = self.folder / DIVERGED
        noted = read_json(path, dict[str, str | Diverged]) if path.exists() else {}
        return {key: one for key, one in noted.items() if not isinstance(one, str)}
