"""Finds finished runs on disk and gathers everything that the page shows about them.

Nothing is trained or measured again. Every number is computed here, by the functions that define it, so that the
page's scripts only print and draw.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evergraph.data.test_graphs import TEST_GRAPHS
from evergraph.errors import EvergraphError
from evergraph.evaluation import SUMMARIES, as_array, mean_std, summarize
from evergraph.experiments.comparison import stream_titles
from evergraph.experiments.labels import as_text, labels
from evergraph.experiments.matrices import anytime_curve, change_matrix, mean_matrix
from evergraph.experiments.metric_titles import describe_metric
from evergraph.experiments.report.answer import COLOURS, role_of, style_of
from evergraph.experiments.result_file import CELLS, RESULTS, TUNING, each_test_graph, is_trial, read_results
from evergraph.experiments.run_folder import read_result
from evergraph.experiments.told import bytes_kept, keeps, uses
from evergraph.persistence.reading import read_rows
from evergraph.persistence.run_files import RESULT, RUN

MOST_POINTS = 600  # per learning curve; a page has no more pixels
NEEDED = ("stream", "method", "protocol", "seeds", "matrices")  # keys that a result must have to be shown


def find_runs(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """Find the folders of finished and of unfinished runs in or below the paths.

    A path may be a run's folder, or one that contains several (a comparison). A run that is named itself must be
    finished. A folder with a results file represents the cells listed in it, whether or not their folders exist.
    """
    finished: dict[Path, None] = {}
    unfinished: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise EvergraphError(f"no folder {path}; name the folder of a run or of a comparison")
        if (path / RUN).exists() or (path / RESULT).exists():
            read_result(path)  # raises if it is unfinished or damaged
            finished[path] = None
            continue
        tables = [folder for folder in _folders_with(path, RESULTS) if read_results(folder)]
        listed = {_cell_folder(table, key) for table in tables for key in read_results(table)}
        below = [folder for folder in _folders_with(path, RUN, RESULT) if folder.absolute() not in listed]
        found = {folder: (folder / RESULT).exists() for folder in below}
        if not tables and not any(found.values()):
            state = "only runs that are not finished; finish them with --resume" if found else "no run"
            raise EvergraphError(f"{path} holds {state}; name the folder of a finished run")
        finished |= dict.fromkeys([*tables, *(folder for folder, done in found.items() if done)])
        unfinished |= dict.fromkeys(folder for folder, done in found.items() if not done)
    return list(finished), list(unfinished)


def _folders_with(path: Path, *names: str) -> list[Path]:
    """Folders below a path that contain one of the files, except the trials of a search."""
    found = {file.parent for name in names for file in path.rglob(name)}
    return sorted(folder for folder in found if TUNING not in folder.relative_to(path).parts)


def _cell_folder(table: Path, key: str) -> Path:
    """The folder of a cell's run: in `cells` beside the results file or, for `paper`, further up."""
    table = table.absolute()
    places = [base / CELLS / key for base in [table, *table.parents][: key.count("/") + 1]]
    return next((place for place in places if place.is_dir()), places[0])


