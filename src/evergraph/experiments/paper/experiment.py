"""Runs protocols on datasets and writes tables and figures; finished cells are not run again."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from evergraph.errors import DivergedError, EvergraphError, unknown
from evergraph.experiments.canvas import get_ready
from evergraph.experiments.cells import Cell, CellsFailedError, Choice, in_a_line, run_cells
from evergraph.experiments.engines import MakeEngine, default_jobs
from evergraph.experiments.heatmaps import heatmaps
from evergraph.experiments.paper.field import write_field
from evergraph.experiments.paper.figures import Lines, final_rows, study
from evergraph.experiments.paper.protocol import Protocol
from evergraph.experiments.paper.tables import table_rows, write_tables
from evergraph.experiments.provenance import describe_device, versions
from evergraph.experiments.result_file import (
    CELLS,
    COMMANDS,
    EverySoOften,
    is_trial,
    known_result,
    read_results,
    write_results,
)
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import make_folder, taken_folder, write_atomically
from evergraph.persistence.reading import read_text
from evergraph.training import pick_device


def run_paper(
    *,
    datasets: Sequence[str],
    protocols: Sequence[str],
    seeds: int,
    out: str | Path,
    rows: Sequence[str] | None = None,
    studies: bool | Sequence[str] = True,
    rule: str | None = None,
    epochs: int | None = None,
    device: str = "auto",
    jobs: int | None = None,
    engine: MakeEngine | None = None,
    data_root: str | Path | None = None,
    on_done: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Run every requested cell, then write each protocol's tables and figures.

    If `studies` is a list of names, only those studies are run and drawn. A study of several datasets is one figure.

    If there are several datasets, one whose files are unavailable is not run; its table says "not measured here".
    """
    out, begun = Path(out), time.perf_counter()
    loaded = [Protocol.load(name, dataset, seeds, device, rule) for dataset in datasets for name in protocols]
    requests = _requests(loaded if epochs is None else [_with_epochs(plan, epochs) for plan in loaded], rows, studies)
    plans = [request.plan for request in requests]
    missing = _missing(plans, data_root, required=len(datasets) == 1)
    settings: dict[str, Any] = {"data_root": data_root, "jobs": jobs or default_jobs(device), "on_done": on_done}
    settings["engine"] = engine
    runnable = [request for request in requests if request.plan.dataset not in missing]
    cells = [cell for request in runnable for cell in request.cells()]
    choices = [choice for request in runnable for choice in request.choices()]

    def look() -> dict[str, dict[str, Any]]:
        return {key: entry for plan in plans for key, entry in read_results(plan.folder(out)).items()}

    chosen: dict[str, RunSpec] = {}

    def known(cell: Cell) -> dict[str, Any] | None:
        chosen[cell.key] = cell.spec
        result = known_result(entries, cell.key, cell.spec)
        if result is None:
            cells_run.append(cell.key)
        return result

    holding = taken_folder(out, look, advice="name another with --out")
    with holding as entries, _logged(out, device, settings["jobs"]) as cells_run:
        failed = partial(_failed, {plan.key("") for plan in plans if plan.goes_on})
        save = partial(_save, [request.plan for request in runnable], out, chosen)
        settings["on_result"] = EverySoOften(save)
        get_ready()
        try:
            results = run_cells(cells, out / CELLS, choices=choices, known=known, failed=failed, **settings)
        except CellsFailedError as failure:
            if failure.results:
                save(failure.results)
            raise
        errors = {key: result["error"] for key, result in results.items() if "error" in result}
        results = save(results)
        tables = [
            _write(request.plan, results, out, request.rows, {**missing, **errors})
            for request in requests
            if request.table
        ]
        figures = _draw_studies({request.plan: request.studies for request in runnable}, results, out)
    return {"tables": tables, "studies": figures, "seconds": time.perf_counter() - begun, "out": str(out)}


@dataclass(frozen=True)
class _Request:
    """What is asked of a protocol on one dataset.

    Args:
        plan: the protocol.
        rows: the rows of its table; None for all.
        table: whether the table is run and written.
        studies: the cells of its studies to run and draw: by study, row and value.
    """

    plan: Protocol
    rows: list[str] | None
    table: bool
    studies: dict[str, dict[str, dict[str, Cell]]]

    def cells(self) -> list[Cell]:
        """All cells whose settings are known from the start."""
        of_studies = (cell for rows in self.studies.values() for values in rows.values() for cell in values.values())
        return [*(self.plan.cells(self.rows) if self.table else ()), *of_studies]

    def choices(self) -> list[Choice]:
        """The cells whose settings are searched."""
        return self.plan.choices(self.rows) if self.table else []


def _requests(plans: Sequence[Protocol], rows: Sequence[str] | None, studies: bool | Sequence[str]) -> list[_Request]:
    """What is asked of each protocol; one that has none of the rows is left out. An unknown row or study is an error.

    Named studies are run alone; otherwise all of them are run unless rows are named.
    """
    titles = {row: None for plan in plans for row in plan.rows()}
    for row in rows or ():
        if row not in titles:
            raise unknown("row", row, titles)
    named = None if isinstance(studies, bool) else list(studies)
    known = {name: None for plan in plans for name in plan.content.get("studies", {})}
    for name in named or ():
        if name not in known:
            raise unknown("study", name, known)
    requests = []
    for plan in plans:
        own = None if rows is None else [row for row in rows if row in plan.rows()]
        if own != []:
            studied = plan.study_cells(named) if studies and rows is None else {}
            requests.append(_Request(plan, own, named is None, studied))
    return requests


