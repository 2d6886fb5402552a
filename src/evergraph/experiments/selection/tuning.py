"""Tuning: trials of a method's settings, and a rule that chooses among them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evergraph.core.settings import settings_of
from evergraph.core.settings_from_text import configure
from evergraph.errors import unknown
from evergraph.experiments.engines import MakeEngine
from evergraph.experiments.metric_titles import describe_metric
from evergraph.experiments.selection.record import check_input, describe, opened
from evergraph.experiments.selection.rule import SELECTION_RULES, SelectionRule, Trial
from evergraph.experiments.selection.search import OnDone, Search
from evergraph.experiments.selection.space import Space
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import write_atomically

BEST = "best.json"


def make_rule(name: str, settings: Mapping[str, Any] | None = None) -> SelectionRule:
    """Make a rule by name."""
    rule: SelectionRule = configure(SELECTION_RULES[name], name, settings or {})
    return rule


def make_rules(settings: Mapping[str, Any] | None = None) -> list[SelectionRule]:
    """Make all rules; a setting goes to every rule that has it."""
    settings, known = settings or {}, {name: settings_of(kind) for name, kind in SELECTION_RULES.items()}
    for key in settings:
        if not any(key in own for own in known.values()):
            raise unknown(
                "setting of a selection rule", key, dict.fromkeys(key for own in known.values() for key in own)
            )
    return [
        make_rule(name, {key: value for key, value in settings.items() if key in own}) for name, own in known.items()
    ]


def tune(
    spec: RunSpec,
    rule: SelectionRule,
    out: str | Path,
    *,
    space: Space | None = None,
    trials: int = 20,
    jobs: int = 1,
    engine: MakeEngine | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    on_done: OnDone | None = None,
) -> dict[str, Any]:
    """Search a method's settings and choose by a rule; the choice is also written to `best.json` in the folder.

    The folder has `tune.json` from the start, the trials' runs in `cells`, a line for each finished trial with its
    scores in `results.jsonl`, and Optuna's study in `study.log` if Optuna proposes.

    Args:
        spec: the run whose settings are searched; every trial runs its seeds.
        rule: the selection rule.
        out: the folder; a new one, or that of the same search with `resume`.
        space: the search space; by default the one that the method declares.
        trials: number of trials.
        jobs: number of parallel processes, each with one seed of a trial.
        engine: makes the engine that runs the trials, instead of processes on this machine.
        data_root: folder of the datasets.
        resume: continue an interrupted search, possibly with more trials; with as many under a rule that plans its
            trials by their number (`stability-decay`).
        on_done: called after every trial.
    """
    space = space or Space.of(spec)
    tasks = check_input(spec, space, data_root)
    rule.check(spec, tasks, space, trials)
    settings, planned = dataclasses.asdict(rule), trials if rule.proposes else None
    record = describe(spec, space, rule.name, settings, tasks.graph_mark, optuna=rule.climbs, planned=planned)
    with opened(Path(out), record, resume) as with_optuna:
        search = Search(spec, space, trials, Path(out), jobs, engine, data_root, with_optuna, on_done)
        selection = rule.search(search)
        found = {
            "stream": spec.source,
            "method": spec.method,
            "metric": describe_metric(selection.chosen.result or {})["name"],
            "rule": rule.name,
            "about": rule.about,
            "note": selection.note,
            "proposer": "optuna" if with_optuna else "rule" if rule.proposes else "sobol",
            "best": describe_trial(space, selection.chosen, rule),
            "run_options": space.run_options(selection.chosen.point),
        }
        write_atomically(Path(out) / BEST, json.dumps(found, indent=1))
    trial_list = [describe_trial(space, trial, rule) for trial in selection.trials]
    return {**found, "trials": trial_list, "out": str(out)}


def describe_trial(space: Space, trial: Trial, rule: SelectionRule | None = None) -> dict[str, Any]:
    """A trial as plain values."""
    described: dict[str, Any] = {"trial": trial.key, "method": trial.spec.method, **space.split(trial.point)}
    if rule is not None:
        described["score"] = None if trial.result is None else rule.score(trial.result)
    return {**described, **({"error": trial.error} if trial.error else {})}
