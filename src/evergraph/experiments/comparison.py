"""Comparisons: several methods on several streams under one protocol, as cells of one table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergraph.core.settings import settings_of
from evergraph.core.settings_from_text import parse_setting
from evergraph.data import TEST_GRAPHS, dataset_of, source_name
from evergraph.errors import EvergraphError, unknown
from evergraph.evaluation import mean_std
from evergraph.experiments import told
from evergraph.experiments.metric_titles import PLAIN, direction_of
from evergraph.experiments.result_file import each_test_graph
from evergraph.experiments.specification import RunSpec
from evergraph.methods import METHODS, make_method, parts_of, preferred_model
from evergraph.models import MODELS
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_csv, content_hash
from evergraph.training import Training

LONGEST_NAME = 200  # bytes of a folder's name in a cell's key; most file systems accept 255


@dataclass(frozen=True)
class Reach:
    """The settings of a method that a key sets, as (part, setting).

    Args:
        settings: the settings; empty if the method has none under this key.
        specificity: 0 for `key`, 1 for `part.key`, 2 for `method.key`.
    """

    settings: frozenset[tuple[str, str]]
    specificity: int

    @classmethod
    def of(cls, key: str, method: str) -> Reach:
        """What a key reaches in a method, which may be composed."""
        owner, _, name = key.rpartition(".")
        specificity = 2 if owner == method else 1 if owner else 0
        parts = [owner] if specificity == 1 else parts_of(method)
        own = {(part, one) for part in parts_of(method) for one in settings_of(METHODS[part])}
        return cls(frozenset((part, name) for part in parts) & own, specificity)

    def overruled_by(self, others: Iterable[Reach]) -> bool:
        """Whether more specific keys reach everything that this one does."""
        specific = [other.settings for other in others if other.specificity > self.specificity]
        return self.settings <= frozenset().union(*specific)


def settings_by_method(methods: Sequence[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Assign settings to methods: plain keys go to every method that has them, `name.key` to that method only.

    If several keys reach one setting of a method, the most specific counts, whatever their order. A setting that no
    method takes is an error.
    """
    shares: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for method in methods:
        shares[method] = {key.removeprefix(f"{method}."): settings[key] for key in _counting(settings, method)}
        taken |= {key for key in settings if Reach.of(key, method).settings}
    if left := [key for key in settings if key not in taken]:
        known = dict.fromkeys(
            key for method in methods for part in parts_of(method) for key in settings_of(METHODS[part])
        )
        raise unknown(f"setting of {', '.join(methods)}", left[0], known or ["(none)"])
    return shares


def _counting(keys: Iterable[str], method: str) -> list[str]:
    """The keys that set something of a method, without those that others overrule."""
    reached = {key: reach for key in keys if (reach := Reach.of(key, method)).settings}
    return [key for key, reach in reached.items() if not reach.overruled_by(reached.values())]


def own_variation(variation: Mapping[str, str], method: str) -> dict[str, str]:
    """The varied settings of a method, its model and its training, without the method's name before them."""
    start, counting = f"{method}.", _counting(variation, method)
    own = {key: value for key, value in variation.items() if key in counting or key.startswith(start)}
    return {key.removeprefix(start): value for key, value in own.items()}


def check_varied(methods: Sequence[str], given: Mapping[str, str], varied: Mapping[str, Sequence[str]]) -> None:
    """Raise if a setting to vary names a value twice, or is fixed for some method by a key that is as specific."""
    for key, values in varied.items():
        if twice := [value for number, value in enumerate(values) if value in values[:number]]:
            raise EvergraphError(f"--vary {key}: {twice[0]} is given twice; leave one out")
        for method, fixed in itertools.product(methods, given):
            reach, other = Reach.of(key, method), Reach.of(fixed, method)
            if key == fixed or (reach.settings & other.settings and other.specificity >= reach.specificity):
                whose = "" if key == fixed else f" for {method}"
                others = "" if key == fixed else ", or vary METHOD.KEY of the others"
                raise EvergraphError(
                    f"--vary {key}: {fixed}={given[fixed]} fixes it{whose}; leave one of them out{others}"
                )


def check_cells_differ(specs: Mapping[str, RunSpec]) -> None:
    """Raise if two cells are the same run, with settings that are written differently."""
    met: dict[tuple[str, str, str], dict[str, Any]] = {}  # what each cell is run with, by key
    for key, spec in specs.items():
        method = make_method(spec.method, spec.settings)
        own = [method.hyperparameters(), spec.model, spec.model_settings, spec.training, spec.also_test]
        others = met.setdefault((spec.source, str(spec.stream), spec.method), {})
        if same := [other for other, one in others.items() if one == own]:
            raise EvergraphError(f"--vary: {same[0]} and {key} are the same run; leave one of the values out")
        others[key] = own


