"""Columns of dates and durations, which are neither numbers nor names."""

from __future__ import annotations

import re

from evergraph.data.tables import Columns

DATE = re.compile(
    r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([T ]\d{1,2}:\d{2}.*)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}([T ]\d{1,2}:\d{2}.*)?"
    r"|(-?\d+ days?,? ?)?[+-]?\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?|-?\d+ days?",
)
AS_DAYS = "convert them to a number (days since a fixed date, say), or leave them out"


def holds_dates(table: Columns, column: str) -> bool:
    """Whether the cells of a column of text are dates, times or durations; some may be empty."""
    cells = [str(cell) for cell in table[column].tolist() if str(cell)] if table[column].ndim == 1 else []
    return bool(cells) and all(DATE.fullmatch(cell.strip()) for cell in cells)
