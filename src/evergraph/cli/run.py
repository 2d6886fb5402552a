"""`evergraph run`, `methods`, `models`, `streams`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from evergraph.cli import common, flags, parsing, printing, together
from evergraph.cli.tables import listing, result_table
from evergraph.core.settings import UNDECLARED, settings_of
from evergraph.core.workers import launched, workers
from evergraph.data import DATASETS, DEFAULT_STREAM, dataset_of
from evergraph.errors import EvergraphError
from evergraph.experiments import RunSpec, make_loggers, run
from evergraph.experiments.cells import Cell, OnSeed, Results, all_or_error, run_cells, write_tracebacks
from evergraph.experiments.comparison import training_groups
from evergraph.experiments.engines import engine_for, work_on
from evergraph.experiments.heatmaps import heatmaps
from evergraph.experiments.result_file import each_test_graph
from evergraph.experiments.run_folder import check_folder, default_folder
from evergraph.methods import METHODS, Method
from evergraph.models import MODELS
from evergraph.persistence.files import taken_folder

PLAIN = (str, int, float, bool, list, tuple, dict, type(None))  # JSON can hold defaults of these types


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module to the app."""
    app.command("run")(run_command)
    app.command("work", hidden=True)(work_command)
    app.command("methods")(methods_command)
    app.command("models")(models_command)
    app.command("streams")(streams_command)


@flags.takes_options(*(name for name in flags.RUN_OPTIONS if name != "on"))
def run_command(
    options: dict[str, Any],
    stream: flags.Stream = DEFAULT_STREAM,
    method: flags.ChosenMethod = None,
    seeds: flags.Seeds = 1,
    processes: together.Processes = 1,
    json: flags.Json = False,
) -> None:
    """Learn a stream task by task with one method, and report AP, AF and the accuracy matrices."""
    if processes > 1 and launched() == 1:
        raise typer.Exit(together.launch(processes))
    method = common.named_method(method, stream, options)
    settings = common.method_settings([method], options)
    spec = common.make_spec(stream, method, settings, seeds, options, own_training=True)
    spec.check()
    if len(groups := training_groups(method, settings, [spec.stream["test_graph"], *spec.also_test])) > 1:
        raise EvergraphError(
            f"{method} trains on the graph that tests run on, and one run cannot serve test graphs "
            f"{' and '.join(group[0] for group in groups)}; run them one by one, or use `evergraph compare`"
        )
    folder = options["out"] or default_folder(stream, method)
    holding = together.shared_folder(folder)
    with common.on_interrupt(lambda: common.how_to_resume(folder)), holding as place:
        download_once(spec, options["data_root"])
        told = len(spec.seeds) > 1 and workers().rank == 0
        result = run_one(spec, place, options, _seed_lines(len(spec.seeds)) if told else None)
        heatmaps(list(each_test_graph(result)), place / "heatmap.png")
    common.tell_unused(options, [method], "epochs" in result["protocol"])
    common.tell_undeclared([result])
    if json:
        printing.print_json(result)
        return
    console = printing.console()
    console.print(result_table([result]))
    console.print(f"results: {result['run_dir']}", soft_wrap=True)


def work_command(
    tasks: Annotated[Path, typer.Argument(help="The tasks of an array job.")],
    number: Annotated[int, typer.Argument(help="Which of them.")],
) -> None:
    """Run one task of an array job written by --on slurm."""
    work_on(tasks, number)


def download_once(spec: RunSpec, data_root: Path | None) -> None:
    """Let the first of several processes download a missing dataset while the others wait."""
    group, dataset = workers(), dataset_of(spec.source)
    if group.rank == 0 and group.size > 1 and dataset is not None and not dataset.at_hand(data_root):
        spec.make_stream(spec.seeds[0], data_root)
    group.barrier()


def check_streams(specs: Iterable[RunSpec], data_root: Path | None) -> None:
    """Raise if the stream of one of the runs cannot be made, or has nothing to test on."""
    for spec in {spec.source + str(spec.stream): spec for spec in specs}.values():
        spec.make_stream(0, data_root).check_tests()


def _seed_lines(seeds: int) -> OnSeed:
    """Print a line on stderr for every seed that is done."""
    done = itertools.count(1)
    return lambda _, seed, failed: print(
        f"{next(done)}/{seeds} seed {seed}{' failed' * failed}", file=sys.stderr, flush=True
    )


def run_one(spec: RunSpec, folder: Path, options: dict[str, Any], on_seed: OnSeed | None = None) -> dict[str, Any]:
    """Do one run: in this process with a progress bar and loggers, or with its seeds in parallel.

    `on_seed` is called after every seed where no progress bar is shown.
    """
    if (options["jobs"] or 1) > 1:
        if launched() > 1:
            raise EvergraphError("--jobs runs seeds side by side, torchrun and --processes share one run; choose one")
        look = partial(check_folder, folder, spec, options["resume"])
        with taken_folder(folder, look, advice="name another with --out"):
            return side_by_side({"": spec}, folder, options, on_seed=on_seed)[""]
    loggers = make_loggers(parsing.separate(options["log"] or ())) if workers().rank == 0 else []
    with printing.progress_bar(f"{spec.source} {spec.method}", len(spec.seeds)) as update:
        return run(
            spec,
            folder,
            data_root=options["data_root"],
            resume=options["resume"],
            on_progress=update,
            on_seed=None if on_seed is None or printing.stderr.is_terminal else lambda seed: on_seed("", seed, False),
            loggers=loggers,
        )


