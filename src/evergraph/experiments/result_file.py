"""`results.jsonl`: one file per table and one line per cell, with the cell's specification and result.

Tables, figures and reports are made from it alone, so that it can be committed and moved without the folders of
the runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from evergraph.data import dataset_of
from evergraph.errors import EvergraphError
from evergraph.experiments.provenance import tell_changed
from evergraph.experiments.run_folder import RunRecord, check_same_graph, current_mark, may_change
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_json, parse_json, read_record, read_text
from evergraph.persistence.run_files import RUN
from evergraph.training.driver import CHECKPOINT_SECONDS

RESULTS = "results.jsonl"
CELLS = "cells"  # the folder of the runs, beside the file
COMMANDS = "commands.jsonl"  # the commands that ran cells of `paper`, beside the cells
TUNING = "tuning"  # the folder of the trials by which a comparison's settings were chosen

CHOOSING = "choose"  # third in the keys of trials by which a protocol's settings were chosen


class Entry(TypedDict):
    """A line of the file."""

    key: str
    spec: dict[str, Any]
    result: dict[str, Any]


class Recorded(TypedDict):
    """What the record of a run and that of a search have in common."""

    spec: dict[str, Any]


def read_results(folder: str | Path) -> dict[str, dict[str, Any]]:
    """Read a folder's `results.jsonl`: entries with `spec` and `result`, by key; empty if there is no file."""
    path = Path(folder) / RESULTS
    if not path.exists():
        return {}
    advice = "restore it from a copy, or remove it"
    entries = [parse_json(line, path, Entry, advice) for line in read_text(path).splitlines() if line]
    return {entry["key"]: {"spec": entry["spec"], "result": entry["result"]} for entry in entries}


def write_results(folder: str | Path, specs: Mapping[str, RunSpec], results: Mapping[str, dict[str, Any]]) -> Path:
    """Write the cells that have results, in the order of `specs`.

    Existing entries stay as they are, with the device that they were run on, if their result is the same or they are
    not in `specs`.
    """
    entries = read_results(folder)
    for key, spec in specs.items():
        if key in results:
            result = {name: value for name, value in results[key].items() if name != "run_dir"}
            if key not in entries or entries[key]["result"] != result:
                entries[key] = {"spec": spec.as_dict(), "result": result}
    lines = [as_json({"key": key, **entry}) for key, entry in entries.items()]
    path = Path(folder) / RESULTS
    write_atomically(path, "".join(f"{line}\n" for line in lines))
    return path


class EverySoOften:
    """Calls `save` with the results so far, at most once every `seconds`, so that an interruption loses little.

    Args:
        save: writes the results.
        seconds: minimum time between two calls.
    """

    def __init__(
        self, save: Callable[[dict[str, dict[str, Any]]], object], seconds: float = CHECKPOINT_SECONDS
    ) -> None:
        self.save, self.seconds, self.saved = save, seconds, time.monotonic()

    def __call__(self, results: dict[str, dict[str, Any]]) -> None:
        """Save the results if enough time has passed."""
        if time.monotonic() - self.saved >= self.seconds:
            self.save(results)
            self.saved = time.monotonic()


def is_trial(key: str) -> bool:
    """Whether a cell is a trial by which settings were chosen, not an entry of the table."""
    return key.split("/")[2:3] == [CHOOSING]  # a stream may be called so, too


