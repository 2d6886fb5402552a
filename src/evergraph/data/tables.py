"""Read tables (CSV, Parquet, data frames, dictionaries of columns) as columns of plain arrays."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from evergraph.data.arrays import as_array
from evergraph.data.targets import is_missing, is_truth
from evergraph.errors import EvergraphError, counted, first_line, shown, tell
from evergraph.persistence.reading import regular_file

TABLE_FILES = {".csv", ".tsv", ".parquet"}
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none"))
"""Cells of a text file that stand for a missing number, in any case; in a column of names only an empty cell does."""
DIGITS = re.compile(r"[+-]?[0-9]+")
PLAIN = re.compile(r"0|-?[1-9][0-9]{0,18}")
INDEX = re.compile(r"(Unnamed: \d+(\.\d+)?|__index_level_\d+__)?")
"""Names under which pandas writes and reads back an index without a name."""


class Columns(dict[str, np.ndarray]):
    """Columns of a table by name: numbers, with NaN where missing, or text, with `""` where missing.

    Args:
        columns: the columns.
        cells: verbatim cells of a text file, since names of nodes and classes are not numbers; of other tables those
            of numbers that lose digits otherwise.
        truth: names of the columns of truth values, which are numbers as features, and names as classes.
        lines: of a text file, whose first line was read as column names, the line on which each row begins, from 1.
    """

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        cells: Mapping[str, list[str]] | None = None,
        truth: Collection[str] = (),
        lines: Sequence[int] | None = None,
    ) -> None:
        super().__init__(columns)
        self._cells, self._truth, self._lines = cells or {}, truth, lines

    @property
    def is_text(self) -> bool:
        """Whether the table is a text file."""
        return self._lines is not None

    def place(self, row: int) -> str:
        """Say where a row, counted from 0, stands: the line of a text file, else the number of the row from 1."""
        return f"row {row + 1}" if self._lines is None else f"line {self._lines[row]}"

    def ids(self, column: str) -> np.ndarray:
        """Return a column of ids as written; as whole numbers if every cell is one, written the usual way."""
        cells = self._cells.get(column)
        if cells is None or (self[column].dtype.kind == "i" and all(map(_is_plain, cells))):
            return self[column]
        return np.array(cells, dtype=object)

    def labels(self, column: str, name: str) -> np.ndarray:
        """Return a column of classes as written; as numbers if every non-empty cell is one, or as truth values.

        Warns if a class has a name that stands for a missing number elsewhere.
        """
        cells, values = self._cells.get(column), self[column]
        self.check_lines(column, name)
        if column in self._truth:
            return np.array([None if value != value else bool(value) for value in values.tolist()], dtype=object)
        if cells is None or not any(cell.lower() not in MISSING for cell in cells):
            return values
        if values.dtype.kind in "fi" and all(_is_plain(cell) for cell in cells if DIGITS.fullmatch(cell)):
            return values
        if words := [cell for cell in cells if cell and cell.lower() in MISSING]:
            tell(
                f"{name}: a class is called {words[0]!r} ({len(words)} of {len(cells)} rows); leave the cell empty "
                "where a node has no label"
            )
        return np.array(cells, dtype=object)

    def check_lines(self, column: str, name: str) -> None:
        """Raise if a name in a text file has several lines: a quote was opened and closed in other rows."""
        for row, cell in enumerate(self._cells.get(column, ()) if self.is_text else ()):
            if len(cell.splitlines()) > 1:
                raise EvergraphError(
                    f"{name}: {self.place(row)} has a line break in column {column!r}; look at the quotes there"
                )


def _is_plain(cell: str) -> bool:
    """Whether a whole number is written as Python writes it (not 007 or +1) and fits into 64 bits."""
    return PLAIN.fullmatch(cell) is not None and abs(int(cell)) < 2**63


def read_table(table: Any, name: str, index: Sequence[str] = (), if_empty: str = "") -> Columns:
    """Read the columns of a table by name.

    Args:
        table: the path of a .csv, .tsv or .parquet file, a data frame (pandas, polars, pyarrow), or a dictionary.
        name: name of the table in messages.
        index: names of pandas index levels to read as columns.
        if_empty: what else to do if the table has no rows, for the error.
    """
    if isinstance(table, (str, Path)):
        return _read_file(Path(table), if_empty)
    if not is_frame(table):
        raise EvergraphError(
            f"{name}: {shown(table)} is not a table; give a .csv or .parquet file, a data frame or a dictionary"
        )
    levels: Sequence[Any] = ()
    if isinstance(table, Mapping):
        keys, column = list(table), table.__getitem__
    elif hasattr(table, "column_names"):  # a pyarrow table
        keys, column = list(table.column_names), table.column
    else:
        keys, column = list(table.columns), table.__getitem__
        levels = getattr(getattr(table, "index", None), "names", ())
    _check_names([str(key) for key in keys], name)
    columns = {key: column(key) for key in keys}
    columns |= {key: table.index.get_level_values(key) for key in levels if key in index and key not in columns}
    listed = {str(key): _listed(values, f"{name}: column {str(key)!r}") for key, values in columns.items()}
    truth = [key for key, values in listed.items() if is_truth(values)]
    read = {key: _column(values, f"{name}: column {key!r}") for key, values in listed.items()}
    cells = {key: exact for key, (_, exact) in read.items() if exact is not None}
    found = Columns({key: values for key, (values, _) in read.items()}, cells, truth)
    _check_lengths(found, name, if_empty)
    return found


def is_frame(table: Any) -> bool:
    """Whether an object is a data frame or a dictionary of columns."""
    if isinstance(table, Mapping) or hasattr(table, "column_names"):
        return True
    return hasattr(table, "columns") and hasattr(table, "__getitem__")


def _check_names(names: Sequence[str], name: str) -> None:
    if twice := [column for column, count in Counter(names).items() if count > 1]:
        fix = "give every column a name of its own"
        if twice[0][:1].isdigit():
            fix += ", in a line above the first row"
        raise EvergraphError(f"{name}: two columns are called {twice[0]!r}; {fix}")


def is_renumbered(table: Any) -> bool:
    """Whether a table is a pandas data frame whose index is not 0, 1, 2, …"""
    index: Any = getattr(table, "index", None)
    return hasattr(index, "get_level_values") and index.tolist() != list(range(len(index)))


def no_table(path: str | Path) -> EvergraphError:
    """Return the error for a file whose name does not end as that of a table."""
    return EvergraphError(f"{path}: cannot tell what this is; tables are .csv, .tsv or .parquet files")


def _read_file(path: Path, if_empty: str) -> Columns:
    if path.suffix.lower() not in TABLE_FILES:
        raise no_table(path)
    regular_file(path)
    return (_read_parquet if path.suffix.lower() == ".parquet" else _read_text)(path, if_empty)


def _read_parquet(path: Path, if_empty: str) -> Columns:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise EvergraphError(
            f"{path}: a .parquet file needs pyarrow ({first_line(error)}); pip install 'evergraph[parquet]'"
        ) from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise EvergraphError(f"{path}: damaged or not a Parquet file ({first_line(error)})") from None
    return read_table(table, str(path), if_empty=if_empty)


def _read_text(path: Path, if_empty: str) -> Columns:
    """Read a text file with a header line and one line per row, with cells separated by commas, semicolons or tabs."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            between = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
            reader, begin, rows, lines = csv.reader(file, delimiter=between, strict=True), 1, [], []
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(begin)
                begin = reader.line_num + 1  # a cell in quotes may go on over several lines
    except UnicodeDecodeError as error:
        raise EvergraphError(f"{path}: not a text table in UTF-8 ({first_line(error)}); save it as UTF-8") from None
    except csv.Error as error:
        what = f"not a text table ({first_line(error)}, line {begin}); look at its quotes"
        if "unexpected end" in str(error):
            what = f'line {begin} opens a quote that is never closed; close it, or write "" for a quote within quotes'
        raise EvergraphError(f"{path}: {what}") from None
    if rows and any("\0" in cell for cell in rows[0]):
        raise EvergraphError(f"{path}: not a text table in UTF-8 (its first line has NUL bytes); save it as UTF-8")
    if len(rows) < 2:
        raise EvergraphError(
            f"{path}: no rows; a table has a line with the names of its columns, then one line per row{if_empty}"
        )
    names = [cell.strip() for cell in rows[0]]
    _check_separator(rows, path)
    _check_names(names, str(path))
    for line, row in zip(lines[1:], rows[1:]):
        if len(row) != len(names):
            raise EvergraphError(
                f"{path}: line {line} has {counted(len(row), 'cell')}, but there are {counted(len(names), 'column')}"
            )
    cells = {column: [row[i].strip() for row in rows[1:]] for i, column in enumerate(names)}
    return Columns({column: _parsed(values) for column, values in cells.items()}, cells, lines=lines[1:])


