"""`evergraph run`, `compare`, `methods`, `models`, `streams`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evergraph.cli import common
from evergraph.core.settings import settings_of
from evergraph.data import DATASETS, DEFAULT_STREAM
from evergraph.errors import EvergraphError
from evergraph.experiments import RunSpec, make_loggers, run
from evergraph.experiments.cells import Cell, run_cells
from evergraph.experiments.comparison import cell_key, check_names, settings_by_method, table_rows, write_tables
from evergraph.experiments.plots import heatmaps
from evergraph.experiments.report import write_report
from evergraph.experiments.result_file import CELLS, known_result, read_results, write_results
from evergraph.experiments.run import check_folder, default_folder
from evergraph.methods import METHODS
from evergraph.models import MODELS
from evergraph.persistence.files import taken_folder


def add_commands(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command("run")(run_command)
    app.command("compare")(compare_command)
    app.command("methods")(methods_command)
    app.command("models")(models_command)
    app.command("streams")(streams_command)


@common.takes_options(*common.RUN_OPTIONS)
def run_command(
    options: dict[str, Any],
    stream: common.Stream = DEFAULT_STREAM,
    method: common.Method = None,
    seeds: common.Seeds = 1,
    json: common.Json = False,
) -> None:
    """Learn a stream task by task with one method, and report AP, AF and the accuracy matrices."""
    method = common.named_method(method, stream, options)
    settings = common.parse_settings(options["set_"])
    spec = common.make_spec(stream, method, settings, seeds, options, own_training=True)
    folder = options["out"] or default_folder(stream, method)
    with common.on_interrupt(lambda: common.how_to_resume(folder)):
        result = _run(spec, folder, options)
        heatmaps([result], folder / "heatmap.png")
    if json:
        common.print_json(result)
        return
    console = Console()
    console.print(common.result_table([result]))
    console.print(f"results: {result['run_dir']}", soft_wrap=True)


@common.takes_options(*(name for name in common.RUN_OPTIONS if name not in {"order", "test_graph"}))
def compare_command(
    options: dict[str, Any],
    streams: Annotated[
        list[str] | None, typer.Argument(help="Streams' names or paths of graph files; digits by default.")
    ] = None,
    methods: Annotated[str, typer.Option(help="Names with commas.")] = "finetune,curvature,joint",
    order: Annotated[list[str] | None, typer.Option(help="A class order; may be given several times.")] = None,
    test_graph: Annotated[list[str] | None, typer.Option(help="A test graph; may be given several times.")] = None,
    seeds: common.Seeds = 3,
    json: common.Json = False,
) -> None:
    """Learn streams with several methods under one protocol: one table and one picture.

    Settings go to every method that has them, or to one by its name: --set curvature.strength=0.5.
    """
    axes = {
        "stream": check_names("stream", streams or [DEFAULT_STREAM]),
        "order": check_names("order", order or ["labelled"]),
        "test_graph": check_names("test graph", test_graph or ["task"]),
        "method": check_names("method", methods.split(",")),
    }
    settings = settings_by_method(axes["method"], common.parse_settings(options["set_"]))
    specs: dict[str, RunSpec] = {}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values))
        name, cell_options = chosen["method"], {**options, "order": chosen["order"], "test_graph": chosen["test_graph"]}
        spec = common.make_spec(chosen["stream"], name, settings[name], seeds, cell_options, own_training=False)
        spec.check()  # a wrong name is found before the first run starts
        specs[cell_key(axes, chosen)] = spec
    if len(specs) > len(axes["method"]):  # of a single stream the first run finds out before it begins
        for spec in {str(spec.stream) + spec.source: spec for spec in specs.values()}.values():
            spec.make_stream(0, options["data_root"])
    folder = options["out"] or default_folder(axes["stream"][0], "compare")
    common.refuse_strangers(folder, "a comparison")
    with common.on_interrupt(lambda: common.how_to_resume(folder)), taken_folder(folder, "name another with --out"):
        entries = read_results(folder)
        results = _finish_cells(specs, folder, entries, options)
        write_results(folder, specs, results)
        rows = table_rows(results.values())
        write_tables(rows, folder)
        picture = heatmaps(list(results.values()), folder / "heatmaps.png")
        page = write_report([folder], folder / "report.html").page
    if json:
        results_list = list(results.values())
        common.print_json({"results": results_list, "table": rows, "heatmaps": str(picture), "report": str(page)})
        return
    console = Console()
    if len(specs) == len(axes["method"]):
        console.print(common.result_table(list(results.values())))
    else:
        console.print(common.comparison_table(rows))
    console.print(f"heatmaps: {picture}\nreport: {page}", soft_wrap=True)


def _finish_cells(
    specs: dict[str, RunSpec], folder: Path, entries: dict[str, Any], options: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The results of a comparison's cells: those that the results file holds, and those run now."""
    known = {key: result for key, spec in specs.items() if (result := known_result(entries, key, spec)) is not None}
    if known and not options["resume"]:
        raise EvergraphError(
            f"{folder} holds a comparison already; add --resume to go on with it, or use another --out"
        )
    left = {key: spec for key, spec in specs.items() if key not in known}
    for key, spec in left.items():
        check_folder(folder / CELLS / key, spec, options["resume"])
    if (options["jobs"] or 1) > 1:
        new_results = _side_by_side(left, folder / CELLS, options)
    else:
        new_results = {key: _run(spec, folder / CELLS / key, options) for key, spec in left.items()}
    return {key: known.get(key) or new_results[key] for key in specs}


def _run(spec: RunSpec, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """One run: in this process with a progress bar and loggers, or its seeds side by side."""
    if (options["jobs"] or 1) > 1:
        check_folder(folder, spec, options["resume"])
        with taken_folder(folder, "name another with --out"):
            check_folder(folder, spec, options["resume"])
            return _side_by_side({"": spec}, folder, options)[""]
    loggers = make_loggers([name for name in (options["log"] or "").split(",") if name])
    with common.progress_bar(f"{spec.source} {spec.method}", len(spec.seeds)) as update:
        return run(
            spec,
            folder,
            data_root=options["data_root"],
            resume=options["resume"],
            on_progress=update,
            loggers=loggers,
        )


def _side_by_side(specs: dict[str, RunSpec], folder: Path, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Cells in several processes."""
    if options["log"]:
        raise EvergraphError("--log follows one process; leave --jobs out, or log without it")
    for spec in specs.values():
        spec.check()
        spec.make_stream(0, options["data_root"])
    cells = [Cell(key, spec) for key, spec in specs.items()]
    on_done: Callable[[str, int, int], None] = lambda key, done, total: print(  # noqa: E731
        f"{done}/{total} {key}".rstrip(), file=sys.stderr, flush=True
    )
    return run_cells(cells, folder, data_root=options["data_root"], jobs=options["jobs"], on_done=on_done)


def methods_command(json: common.Json = False) -> None:
    """List the methods."""
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "family": kind.family,
            "reference": kind.reference,
            "hyperparameters": kind().hyperparameters(),
            "access": kind().access.as_dict(),
        }
        for name, kind in METHODS.items()
    ]
    if json:
        common.print_json(rows)
        return
    table = Table("name", "family", "keeps", "hyper-parameters", "reference")
    for row in rows:
        settings = ", ".join(f"{key}={value}" for key, value in row["hyperparameters"].items())
        keeps = ", ".join(row["access"]["keeps"]) or "nothing"
        table.add_row(row["name"], row["family"], keeps, settings, row["reference"])
    Console().print(table)


def models_command(json: common.Json = False) -> None:
    """List the models and their hyper-parameters, as --model-set takes them."""
    rows = [
        {"name": name, "about": (kind.__doc__ or "").split("\n")[0], "hyperparameters": settings_of(kind)}
        for name, kind in MODELS.items()
    ]
    if json:
        common.print_json(rows)
        return
    table = Table("name", "hyper-parameters", "what it is")
    for row in rows:
        settings = ", ".join(f"{key}={value}" for key, value in row["hyperparameters"].items())  # type: ignore[attr-defined]
        table.add_row(str(row["name"]), settings, str(row["about"]))
    Console().print(table)


def streams_command(data_root: common.DataRoot = None, json: common.Json = False) -> None:
    """List the streams, and which are at hand without a download."""
    rows = [
        {
            "name": name,
            "classes_per_task": dataset.classes_per_task,
            "min_class_size": dataset.min_class_size,
            "problem": dataset.problem,
            "scenario": dataset.scenario,
            "at_hand": dataset.at_hand(data_root),
            "about": dataset.about,
        }
        for name, dataset in DATASETS.items()
    ]
    if json:
        common.print_json(rows)
        return
    table = Table("name", "problem", "scenario", "classes per task", "smallest class", "at hand", "what it is")
    for row in rows:
        by_class = row["scenario"] in ("class", "task")
        counts = [str(row["classes_per_task"]) if by_class else "all", str(row["min_class_size"] or "any")]
        at_hand = "yes" if row["at_hand"] else "download"
        table.add_row(str(row["name"]), str(row["problem"]), str(row["scenario"]), *counts, at_hand, str(row["about"]))
    Console().print(table)
