"""`evergraph compare`: several methods on several streams, tuned alike on request, in one table with significance."""

from __future__ import annotations

import itertools
import json as jsons
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from evergraph.cli import common, flags, parsing, printing
from evergraph.cli.run import check_streams, run_all
from evergraph.cli.tables import comparison_table, methods_and_streams, result_table
from evergraph.data import DEFAULT_STREAM, TEST_GRAPHS
from evergraph.errors import EvergraphError
from evergraph.experiments import RunSpec
from evergraph.experiments.cells import CellsFailedError
from evergraph.experiments.comparison import (
    cell_key,
    check_cells_differ,
    check_names,
    check_varied,
    own_variation,
    shares,
    table_rows,
    training_groups,
    variations,
    write_tables,
)
from evergraph.experiments.engines import MakeEngine, engine_for
from evergraph.experiments.heatmaps import heatmaps
from evergraph.experiments.method_table import MethodTable, write_method_table
from evergraph.experiments.method_table import latex as as_latex
from evergraph.experiments.report import write_comparison_report
from evergraph.experiments.result_file import (
    CELLS,
    TUNING,
    EverySoOften,
    check_one_graph,
    each_test_graph,
    known_result,
    recorded_specs,
    stored_key,
    stored_keys,
    write_results,
)
from evergraph.experiments.run_folder import check_folder, default_folder
from evergraph.experiments.selection import SELECTION_RULES, SelectionRule, Space, make_rule, tune
from evergraph.experiments.selection.record import RECORD
from evergraph.experiments.selection.side_by_side import SearchWith, search_side_by_side
from evergraph.experiments.selection.tuning import BEST
from evergraph.methods import METHODS
from evergraph.persistence.files import holds_something, taken_folder, write_atomically

CONTENDERS = "auto,stand-in-curvature,finetune,joint"
SEVERAL = {"order", "test_graph"}  # options that may be given more than once


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("compare")(compare_command)


@flags.takes_options(*(name for name in flags.RUN_OPTIONS if name not in SEVERAL))
def compare_command(
    options: dict[str, Any],
    streams: Annotated[
        list[str] | None, typer.Argument(help="Streams' names or paths of graph files; digits by default.")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help=f"Comma-separated names (or repeat it), or all; {CONTENDERS.replace(',', ', ')} by default."),
    ] = None,
    order: Annotated[
        list[str] | None, typer.Option(help="A class order as in `run`, labelled by default; may be repeated.")
    ] = None,
    test_graph: Annotated[
        list[str] | None,
        typer.Option(help="Test graphs as in `run`, task by default; one training run serves all, except for joint."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Compare several values of a setting, for every method that has it."),
    ] = None,
    tune_by: Annotated[
        str | None,
        typer.Option("--tune", metavar="RULE", help=f"Choose every method's settings: {', '.join(SELECTION_RULES)}."),
    ] = None,
    rule_set: flags.RuleSet = None,
    trials: Annotated[int, typer.Option(help="Number of settings to try with --tune.", min=1)] = 10,
    space: flags.Ranges = None,
    tune_seeds: Annotated[int, typer.Option(help="Number of seeds per trial of --tune.", min=1)] = 1,
    seeds: flags.Seeds = 3,
    latex: Annotated[bool, typer.Option("--latex", help="Print the table of methods and streams as LaTeX.")] = False,
    json: flags.Json = False,
) -> None:
    """Compare several methods on several streams: tables with significance, a figure and a report.

    Every method has its own default settings; an option that you give applies to all methods. --set KEY=VALUE applies
    to every method with that setting, --set METHOD.KEY=VALUE to one method, its model or its training: --set
    ewc.strength=5, --set auto.hidden=1024, --set lwf.lr=0.01, --set analytic.model=random-features. --vary works in
    the same way. METHOD.KEY overrules KEY. With --resume, more --seeds run only the new ones.
    """
    named = parsing.names_of("method", methods or [CONTENDERS])
    axes = {
        "stream": check_names("stream", streams or [DEFAULT_STREAM]),
        "order": check_names("order", order or ["labelled"]),
        "method": list(METHODS) if named == ["all"] else named,
    }
    engine_for(options["on"], options["jobs"])
    rule, ranges = _rule_and_ranges(tune_by, rule_set, space)
    test_graphs = parsing.names_of("test graph", test_graph or ["task"])
    for name in test_graphs:
        TEST_GRAPHS[name]
    varied = {key: value.split(",") for key, value in parsing.parse_settings(vary, "--vary").items()}
    specs, fixed = _specs(axes, test_graphs, varied, seeds, options)
    spaces = _spaces(specs, fixed, ranges) if rule is not None else {}
    if len(specs) > len(axes["method"]) or rule:  # a single stream is checked by its first run
        check_streams(specs.values(), options["data_root"])
    folder = options["out"] or default_folder(axes["stream"][0], "compare")
    look = partial(common.look_for_results, folder, "a comparison")
    holding = taken_folder(folder, look, advice="name another with --out")
    with common.on_interrupt(lambda: common.how_to_resume(folder)), holding as entries:
        note, tuned = "", dict[str, set[str]]()
        if not options["resume"] and (entries or holds_something(folder / TUNING)):
            raise EvergraphError(
                f"{folder} holds a comparison already; add --resume to go on with it, or use another --out"
            )
        if rule is not None:
            specs, tuned = _tuned(specs, spaces, rule, trials, tune_seeds, folder, options)
            note = f"Settings chosen by the rule {tune_by}, {trials} trials for each method and stream; see {TUNING}/."
        specs = stored_keys(specs, entries, folder / CELLS)
        results, failure = _finish_cells(specs, folder, entries, options)
        if failure is not None and not results:
            raise failure
        write_results(folder, specs, results)
        written = _write_outputs(folder, list(specs), list(results.values()), note, tuned)
        if failure is not None:  # the tables hold the results so far
            raise failure
    trained = any("epochs" in result["protocol"] for result in results.values())
    common.tell_unused(options, axes["method"], trained)
    common.tell_undeclared(results.values())
    if json:
        printing.print_json(
            {
                "results": written.measured,
                "table": written.rows,
                "heatmaps": str(written.picture),
                "report": str(written.page),
            }
        )
    elif latex:
        sys.stdout.write((f"% {note}\n" if note else "") + as_latex(written.table))
    elif len(axes["stream"]) > 1:
        _print(methods_and_streams(written.table), folder, written)
    elif len(specs) == len(axes["method"]) and len(test_graphs) == 1:
        _print(result_table(list(results.values())), folder, written)
    else:
        _print(comparison_table(written.rows), folder, written)