def _check_separator(rows: Sequence[Sequence[str]], path: Path) -> None:
    """Raise if all cells of a row stand in one, with something between them that does not separate cells here."""
    for between, what in (("|", "|"), (None, "spaces")):
        counts = {len(row[0].split(between)) if len(row) == 1 else 0 for row in rows}
        if len(counts) == 1 and counts.pop() > 1:
            raise EvergraphError(
                f"{path}: its cells are separated by {what}; separate them by commas, semicolons or tabs"
            )


def is_number(cell: str) -> bool:
    """Whether a cell reads as a number; `1_5` does not, nor do digits of other scripts, though Python reads both."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


def _parsed(cells: list[str]) -> np.ndarray:
    """Parse text cells as whole numbers, else as numbers, which may all be missing, else as text."""
    empty = [cell.lower() in MISSING for cell in cells]
    if all(gone or is_number(cell) for cell, gone in zip(cells, empty)):
        try:
            if not any(empty):
                return np.array([int(cell) for cell in cells], dtype=np.int64)
        except (ValueError, OverflowError):
            pass
        return np.array([math.nan if gone else float(cell) for cell, gone in zip(cells, empty)])
    return np.array(["" if gone else cell for cell, gone in zip(cells, empty)], dtype=object)


def _listed(values: Any, name: str) -> Sequence[Any]:
    """List the values of a data frame's column."""
    if hasattr(values, "to_pylist"):  # pyarrow
        values = values.to_pylist()
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed, (list, tuple)):
        raise EvergraphError(f"{name}: {shown(values)} is not a list of values")
    return listed


