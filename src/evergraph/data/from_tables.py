"""Make a graph from a node table and an edge list."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evergraph.core.settings import checked
from evergraph.data.arrays import LARGEST, tell_of_lost_digits
from evergraph.data.graph import Graph, make_graph
from evergraph.data.tables import (
    TABLE_FILES,
    Columns,
    as_keys,
    index_columns,
    is_renumbered,
    is_usual,
    pick,
    read_table,
)
from evergraph.data.targets import ClassName, is_missing
from evergraph.errors import EvergraphError, tell, unknown

IDS, LABELS, WEIGHTS = ("id", "node", "node_id"), ("label", "class", "y"), ("weight", "edge_weight")
ENDS = (("source", "target"), ("src", "dst"), ("from", "to"), ("u", "v"))
WRITTEN = re.compile(r"[+-]?(\d+([.,]\d+)?\s?%|\d*,\d+(e[+-]?\d+)?|\d{1,3}([,.'’\s]\d{3})+([.,]\d+)?)", re.IGNORECASE)
"""Numbers as people write them: 1,5 for 1.5, with separators of thousands, or as a percentage."""
AS_NUMBERS = "write numbers with a decimal point, without separators of thousands or percent signs"
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
    id_column = pick(table, id, IDS, "the nodes' ids", name)
    label_column = pick(table, label, LABELS, "the classes", name)
    split_column = pick(table, None, ("split",), "the split", name)
    if id_column is not None and id_column == label_column:
        raise EvergraphError(f"{name}: column {id_column!r} cannot hold both the ids and the classes")
    ids = table.ids(id_column) if id_column is not None else np.arange(len(next(iter(table.values()))))
    keys = _complete(table, id_column, name) if id_column is not None else as_keys(ids)
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
        _tell_of_index(index, "id, if it names the nodes", name)
        reserved.update(index)
    edge_index, weights = _edges(edges, keys, (source, target), weight, name, unnamed)
    x, feature_names = _features(table, features, reserved, missing, name, labelled=label_column is not None)
    if features is None and (odd := [column for column in feature_names if is_usual(column, (*IDS, *LABELS))]):
        tell(f"{name}: read as features: {', '.join(odd)}; if they are not, name the features (features=…)")
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


def _others(table: Columns, taken: Collection[str | None]) -> dict[str, np.ndarray]:
    """Return the columns that are neither `taken` nor vectors; and truth values, which have names, in any case."""
    return {
        column: values
        for column, values in table.items()
        if values.ndim == 1 and column != "id" and (column not in taken or values.dtype.kind == "b")
    }


def _tell_of_index(columns: Sequence[str], rename: str, name: str) -> None:
    """Warn about columns that are not read; `rename` says under which name, and when, one would be."""
    listed = ", ".join(map(repr, columns))
    tell(f"{name}: column {listed} looks like an index written by pandas and is not read; call it {rename}")


def _numbers(table: Columns, column: str, name: str) -> np.ndarray:
    """Return a column of numbers to predict; a column of empty text has no known numbers."""
    values = table[column]
    if values.dtype.kind == "O" and not any(values.tolist()):
        return np.full(len(values), np.nan)
    if values.dtype.kind not in "fiub":
        fix = f"; {AS_NUMBERS}" if _written(table, column) else ""
        raise EvergraphError(
            f"{name}: column {_with_odd_cell(table, column)} holds text, which is no number to predict{fix}"
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

    Unless the table is `labelled`, the warning about columns of text asks whether one of them holds the classes.
    """
    if isinstance(wanted, str):
        wanted = [wanted]
    if twice := [column for column in wanted or () if list(wanted or ()).count(column) > 1]:
        raise EvergraphError(f"{name}: feature {twice[0]!r} is named twice; name each column once")
    for column in wanted or ():
        pick(table, column, (), "a feature", name)
        if table[column].dtype.kind not in "fiub":
            fix = AS_NUMBERS if _written(table, column) else "give numbers, or a column of 0 and 1 for each value"
            raise EvergraphError(
                f"{name}: column {_with_odd_cell(table, column)} holds text and cannot be a feature; {fix}"
            )
    chosen = list(
        wanted or (column for column in table if column not in reserved and table[column].dtype.kind in "fiub")
    )
    text = [column for column in table if column not in reserved and table[column].dtype.kind not in "fiub"]
    written = {} if wanted else {column: rows for column in text if (rows := _written(table, column))}
    if written:
        listed = ", ".join(_with_cell(table, column, rows[0]) for column, rows in written.items())
        tell(f"{name}: not read as features, since their numbers are written as text: {listed}; {AS_NUMBERS}")
        text = [column for column in text if column not in written]
    if text and not wanted:
        listed = ", ".join(_with_odd_cell(table, column) for column in text)
        repeating = () if labelled else [column for column in text if _repeats(table[column])]
        one, label = (repr(repeating[0]), repeating[0]) if len(repeating) == 1 else ("one of them", "COLUMN")
        hint = f"; if {one} holds the classes, add label={label}" if repeating else ""
        tell(f"{name}: columns of text are not features: {listed}; give each of their values a column of 0 and 1{hint}")
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