def shares(
    methods: Sequence[str], settings: Mapping[str, str], model: str
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Split the settings into each method's own, those of its model and those of its training.

    `name.key` goes to one method or, if the method has no such setting, to its model or its training. `name.model`
    names the method's model and is returned among the model's settings.
    """
    training_fields = settings_of(Training)
    models: dict[str, dict[str, Any]] = {method: {} for method in methods}
    training: dict[str, dict[str, Any]] = {method: {} for method in methods}
    rest: dict[str, str] = {}
    for method in methods:
        if (named := settings.get(f"{method}.model")) is not None:
            MODELS[named]  # raises if the name is unknown
            models[method]["model"] = named
    for full, value in settings.items():
        method, _, key = full.rpartition(".")
        own = {} if method not in methods else {key for part in parts_of(method) for key in settings_of(METHODS[part])}
        if method not in methods or key in own:
            rest[full] = value
            continue
        kind = MODELS[models[method].get("model") or model or preferred_model(method)]
        if key == "model":
            continue
        if key in (known := settings_of(kind)):
            models[method][key] = parse_setting(kind, key, value, owner=method)
        elif key in training_fields:
            training[method][key] = parse_setting(Training, key, value, owner=method)
        else:
            raise unknown(f"setting of {method}", key, [*own, *known, *training_fields])
    return settings_by_method(methods, rest), models, training


def stream_titles(sources: Iterable[str]) -> dict[str, str]:
    """Titles of the streams: datasets with their settings, files by their name unless two share it."""
    unique = list(dict.fromkeys(sources))
    short = [source if dataset_of(source) is not None else source_name(source) for source in unique]
    return {source: name if short.count(name) == 1 else source for source, name in zip(unique, short)}


def cell_key(
    parts: Mapping[str, Sequence[str]], chosen: Mapping[str, str], settings: Mapping[str, Any] | None = None
) -> str:
    """A cell's key: the values of the axes that vary, outermost first, then the method and the varied settings."""
    names = {**chosen, "stream": stream_titles(parts["stream"])[chosen["stream"]]}
    varying = [_as_folder(names[axis]) for axis, values in parts.items() if len(values) > 1 and axis != "method"]
    own = [f"@{key}={str(value).replace('/', '-')}" for key, value in (settings or {}).items()]
    return "/".join([*varying, _short(chosen["method"] + "".join(own))])


def _as_folder(name: str) -> str:
    """A name as a single component of a path."""
    return _short(name.strip("/").replace("/", "-").replace(":", "-"))


def _short(name: str) -> str:
    """A name that file systems accept; a longer one ends in a hash of all of it."""
    start = name.encode()[:LONGEST_NAME]
    return name if start == name.encode() else f"{start.decode(errors='ignore')}-{content_hash(name)[:8]}"


def check_names(kind: str, names: Iterable[str]) -> list[str]:
    """Return the names without duplicates; raise if there is none."""
    unique = list(dict.fromkeys(name for name in names if name))
    if not unique:
        raise EvergraphError(f"no {kind} named; give at least one")
    return unique


def variations(varied: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """All combinations of the settings' values; a single empty one if nothing is varied."""
    return [dict(zip(varied, values)) for values in itertools.product(*varied.values())]


def training_groups(method: str, settings: Mapping[str, Any], test_graphs: Sequence[str]) -> list[list[str]]:
    """Group the test graphs by the training run that can serve them.

    One run serves all of them, unless the method reads earlier tasks again: it then trains on the graph it is tested
    on, with or without the edges between tasks.
    """
    if not make_method(method, settings).access.all_data:
        return [list(test_graphs)]
    groups: dict[bool, list[str]] = {}
    for name in test_graphs:
        groups.setdefault(TEST_GRAPHS[name].joins_tasks, []).append(name)
    return list(groups.values())


def table_rows(
    results: Iterable[dict[str, Any]], tuned: Mapping[str, Collection[str]] | None = None
) -> list[dict[str, Any]]:
    """One row per stream, test graph, method and its settings: mean and standard deviation over orders and seeds.

    Args:
        results: results of runs; one measured on several test graphs has a row for each.
        tuned: settings chosen by a selection rule, by method; rows are not distinguished by them.
    """
    results = [one for measured in results for one in each_test_graph(measured)]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    apart = settings_apart(results, tuned)
    named: dict[tuple[str, ...], dict[str, Any]] = {}
    for result, settings in zip(results, apart):
        names = (result["stream"], result["protocol"]["test_graph"], result["method"])
        key = (*map(str, names), json.dumps(settings, sort_keys=True))
        groups.setdefault(key, []).append(result)
        named[key] = settings
    rows = []
    measured = _in_all([result["metrics"] for result in results])
    for key, members in groups.items():
        row: dict[str, Any] = {"stream": key[0], "test_graph": key[1], "method": key[2], "settings": named[key]}
        for name in measured:
            row[name] = mean_std([value for member in members for value in member["metrics"][name]["values"]])
        leaks = [value for member in members if member.get("leak") for value in member["leak"]["values"]]
        row["leak"] = {**mean_std(leaks), "chance": members[0]["leak"]["chance"]} if leaks else None
        row["runs"] = sum(len(member["seeds"]) for member in members)
        row["seconds"] = sum(member["seconds"] for member in members) / row["runs"]
        row["kept_bytes"] = max(told.bytes_kept(member) or 0 for member in members)
        row["access"] = members[0]["access"]
        row["test_nodes_read"] = members[0].get("test_nodes_read")
        row["metric"] = members[0]["protocol"].get("metric", PLAIN)
        rows.append(row)
    first: dict[tuple[str, str], int] = {}
    for row in rows:  # keep the rows of one stream and test graph together
        first.setdefault((row["stream"], row["test_graph"]), len(first))
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    return sorted(rows, key=lambda row: (streams.index(row["stream"]), first[row["stream"], row["test_graph"]]))


def _in_all(measures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the summaries that all runs have: one from another package may have been added or removed meanwhile."""
    return [name for name in (measures[0] if measures else ()) if all(name in one for one in measures)]


def settings_apart(
    results: Sequence[Mapping[str, Any]], tuned: Mapping[str, Collection[str]] | None = None
) -> list[dict[str, Any]]:
    """For each result, the settings that distinguish it from the others of its method on its stream.

    Settings of the method and the training keep their names; those of a part of a composed method are `PART.KEY`, those
    of the model `model.KEY`. Settings that were `tuned` (by method) are left out.
    """
    own = []
    for result in results:
        left_out = (tuned or {}).get(str(result["method"]), ())
        own.append({key: value for key, value in _made_with(result).items() if key not in left_out})
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result, settings in zip(results, own):
        alike.setdefault((str(result["stream"]), str(result["method"])), []).append(settings)
    found = []
    for result, settings in zip(results, own):
        others = alike[str(result["stream"]), str(result["method"])]
        found.append({key: value for key, value in settings.items() if any(one.get(key) != value for one in others)})
    return found


def _made_with(result: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run's method, model and training."""
    known = settings_of(Training)
    training = {key: value for key, value in result["protocol"].items() if key in known}
    model = {f"model.{key}": value for key, value in result.get("model", {}).items()}
    own: dict[str, Any] = {}
    for key, value in result.get("hyperparameters", {}).items():
        number, _, part = key.partition(".")
        if isinstance(value, Mapping) and number.isdigit():  # a part of a composed method
            own |= {f"{part}.{name}": setting for name, setting in value.items()}
        else:
            own[key] = value
    return {**own, **model, **{key: value for key, value in training.items() if key not in own}}


def row_label(row: Mapping[str, Any]) -> str:
    """The method's name, with the settings that distinguish its rows."""
    settings = ", ".join(f"{key}={value}" for key, value in row.get("settings", {}).items())
    return f"{row['method']} ({settings})" if settings else str(row["method"])


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown, with what each method keeps and uses beside its numbers.

    A column names the metric if one is not plain accuracy.
    """
    named = any(row["metric"] != PLAIN for row in rows)
    names = ["stream", "test graph", "leak", "method", *["metric"] * named, "AP", "AF", "runs", "seconds per run"]
    lines = [told.markdown_row([*names, "keeps", "bytes kept", "uses", "other test nodes"])]
    lines.append("|---|---|--:|---|" + "---|" * named + "--:|--:|--:|--:|---|--:|---|---|")
    for row, (ap, af) in zip(rows, told.ap_and_af(rows)):
        cells = [row["stream"], row["test_graph"], told.leak_text(row), row_label(row)]
        cells += [*[direction_of(row["metric"])] * named, ap, af, row["runs"]]
        counted = f"{row['kept_bytes']:,}" if row["kept_bytes"] or not row["access"]["keeps"] else "not counted"
        kept = [f"{row['seconds']:.1f}", told.keeps(row), counted, told.uses(row), row["test_nodes_read"] or "–"]
        lines.append(told.markdown_row([*cells, *kept]))
    return "\n".join(lines) + "\n"


def table_as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The table as CSV, with means and standard deviations in separate columns."""
    measures = [key for key, value in rows[0].items() if isinstance(value, dict) and "mean" in value]
    head = ["stream", "test_graph", "method", "metric", "runs", "seconds", "kept_bytes"]
    more = ["settings", "keeps", "uses", "test_nodes_read"]
    lines = []
    for row in rows:
        numbers = [(row[key] or {}).get(part) for key in measures for part in ("mean", "std")]
        settings = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        words = [settings, told.keeps(row), told.uses(row), row["test_nodes_read"]]
        lines.append([*(row[key] for key in head), *numbers, *words])
    return as_csv([*head, *(f"{key}_{part}" for key in measures for part in ("mean", "std")), *more], lines)


def write_tables(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write `table.md` and `table.csv`."""
    about = f"\n{told.LEAK}\n" if any(row["leak"] for row in rows) else ""
    write_atomically(folder / "table.md", markdown(rows) + about)
    write_atomically(folder / "table.csv", table_as_csv(rows))
