"""The one place where failures of the machine (memory, disk, pipe, names, numbers too large) become one line."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import Any

from evergraph.errors import EvergraphError, first_line, is_out_of_memory

TOO_LARGE = re.compile(r"overflow|too large|too big|exceeds the limit|maximum allowed", re.IGNORECASE)


def one_line(error: BaseException) -> str | None:
    """The message for an error caused by the input or the machine; None for a bug of ours."""
    if isinstance(error, EvergraphError):
        return str(error)
    if is_out_of_memory(error):
        return "not enough memory for this; take a smaller graph, model (--hidden) or batch (--batch-size)"
    numeric = (OverflowError, ValueError, RuntimeError, TypeError)
    if isinstance(error, OverflowError) or (isinstance(error, numeric) and TOO_LARGE.search(str(error))):
        return f"a number is too large ({first_line(error)})"
    if isinstance(error, OSError) and error.errno is not None:
        place = f"{str(error.filename)[:120]}: " if error.filename is not None else ""
        return f"{place}{os.strerror(error.errno)}"
    if isinstance(error, UnicodeError):
        return f"text that cannot be encoded or decoded ({first_line(error)})"
    if isinstance(error, RecursionError):
        return "something is nested too deeply"
    return None


def prepare_streams() -> None:
    """Make printing safe: escape what the terminal cannot show, and detect a closed stream before any work."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
    if sys.stdout is None:
        raise EvergraphError("standard output is closed; send it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def flush() -> None:
    """Flush stdout while an error can still be reported."""
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        if error.errno == errno.EPIPE:
            raise BrokenPipeError from None
        raise EvergraphError(f"cannot write to standard output ({os.strerror(error.errno or 0)})") from None


def drop_output() -> None:
    """Discard what is left in the buffer, so that Python does not try to write it again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # not a real file
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    finally:
        os.close(nowhere)