def _repeats(values: np.ndarray) -> bool:
    """Whether values come twice or more on average, as classes do and names do not."""
    return 2 * len(set(map(str, values.tolist()))) <= len(values)


def _written(table: Columns, column: str) -> list[int]:
    """Return the rows of a text column that hold a number as people write it, if most of its cells are numbers."""
    cells = [str(cell) for cell in table[column].tolist()]
    plain = [_is_number(cell) for cell in cells]
    rows = [row for row, cell in enumerate(cells) if not plain[row] and WRITTEN.fullmatch(cell)]
    return rows if 2 * (sum(plain) + len(rows)) > sum(map(bool, cells)) else []


def _with_odd_cell(table: Columns, column: str) -> str:
    """Return the name of a text column; if most of its cells are numbers, with a cell that does not read as one."""
    if written := _written(table, column):
        return _with_cell(table, column, written[0])
    cells = [str(cell) for cell in table[column].tolist()]
    odd = [row for row, cell in enumerate(cells) if cell and not _is_number(cell)]
    return repr(column) if not odd or 2 * len(odd) > sum(map(bool, cells)) else _with_cell(table, column, odd[0])


def _with_cell(table: Columns, column: str, row: int) -> str:
    """Return the name of a column with one of its cells."""
    return f"{column!r} ({table.place(row)} holds {str(table[column][row])!r})"


def _filled(x: np.ndarray, names: list[str], missing: Missing, name: str) -> np.ndarray:
    """Fill in missing features with a warning, or raise an error that names the columns."""
    gone = np.isnan(x)
    if not gone.any():
        return x
    where = ", ".join(f"{names[i]!r} ({int(gone[:, i].sum())})" for i in np.nonzero(gone.any(0))[0][:4])
    count = f"{int(gone.sum())} of {x.size:,} features are missing, in column {where}"
    if missing == "refuse":
        raise EvergraphError(f"{name}: {count}; missing='mean' or 'zero' fills them in, or leave the column out")
    tell(f"{name}: {count}; filled in with {'0' if missing == 'zero' else 'the mean of the column'}")
    known = np.maximum((~gone).sum(0), 1)
    means = np.where(gone, 0, x).sum(0) / known if missing == "mean" else np.zeros(x.shape[1], x.dtype)
    return np.where(gone, means.astype(x.dtype), x)