def check_vectors(values: Sequence[Any], what: str, everywhere: str, place: Callable[[int], str]) -> None:
    """Raise if some values are vectors, but not of one length everywhere; `place` says where one stands, from 0."""
    held = [_held(value) for value in values]
    vector = next((row for row, value in enumerate(values) if _is_vector(value)), None)
    if vector is not None and (odd := [row for row, size in enumerate(held) if size != held[vector]]):
        found = " and ".join(f"{held[row]} {place(row)}" for row in (vector, odd[0]))
        raise EvergraphError(f"{what} is not a vector of one length {everywhere}: {found}")


def _is_vector(value: Any) -> bool:
    """Whether a cell holds several values."""
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0


def _held(value: Any) -> str:
    """Say what a cell holds for a vector."""
    if not _is_vector(value):
        return "nothing" if is_missing(value) else "text" if isinstance(value, str) else "a number alone"
    try:
        size = np.shape(value)
    except ValueError:
        return "lists of unequal lengths"
    return f"{size[0]} value{'s' * (size[0] != 1)}" if len(size) == 1 else f"an array of shape {size}"


def _column(listed: Sequence[Any], what: str) -> tuple[np.ndarray, list[str] | None]:
    """Convert values to numbers, or to text objects with `""` where missing; `what` names the column in messages.

    Numbers that NumPy has no type for (decimals, whole numbers beyond 64 bits) come with cells of text, as in a file.
    """
    if not any(isinstance(value, str) for value in listed):
        if any(map(_is_vector, listed)):
            check_vectors(listed, what, "in every row", lambda row: f"in row {row + 1}")
            return as_array(listed, what), None
        array = as_array([math.nan if is_missing(value) else value for value in listed], what)
        if array.dtype.kind in "fiub":
            return array, None
        if all(isinstance(value, (int, float, Decimal)) or is_missing(value) for value in listed):
            cells = ["" if is_missing(value) else _written(Decimal(value)) for value in listed]
            return _parsed(cells), cells
    return np.array(["" if is_missing(value) else str(value) for value in listed], dtype=object), None


