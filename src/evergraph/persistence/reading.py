"""Checked reading of files: they must be regular, of bounded size, decodable, of the expected shape, and unaltered.

Records are JSON objects that carry the hash of their own content, so that a flipped bit or an edit is detected.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from evergraph.core.settings import misfit
from evergraph.errors import EvergraphError, first_line
from evergraph.persistence.files import write_atomically

LARGEST_TEXT = 2**30  # bytes of a text file; ours are far smaller
HASH = "sha256"
# what zipfile, zlib and numpy raise on files that are truncated, altered or of another format altogether
DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, OSError, EOFError, ValueError, KeyError,
    IndexError, TypeError, SyntaxError, NotImplementedError, RuntimeError, MemoryError, OverflowError,
)  # fmt: skip
RESTORE = "restore it from a copy"
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class MissingFileError(EvergraphError):
    """Raised if a file does not exist."""


def regular_file(path: str | Path) -> Path:
    """Return the path if it is a readable regular file; a pipe or a device would make its reader wait for ever."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise MissingFileError(f"no file {path}") from None
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL in it
        raise EvergraphError(f"cannot read {str(path)[:120]} ({first_line(error)})") from None
    if not stat.S_ISREG(mode):
        raise EvergraphError(f"{path} is {KINDS.get(stat.S_IFMT(mode), 'a socket')}, not a file")
    if not os.access(path, os.R_OK):
        if not exists(path):  # removed just now
            raise MissingFileError(f"no file {path}")
        raise EvergraphError(f"cannot read {path} (permission denied)")
    return Path(path)


def exists(path: str | Path) -> bool:
    """Whether a path exists; False for a name that no file system accepts."""
    return os.path.exists(path)  # unlike Path.exists, no error for names that are too long


def read_text(path: str | Path) -> str:
    """Read a text file in UTF-8."""
    path = regular_file(path)
    try:
        if (size := path.stat().st_size) > LARGEST_TEXT:
            raise EvergraphError(f"{path} is too large for what it should be ({size:,} bytes)")
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvergraphError(f"{path} cannot be read ({first_line(error)})") from None


def parse_json(text: str, place: str | Path, shape: Any = None, advice: str = RESTORE) -> Any:
    """Parse JSON of an expected shape (a `TypedDict`, `dict`, `list[…]`); `place` and `advice` are for the error."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise EvergraphError(f"{place} is damaged ({first_line(error)}); {advice}") from None
    if shape is not None and (reason := misfit(value, shape)):
        raise EvergraphError(f"{place} is damaged ({reason}); {advice}")
    return value


def read_json(path: str | Path, shape: Any = None, advice: str = RESTORE) -> Any:
    """Read a JSON file of an expected shape."""
    return parse_json(read_text(path), path, shape, advice)


def as_json(value: Any, indent: int | None = None) -> str:
    """Format plain values as JSON that every reader accepts; raises for non-finite numbers rather than write `NaN`."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        place, number = _first_not_finite(value) or ("a result", math.nan)
        raise EvergraphError(
            f"{place} is {number}, not a finite number; let what computes it return one (or lower lr if it is a loss)"
        ) from None


def _first_not_finite(value: Any, place: str = "") -> tuple[str, float] | None:
    """The first number in a tree of plain values that is not finite, and where it is: `metrics.ap.mean`."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (place, value)
    if isinstance(value, dict):
        named = ((f"{place}.{key}" if place else str(key), item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        named = ((f"{place}[{index}]", item) for index, item in enumerate(value))
    else:
        return None
    return next((found for inner, item in named if (found := _first_not_finite(item, inner))), None)


def write_record(path: Path, record: dict[str, Any], indent: int | None = None) -> None:
    """Write a JSON object with the hash of its content."""
    write_atomically(path, as_json({**record, HASH: content_hash(record)}, indent))


def read_record(path: str | Path, shape: Any = None, advice: str = RESTORE) -> dict[str, Any]:
    """Read what `write_record` wrote; raises if it was altered."""
    record = unaltered(read_json(path, dict, advice), path, advice)
    if shape is not None and (reason := misfit(record, shape)):
        raise EvergraphError(f"{path} is damaged ({reason}); {advice}")
    return record


def unaltered(record: dict[str, Any], path: str | Path, advice: str = RESTORE) -> dict[str, Any]:
    """Return the content of a record; raises if it does not fit the record's hash."""
    content = {key: value for key, value in record.items() if key != HASH}
    if record.get(HASH) != content_hash(content):
        raise EvergraphError(f"{path} is damaged (its hash does not fit its content); {advice}")
    return content


def content_hash(value: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(as_json(value).encode()).hexdigest()


def as_csv(columns: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """The text of a CSV file: a line of column names, then a line for each row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file, as dictionaries by column."""
    try:
        return [dict(row) for row in csv.DictReader(read_text(path).splitlines())]
    except csv.Error as error:
        raise EvergraphError(f"{path} is damaged ({first_line(error)})") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")