def read_runs(folders: Sequence[Path], keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Read one entry per run and test graph: its settings, its results and its learning curves.

    With `keys`, only these cells of a results file are read, in this order.
    """
    entries = []
    for folder, place, result in _results(folders, keys):
        curves = [curve for seed in result["seeds"] if (curve := _curve(folder, seed)) is not None]
        entries += [_entry(place, one, curves) for one in each_test_graph(result)]
    titles = stream_titles(entry["stream"] for entry in entries)
    met: Counter[str] = Counter()
    for entry in entries:
        entry["stream"] = titles[entry["stream"]]
        entry["style"] += COLOURS * met[entry["method"]]  # the same colour, another marker
        met[entry["method"]] += 1
    for entry, label in zip(entries, labels(entries)):
        entry["label"] = label
    return entries


def _results(folders: Sequence[Path], keys: Sequence[str] | None = None) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yield each finished run once: the folder it was run in, where its result was found, and the result."""
    seen = set()
    for source in folders:
        for folder, place, result in _results_in(source, keys):
            if missing := [key for key in NEEDED if key not in result]:
                raise EvergraphError(f"{place} is damaged: its result has no {', '.join(missing)}")
            if folder.absolute() not in seen:
                seen.add(folder.absolute())
                yield folder, place, result


def _results_in(source: Path, keys: Sequence[str] | None) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yield one result per run of a results file, or the result of a run's folder."""
    if not (source / RESULTS).exists():
        yield source, str(source), read_result(source)
        return
    listed = read_results(source)
    cells = {key: listed[key]["result"] for key in keys or listed if key in listed and not is_trial(key)}
    for key, result in _each_run_once(cells).items():
        folder = _cell_folder(source, key)
        yield folder, str(folder) if folder.is_dir() else f"{source / RESULTS}: {key}", result


def _each_run_once(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out results of the same settings and graph as another one; of those, the one with most seeds stays."""
    chosen: dict[str, str] = {}
    for key, result in results.items():
        mark = str(result.get("run") or key)  # results of version 0.1 have no mark
        if mark not in chosen or len(result.get("seeds", ())) > len(results[chosen[mark]].get("seeds", ())):
            chosen[mark] = key
    return {key: results[key] for key in chosen.values()}


def _entry(place: str, result: dict[str, Any], curves: list[dict[str, Any]]) -> dict[str, Any]:
    """What the page shows about one run on one test graph."""
    matrices, protocol = result["matrices"], result["protocol"]
    test_graph = TEST_GRAPHS.get(str(protocol.get("test_graph")))
    metric = describe_metric(result)
    summaries = summarize(matrices, higher_is_better=metric["higher_is_better"])
    recorded = {name: values for name, values in result.get("metrics", {}).items() if name not in SUMMARIES}
    return {
        "folder": place,
        "stream": str(result["stream"]),
        "method": str(result["method"]),
        "hyperparameters": result.get("hyperparameters", {}),
        "model": result.get("model", {}),
        "protocol": protocol,
        "metric": metric,
        "tested_on": test_graph.about if test_graph else str(protocol.get("test_graph", "an unnamed graph")),
        "seeds": result["seeds"],
        "seconds": result.get("seconds"),
        "style": style_of(str(result["method"])),
        "role": role_of(result),
        "access": {
            key: keeps(result) if key == "keeps" else as_text(value) or "nothing"
            for key, value in result.get("access", {}).items()
        },
        "uses": uses(result),
        "test_nodes_read": result.get("test_nodes_read"),
        "leak": _finite(result["leak"]) if result.get("leak") else None,
        "kept_bytes": bytes_kept(result),
        "kept_after": _largest([values for values in result.get("kept_bytes", []) if values]),
        "device": result.get("device"),
        "versions": result.get("versions", {}),
        **_task_names(result),
        "metrics": {name: _finite(values) for name, values in {**summaries, **recorded}.items()},
        "matrices": [_rows(as_array(matrix)) for matrix in matrices],
        **_panels(matrices),
        "curves": curves,
    }


def _largest(kept: list[list[int]]) -> list[int]:
    """Bytes kept after each task, maximum over seeds."""
    return [max(values) for values in zip(*kept)]


def _panels(matrices: Sequence[Any]) -> dict[str, Any]:
    """What the page draws of the seeds' matrices: means with their spread over seeds, and each seed's own values."""
    arrays = np.array([as_array(matrix) for matrix in matrices])
    spread = [[mean_std(values)["std"] for values in row] for row in np.moveaxis(arrays, 0, -1).tolist()]
    mean = mean_matrix({"matrices": matrices})
    return {
        "mean_matrix": _rows(mean),
        "spread_matrix": _rows(spread),
        "changes": [_rows(change_matrix(matrix)) for matrix in matrices],
        "mean_change": _rows(change_matrix(mean)),
        "anytime": [_finite(point) for point in anytime_curve(matrices)],
        "seed_anytime": [[_number(point["mean"]) for point in anytime_curve([matrix])] for matrix in matrices],
    }


def summary_titles(runs: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """The page's metric columns: every registered summary, and those found only in the results."""
    titles = [{"name": name, "title": summary.title, "about": summary.about} for name, summary in SUMMARIES.items()]
    others = dict.fromkeys(name for run in runs for name in run["metrics"] if name not in SUMMARIES)
    about = "Recorded with the results; the package that defines it is not installed here."
    return [*titles, *({"name": name, "title": name, "about": about} for name in others)]


def _task_names(result: dict[str, Any]) -> dict[str, Any]:
    """What each task brings, as text: for each seed, and for means over seeds; empty where it is unknown or differs."""
    number = len(result["matrices"][0])
    seeds = [_texts(classes, number) for classes in _seed_task_classes(result)]
    alike = all(names == seeds[0] for names in seeds)
    return {"tasks": seeds[0] if alike else _texts([], number), "seed_tasks": seeds}


def _texts(classes: list[list[str]], number: int) -> list[str]:
    return [", ".join(map(str, names)) for names in classes] if len(classes) == number else [""] * number


def _seed_task_classes(result: dict[str, Any]) -> list[list[list[str]]]:
    """Each seed's classes of each task.

    Earlier versions recorded those of the first seed alone, which are not the others' if the seed decides the order.
    """
    own: list[list[list[str]]] = result.get("seed_task_classes") or []
    if len(own) == len(result["seeds"]):
        return own
    first = result.get("task_classes") or []
    return [first] + [[] if result["protocol"].get("order") == "random" else first] * (len(result["seeds"]) - 1)


def _curve(folder: Path, seed: int) -> dict[str, Any] | None:
    """A seed's per-epoch log as columns, thinned if it is long; None if the folder has none."""
    path = folder / f"seed-{seed}" / "log.csv"
    if not path.exists():
        return None
    rows = read_rows(path)
    try:
        columns = (
            {key: [float(row[key]) if row[key] else math.nan for row in rows] for key in rows[0] if key} if rows else {}
        )
    except (TypeError, ValueError, KeyError):
        raise EvergraphError(f"{path} is damaged; remove it to write the page without this learning curve") from None
    if not {"task", "epoch", "loss"} <= columns.keys():
        return None
    keep = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).astype(int))
    return {
        "seed": seed,
        "step": [int(i) + 1 for i in keep],
        "task": [int(columns["task"][i]) for i in keep],
        **{key: [_number(columns[key][i], 5) for i in keep] for key in ("loss", "validation_loss") if key in columns},
    }


def _number(value: Any, digits: int = 6) -> float | None:
    """Round a number for the page; None if it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _rows(matrix: Any) -> list[list[float | None]]:
    return [[_number(value) for value in row] for row in matrix]


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    return {key: [_number(v) for v in item] if isinstance(item, list) else _number(item) for key, item in value.items()}