def _save(
    plans: Sequence[Protocol], out: Path, specs: dict[str, RunSpec], results: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Write each protocol's results file with all results except failures, and return these results."""
    measured = {key: result for key, result in results.items() if "error" not in result}
    for plan in plans:
        make_folder(plan.folder(out))
        own = {key: spec for key, spec in specs.items() if key.startswith(plan.key(""))}
        write_results(plan.folder(out), own, measured)
    return measured


@contextmanager
def _logged(out: Path, device: str, jobs: int) -> Iterator[list[str]]:
    """Add a line to `commands.jsonl` whenever cells are run, finished or not; yields the list to note the cells in."""
    path, begun, finished = out / COMMANDS, time.perf_counter(), False
    where = describe_device(pick_device(device))
    cells_run: list[str] = []
    try:
        yield cells_run
        finished = True
    finally:
        entry = {"command": shlex.join(["evergraph", *sys.argv[1:]]), "finished": finished, "jobs": jobs}
        entry |= {"seconds": round(time.perf_counter() - begun, 1), "device": where, "versions": versions()}
        earlier = read_text(path) if path.exists() else ""
        if cells_run:  # rebuilding tables from results is not noted
            write_atomically(path, f"{earlier}{json.dumps(entry)}\n")


def _with_epochs(plan: Protocol, epochs: int) -> Protocol:
    training = {**plan.content["training"], "epochs": epochs}
    about = f"{plan.content['about']}, but cut short to {epochs} epochs"
    return replace(plan, content={**plan.content, "training": training, "about": about})


def _missing(plans: Sequence[Protocol], data_root: str | Path | None, *, required: bool) -> dict[str, str]:
    """Datasets whose files are unavailable, with the reasons."""
    reasons: dict[str, str] = {}
    for dataset in dict.fromkeys(plan.dataset for plan in plans):
        plan = next(plan for plan in plans if plan.dataset == dataset)
        try:
            plan.spec(next(iter(plan.rows().values())), [0]).make_stream(0, data_root)
        except EvergraphError as error:
            if required:
                raise
            reasons[dataset] = str(error)
    return reasons


def _failed(go_on: Collection[str], cell: Cell, error: Exception) -> dict[str, Any] | None:
    """Substitute result of a diverged trial, or of any failure in a protocol that goes on; None ends the experiment."""
    diverged = is_trial(cell.key) and isinstance(error, DivergedError)
    tolerated = any(cell.key.startswith(start) for start in go_on)
    return {"error": in_a_line(error)} if diverged or tolerated else None


def _draw_studies(
    cells: dict[Protocol, dict[str, dict[str, dict[str, Cell]]]], results: dict[str, dict[str, Any]], out: Path
) -> list[str]:
    """Draw one figure for each study of a protocol, with all its datasets."""
    streams: dict[tuple[str, str], dict[str, Lines]] = {}
    for plan, studies in cells.items():
        for name, rows in studies.items():
            lines = {title: {value: results[cell.key] for value, cell in row.items()} for title, row in rows.items()}
            streams.setdefault((plan.name, name), {})[plan.dataset] = lines
    drawn = []
    for (protocol, name), of_datasets in streams.items():
        about = next(plan.content["studies"][name] for plan in cells if plan.name == protocol)
        make_folder(out / protocol)
        drawn.append(str(study(about["title"], about["key"], of_datasets, out / protocol / f"{name}.png")))
    return drawn


def _write(
    plan: Protocol,
    results: dict[str, dict[str, Any]],
    out: Path,
    wanted: Sequence[str] | None,
    missing: dict[str, str],
) -> dict[str, Any]:
    """Write a protocol's tables and figures on one dataset."""
    folder = plan.folder(out)
    make_folder(folder)
    if plan.content.get("table") == "methods":
        return {"protocol": plan.name, "dataset": plan.dataset, **write_field(plan, results, wanted, missing, folder)}
    rows = table_rows(plan, results, wanted)
    training = plan.content["training"]
    seeds = f"{plan.seeds} seeds, mean ± std" if plan.seeds > 1 else "1 seed"
    heading = (
        f"**{plan.dataset}, protocol `{plan.name}`**: {plan.content['about']}. "
        f"{seeds}; {training['epochs']} epochs, lr {training['lr']:g}, "
        f"label scope {training['label_scope']}, loss {training['reduction']}."
    )
    if plan.dataset in missing:
        heading += f" Not measured here: {missing[plan.dataset]}."
    written: dict[str, Any] = {"markdown": str(write_tables(rows, folder, heading)), "figures": []}
    measured = {row["title"]: {**row["result"], "method": row["title"]} for row in rows if row["result"]}
    if measured:
        written["figures"].append(str(heatmaps(list(measured.values()), folder / "heatmaps.png")))
        written["figures"].append(str(final_rows(measured, folder / "final-row.png")))
    return {"protocol": plan.name, "dataset": plan.dataset, **written}
