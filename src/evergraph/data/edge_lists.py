"""Read an edge list: the ends of edges as rows of the node table, and weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evergraph.data.numbers_as_text import AS_NUMBERS, WRITTEN, holds_numbers
from evergraph.data.tables import (
    Columns,
    as_keys,
    check_filled,
    complete_keys,
    index_columns,
    is_number,
    pick,
    read_table,
    tell_of_index,
)
from evergraph.errors import EvergraphError, tell

WEIGHTS = ("weight", "edge_weight")
ENDS = (("source", "target"), ("src", "dst"), ("from", "to"), ("u", "v"))


def read_edge_list(
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
    none = "none; in Python None" if isinstance(edges, (str, Path)) else "None"
    table = read_table(edges, called, index, if_empty=f"; a graph without edges has no edge list (edges={none})")
    weight_column = pick(table, weight, WEIGHTS, "weights", called)
    number = {key: row for row, key in enumerate(keys)}
    if table.is_text and None in ends and all(column in number or is_number(column) for column in table):
        raise EvergraphError(
            f"{called}: its first line, {','.join(table)}, looks like an edge; write the names of the columns above it"
            ": source,target (if these are names, source=… and target=… say which)"
        )
    columns = _ends(table, ends, weight_column, called)
    rows = []
    for column in columns:
        named = complete_keys(table, column, called)
        found = [number.get(key, -1) for key in named]
        if -1 in found:
            row = found.index(-1)
            fix = f"give every node a row in the node table, whose ids are like {keys[0]!r}"
            if unnamed is not None:
                other = _ids_of(unnamed, table, columns) or "COLUMN"
                fix = f"its nodes are called {keys[0]} to {keys[-1]} unless a column of ids is named (id={other})"
            raise EvergraphError(
                f"{called}: {table.place(row)} names node {named[row]!r}, which is not in {name}; {fix}"
            )
        rows.append(found)
    if index := index_columns(table, (*columns, weight_column)):
        tell_of_index(index, "weight, if it weighs the edges", called)
    if weight_column is None and (others := [column for column in table if column not in (*columns, *index)]):
        numeric = [column for column in others if table[column].dtype.kind in "fiub" or holds_numbers(table[column])]
        hint = f" (weight={numeric[0]} would weigh them by it)" if numeric else ""
        tell(f"all edges weigh the same; columns not read: {', '.join(others)}{hint}", called)
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


def _weights(table: Columns, column: str, name: str) -> np.ndarray:
    """Return a column of edge weights, also of text, or raise an error that names the row without one."""
    values = table[column]
    if values.ndim != 1:
        raise EvergraphError(f"{name}: column {column!r} holds vectors; give one weight per edge")
    check_filled(table, column, values, name)
    weights = values
    if values.dtype.kind == "O":
        weights = np.array([float(cell) if is_number(cell) else math.nan for cell in values.tolist()])
    wrong = ~np.isfinite(weights) | (weights < 0)
    if wrong.any():
        row = int(wrong.argmax())
        weight = values.tolist()[row]
        fix = (
            AS_NUMBERS
            if isinstance(weight, str) and WRITTEN.fullmatch(weight)
            else "weights are finite numbers of at least 0"
        )
        raise EvergraphError(f"{name}: {table.place(row)} has the weight {weight!r} in column {column!r}; {fix}")
    return weights


def _ids_of(unnamed: dict[str, np.ndarray], edges: Columns, ends: Sequence[str]) -> str:
    """Return the column of unique values that contains all nodes named by the edges and is not the row number."""
    named = {key for column in ends for key in as_keys(edges.ids(column))}
    for column, values in unnamed.items():
        keys = as_keys(values)
        if named <= set(keys) and len(set(keys)) == len(keys) and keys != [str(row) for row in range(len(keys))]:
            return column
    return ""