def _edges(
    edges: Any,
    keys: list[str],
    ends: tuple[str | None, str | None],
    weight: str | None,
    name: str,
    unnamed: dict[str, np.ndarray] | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return pairs of row numbers of the node table, and the edge weights if there are any.

    If no column of the node table is known to hold ids, `unnamed` holds those that might; else it is None.
    """
    if edges is None:
        return np.zeros((2, 0), dtype=np.int64), None
    called = Path(edges).name if isinstance(edges, (str, Path)) else f"the edges of {name}"
    index = [end for pair in (ends, *ENDS) for end in pair if end]
    table = read_table(edges, called, index, if_empty="; a graph without edges has no edge list (edges=none)")
    weight_column = pick(table, weight, WEIGHTS, "weights", called)
    number = {key: row for row, key in enumerate(keys)}
    if table.is_text and None in ends and all(column in number or _is_number(column) for column in table):
        raise EvergraphError(
            f"{called}: its first line, {','.join(table)}, looks like an edge; write the names of the columns above it"
            ": source,target (if these are names, source=… and target=… say which)"
        )
    columns = _ends(table, ends, weight_column, called)
    rows = []
    for column in columns:
        named = _complete(table, column, called)
        found = [number.get(key, -1) for key in named]
        if -1 in found:
            row = found.index(-1)
            fix = "give every node a row in the node table"
            if unnamed is not None:
                other = _ids_of(unnamed, table, columns) or "COLUMN"
                fix = f"its nodes are called {keys[0]} to {keys[-1]} unless a column of ids is named (id={other})"
            raise EvergraphError(
                f"{called}: {table.place(row)} names node {named[row]!r}, which is not in {name}; {fix}"
            )
        rows.append(found)
    if index := index_columns(table, (*columns, weight_column)):
        _tell_of_index(index, "weight, if it weighs the edges", called)
    if weight_column is None and (others := [column for column in table if column not in (*columns, *index)]):
        numeric = [column for column in others if table[column].dtype.kind in "fiub"]
        hint = f" (weight={numeric[0]} would weigh them by it)" if numeric else ""
        tell(f"{called}: all edges weigh the same; columns not read: {', '.join(others)}{hint}")
    if unnamed and (other := _ids_of(unnamed, table, columns)):
        tell(
            f"{name}: nodes are called by the number of their row, from 0; if {called} means the column {other!r}, "
            f"give id={other}"
        )
    return np.array(rows, dtype=np.int64), _weights(table, weight_column, called) if weight_column else None


def _ends(table: Columns, given: tuple[str | None, str | None], weight: str | None, called: str) -> list[str]:
    """Return the source and target columns: those that are named, those with usual names, or the only two."""
    for column in given:
        pick(table, column, (), "ends of edges", called)
    lower = {column.lower(): column for column in table}
    usual = next(([lower[end] for end in pair] for pair in ENDS if set(pair) <= set(lower)), [None, None])
    found = [fallback if named is None else named for named, fallback in zip(given, usual)]
    others = [column for column in table if column != weight and column not in found]
    missing = found.count(None)
    index = index_columns(table, (weight, *found))
    if len(others) - len(index) == missing:
        others = [column for column in others if column not in index]
    if missing and len(others) != missing:
        if len(table) < 2:
            raise EvergraphError(f"{called}: one column alone; an edge list has a column of sources and one of targets")
        raise EvergraphError(
            f"{called}: which columns are the ends of edges? Its columns are: {', '.join(table)}; "
            "name them: source=COLUMN,target=COLUMN"
        )
    columns = [others.pop(0) if column is None else column for column in found]
    if columns[0] == columns[1]:
        raise EvergraphError(f"{called}: column {columns[0]!r} cannot be both the source and the target of an edge")
    return columns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _complete(table: Columns, column: str, name: str) -> list[str]:
    """Return the ids in a column as keys, or raise an error that names the row without one."""
    values = table.ids(column)
    _check_filled(table, column, values, name)
    return as_keys(values)


def _weights(table: Columns, column: str, name: str) -> np.ndarray:
    """Return a column of edge weights, or raise an error that names the row without one."""
    values = table[column]
    if values.ndim != 1:
        raise EvergraphError(f"{name}: column {column!r} holds vectors; give one weight per edge")
    _check_filled(table, column, values, name)
    if values.dtype.kind == "O":
        wrong = [not _is_number(cell) for cell in values.tolist()]
    else:
        wrong = (~np.isfinite(values) | (values < 0)).tolist()
    if True in wrong:
        row = wrong.index(True)
        weight = values.tolist()[row]
        fix = (
            AS_NUMBERS
            if isinstance(weight, str) and WRITTEN.fullmatch(weight)
            else "weights are finite numbers of at least 0"
        )
        raise EvergraphError(f"{name}: {table.place(row)} has the weight {weight!r} in column {column!r}; {fix}")
    return values


def _check_filled(table: Columns, column: str, values: np.ndarray, name: str) -> None:
    """Raise an error that names the first row with nothing in a column, whose values these are."""
    kind = values.dtype.kind
    empty = np.isnan(values) if kind == "f" else values == "" if kind == "O" else np.zeros(1, dtype=bool)
    if empty.any():
        place = table.place(int(np.argmax(empty)))
        raise EvergraphError(f"{name}: {place} has nothing in column {column!r}; fill it in, or leave the row out")


def _ids_of(unnamed: dict[str, np.ndarray], edges: Columns, ends: Sequence[str]) -> str:
    """Return the column of unique values that contains all nodes named by the edges and is not the row number."""
    named = {key for column in ends for key in as_keys(edges.ids(column))}
    for column, values in unnamed.items():
        keys = as_keys(values)
        if named <= set(keys) and len(set(keys)) == len(keys) and keys != [str(row) for row in range(len(keys))]:
            return column
    return ""


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
        raise EvergraphError(
            f"{path}: a node table needs its edge list; write {path}:edges=EDGES.csv, or {path}:edges=none for none"
        )
    edges = None if settings["edges"] == "none" else _beside(settings["edges"], path)
    return Path(path), {**settings, "edges": edges}


def _beside(edges: str, nodes: str) -> Path:
    """Return the edge list's path as given if it exists, else in the folder of the node table."""
    return Path(edges) if Path(edges).exists() else Path(nodes).parent / edges