def _written(number: Decimal) -> str:
    """Write a number as Python writes a whole number if it is one: 7 for 7.00."""
    return str(int(number) if number.is_finite() and number == number.to_integral_value() else number)


def _check_lengths(columns: Columns, name: str, if_empty: str) -> None:
    lengths = {key: len(values) for key, values in columns.items()}
    if not lengths or not max(lengths.values()):
        raise EvergraphError(f"{name}: no rows; a table has named columns and one row each{if_empty}")
    if len(set(lengths.values())) > 1:
        raise EvergraphError(f"{name}: columns of different lengths: {shown(lengths)}; give one value per row")


def pick(columns: Columns, named: str | None, usual: Sequence[str], what: str, name: str) -> str | None:
    """Return the column that is named, else the first with a usual name; None if there is none."""
    if named is None:
        found = [column for word in usual for column in columns if is_usual(column, (word,))]
        return next((column for column in found if column in usual), found[0] if found else None)
    if named not in columns:
        raise EvergraphError(f"{name}: no column {named!r} for {what}; its columns are: {', '.join(columns)}")
    return named


def is_usual(column: str, usual: Sequence[str]) -> bool:
    """Whether a column has one of these names, in any case; but `y` is not `Y`, which may be a coordinate."""
    return column in usual or (len(column) > 1 and column.lower() in usual)


def index_columns(columns: Columns, wanted: Collection[str | None]) -> list[str]:
    """Return the columns that are called like a data frame's index, unless they are wanted."""
    return [column for column in columns if INDEX.fullmatch(column) and column not in wanted]


def tell_of_index(columns: Sequence[str], rename: str, name: str) -> None:
    """Warn about columns that are not read; `rename` says under which name, and when, one would be."""
    listed = ", ".join(map(repr, columns))
    tell(f"column {listed} looks like an index written by pandas and is not read; call it {rename}", name)


def as_keys(values: np.ndarray) -> list[str]:
    """Convert values to keys that match across tables: 7, 7.0 and "7" are equal."""
    if values.dtype.kind == "f":
        return [str(int(value)) if float(value).is_integer() else str(value) for value in values.tolist()]
    return [str(value) for value in values.tolist()]


def complete_keys(table: Columns, column: str, name: str) -> list[str]:
    """Return the ids in a column as keys, or raise an error that names the row without one."""
    values = table.ids(column)
    table.check_lines(column, name)
    check_filled(table, column, values, name)
    return as_keys(values)


def check_filled(table: Columns, column: str, values: np.ndarray, name: str) -> None:
    """Raise an error that names the first row with nothing in a column, whose values these are."""
    kind = values.dtype.kind
    empty = np.isnan(values) if kind == "f" else values == "" if kind == "O" else np.zeros(1, dtype=bool)
    if empty.any():
        place = table.place(int(np.argmax(empty)))
        raise EvergraphError(f"{name}: {place} has nothing in column {column!r}; fill it in, or leave the row out")