@dataclass(frozen=True)
class _Written:
    """What was written about a comparison.

    Args:
        measured: the results, one for each test graph.
        rows: the table of runs.
        table: the table of methods and streams.
        picture: the heatmaps.
        page: the report.
    """

    measured: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    table: MethodTable
    picture: Path
    page: Path


def _write_outputs(
    folder: Path, keys: list[str], results: list[dict[str, Any]], note: str, tuned: dict[str, set[str]]
) -> _Written:
    """Write the tables, the heatmaps and the report of a comparison's cells."""
    rows = table_rows(results, tuned)
    write_tables(rows, folder)
    table = write_method_table(results, folder, note, tuned)
    measured = [one for result in results for one in each_test_graph(result)]
    picture = heatmaps(measured, folder / "heatmaps.png")
    return _Written(measured, rows, table, picture, write_comparison_report(folder, keys).page)


def _print(table: RenderableType, folder: Path, written: _Written) -> None:
    """Print a table, and where everything else is."""
    console = printing.console()
    console.print(table)
    tables = ", ".join(str(folder / f"methods.{ending}") for ending in ("md", "tex", "csv"))
    console.print(f"methods and streams: {tables}\nheatmaps: {written.picture}\nreport: {written.page}", soft_wrap=True)


def _rule_and_ranges(
    tune_by: str | None, rule_set: list[str] | None, space: list[str] | None
) -> tuple[SelectionRule | None, dict[str, str]]:
    """The rule of --tune, if it is given, and the ranges of --space; options of --tune without it are an error."""
    settings, ranges = parsing.parse_settings(rule_set, "--rule-set"), parsing.parse_settings(space, "--space")
    if tune_by is None and (settings or ranges):
        raise EvergraphError(f"{'--space' if ranges else '--rule-set'} is for --tune; name a rule with it")
    return make_rule(tune_by, settings) if tune_by is not None else None, ranges


def _specs(
    axes: dict[str, list[str]],
    test_graphs: list[str],
    varied: dict[str, list[str]],
    seeds: int,
    options: dict[str, Any],
) -> tuple[dict[str, RunSpec], dict[str, set[str]]]:
    """Every cell's checked specification by key, and the names of the training settings that were given for each.

    A wrong name is found before the first run starts. A cell serves as many test graphs as one training run can.
    """
    methods, model = axes["method"], options["model"] or ""
    given = common.method_settings(methods, options)
    check_varied(methods, given, varied)
    specs: dict[str, RunSpec] = {}
    fixed: dict[str, set[str]] = {}
    for values, variation in itertools.product(itertools.product(*axes.values()), variations(varied)):
        chosen = dict(zip(axes, values))
        name = chosen["method"]
        settings, models, training = (share[name] for share in shares(methods, {**given, **variation}, model))
        groups = training_groups(name, settings, test_graphs)
        parts = {**axes, "test_graph": [group[0] for group in groups]}
        for group in groups:
            cell_options = {**options, "order": chosen["order"], "test_graph": group}
            spec = common.make_spec(chosen["stream"], name, settings, seeds, cell_options, own_training=True)
            own_model = {key: value for key, value in models.items() if key != "model"}
            spec = replace(
                spec,
                model=models.get("model", spec.model),
                model_settings={**spec.model_settings, **own_model},
                training=replace(spec.training, **training),
            )
            spec.check()
            key = cell_key(parts, {**chosen, "test_graph": group[0]}, own_variation(variation, name))
            while specs.get(key, spec) != spec:  # two names differ only in signs that no folder's name has
                key += "~"
            specs[key], fixed[key] = spec, {*common.training_options(options), *training}
    check_cells_differ(specs)
    return specs, fixed


