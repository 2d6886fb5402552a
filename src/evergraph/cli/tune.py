"""`evergraph tune`: choose a method's settings by a rule that needs no old data."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from evergraph.cli import common, flags, parsing, printing
from evergraph.evaluation import decimal_places
from evergraph.experiments.engines import engine_for
from evergraph.experiments.metric_titles import describe_metric
from evergraph.experiments.run_folder import default_folder
from evergraph.experiments.selection import SELECTION_RULES, Space, compare_rules, make_rule, make_rules, tune
from evergraph.experiments.selection.proposals import has_optuna
from evergraph.experiments.selection.rule import last_if_no_number
from evergraph.experiments.selection.search import OnDone
from evergraph.registry import plugin_files

OPTIONS = tuple(name for name in flags.RUN_OPTIONS if name != "log")
NOT_OF_RUN = ("jobs", "on", "out", "resume")  # options of this command only, which do not affect what is run
SHOWN = 10  # trials in the printed table
NO_OPTUNA = (
    "Optuna is not installed (pip install 'evergraph[tune]'): a Sobol sequence spreads the trials over the space"
)
HELP = "What chooses. " + "; ".join(f"{name}: {rule.about}" for name, rule in SELECTION_RULES.items())

Rule = Annotated[str, typer.Option(help=f"{HELP}; all: every rule, against the best in hindsight.")]
Trials = Annotated[int, typer.Option(help="Settings that are tried; more of them can be with --resume.", min=1)]


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("tune")(tune_command)


@flags.takes_options(*OPTIONS)
def tune_command(
    options: dict[str, Any],
    stream: flags.Stream,
    method: flags.ChosenMethod = None,
    rule: Rule = "first-tasks",
    rule_set: flags.RuleSet = None,
    trials: Trials = 20,
    space: flags.Ranges = None,
    seeds: flags.Seeds = 1,
    json: flags.Json = False,
) -> None:
    """Choose a method's settings by a rule that uses no old data and no test nodes.

    Settings that you give (--set, --lr and so on) are fixed; the others that the method declares are searched.
    """
    method = common.named_method(method, stream, options)
    settings = common.method_settings([method], options)
    spec = common.make_spec(stream, method, settings, seeds, options, own_training=True)
    searched = Space.of(spec, parsing.parse_settings(space, "--space"), common.training_options(options))
    rule_settings = parsing.parse_settings(rule_set, "--rule-set")
    rules = make_rules(rule_settings) if rule == "all" else [make_rule(rule, rule_settings)]
    folder = options["out"] or default_folder(stream, f"tune-{method}")
    arguments: dict[str, Any] = {
        "space": searched,
        "trials": trials,
        "jobs": options["jobs"] or 1,
        "engine": engine_for(options["on"], options["jobs"]),
        "data_root": options["data_root"],
        "resume": options["resume"],
        "on_done": _on_done(None) if rule == "all" else _on_done(trials, rules[0].climbs and not has_optuna()),
    }
    with common.on_interrupt(lambda: common.how_to_resume(folder)):
        if rule == "all":
            found = compare_rules(spec, rules, folder, **arguments)
        else:
            found = tune(spec, rules[0], folder, **arguments)
    if json:
        printing.print_json(found)
    elif rule == "all":
        sys.stdout.write((folder / "table.md").read_text(encoding="utf-8"))
        _print_notes([f"{row['rule']}: {row['note']}" for row in found["rules"] if row.get("note")], folder)
    else:
        printing.console().print(_trials_table(found, searched))
        command = shlex.join(["evergraph", "run", stream, *_given(method, seeds, options), *found["run_options"]])
        _print_notes([*([found["note"]] if found["note"] else []), f"use it: {command}"], folder)


def _on_done(total: int | None, without_optuna: bool = False) -> OnDone:
    """Print a line on stderr for every trial; before the first one, a note if Optuna is missing."""
    of = f"/{total}" if total else ""

    def on_done(key: str, done: int) -> None:
        if done == 1 and without_optuna:
            print(NO_OPTUNA, file=sys.stderr)
        print(f"{done}{of} {key}", file=sys.stderr, flush=True)

    return on_done


def _trials_table(found: dict[str, Any], space: Space) -> Table:
    """Table of the best trials by score, with the chosen one marked."""
    rows = sorted(found["trials"], key=lambda row: last_if_no_number(row["score"]), reverse=True)
    metric = describe_metric({"protocol": found})
    shown = rows[:SHOWN]
    if all(row["trial"] != found["best"]["trial"] for row in shown):
        shown = [*shown[:-1], next(row for row in rows if row["trial"] == found["best"]["trial"])]
    table = Table(
        title=f"{found['stream']}, {found['method']}, rule {found['rule']}: {found['about']}",
        caption=f"{len(shown)} of {len(rows)} trials, highest score first; → is the rule's choice",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    table.add_column("trial")
    for key in space.dimensions:
        table.add_column(key, justify="right", no_wrap=True)
    table.add_column(_score_title(metric), justify="right", no_wrap=True)
    for row in shown:
        values = {**row["settings"], **row["training"], **{f"model.{k}": v for k, v in row["model_settings"].items()}}
        cells = [
            f"{values[key]:g}" if isinstance(values.get(key), float) else str(values.get(key, "–"))
            for key in space.dimensions
        ]
        score, text = row["score"], "diverged"
        if score is not None:
            text = f"{score:.{decimal_places([score], metric['unit'], percent=2)}f}"
        table.add_row("→" if row["trial"] == found["best"]["trial"] else "", row["trial"], *cells, text)
    return table


def _score_title(metric: dict[str, Any]) -> str:
    """Heading of the scores, which are negated errors where lower is better."""
    if metric["higher_is_better"]:
        return f"score ({metric['unit'] or metric['quantity']})"
    return f"score: −{metric['title']}"


def _given(method: str, seeds: int, options: dict[str, Any]) -> list[str]:
    """The options given to this command, as options of `evergraph run`."""
    words = ["--method", method, *(word for file in plugin_files() for word in ("--plugin", file))]
    for name in OPTIONS:
        value, default = options[name], flags.RUN_OPTIONS[name][1]
        if name in NOT_OF_RUN or value == default or value is None:
            continue
        flag = f"--{name.strip('_').replace('_', '-')}"
        if value is True:
            words.append(flag)
        else:
            words += [word for item in (value if isinstance(value, list) else [value]) for word in (flag, str(item))]
    return [*words, "--seeds", str(seeds)]


def _print_notes(lines: list[str], folder: Path) -> None:
    for line in [*lines, f"trials: {folder}"]:
        sys.stdout.write(f"{line}\n")
