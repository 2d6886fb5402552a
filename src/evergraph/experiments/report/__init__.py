"""The report: one HTML page that needs no server and no network, and every figure as PNG and PDF.

The page is `page.html` with the style sheet, the scripts and the data embedded. The scripts print and draw the
numbers in the data and compute none of them; they only create text nodes, so no name can become markup.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from evergraph.core.settings import checked, settings_of
from evergraph.errors import EvergraphError
from evergraph.evaluation import mean_std
from evergraph.experiments.comparison import settings_apart
from evergraph.experiments.labels import flat
from evergraph.experiments.matrices import by_metric, value_limits
from evergraph.experiments.method_table import heading, method_table
from evergraph.experiments.metric_titles import common_metric, with_direction
from evergraph.experiments.plots import FIGURES, draw
from evergraph.experiments.report.answer import answers
from evergraph.experiments.report.collect import find_runs, read_runs, summary_titles
from evergraph.experiments.result_file import CELLS, read_results
from evergraph.persistence.files import make_folder, write_atomically
from evergraph.persistence.run_files import RUN
from evergraph.training import Training
from evergraph.version import __version__

SCRIPTS = ("base.js", "chart.js", "answer.js", "table.js", "heatmap.js", "figures.js", "cost.js", "page.js")


@dataclass
class Report:
    """What was written: the page, the figures beside it, and the unfinished runs that are not in it."""

    page: Path
    figures: list[Path]
    unfinished: list[Path]


@checked
def write_report(paths: Sequence[str | Path], out: str | Path | None = None, *, figures: bool = True) -> Report:
    """Write one page about the given runs, and their figures into `figures/` beside it.

    Args:
        paths: folders of runs, of comparisons, or with a `results.jsonl`.
        out: the page's path; `report.html` in the first folder by default.
        figures: also draw every figure as PNG and PDF.
    """
    if not paths:
        raise EvergraphError("no run named; give the folder of a run or of a comparison")
    page = Path(out) if out is not None else Path(paths[0]) / "report.html"
    if page.is_dir() or page.suffix not in {".html", ".htm"}:
        raise EvergraphError(f"--out {page} is not the name of a page; end it in .html")
    finished, unfinished = find_runs(paths)
    return _write(read_runs(finished), unfinished, page, figures)


def write_comparison_report(folder: Path, keys: Sequence[str]) -> Report:
    """Write `report.html` about some cells of a comparison's results file, and their figures, as its tables show them.

    Args:
        folder: the comparison's folder.
        keys: the keys of the cells; those without a result are named as unfinished.
    """
    listed = read_results(folder)
    begun = [folder / CELLS / key for key in keys if key not in listed]
    unfinished = [place for place in begun if (place / RUN).exists()]
    return _write(read_runs([folder], keys), unfinished, folder / "report.html", figures=True)


def _write(runs: list[dict[str, Any]], unfinished: list[Path], page: Path, figures: bool) -> Report:
    """Write the page and, on request, the figures."""
    make_folder(page.parent, "name another place with --out")
    write_atomically(page, render(payload(runs, unfinished)))
    drawn = []
    if figures:
        folder = page.parent / "figures"
        make_folder(folder)
        for name in FIGURES:
            drawn += draw(name, runs, folder)
    return Report(page, drawn, unfinished)


def payload(runs: list[dict[str, Any]], unfinished: Sequence[Path] = ()) -> dict[str, Any]:
    """The data that the page's scripts read."""
    settings = [flat(run) for run in runs]
    keys = list(dict.fromkeys(key for own in settings for key in own))
    shared = ("stream", "seeds", "protocol.", "model.")  # what runs must share for their methods to be comparable
    differ = [key for key in keys if len({own.get(key) for own in settings}) > 1]
    unlike = [key for key in differ if key.startswith(shared)]
    # models differ in their settings, and a closed form has no training settings: name only those that all runs have
    own_ones = {f"protocol.{key}" for key in settings_of(Training)}
    if "model.name" in unlike:
        own_ones |= {key for key in unlike if key.startswith("model.")}
    unlike = [key for key in unlike if key not in own_ones or all(key in own for own in settings)]
    scales = {name: value_limits(members) for name, members in by_metric(runs).items()}
    return {
        "title": " and ".join(dict.fromkeys(run["stream"] for run in runs)),
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "version": __version__,
        "summaries": summary_titles(runs),
        "metric": common_metric(runs),
        "scale": value_limits(runs),
        "runs": [{**run, "settings": own, "scale": scales[run["metric"]["name"]]} for run, own in zip(runs, settings)],
        "differ": differ,
        "unlike": unlike,
        "unfinished": [str(folder) for folder in unfinished],
        "answers": answers(runs),
        "methods": _methods(runs),
    }


def _methods(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The table of methods and streams, as plain values; where metrics differ, a note in its place."""
    keys = [
        (run["stream"], run["method"], *map(str, map(run["protocol"].get, ("test_graph", "order")))) for run in runs
    ]
    several = len(set(keys)) < len(keys) or any(settings_apart(runs))
    metric = common_metric(runs)
    if metric["higher_is_better"] is None:
        titles = "; ".join(dict.fromkeys(with_direction(run["metric"]) for run in runs))
        note = f"No table of methods and streams: metrics differ ({titles})."
        return {"columns": [], "rows": [], "note": note if len({key[0] for key in keys}) > 1 else ""}
    if several:
        return {"columns": [], "rows": []}  # only the comparison distinguishes several runs of one method
    table = method_table(runs)
    roles = {run["method"]: (run["style"], run["role"]) for run in reversed(runs)}
    rows = []
    for method, entries in table.rows.items():
        cells = [
            None
            if entry is None
            else {**mean_std(entry.values), "runs": len(entry.values), "best": entry.best, "tied": bool(entry.tied)}
            for entry in entries
        ]
        rows.append({"method": method, "style": roles[method][0], "role": roles[method][1], "cells": cells})
    # competitors first, each group from the best down
    sign = -1 if metric["higher_is_better"] else 1
    rows.sort(key=lambda row: (bool(row["role"]), sign * sum(cell["mean"] for cell in row["cells"] if cell)))
    return {"columns": table.columns, "rows": rows, "title": heading(table)}


def render(data: dict[str, Any]) -> str:
    """The page, with style sheet, scripts and data embedded."""
    parts = files("evergraph.experiments.report")
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":  # so that nothing in the data can end its script element
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    pieces = {
        "title": escape(data["title"]),
        "style": parts.joinpath("page.css").read_text(encoding="utf-8"),
        "script": "\n".join(parts.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS),
        "data": text,
    }
    page = parts.joinpath("page.html").read_text(encoding="utf-8")
    head, *rest = page.split("{{")
    for piece in rest:
        name, _, after = piece.partition("}}")
        head += pieces[name] + after
    return head
