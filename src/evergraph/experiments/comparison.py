"""Comparisons: several methods on several streams under one protocol, as cells of one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evergraph.core.settings import parse_setting, settings_of
from evergraph.data.files import GRAPH_FILES
from evergraph.errors import EvergraphError, unknown
from evergraph.evaluation import mean_std
from evergraph.methods import METHODS, parts_of, preferred_model
from evergraph.models import MODELS
from evergraph.persistence.files import write_atomically
from evergraph.training import Training


def settings_by_method(methods: Sequence[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each method's share of the settings: plain keys go to every method that has them, `name.key` to one alone.

    A setting that no method takes is an error.
    """
    shares: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for method in methods:
        keys = {key: key for part in parts_of(method) for key in settings_of(METHODS[part])}
        keys |= {f"{part}.{key}": f"{part}.{key}" for part in parts_of(method) for key in settings_of(METHODS[part])}
        keys |= {f"{method}.{key}": key for key in list(keys) if "." not in key}
        shares[method] = {keys[key]: value for key, value in settings.items() if key in keys}
        taken |= settings.keys() & keys.keys()
    if left := [key for key in settings if key not in taken]:
        known = dict.fromkeys(
            key for method in methods for part in parts_of(method) for key in settings_of(METHODS[part])
        )
        raise unknown(f"setting of {', '.join(methods)}", left[0], known or ["(none)"])
    return shares


def shares(
    methods: Sequence[str], settings: Mapping[str, str], model: str
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Each method's settings, those of its model, and those of its training.

    `name.key` goes to one method; where the method has no such setting, to its model or to its training.
    """
    training_fields = settings_of(Training)
    models: dict[str, dict[str, Any]] = {method: {} for method in methods}
    training: dict[str, dict[str, Any]] = {method: {} for method in methods}
    rest: dict[str, str] = {}
    for full, value in settings.items():
        method, _, key = full.rpartition(".")
        own = {} if method not in methods else {key for part in parts_of(method) for key in settings_of(METHODS[part])}
        if method not in methods or key in own:
            rest[full] = value
        elif key in (known := settings_of(kind := MODELS[model or preferred_model(method)])):
            models[method][key] = parse_setting(kind, key, value, owner=method)
        elif key in training_fields:
            training[method][key] = parse_setting(Training, key, value, owner=method)
        else:
            raise unknown(f"setting of {method}", key, [*own, *known, *training_fields])
    return settings_by_method(methods, rest), models, training


def stream_titles(sources: Iterable[str]) -> dict[str, str]:
    """What to call streams: names as they are, files by their own name where no two share it."""
    unique = list(dict.fromkeys(sources))
    short = [Path(source).stem if Path(source).suffix in GRAPH_FILES else Path(source).name for source in unique]
    short = [source if source.startswith("sbm:") else name for source, name in zip(unique, short)]
    return {source: name if short.count(name) == 1 else source for source, name in zip(unique, short)}


def cell_key(parts: Mapping[str, Sequence[str]], chosen: Mapping[str, str]) -> str:
    """A cell's name: what sets it apart, from the outermost axis to the method."""
    varying = [_short(chosen[axis], values) for axis, values in parts.items() if len(values) > 1 and axis != "method"]
    return "/".join([*varying, chosen["method"]])


def _short(value: str, values: Sequence[str]) -> str:
    """A value as part of a folder's name: the last part of a path, where no other value ends alike."""
    names = [Path(other).name for other in values]
    name = Path(value).name if names.count(Path(value).name) == 1 else value.strip("/")
    return name.replace("/", "-").replace(":", "-")


def check_names(kind: str, names: Iterable[str]) -> list[str]:
    """Names without repetition; none at all is an error."""
    unique = list(dict.fromkeys(name for name in names if name))
    if not unique:
        raise EvergraphError(f"no {kind} named; give at least one")
    return unique


def table_rows(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per stream, test graph and method: mean and standard deviation over all orders and seeds."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for result in results:
        key = (str(result["stream"]), str(result["protocol"]["test_graph"]), str(result["method"]))
        groups.setdefault(key, []).append(result)
    rows = []
    for (stream, test_graph, method), members in groups.items():
        row: dict[str, Any] = {"stream": stream, "test_graph": test_graph, "method": method}
        for name in members[0]["metrics"]:
            row[name] = mean_std([value for member in members for value in member["metrics"][name]["values"]])
        row["runs"] = sum(len(member["seeds"]) for member in members)
        row["seconds"] = sum(member["seconds"] for member in members) / row["runs"]
        row["kept_bytes"] = max(bytes_[-1] for member in members for bytes_ in member["kept_bytes"])
        row["access"] = members[0]["access"]
        row["metric"] = members[0]["protocol"].get("metric", "accuracy")
        rows.append(row)
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table for people, with what each method keeps beside its numbers."""
    lines = ["| stream | test graph | method | AP | AF | runs | seconds per run | keeps | bytes kept |"]
    lines.append("|---|---|---|--:|--:|--:|--:|---|--:|")
    for row in rows:
        ap, af = (f"{row[key]['mean']:.2f} ± {row[key]['std']:.2f}" for key in ("ap", "af"))
        keeps = ", ".join(row["access"]["keeps"]) or "nothing"
        cells = [row["stream"], row["test_graph"], row["method"], ap, af, row["runs"], f"{row['seconds']:.1f}", keeps]
        counted = f"{row['kept_bytes']:,}" if row["kept_bytes"] or not row["access"]["keeps"] else "not counted"
        lines.append("| " + " | ".join(map(str, [*cells, counted])) + " |")
    return "\n".join(lines) + "\n"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The table for programs: means and deviations in columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measures = [key for key, value in rows[0].items() if isinstance(value, dict) and "mean" in value]
    head = ["stream", "test_graph", "method", "runs", "seconds", "kept_bytes"]
    writer.writerow([*head, *(f"{key}_{part}" for key in measures for part in ("mean", "std"))])
    for row in rows:
        numbers = [row[key][part] for key in measures for part in ("mean", "std")]
        writer.writerow([*(row[key] for key in head), *numbers])
    return text.getvalue()


def write_tables(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """`table.md` and `table.csv`."""
    write_atomically(folder / "table.md", markdown(rows))
    write_atomically(folder / "table.csv", as_csv(rows))