def run_all(
    specs: dict[str, RunSpec], folder: Path, options: dict[str, Any], on_result: Callable[[Results], None]
) -> Results:
    """Run cells one after another with progress bars and loggers, or in parallel; failed ones are named at the end.

    After each cell, `on_result` is called with the results so far.
    """
    if (options["jobs"] or 1) > 1 or options["on"] != "local":
        return side_by_side(specs, folder, options, on_result)
    results, errors = Results(), dict[str, Exception]()
    for key, spec in specs.items():
        try:
            results[key] = run_one(spec, folder / key, options)
        except Exception as error:
            errors[key] = error
        else:
            on_result(results)  # an error here, such as a full disk, is not the cell's
            if len(specs) > 1 and not printing.stderr.is_terminal:
                print(f"{len(results) + len(errors)}/{len(specs)} {key}".rstrip(), file=sys.stderr, flush=True)
    write_tracebacks(errors, folder)
    return all_or_error(results, errors, folder)


def side_by_side(
    specs: dict[str, RunSpec],
    folder: Path,
    options: dict[str, Any],
    on_result: Callable[[Results], None] | None = None,
    on_seed: OnSeed | None = None,
) -> Results:
    """Run cells in several processes; prints a line for every cell or, with `on_seed`, leaves the lines to it."""
    if options["log"]:
        raise EvergraphError("--log follows one process; leave --jobs and --on out, or log without them")
    for spec in specs.values():
        spec.check()
    check_streams(specs.values(), options["data_root"])
    cells = [Cell(key, spec) for key, spec in specs.items()]
    on_done: Callable[[str, int, int], None] = lambda key, done, total: print(  # noqa: E731
        f"{done}/{total} {key}".rstrip(), file=sys.stderr, flush=True
    )
    told: dict[str, Any] = {"on_done": on_done} if on_seed is None else {"on_seed": on_seed}
    engine = engine_for(options.get("on", "local"), options["jobs"])
    return run_cells(cells, folder, data_root=options["data_root"], engine=engine, on_result=on_result, **told)


def methods_command(json: flags.Json = False) -> None:
    """List the methods: their hyper-parameters, as --set takes them, what they keep, and their papers."""
    rows: list[dict[str, Any]] = [
        {"name": name, "family": kind.family, "reference": kind.reference, **_settings_and_access(kind)}
        for name, kind in METHODS.items()
    ]
    if json:
        printing.print_json(rows)
        return
    table = listing("name", "family; what it keeps; hyper-parameters; reference")
    for row in rows:
        access = row["access"]
        keeps = (", ".join(access["keeps"]) or "nothing") if access else "what its settings say"
        lines = [f"{row['family']}; keeps {keeps}", _settings_in_words(row), row["reference"]]
        table.add_row(row["name"], "\n".join(line for line in lines if line))
    printing.console().print(table)


def _settings_and_access(kind: type[Method]) -> dict[str, Any]:
    """What `methods` lists about a method: its settings, and what it keeps and is told at their defaults."""
    try:
        method = kind()
    except Exception:  # a setting has no default, or the constructor of a plug-in fails
        access = None if isinstance(kind.access, property) else kind.access.as_dict()
        return {**_declared_settings(kind), "access": access}
    return {"hyperparameters": method.hyperparameters(), "required": [], "access": method.access.as_dict()}


def _declared_settings(kind: type) -> dict[str, Any]:
    """The settings that a class declares: those with a default, as plain values, and the names of the others."""
    declared = settings_of(kind)
    required = [key for key, default in declared.items() if default is UNDECLARED]
    given = {key: default for key, default in declared.items() if key not in required}
    plain = {key: value if isinstance(value, PLAIN) else repr(value) for key, value in given.items()}
    return {"hyperparameters": plain, "required": required}


def _settings_in_words(row: dict[str, Any]) -> str:
    """The settings of a row as the lists show them."""
    given = [f"{key}={value}" for key, value in row["hyperparameters"].items()]
    return ", ".join([*(f"{key} (required)" for key in row["required"]), *given])


def models_command(json: flags.Json = False) -> None:
    """List the models and their hyper-parameters, as --model-set takes them."""
    rows: list[dict[str, Any]] = [
        {"name": name, "about": (kind.__doc__ or "").split("\n")[0], **_declared_settings(kind)}
        for name, kind in MODELS.items()
    ]
    if json:
        printing.print_json(rows)
        return
    table = listing("name", "hyper-parameters", "what it is")
    for row in rows:
        table.add_row(row["name"], _settings_in_words(row), row["about"])
    printing.console().print(table)


def streams_command(data_root: flags.DataRoot = None, json: flags.Json = False) -> None:
    """List the streams, and which ones need no download."""
    rows = [
        {
            "name": name,
            "classes_per_task": dataset.classes_per_task,
            "min_class_size": dataset.min_class_size,
            "problem": dataset.problem,
            "scenario": dataset.scenario,
            "at_hand": dataset.at_hand(data_root),
            "checked_by": dataset.checked_by if dataset.downloadable else "",
            "about": dataset.about,
        }
        for name, dataset in DATASETS.items()
    ]
    if json:
        printing.print_json(rows)
        return
    table = listing("name", "at hand", "what it is; problem, scenario, classes per task")
    for row in rows:
        by_class = row["scenario"] in ("class", "task")
        how = [row["problem"], row["scenario"], *([f"{row['classes_per_task']} classes per task"] if by_class else [])]
        how += [f"classes of {row['min_class_size']} examples or more"] if row["min_class_size"] else []
        missing = f"download, checked by {row['checked_by']}" if row["checked_by"] else "no, and there is no download"
        at_hand = "yes" if row["at_hand"] else missing
        table.add_row(str(row["name"]), at_hand, f"{row['about']}\n{', '.join(map(str, how))}")
    printing.console().print(table)