def each_test_graph(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a result once for each test graph it was measured on, as if that were its only one."""
    yield {**result, "also_tested": {}}
    shared = {key: value for key, value in result.items() if key not in {"leak", "test_nodes_read"}}
    for name, tested in result.get("also_tested", {}).items():
        yield {**shared, **tested, "also_tested": {}, "protocol": {**result["protocol"], "test_graph": name}}


def known_result(entries: Mapping[str, dict[str, Any]], key: str, spec: RunSpec) -> dict[str, Any] | None:
    """Return a cell's result from the file; None if it is missing or seeds were added.

    Raise if the settings differ, or if the graph's file has changed; `check_one_graph` looks at datasets.
    """
    if key not in entries:
        return None
    if differ := spec.differences(entries[key]["spec"]):
        raise EvergraphError(f"{RESULTS}: {key} was run with other settings ({'; '.join(differ)}); use another --out")
    result: dict[str, Any] = entries[key]["result"]
    if result["seeds"] != spec.seeds:  # seeds were added
        return None
    if result.get("graph") is not None and dataset_of(spec.source) is None:
        check_same_graph(spec.source, current_mark(spec, None), result["graph"], f"{RESULTS}: {key}")
    tell_changed(spec, result.get("versions", {}), f"{RESULTS}: {key}")
    return result


def stored_keys(specs: Mapping[str, RunSpec], entries: Mapping[str, dict[str, Any]], cells: Path) -> dict[str, RunSpec]:
    """Return the cells under the keys by which they are stored; a new cell keeps its own.

    A key names what varies in one comparison, so that another stream or order gives the same cell another key.

    Args:
        specs: the cells, by the keys that this comparison gives them.
        entries: the cells of the results file.
        cells: the folder of the runs, some of which may not be in the results file yet.
    """
    listed = {key: entry["spec"] for key, entry in entries.items()}
    found = {key: stored_key(key, spec, listed) for key, spec in specs.items()}
    if None in found.values():
        begun = recorded_specs(cells, RUN)
        found = {key: found[key] or stored_key(key, spec, begun) for key, spec in specs.items()}
    return {found[key] or key: spec for key, spec in specs.items()}


def stored_key(key: str, spec: RunSpec, saved: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the key of the same run, with whichever seeds, among saved specifications; `key` itself if it is one."""

    def is_same(one: Mapping[str, Any]) -> bool:
        alike = one.get("source") == spec.source and one.get("method") == spec.method  # rules most of them out
        return alike and not {*spec.differences(one)} - {"seeds"}

    return next((other for other in (key, *saved) if other in saved and is_same(saved[other])), None)


def recorded_specs(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return the specification in each file of this name below a folder, by the path of the file's own folder."""
    advice = "restore it from a copy, or remove its folder"
    return {
        path.parent.relative_to(folder).as_posix(): read_record(path, Recorded, advice)["spec"]
        for path in sorted(folder.rglob(name))
    }


def check_one_graph(
    entries: Mapping[str, dict[str, Any]],
    specs: Mapping[str, RunSpec],
    left: Collection[str],
    cells: Path,
    data_root: str | Path | None,
) -> None:
    """Raise if earlier cells were run on another graph than their source holds now.

    Published datasets are read only if cells on them are left to run.

    Args:
        entries: the cells of the results file.
        specs: all cells.
        left: the keys of those to run.
        cells: the folder of the runs; those of `left` may have begun, or be finished, there.
        data_root: folder of the datasets.
    """
    earlier = [(f"{RESULTS}: {key}", one["spec"], one["result"].get("graph")) for key, one in entries.items()]
    for key in left:
        if (config := cells / key / RUN).exists():
            record = read_record(config, RunRecord, "name another folder with --out")
            earlier.append((str(cells / key), record["spec"], record["graph"]))
    to_read = [spec for key, spec in specs.items() if key in left or may_change(spec.source)]
    for name, spec in {_graph_asked(spec.as_dict()): spec for spec in to_read}.items():
        alike = [(place, mark) for place, saved, mark in earlier if mark and _graph_asked(saved) == name]
        current = current_mark(spec, data_root) if alike else ""
        for place, mark in alike:
            check_same_graph(spec.source, current, mark, place)


def _graph_asked(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """The part of a specification that says which graph is read, and how."""
    return spec.get("source"), dict(spec.get("stream") or {}).get("undirected"), spec.get("problem", "")
