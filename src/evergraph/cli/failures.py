"""The one place where failures of the machine (memory, disk, pipe, names, numbers too large) and of plug-ins become
one line."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from evergraph.errors import EvergraphError, first_line, is_ours, is_out_of_memory
from evergraph.experiments.cells import FAILURES, in_a_line, write_tracebacks
from evergraph.registry import in_a_plugin

TOO_LARGE = re.compile(r"overflow|too large|too big|exceeds the limit|maximum allowed", re.IGNORECASE)


def one_line(error: BaseException) -> str | None:
    """The message for an error caused by the input, the machine or a plug-in; None for a bug of ours."""
    if isinstance(error, EvergraphError):
        return str(error)
    if is_out_of_memory(error):
        return "not enough memory for this; take a smaller graph, model (--hidden) or batch (--batch-size)"
    numeric = isinstance(error, (ValueError, RuntimeError, TypeError)) and TOO_LARGE.search(str(error))
    if is_ours(error) and (isinstance(error, OverflowError) or numeric):
        return f"a number is too large ({first_line(error)})"
    if isinstance(error, OSError) and error.errno is not None:
        place = f"{str(error.filename)[:120]}: " if error.filename is not None else ""
        return f"{place}{os.strerror(error.errno)}"
    if isinstance(error, UnicodeError):
        return f"text that cannot be encoded or decoded ({first_line(error)})"
    if isinstance(error, RecursionError):
        return "something is nested too deeply"
    if isinstance(error, Exception) and (where := in_a_plugin(error)) is not None:
        folder = tempfile.mkdtemp(prefix="evergraph-")
        write_tracebacks({shlex.join(sys.argv): error}, folder)
        return f"{where}{': ' * bool(where)}{in_a_line(error)} (traceback in {Path(folder) / FAILURES})"
    return None


class Stopped(SystemExit):
    """Ctrl-C was pressed, and the line that says how to go on is printed."""


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
