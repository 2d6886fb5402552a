"""Numbers in columns of text: which cells hold them, and how people write them."""

from __future__ import annotations

import re

from evergraph.data.tables import Columns

WRITTEN = re.compile(r"[+-]?(\d+([.,]\d+)?\s?%|\d*,\d+(e[+-]?\d+)?|\d{1,3}([,.'’\s]\d{3})+([.,]\d+)?)", re.IGNORECASE)
"""Numbers as people write them: 1,5 for 1.5, with separators of thousands, or as a percentage."""
AS_NUMBERS = "write numbers with a decimal point, without separators of thousands or percent signs"


def is_number(text: str) -> bool:
    """Return whether a cell of text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def rows_written(table: Columns, column: str) -> list[int]:
    """Return the rows of a text column that hold a number as people write it, if most of its cells are numbers."""
    cells = [str(cell) for cell in table[column].tolist()]
    plain = [is_number(cell) for cell in cells]
    rows = [row for row, cell in enumerate(cells) if not plain[row] and WRITTEN.fullmatch(cell)]
    return rows if 2 * (sum(plain) + len(rows)) > sum(map(bool, cells)) else []


def with_odd_cell(table: Columns, column: str) -> str:
    """Return the name of a text column; if most of its cells are numbers, with a cell that does not read as one."""
    if written := rows_written(table, column):
        return with_cell(table, column, written[0])
    cells = [str(cell) for cell in table[column].tolist()]
    odd = [row for row, cell in enumerate(cells) if cell and not is_number(cell)]
    return repr(column) if not odd or 2 * len(odd) > sum(map(bool, cells)) else with_cell(table, column, odd[0])


def with_cell(table: Columns, column: str, row: int) -> str:
    """Return the name of a column with one of its cells."""
    return f"{column!r} ({table.place(row)} holds {str(table[column][row])!r})"
