"""Numbers in columns of text: which cells hold them, and how people write them."""

from __future__ import annotations

import re

import numpy as np

from evergraph.data.tables import MISSING, Columns, is_number

WRITTEN = re.compile(r"[+-]?(\d+([.,]\d+)?\s?%|\d*,\d+(e[+-]?\d+)?|\d{1,3}([,.'’\s]\d{3})+([.,]\d+)?)", re.IGNORECASE)
"""Numbers as people write them: 1,5 for 1.5, with separators of thousands, or as a percentage."""
AS_NUMBERS = "write numbers with a decimal point, without separators of thousands or percent signs"
CONVERT = "convert them, e.g. with pandas.to_numeric, or give each value a column of 0 and 1 if they are codes"


def as_numbers(values: np.ndarray) -> np.ndarray | None:
    """Return a column of text as numbers, NaN where missing, as a text file is read; None if a cell is no number."""
    if values.dtype.kind != "O" or values.ndim != 1:
        return None
    cells = ["nan" if cell.lower() in MISSING else cell for cell in values.tolist()]
    return np.array([float(cell) for cell in cells]) if all(map(is_number, cells)) else None


def holds_numbers(values: np.ndarray) -> bool:
    """Return whether a column of text holds numbers, and nothing else."""
    found = as_numbers(values)
    return found is not None and not np.isnan(found).all()


def rows_written(table: Columns, column: str) -> list[int]:
    """Return the rows of a text column that hold a number as people write it, if most of its cells are numbers."""
    cells = [str(cell) for cell in table[column].tolist()]
    plain = [is_number(cell) for cell in cells]
    rows = [row for row, cell in enumerate(cells) if not plain[row] and WRITTEN.fullmatch(cell)]
    return rows if 2 * (sum(plain) + len(rows)) > sum(map(bool, cells)) else []


def with_odd_cell(table: Columns, column: str) -> str:
    """Return the name of a text column, with a cell that is no number if most are, or the first number if all are."""
    if written := rows_written(table, column):
        return with_cell(table, column, written[0])
    cells = [str(cell) for cell in table[column].tolist()]
    if holds_numbers(table[column]):
        return with_cell(table, column, next(row for row, cell in enumerate(cells) if cell.lower() not in MISSING))
    odd = [row for row, cell in enumerate(cells) if cell and not is_number(cell)]
    return repr(column) if not odd or 2 * len(odd) > sum(map(bool, cells)) else with_cell(table, column, odd[0])


def with_cell(table: Columns, column: str, row: int) -> str:
    """Return the name of a column with one of its cells."""
    return f"{column!r} ({table.place(row)} holds {str(table[column][row])!r})"
