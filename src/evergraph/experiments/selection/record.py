"""A search's folder: the input is checked first and recorded once; only the same search can be resumed in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from evergraph.data import TaskStream
from evergraph.errors import EvergraphError
from evergraph.experiments.provenance import versions
from evergraph.experiments.run_folder import check_same_graph
from evergraph.experiments.selection.proposals import has_optuna, spread
from evergraph.experiments.selection.space import Space
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import holds_something, taken_folder
from evergraph.persistence.reading import read_record, write_record

RECORD = "tune.json"


def check_input(spec: RunSpec, space: Space, data_root: str | Path | None) -> TaskStream:
    """Raise if anything is wrong with the input, before anything is run or written; return the stream."""
    middle = spread(space, 1)[0]
    for key, dimension in space.dimensions.items():
        for value in dimension.extremes():
            space.apply(spec, {**middle, key: value}).check()
    tasks = spec.make_stream(spec.seeds[0], data_root)
    tasks.check_tests()
    return tasks


def describe(
    spec: RunSpec, space: Space, rule: str, settings: Any, graph: str, *, optuna: bool, planned: int | None
) -> dict[str, Any]:
    """The record of a search on a graph with this mark, by which a resumed search is checked to be the same.

    `planned` is the number of trials if a rule plans its own by it; other searches can go on with more.
    """
    proposer = "optuna" if optuna and has_optuna() else "sobol"
    plain = {"spec": spec.as_dict(), "space": space.as_json(), "rule": rule, "rule_settings": settings}
    known = {"graph": graph, "proposer": proposer, "planned": planned, "versions": versions()}
    return {**json.loads(json.dumps(plain)), **known}


@contextmanager
def opened(folder: Path, record: dict[str, Any], resume: bool) -> Iterator[bool]:
    """Lock the folder of a new search or of the same search; yields whether Optuna proposes."""
    path = folder / RECORD
    look = partial(_saved, folder, record, resume)
    with taken_folder(folder, look, advice="name another with --out") as saved:
        if saved is None:
            write_record(path, record, indent=1)
        yield (saved or record)["proposer"] == "optuna"


def _saved(folder: Path, record: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    """The record of the search already in the folder, or None; raises if it is not this search."""
    path = folder / RECORD
    if not path.exists():
        if holds_something(folder):
            raise EvergraphError(f"{folder} exists and is not a search's folder; name another with --out")
        return None
    if not resume:
        raise EvergraphError(f"{folder} holds a search already; add --resume to go on with it, or use another --out")
    try:
        saved = read_record(path, advice="name another folder with --out")
        differ = [key for key in ("space", "rule", "rule_settings") if saved[key] != record[key]]
        differ += [key for key in record["spec"] if saved["spec"].get(key) != record["spec"][key] and key != "device"]
    except (ValueError, KeyError, TypeError):
        raise EvergraphError(f"{path} is damaged; name another folder with --out") from None
    if differ:
        raise EvergraphError(f"{folder} holds another search (other {', '.join(differ)}); name another with --out")
    planned = saved.get("planned", record["planned"])  # earlier records do not say
    if planned != record["planned"]:
        rule = "one of its rules" if record["rule"] == "all" else record["rule"]
        raise EvergraphError(
            f"{folder} holds a search of {planned} trials, and {rule} plans its trials by their number; resume it with "
            f"--trials {planned}, or name another folder with --out"
        )
    known = saved.get("graph", record["graph"])  # earlier records name no graph
    check_same_graph(record["spec"]["source"], record["graph"], known, folder)
    if saved["proposer"] == "optuna" and not has_optuna():
        raise EvergraphError(
            f"{folder} was begun with Optuna, which is not installed here: pip install 'evergraph[tune]'"
        )
    return saved
