"""`evergraph run`, `compare`, `methods`, `streams`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evergraph.cli import common
from evergraph.data.official import OFFICIAL
from evergraph.data.stream import DEFAULT_STREAM, PRESETS
from evergraph.loggers import make_loggers
from evergraph.methods import METHODS
from evergraph.plots import heatmaps
from evergraph.report import write_report
from evergraph.runs import RunSpec, default_folder, run


def add_commands(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command("run")(run_command)
    app.command("compare")(compare_command)
    app.command("methods")(methods_command)
    app.command("streams")(streams_command)


@common.takes_run_options
def run_command(
    options: dict[str, Any],
    stream: common.Stream = DEFAULT_STREAM,
    method: common.Method = "curvature",
    seeds: common.Seeds = 1,
    json: common.Json = False,
) -> None:
    """Learn a stream task by task with one method, and report AP, AF and the accuracy matrices."""
    spec = common.make_spec(stream, method, common.parse_settings(options["set_"]), seeds, options)
    folder = options["out"] or default_folder(stream, method)
    with common.on_interrupt(lambda: common.how_to_resume(folder)):
        result = _run(spec, folder, options)
    if json:
        common.print_json(result)
        return
    console = Console()
    console.print(common.result_table([result]))
    console.print(f"results: {result['run_dir']}", soft_wrap=True)


@common.takes_run_options
def compare_command(
    options: dict[str, Any],
    stream: common.Stream = DEFAULT_STREAM,
    methods: Annotated[str, typer.Option(help="Names with commas.")] = "finetune,curvature,joint",
    seeds: common.Seeds = 3,
    json: common.Json = False,
) -> None:
    """Learn a stream with several methods under one protocol: one table and one picture.

    Settings go to every method that has them, or to one by its name: --set curvature.strength=0.5.
    """
    given = common.parse_settings(options["set_"])
    names = [name for name in methods.split(",") if name]
    specs = [common.make_spec(stream, name, _settings_of(name, given), seeds, options) for name in names]
    for spec in specs:
        spec.learner(0)  # a wrong name is found before the first run starts
    folder = options["out"] or default_folder(stream, "compare")
    common.refuse_strangers(folder, "a comparison")
    with common.on_interrupt(lambda: common.how_to_resume(folder)):
        results = [_run(spec, folder / spec.method, options) for spec in specs]
        picture = heatmaps(results, folder / "heatmaps.png")
        page = write_report([folder / spec.method for spec in specs], folder / "report.html").page
    if json:
        common.print_json({"results": results, "heatmaps": str(picture), "report": str(page)})
        return
    console = Console()
    console.print(common.result_table(results))
    console.print(f"heatmaps: {picture}\nreport: {page}", soft_wrap=True)


def _settings_of(method: str, given: dict[str, str]) -> dict[str, str]:
    """Settings meant for one method: `name.key`, and plain keys that it has."""
    own = {key.removeprefix(f"{method}."): value for key, value in given.items() if key.startswith(f"{method}.")}
    kind = METHODS.get(method)
    plain = {f.name for f in dataclasses.fields(kind)} if kind else set()  # type: ignore[arg-type]
    return {**{key: value for key, value in given.items() if key in plain}, **own}


def _run(spec: RunSpec, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Run with a progress bar, and draw the run's picture."""
    loggers = make_loggers([name for name in (options["log"] or "").split(",") if name])
    with common.progress_bar(f"{spec.source} {spec.method}", len(spec.seeds)) as update:
        result = run(
            spec,
            folder,
            data_root=options["data_root"],
            resume=options["resume"],
            on_progress=update,
            loggers=loggers,
        )
    heatmaps([result], folder / "heatmap.png")
    return result


def methods_command(json: common.Json = False) -> None:
    """List the methods."""
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "family": kind.family,
            "reference": kind.reference,
            "hyperparameters": kind().hyperparameters(),
        }
        for name, kind in METHODS.items()
    ]
    if json:
        common.print_json(rows)
        return
    table = Table("name", "family", "hyper-parameters", "reference")
    for row in rows:
        settings = ", ".join(f"{key}={value}" for key, value in row["hyperparameters"].items())
        table.add_row(row["name"], row["family"], settings, row["reference"])
    Console().print(table)


def streams_command(json: common.Json = False) -> None:
    """List the streams."""
    rows = [
        {
            "name": name,
            "classes_per_task": preset.classes_per_task,
            "min_class_size": preset.min_class_size,
            "about": preset.about or OFFICIAL[preset.source].about,
        }
        for name, preset in PRESETS.items()
    ]
    if json:
        common.print_json(rows)
        return
    table = Table("name", "classes per task", "smallest class", "what it is")
    for row in rows:
        smallest = str(row["min_class_size"] or "any")
        table.add_row(str(row["name"]), str(row["classes_per_task"]), smallest, str(row["about"]))
    Console().print(table)
