"""`evergraph paper`: the paper's experiment from one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from evergraph.cli import common, flags, parsing, printing
from evergraph.errors import EvergraphError, unknown
from evergraph.experiments.engines import MOST_ON_GPU, engine_for
from evergraph.experiments.paper.experiment import run_paper
from evergraph.experiments.paper.protocol import BOTH, DATASETS, PAPER_DATASETS, PROTOCOLS
from evergraph.experiments.paper.statistics import markdown
from evergraph.experiments.paper.statistics import statistics as counted
from evergraph.experiments.selection import SELECTION_RULES
from evergraph.persistence.files import holds_something


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("paper")(paper_command)


def paper_command(
    dataset: Annotated[
        str, typer.Option(help=f"{', '.join(DATASETS)} (comma-separated), or all for the paper's three.")
    ] = "coauthor-cs",
    protocol: Annotated[str, typer.Option(help="paper, best, both, or field: all methods at equal bytes.")] = "both",
    seeds: flags.Seeds = 3,
    methods: Annotated[
        list[str] | None, typer.Option(help="Rows of the table, comma-separated (or repeat it); all by default.")
    ] = None,
    studies: Annotated[bool, typer.Option(help="Also run the studies that the protocols name.")] = True,
    study: Annotated[
        list[str] | None,
        typer.Option(help="Only these studies, comma-separated (or repeat it), without the table."),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help=f"The rule that chooses settings, for rows that search: {', '.join(SELECTION_RULES)}."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Fewer epochs than the protocol's, for a trial.", min=1)] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of runs side by side, in processes of their own; "
            f"by default one for each core, on a GPU at most {MOST_ON_GPU}.",
            min=1,
            max=1024,
        ),
    ] = None,
    on: flags.On = "local",
    device: flags.Device = "auto",
    data_root: flags.DataRoot = None,
    out: flags.Out = None,
    resume: flags.Resume = False,
    statistics: Annotated[
        bool,
        typer.Option(
            "--statistics", help="Print the paper's Table 2 beside the counts of the data found here; run nothing."
        ),
    ] = False,
    json: flags.Json = False,
) -> None:
    """Reproduce the paper: Table 1, heatmaps, the λ figure and the queue-size study; or compare the whole field."""
    datasets = PAPER_DATASETS if dataset == "all" else tuple(dict.fromkeys(dataset.split(",")))
    for name in datasets:
        if name not in DATASETS:
            raise unknown("dataset", name, (*DATASETS, "all"))
    if statistics:
        table = counted(datasets, data_root)
        printing.print_json(table) if json else sys.stdout.write(markdown(table))
        return
    if protocol not in (*PROTOCOLS, "both"):
        raise unknown("protocol", protocol, (*PROTOCOLS, "both"))
    rows = parsing.separate(methods) if methods else None
    if rows == []:
        raise EvergraphError("--methods names no row; leave it out for all of them")
    engine = engine_for(on, jobs) if on != "local" else None  # `run_paper` has its own default number of processes
    folder = out or Path("runs") / "paper"
    common.look_for_results(folder, "an experiment")
    if holds_something(folder) and not resume:
        raise EvergraphError(f"{folder} is not empty; add --resume to go on with it, or name another with --out")
    with common.on_interrupt(lambda: common.how_to_resume(folder)), printing.counting_bar() as on_done:
        summary: dict[str, Any] = run_paper(
            datasets=datasets,
            protocols=BOTH if protocol == "both" else (protocol,),
            seeds=seeds,
            rows=rows,
            studies=parsing.separate(study) if study else studies,
            rule=rule,
            epochs=epochs,
            device=device,
            jobs=jobs,
            engine=engine,
            data_root=data_root,
            out=folder,
            on_done=on_done,
        )
    if json:
        printing.print_json(summary)
        return
    for table in summary["tables"]:
        sys.stdout.write(Path(table["markdown"]).read_text(encoding="utf-8") + "\n")
    sys.stdout.write(f"tables, figures and matrices: {folder}\n")
