"""Make a graph from a node table and an edge list."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evergraph.core.settings import checked
from evergraph.data.arrays import LARGEST, tell_of_lost_digits
from evergraph.data.dates import AS_DAYS, holds_dates
from evergraph.data.edge_lists import read_edge_list
from evergraph.data.graph import Graph, make_graph
from evergraph.data.numbers_as_text import (
    AS_NUMBERS,
    CONVERT,
    as_numbers,
    holds_numbers,
    is_number,
    rows_written,
    with_odd_cell,
)
from evergraph.data.tables import (
    TABLE_FILES,
    Columns,
    as_keys,
    complete_keys,
    index_columns,
    is_renumbered,
    is_usual,
    pick,
    read_table,
    tell_of_index,
)
from evergraph.data.targets import ClassName, is_missing
from evergraph.errors import EvergraphError, tell, unknown
from evergraph.persistence.reading import regular_file

IDS, LABELS = ("id", "node", "node_id"), ("label", "class", "y")
SPLITS = {"train": 0, "val": 1, "validation": 1, "valid": 1, "test": 2}

Missing = Literal["refuse", "zero", "mean"]


@checked
def from_tables(
    nodes: Any,
    edges: Any = None,
    *,
    label: str | None = None,
    id: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    features: Sequence[str] | None = None,
    missing: Missing = "refuse",
    class_names: Sequence[ClassName] | Mapping[Any, Any] | None = None,
    undirected: bool | None = None,
    name: str | None = None,
    numbers: bool = False,
) -> Graph:
    """Make a `Graph` from a node table and an edge list.

    A table is the path of a .csv, .tsv or .parquet file, a data frame (pandas, polars, pyarrow) or a dictionary of
    columns. Columns of numbers are features; columns of text are not, nor is an index that pandas wrote without a name,
    which a warning says. Ids stay with the nodes: `learner.predict(graph, ["ada"])` asks for one, and predictions name
    them. A column `split` of `train`, `val` and `test` divides the nodes. Any other column, text included, can define
    the tasks of a stream (`eg.stream(graph, by="year")`).

    Args:
        nodes: the node table, one row per node.
        edges: the edge list, one row per edge; None if there are no edges.
        label: column of the classes, text or whole numbers, empty for unlabelled nodes; by default `label`, `class` or
            `y`, if there is one. Class names and ids are kept as a text file has them: `007` is not 7.
        id: column of the nodes' ids, which may be a data frame's index; by default `id`, `node` or `node_id`; else
            nodes are identified by their row number, from 0.
        source: the edge list's column of sources; by default `source`, `src`, `from` or `u`, else the first if there
            are only two columns besides weights.
        target: the edge list's column of targets; by default `target`, `dst`, `to` or `v`, else the second.
        weight: the edge list's column of weights; by default `weight`, if there is one.
        features: columns to use as features; by default all other columns of numbers.
        missing: what to do where a feature is missing: `refuse`, or fill in `zero` or the column's `mean`.
        class_names: names of classes that are given as numbers, as in `make_graph`.
        undirected: as in `make_graph`.
        name: name of the graph in messages; by default the file's name.
        numbers: the column `label` holds numbers to predict, even if they are whole.
    """
    name = name or (Path(nodes).stem if isinstance(nodes, (str, Path)) else "nodes")
    table = read_table(nodes, name, index=(id,) if id else IDS)
    if table.is_text and not (id or label or features) and _like_a_row(table):
        first = ",".join(list(table)[:6]) + (",…" if len(table) > 6 else "")
        raise EvergraphError(
            f"{name}: its first line, {first}, looks like a node; write the names of the columns above it (if these "
            "are names, id=…, label=… or features=… says which)"
        )
    id_column = pick(table, id, IDS, "the nodes' ids", name)
    label_column = pick(table, label, LABELS, "the classes", name)
    split_column = pick(table, None, ("split",), "the split", name)
    if id_column is not None and id_column == label_column:
        raise EvergraphError(f"{name}: column {id_column!r} cannot hold both the ids and the classes")
    ids = table.ids(id_column) if id_column is not None else np.arange(len(next(iter(table.values()))))
    keys = complete_keys(table, id_column, name) if id_column is not None else as_keys(ids)
    reserved = {id_column, label_column, split_column}
    unnamed = None
    if id_column is None:
        whole = [column for column, values in table.items() if values.ndim == 1 and values.dtype.kind not in "fb"]
        unnamed = {column: table.ids(column) for column in whole if column not in reserved}
        if is_renumbered(nodes):
            tell(
                f"{name}: the index of the data frame is not read, and nodes are called by the number of their row; "
                "if it names them, give frame.rename_axis('id')"
            )
    if features is None and (index := index_columns(table, reserved)):
        tell_of_index(index, "id, if it names the nodes", name)
        reserved.update(index)
    edge_index, weights = read_edge_list(edges, keys, (source, target), weight, name, unnamed)
    x, feature_names = _features(table, features, reserved, missing, name, labelled=label_column is not None)
    if features is None and (odd := [column for column in feature_names if is_usual(column, (*IDS, *LABELS))]):
        tell(f"read as features: {', '.join(odd)}; if they are not, name the features (features=…)", name)
    y = None
    if label_column is not None:
        y = _numbers(table, label_column, name) if numbers else table.labels(label_column, name)
    return make_graph(
        x,
        edge_index,
        y,
        edge_weight=weights,
        class_names=class_names,
        undirected=undirected,
        name=name,
        attributes={
            **({"id": _ids(ids, keys, name)} if id_column is not None else {}),
            **_others(table, {*reserved, *feature_names, "id"}),
        },
        splits=_splits(table[split_column], name) if split_column else None,
        columns=numbers,
        feature_names=feature_names,
    )


def _like_a_row(table: Columns) -> bool:
    """Whether the names of columns are rather their first values: several numbers, above all columns of numbers.

    The numbers 0, 1, 2, … are names that pandas gives.
    """
    above = [column for column, values in table.items() if values.dtype.kind in "fiub"]
    names = (*IDS, *LABELS, "split")
    usual = any(is_usual(column, names) and column not in table[column].tolist() for column in table)
    counted = above == [str(number) for number in range(len(above))]
    return len(above) > 1 and all(map(is_number, above)) and not usual and not counted


def _others(table: Columns, taken: Collection[str | None]) -> dict[str, np.ndarray]:
    """Return the columns that are neither `taken` nor vectors; and truth values, which have names, in any case."""
    return {
        column: values
        for column, values in table.items()
        if values.ndim == 1 and column != "id" and (column not in taken or values.dtype.kind == "b")
    }


def _numbers(table: Columns, column: str, name: str) -> np.ndarray:
    """Return a column of numbers to predict, which may be written as text."""
    values = table[column]
    if (found := as_numbers(values)) is not None:
        return found
    if values.dtype.kind not in "fiub":
        fix = f"; {AS_NUMBERS}" if rows_written(table, column) else ""
        raise EvergraphError(
            f"{name}: column {with_odd_cell(table, column)} holds text, which is no number to predict{fix}"
        )
    return values


def _ids(values: np.ndarray, keys: list[str], name: str) -> Any:
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise EvergraphError(f"{name}: two nodes have the id {twice!r}; give every node an id of its own")
    return values if values.dtype.kind in "iu" else keys


def _features(
    table: Columns,
    wanted: Sequence[str] | None,
    reserved: set[str | None],
    missing: Missing,
    name: str,
    *,
    labelled: bool,
) -> tuple[np.ndarray, list[str]]:
    """Return the feature matrix and the names of its columns; a column of vectors becomes several.

    Unless the table is `labelled`, warnings about columns of text ask whether one of them holds the classes.
    """
    if isinstance(wanted, str):
        wanted = [wanted]
    if twice := [column for column in wanted or () if list(wanted or ()).count(column) > 1]:
        raise EvergraphError(f"{name}: feature {twice[0]!r} is named twice; name each column once")
    for column in wanted or ():
        pick(table, column, (), "a feature", name)
        if table[column].dtype.kind not in "fiub":
            shown, what = with_odd_cell(table, column), "text and cannot be a feature"
            fix = AS_NUMBERS if rows_written(table, column) else "give numbers, or a column of 0 and 1 for each value"
            if holds_numbers(table[column]):
                what, fix = "numbers as text", CONVERT
            elif holds_dates(table, column):
                what, fix = "dates or times", AS_DAYS
            raise EvergraphError(f"{name}: column {shown} holds {what}; {fix}")
    chosen = list(
        wanted or (column for column in table if column not in reserved and table[column].dtype.kind in "fiub")
    )
    text = [column for column in table if column not in reserved and table[column].dtype.kind not in "fiub"]
    if not wanted:
        _tell_of_text(table, text, name, labelled)
    if not chosen:
        raise EvergraphError(f"{name}: no column of numbers to take as features; its columns are: {', '.join(table)}")
    parts, names = [], []
    for column in chosen:
        values = table[column].astype(np.float64)
        if (largest := np.abs(values[~np.isnan(values)]).max(initial=0.0)) > LARGEST:
            fix = (
                "single precision has no room for its square: divide the column by a constant, the same for every task"
            )
            if np.isinf(largest):
                fix = "give finite numbers, and leave the cell empty where one is missing"
            raise EvergraphError(f"{name}: column {column!r} holds {largest:.3g}; {fix}")
        vectors = values.reshape(len(values), -1)
        names += [column] if values.ndim == 1 else [f"{column}[{i}]" for i in range(vectors.shape[1])]
        parts.append(vectors)
    x = np.concatenate(parts, axis=1)
    tell_of_lost_digits(x, names, name)
    return _filled(x.astype(np.float32), names, missing, name), names


def _tell_of_text(table: Columns, columns: Sequence[str], name: str, labelled: bool) -> None:
    """Warn about columns of text, which are not features, and ask for the classes unless the table is `labelled`."""
    numbers = [column for column in columns if holds_numbers(table[column])]
    dates = [column for column in columns if holds_dates(table, column)]
    written = [column for column in columns if rows_written(table, column) and column not in dates]
    text = [column for column in columns if column not in (*numbers, *written, *dates)]
    as_text = "not read as features, since their numbers are written as text"
    for some, what, fix in (
        (written, as_text, AS_NUMBERS),
        (numbers, as_text, CONVERT),
        (dates, "columns of dates or times are not features", AS_DAYS),
        (text, "columns of text are not features", "give each of their values a column of 0 and 1"),
    ):
        if some:
            listed = ", ".join(with_odd_cell(table, column) for column in some)
            hint = "" if labelled or some is written or some is dates else _where_classes_may_be(table, some)
            tell(f"{what}: {listed}; {fix}{hint}", name)


def _where_classes_may_be(table: Columns, columns: Sequence[str]) -> str:
    """Say how to name the column of the classes, if one of these may be it."""
    repeating = [column for column in columns if _repeats(table[column])]
    if not repeating:
        return ""
    one, label = (repr(repeating[0]), repeating[0]) if len(repeating) == 1 else ("one of them", "COLUMN")
    return f"; if {one} holds the classes, add label={label}"


def _repeats(values: np.ndarray) -> bool:
    """Whether values come twice or more on average, as classes do and names do not."""
    return 2 * len(set(map(str, values.tolist()))) <= len(values)


def _filled(x: np.ndarray, names: list[str], missing: Missing, name: str) -> np.ndarray:
    """Fill in missing features with a warning, or raise an error that names the columns."""
    gone = np.isnan(x)
    if not gone.any():
        return x
    where = ", ".join(f"{names[i]!r} ({int(gone[:, i].sum())})" for i in np.nonzero(gone.any(0))[0][:4])
    never = [column for column, none in zip(names, gone.all(0)) if none]
    if never and missing != "zero":
        raise EvergraphError(
            f"{name}: column {never[0]!r} has no value at all; name it (label={never[0]}) if it is for the classes, or "
            "leave it out (features=…)"
        )
    count = f"{int(gone.sum())} of {x.size:,} features are missing, in column {where}"
    if missing == "refuse":
        raise EvergraphError(f"{name}: {count}; missing='mean' or 'zero' fills them in, or leave the column out")
    tell(f"{name}: {count}; filled in with {'0' if missing == 'zero' else 'the mean of the column'}")
    known = np.maximum((~gone).sum(0), 1)
    means = np.where(gone, 0, x).sum(0) / known if missing == "mean" else np.zeros(x.shape[1], x.dtype)
    return np.where(gone, means.astype(x.dtype), x)


def _splits(values: np.ndarray, name: str) -> np.ndarray:
    cells = ["" if is_missing(value) else str(value).lower() for value in values.tolist()]
    if odd := [cell for cell in cells if cell and cell not in SPLITS]:
        raise EvergraphError(f"{name}: column 'split' holds {odd[0]!r}; write train, val or test, or leave it empty")
    return np.array([SPLITS.get(cell, -1) for cell in cells])


# paths followed by settings, as on the command line


def is_table(source: Any) -> bool:
    """Whether a string names a node table: `people.csv`, or `people.csv:edges=follows.csv,label=role`."""
    return isinstance(source, (str, Path)) and Path(str(source).partition(":")[0]).suffix.lower() in TABLE_FILES


def read_tables(source: str | Path, *, undirected: bool | None = None, numbers: bool = False) -> Graph:
    """Read a node table whose edge list and other arguments of `from_tables` follow a colon."""
    path, settings = _parsed(source)
    return from_tables(path, **settings, undirected=undirected, numbers=numbers)


def table_files(source: str | Path) -> list[Path]:
    """The files that `read_tables` reads: the node table and its edge list, if there is one."""
    path, settings = _parsed(source)
    return [path, *([settings["edges"]] if settings["edges"] is not None else [])]


def _parsed(source: str | Path) -> tuple[Path, dict[str, Any]]:
    """Return the path of a node table, and the arguments that follow it, the edge list as a path or None."""
    path, _, text = str(source).partition(":")
    known = [
        p.name
        for p in inspect.signature(from_tables).parameters.values()
        if p.name not in {"nodes", "class_names", "undirected", "numbers"}
    ]
    settings: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in known:
            raise unknown(f"setting of {path}", key, known)
        if key in settings:
            raise EvergraphError(f"{path}: {key} is given twice, as {settings[key]!r} and as {value!r}")
        if not value:
            raise EvergraphError(f"{path}: {key}= is empty; give it a value, or leave it out")
        settings[key] = value.split("+") if key == "features" else value
    if "edges" not in settings:
        regular_file(path)  # what is not there needs no edge list
        raise EvergraphError(
            f"{path}: a node table needs its edge list; write {path}:edges=EDGES.csv, or {path}:edges=none for none"
        )
    edges = None if settings["edges"] == "none" else _beside(settings["edges"], path)
    return Path(path), {**settings, "edges": edges}


def _beside(edges: str, nodes: str) -> Path:
    """Return the edge list's path as given if it exists, else in the folder of the node table."""
    return Path(edges) if Path(edges).exists() else Path(nodes).parent / edges
