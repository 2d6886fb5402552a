"""Comparisons: several methods on several streams under one protocol, as cells of one table."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evergraph.core.settings import settings_of
from evergraph.data import TEST_GRAPHS
from evergraph.errors import EvergraphError, unknown
from evergraph.evaluation import mean_std
from evergraph.experiments import told
from evergraph.experiments.result_file import each_test_graph
from evergraph.methods import METHODS, make_method, parts_of
from evergraph.persistence.files import write_atomically


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


def cell_key(
    parts: Mapping[str, Sequence[str]], chosen: Mapping[str, str], settings: Mapping[str, Any] | None = None
) -> str:
    """A cell's name: what sets it apart, from the outermost axis to the method and the settings that are varied."""
    varying = [_short(chosen[axis], values) for axis, values in parts.items() if len(values) > 1 and axis != "method"]
    own = [f"@{key}={str(value).replace('/', '-')}" for key, value in (settings or {}).items()]
    return "/".join([*varying, chosen["method"] + "".join(own)])


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


def variations(varied: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every way to choose one of each setting's values; one empty way where nothing is varied."""
    return [dict(zip(varied, values)) for values in itertools.product(*varied.values())]


def training_groups(method: str, settings: Mapping[str, Any], test_graphs: Sequence[str]) -> list[list[str]]:
    """The test graphs that one training run can serve together.

    That is all of them, unless the method reads earlier tasks again: it then trains on the graph that tests run on,
    with or without the edges between tasks.
    """
    if not make_method(method, settings).access.all_data:
        return [list(test_graphs)]
    groups: dict[bool, list[str]] = {}
    for name in test_graphs:
        groups.setdefault(TEST_GRAPHS[name].joins_tasks, []).append(name)
    return list(groups.values())


def table_rows(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per stream, test graph, method and its settings: mean and standard deviation over orders and seeds."""
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for result in (one for measured in results for one in each_test_graph(measured)):
        settings = json.dumps(result.get("hyperparameters", {}), sort_keys=True)
        key = (str(result["stream"]), str(result["protocol"]["test_graph"]), str(result["method"]), settings)
        groups.setdefault(key, []).append(result)
    differing = _differing_settings(groups)
    rows = []
    for (stream, test_graph, method, _), members in groups.items():
        row: dict[str, Any] = {"stream": stream, "test_graph": test_graph, "method": method}
        own = members[0].get("hyperparameters", {})
        row["settings"] = {key: own[key] for key in differing[method] if key in own}
        for name in members[0]["metrics"]:
            row[name] = mean_std([value for member in members for value in member["metrics"][name]["values"]])
        leaks = [value for member in members if member.get("leak") for value in member["leak"]["values"]]
        row["leak"] = {**mean_std(leaks), "chance": members[0]["leak"]["chance"]} if leaks else None
        row["runs"] = sum(len(member["seeds"]) for member in members)
        row["seconds"] = sum(member["seconds"] for member in members) / row["runs"]
        row["kept_bytes"] = max(told.bytes_kept(member) or 0 for member in members)
        row["access"] = members[0]["access"]
        row["test_nodes_read"] = members[0].get("test_nodes_read")
        rows.append(row)
    first: dict[tuple[str, str], int] = {}
    for row in rows:  # rows of one stream and test graph stand together
        first.setdefault((row["stream"], row["test_graph"]), len(first))
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    return sorted(rows, key=lambda row: (streams.index(row["stream"]), first[row["stream"], row["test_graph"]]))


def _differing_settings(groups: Iterable[tuple[str, str, str, str]]) -> dict[str, list[str]]:
    """The settings of each method in which its rows differ."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _, _, method, text in groups:
        found.setdefault(method, []).append(json.loads(text))
    return {
        method: [
            key for key in found_settings[0] if any(one.get(key) != found_settings[0][key] for one in found_settings)
        ]
        for method, found_settings in found.items()
    }


def row_label(row: Mapping[str, Any]) -> str:
    """The method, with the settings that set its rows apart."""
    settings = ", ".join(f"{key}={value}" for key, value in row.get("settings", {}).items())
    return f"{row['method']} ({settings})" if settings else str(row["method"])


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table for people, with what each method keeps and is told beside its numbers."""
    names = ["stream", "test graph", "leak", "method", "AP", "AF", "runs", "seconds per run", "keeps", "bytes kept"]
    lines = ["| " + " | ".join([*names, "uses", "other test nodes"]) + " |"]
    lines.append("|---|---|--:|---|--:|--:|--:|--:|---|--:|---|---|")
    for row in rows:
        ap, af = (f"{row[key]['mean']:.2f} ± {row[key]['std']:.2f}" for key in ("ap", "af"))
        cells = [row["stream"], row["test_graph"], told.leak_text(row), row_label(row), ap, af, row["runs"]]
        counted = f"{row['kept_bytes']:,}" if row["kept_bytes"] or not row["access"]["keeps"] else "not counted"
        kept = [f"{row['seconds']:.1f}", told.keeps(row), counted, told.uses(row), row["test_nodes_read"] or "–"]
        lines.append("| " + " | ".join(map(str, [*cells, *kept])) + " |")
    return "\n".join(lines) + "\n"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The table for programs: means and deviations in columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measures = [key for key, value in rows[0].items() if isinstance(value, dict) and "mean" in value]
    head = ["stream", "test_graph", "method", "runs", "seconds", "kept_bytes"]
    more = ["settings", "keeps", "uses", "test_nodes_read"]
    writer.writerow([*head, *(f"{key}_{part}" for key in measures for part in ("mean", "std")), *more])
    for row in rows:
        numbers = [(row[key] or {}).get(part) for key in measures for part in ("mean", "std")]
        settings = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        words = [settings, told.keeps(row), told.uses(row), row["test_nodes_read"]]
        writer.writerow([*(row[key] for key in head), *numbers, *words])
    return text.getvalue()


def write_tables(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """`table.md` and `table.csv`."""
    write_atomically(folder / "table.md", markdown(rows))
    write_atomically(folder / "table.csv", as_csv(rows))