def _spaces(specs: dict[str, RunSpec], fixed: dict[str, set[str]], ranges: dict[str, str]) -> dict[str, Space]:
    """The search space of each cell; a method whose settings are all given is left out.

    A range goes to every method that has the setting. A setting that no method has is an error.
    """
    spaces = {}
    for key, spec in specs.items():
        own = {name: text for name, text in ranges.items() if Space.has(spec, name)}
        if own or Space.open_settings(spec, fixed[key]):
            spaces[key] = Space.of(spec, own, fixed[key])
    searched = {name for space in spaces.values() for name in space.dimensions}
    for name in ranges:
        if name not in searched:
            methods = ", ".join(dict.fromkeys(spec.method for spec in specs.values()))
            raise EvergraphError(f"--space {name}: no setting of {methods}, of their models (model.KEY) or training")
    return spaces


def _tuned(
    specs: dict[str, RunSpec],
    spaces: dict[str, Space],
    rule: SelectionRule,
    trials: int,
    seeds: int,
    folder: Path,
    options: dict[str, Any],
) -> tuple[dict[str, RunSpec], dict[str, set[str]]]:
    """The cells with settings chosen by a rule, and the names of these settings by method.

    They are chosen once for each stream, method and variation, on the first order and test graph. A method whose
    settings are all given stays as it is.
    """
    searches: dict[str, SearchWith] = {}
    begun = recorded_specs(folder / TUNING, RECORD)
    for key, spec in specs.items():
        name = _tuned_as(key, spec)
        if key in spaces and name not in searches:
            first = replace(spec, seeds=list(range(seeds)), also_test=[])
            place = folder / TUNING / (stored_key(key, first, begun) or key)
            searches[name] = partial(_search, first, spaces[key], rule, trials, place, options)
    jobs = (options["jobs"] or 1) if options["on"] == "local" else 1
    chosen = {name: found["best"] for name, found in search_side_by_side(searches, jobs).items()}
    names: dict[str, set[str]] = {}
    tuned = {}
    for key, spec in specs.items():
        name = _tuned_as(key, spec)
        if name not in chosen:
            tuned[key] = spec
            continue
        best = chosen[name]
        searched = {*best["settings"], *best["training"], *(f"model.{own}" for own in best["model_settings"])}
        names.setdefault(spec.method, set()).update(searched)
        tuned[key] = replace(
            spec,
            settings={**spec.settings, **best["settings"]},
            model_settings={**spec.model_settings, **best["model_settings"]},
            training=replace(spec.training, **best["training"]),
        )
    (folder / TUNING).mkdir(parents=True, exist_ok=True)  # there may have been nothing to search
    write_atomically(folder / TUNING / BEST, jsons.dumps(chosen, indent=1))
    return tuned, names


def _search(
    spec: RunSpec,
    space: Space,
    rule: SelectionRule,
    trials: int,
    folder: Path,
    options: dict[str, Any],
    jobs: int,
    engine: MakeEngine | None,
) -> dict[str, Any]:
    """Choose the settings of one method on one stream by a rule."""
    print(f"tuning {spec.method} on {spec.source}", file=sys.stderr, flush=True)
    found = tune(
        spec,
        rule,
        folder,
        space=space,
        trials=trials,
        jobs=jobs if options["on"] == "local" else options["jobs"] or 1,
        engine=engine or engine_for(options["on"], options["jobs"]),
        data_root=options["data_root"],
        resume=(folder / RECORD).exists(),
    )
    print(f"tuned {spec.method} on {spec.source}", file=sys.stderr, flush=True)
    return found


def _tuned_as(key: str, spec: RunSpec) -> str:
    """Name under which a cell's settings are chosen: its stream, its method and its varied settings."""
    return f"{spec.source}: {key.rpartition('/')[2]}"


def _finish_cells(
    specs: dict[str, RunSpec], folder: Path, entries: dict[str, Any], options: dict[str, Any]
) -> tuple[dict[str, dict[str, Any]], CellsFailedError | None]:
    """Run the cells that the results file does not hold; return all results, and the error that names failed cells."""
    known = {key: result for key, spec in specs.items() if (result := known_result(entries, key, spec)) is not None}
    left = {key: spec for key, spec in specs.items() if key not in known}
    for key, spec in left.items():
        check_folder(folder / CELLS / key, spec, options["resume"])
    check_one_graph(entries, specs, left, folder / CELLS, options["data_root"])
    failure = None
    save = EverySoOften(lambda results: write_results(folder, specs, results))  # they survive a killed comparison
    try:
        new_results = run_all(left, folder / CELLS, options, save)
    except CellsFailedError as error:
        failure, new_results = error, error.results
    results = {**known, **new_results}
    return {key: results[key] for key in specs if key in results}, failure
