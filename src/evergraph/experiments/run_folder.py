"""The folder of a run: the content of its files, and checks that all of them belong to one run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from evergraph.core.settings import NotEmpty
from evergraph.data import TaskStream, dataset_of, find_graph, source_name
from evergraph.data.files import content_mark, file_mark
from evergraph.data.streams import about_numbers
from evergraph.errors import EvergraphError
from evergraph.experiments.provenance import describe_device, tell_changed, versions
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import holds_something
from evergraph.persistence.reading import HASH, as_json, content_hash, exists, read_json, read_record, write_record
from evergraph.persistence.run_files import RESULT, RUN
from evergraph.training import pick_device

Row = list[float | None]
Rows = list[Row]
"""A matrix as stored in JSON: after each task, a row with the measure on every task; None on tasks not yet learned."""


class RunRecord(TypedDict):
    """The content of `run.json`."""

    spec: dict[str, Any]
    graph: str
    versions: dict[str, str]
    device: str


class SeedRecord(TypedDict):
    """The content of `matrix.json`."""

    matrix: Rows
    also_tested: dict[str, Rows]
    validation: Rows
    log: list[dict[str, Any]]
    kept_bytes: list[int]
    seconds: float
    finished: bool
    run: str
    seed: int


class ResultRecord(TypedDict):
    """The required content of `result.json`."""

    stream: str
    method: str
    matrices: Annotated[list[Rows], NotEmpty()]
    ap: dict[str, float]
    af: dict[str, float]
    protocol: dict[str, Any]
    seeds: Annotated[list[int], NotEmpty()]


def check_folder(folder: Path, spec: RunSpec, resume: bool) -> None:
    """Refuse to mix two runs in one folder."""
    config = folder / RUN
    if not config.exists():
        if holds_something(folder) and not config.exists():  # another seed's process may just have begun the run
            raise EvergraphError(f"{folder} exists and is not a run's folder; name another with --out")
        return
    if not resume:
        raise EvergraphError(f"{folder} holds a run already; add --resume to go on with it, or name another with --out")
    record = read_record(config, RunRecord, "name another folder with --out")
    if keys := spec.differences(record["spec"]):
        raise EvergraphError(f"{folder} holds a run with other settings ({'; '.join(keys)}); name another with --out")
    for attempt in (record, record.get("resumed_with", {})):
        tell_changed(spec, attempt.get("versions", {}), folder)


def check_same_graph(source: str, graph: str, known: str, place: str | Path) -> None:
    """Raise if a run would mix two graphs of one source, given the marks of both."""
    if graph != known:
        raise EvergraphError(f"{place} was run on another graph: {source} has changed since; name another with --out")


def current_mark(spec: RunSpec, data_root: str | Path | None) -> str:
    """The mark of the graph that a specification's source holds now."""
    undirected, numbers = spec.stream.get("undirected"), about_numbers(spec.problem)
    if dataset_of(spec.source) is not None:
        return content_mark(find_graph(spec.source, data_root, undirected, numbers)[0])
    return file_mark(spec.source, undirected=undirected, numbers=numbers)


def may_change(source: str) -> bool:
    """Whether a source may hold another graph than before. Published datasets do not: they are checked when read."""
    dataset = dataset_of(source)
    return dataset is None or not dataset.checked_by


def write_new(folder: Path, spec: RunSpec, tasks: TaskStream) -> str:
    """Write `run.json` once, adding other versions or another device on resumption; return the run's mark."""
    path = folder / RUN
    now = {"versions": versions(spec), "device": describe_device(pick_device(spec.device))}
    if not path.exists():
        content = {"spec": json.loads(as_json(spec.as_dict())), "graph": tasks.graph_mark, **now}
    else:
        content = read_record(path, RunRecord, "name another folder with --out")
        check_same_graph(spec.source, tasks.graph_mark, content["graph"], folder)
        same = now in ({key: content[key] for key in now}, content.get("resumed_with"))
        if same and content["spec"].get("seeds") == spec.seeds:
            return run_mark(content)
        content["spec"]["seeds"] = spec.seeds
        content |= {} if same else {"resumed_with": now}
    write_record(path, content, indent=1)
    return run_mark(content)


def run_mark(record: Mapping[str, Any]) -> str:
    """The mark stored in every part of a run: a hash of its settings and graph; seeds and devices may change later."""
    settings = {key: value for key, value in record["spec"].items() if key not in {"seeds", "device"}}
    return content_hash([settings, record["graph"]])


def finished_result(folder: Path, spec: RunSpec, data_root: str | Path | None) -> dict[str, Any] | None:
    """Return the result of the run in a folder; None if it is not finished, or if seeds were added.

    Raise if the run's graph has changed since.
    """
    if not (folder / RESULT).exists():
        return None
    result = read_result(folder)
    if result.get("seeds", spec.seeds) != spec.seeds:
        return None
    if result.get("graph") is not None and may_change(spec.source):
        check_same_graph(spec.source, current_mark(spec, data_root), result["graph"], folder)
    return result


def read_result(folder: str | Path) -> dict[str, Any]:
    """Read the result of a finished run."""
    path = Path(folder) / RESULT
    if not path.exists():
        state = "a run that is not finished" if (Path(folder) / RUN).exists() else "no run"
        raise EvergraphError(f"{folder} holds {state}; finish it with --resume or name a run's folder")
    result: dict[str, Any] = read_json(path, ResultRecord)
    if HASH in result or "run" in result:  # results of version 0.1 have neither
        result = read_record(path, ResultRecord)
        config = Path(folder) / RUN
        if exists(config) and run_mark(read_record(config, RunRecord)) != result.get("run"):
            raise EvergraphError(f"{path} is another run's than {config}; restore it from a copy")
    return {**result, "run_dir": str(folder)}


def default_folder(source: str, method: str) -> Path:
    """A new folder under `runs/`, named after the stream, the method and the time."""
    name = f"{source_name(source)[:80]}-{method[:80]}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder
