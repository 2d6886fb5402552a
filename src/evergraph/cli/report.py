"""`evergraph report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from evergraph.cli import flags, printing
from evergraph.experiments.report import write_report


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("report")(report_command)


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of comparisons (all runs below them).")],
    out: Annotated[Path | None, typer.Option(help="The page; report.html in the first folder by default.")] = None,
    figures: Annotated[bool, typer.Option(help="Also write every figure as PNG and PDF, in figures/.")] = True,
    json: flags.Json = False,
) -> None:
    """Write one HTML page about runs: tables, matrices, curves. It works offline."""
    report = write_report(runs, out, figures=figures)
    if json:
        names = [str(path) for path in report.figures]
        printing.print_json(
            {"report": str(report.page), "figures": names, "unfinished": list(map(str, report.unfinished))}
        )
        return
    for folder in report.unfinished:
        print(f"not finished, left out: {folder}", file=sys.stderr)
    sys.stdout.write(f"report: {report.page}\n")
