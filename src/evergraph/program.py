"""What is set when Evergraph is the program that runs, before anything else is imported.

Importing takes seconds, and Ctrl-C can come meanwhile. A program that uses Evergraph as a library keeps its own ways.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType


def is_the_program(arguments: list[str]) -> bool:
    """Whether these are the arguments of `evergraph …` or `python -m evergraph …`."""
    name = Path(arguments[0]).stem if arguments else ""
    return name == "evergraph" or (len(arguments) > 2 and "-m" in arguments and "evergraph" in arguments)


def _one_line(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


if is_the_program(sys.argv[:1]) or (sys.argv[:1] == ["-m"] and is_the_program(sys.orig_argv)):
    sys.excepthook = _one_line
