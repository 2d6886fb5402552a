"""Comparison of each rule's choice with the best in hindsight."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergraph.errors import EvergraphError
from evergraph.evaluation import as_array, decimal_places, mean_std, performance
from evergraph.experiments.engines import MakeEngine
from evergraph.experiments.metric_titles import PLAIN, describe_metric, direction_of
from evergraph.experiments.result_file import read_results
from evergraph.experiments.selection.proposals import spread
from evergraph.experiments.selection.record import check_input, describe, opened
from evergraph.experiments.selection.rule import Selection, SelectionRule, Trial, sign
from evergraph.experiments.selection.search import OnDone, Search
from evergraph.experiments.selection.space import Space
from evergraph.experiments.selection.tuning import describe_trial
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import write_atomically

TABLE = "table.md"


class Hindsight(SelectionRule):
    """AP on the test nodes of the whole stream. Not a rule to choose by: it marks the upper end of the scale."""

    name = "hindsight"
    about = "test nodes of the whole stream; not a rule"

    def score(self, result: dict[str, Any]) -> float:
        """AP on test nodes; negated if the metric is an error."""
        return sign(result) * float(result["ap"]["mean"])


HINDSIGHT = Hindsight()


def compare_rules(
    spec: RunSpec,
    rules: Sequence[SelectionRule],
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
    """Compare each rule's choice with the best in hindsight; the table is also written to `table.md` in the folder.

    The rules choose among the same settings, spread over the space, each by the runs that it may look at. A rule that
    proposes its own trials gets as many of them. All settings are then compared by AP on the test nodes of the whole
    stream, which no rule has seen. A rule that is not possible on this stream is listed with the reason.

    Args:
        spec: the run whose settings are searched.
        rules: the rules to compare.
        out: the folder; this and all other arguments are as for `tune`.
    """
    space = space or Space.of(spec)
    stream, possible, reasons = check_input(spec, space, data_root), [], {}
    for rule in rules:
        try:
            rule.check(spec, stream, space, trials)
            possible.append(rule)
        except EvergraphError as error:
            reasons[rule.name] = str(error)
    if not possible:
        raise EvergraphError(next(iter(reasons.values())))
    settings = {rule.name: dataclasses.asdict(rule) for rule in rules}
    planned = trials if any(rule.proposes for rule in possible) else None
    record = describe(spec, space, "all", settings, stream.graph_mark, optuna=False, planned=planned)
    with opened(Path(out), record, resume):
        search = Search(spec, space, trials, Path(out), jobs, engine, data_root, on_done=on_done)
        selections, full = _select(search, possible)
        best = HINDSIGHT.choose(space, list(full.values()))
        spent = min(max(rule.tasks_spent for rule in possible), len(stream) - 1)
        rows: list[dict[str, Any]] = []
        for rule in rules:
            if rule.name in reasons:
                rows.append({"rule": rule.name, "about": rule.about, "reason": reasons[rule.name]})
            else:
                rows.append(_row_of(rule, selections[rule.name], space, full, best, spent))
        found = {
            "stream": spec.source,
            "method": spec.method,
            "metric": describe_metric(best.result or {})["name"],
            "rule": "all",
            "proposer": "sobol",
            "tasks_spent": spent,
            "rules": rows,
            "hindsight": {"best": describe_trial(space, best, HINDSIGHT), **(_tested(best, spent) or {})},
        }
        write_atomically(Path(out) / TABLE, markdown(found))
    every = {trial.key: trial for trial in full.values()}
    every |= {trial.key: trial for selection in selections.values() for trial in selection.trials}
    scores = {key: entry["result"]["scores"] for key, entry in read_results(out).items()}
    listed = [{**describe_trial(space, trial), "scores": scores.get(key, {})} for key, trial in every.items()]
    return {**found, "trials": listed, "out": str(out)}


def _select(search: Search, rules: Sequence[SelectionRule]) -> tuple[dict[str, Selection], dict[str, Trial]]:
    """Each rule's choice, and the runs of all tried settings on the whole stream, by the trial's short name."""
    points = {f"{number:03d}": point for number, point in enumerate(spread(search.space, search.budget))}

    def shared(rule: SelectionRule) -> list[Trial]:
        return search.run(rule, [search.trial(rule, name, point) for name, point in points.items()])

    full = {_name(trial): trial for trial in shared(HINDSIGHT)}
    selections = {}
    for rule in rules:
        if rule.proposes:
            selections[rule.name] = rule.search(search)
            own = [trial for trial in selections[rule.name].trials if trial.spec.method == search.spec.method]
            points_of_rule = [search.trial(HINDSIGHT, _name(trial), trial.point) for trial in own]
            full |= {_name(trial): trial for trial in search.run(HINDSIGHT, points_of_rule)}
        else:
            trials = shared(rule)
            selections[rule.name] = Selection(rule.choose(search.space, trials), trials, rule.note)
    return selections, full


def _row_of(
    rule: SelectionRule, selection: Selection, space: Space, full: Mapping[str, Trial], best: Trial, spent: int
) -> dict[str, Any]:
    """A rule's choice, how good it is on test nodes, and by how much the best in hindsight is better."""
    chosen = selection.chosen
    tested = _tested(full[_name(chosen)], spent)
    behind = None
    if tested and best.result:
        behind = HINDSIGHT.score(best.result) - sign(best.result) * tested["ap"]["mean"]
    return {
        "rule": rule.name,
        "about": rule.about,
        "best": describe_trial(space, chosen, rule),
        "note": selection.note,
        "run_options": space.run_options(chosen.point),
        "hindsight": tested,
        "behind": behind,
    }


def _name(trial: Trial) -> str:
    return trial.key.rpartition("/")[2]


def _tested(trial: Trial, spent: int) -> dict[str, Any] | None:
    """AP and AF on the test nodes of the whole stream, and AP on the tasks after those that rules have used."""
    if trial.result is None:
        return None
    later = [performance(as_array(matrix)[-1, spent:]) for matrix in trial.result["matrices"]]
    return {"ap": trial.result["ap"], "af": trial.result["af"], "ap_later": mean_std(later)}


def markdown(found: Mapping[str, Any]) -> str:
    """The table of `compare_rules` in Markdown."""
    tasks, best, name = found["tasks_spent"], found["hindsight"], str(found["metric"])
    tested = [best, *(row["hindsight"] for row in found["rules"] if row.get("hindsight"))]
    unit = describe_metric({"protocol": found})["unit"]
    digits = decimal_places((one["ap"]["mean"] for one in tested), unit, percent=2)
    named = "" if name == PLAIN else f", {direction_of(name)}"
    lines = [
        f"**{found['stream']}, {found['method']}**{named}: what each rule chooses, and how good it is on the test "
        "nodes of the whole stream, which no rule looks at.",
        "",
        f"| rule | chooses | AP | AF | AP, tasks after the first {tasks} | AP behind the best in hindsight |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in found["rules"]:
        if "reason" in row:
            lines.append(f"| {row['rule']} | not possible here: {row['reason']} | | | | |")
        else:
            behind = "diverged" if row["behind"] is None else f"{row['behind']:.{digits}f}"
            numbers = _numbers(row["hindsight"], digits)
            lines.append(f"| {row['rule']} | {_settings(row['best'])} | {numbers} | {behind} |")
    lines.append(
        f"| *best in hindsight (test nodes; not a rule)* | {_settings(best['best'])} | {_numbers(best, digits)} "
        f"| {0:.{digits}f} |"
    )
    return "\n".join(lines) + "\n"


def _settings(best: Mapping[str, Any]) -> str:
    places = (best["settings"], best["training"], best["model_settings"])
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for p in places for key, value in p.items()
    )


def _numbers(tested: Mapping[str, Any] | None, digits: int) -> str:
    if tested is None:
        return "– | – | –"
    measures = (tested[key] for key in ("ap", "af", "ap_later"))
    return " | ".join(f"{one['mean']:.{digits}f} ± {one['std']:.{digits}f}" for one in measures)
