"""Process-wide setup, done before anything else is imported.

The imports take seconds, during which the user may press Ctrl-C. A program that uses Evergraph as a library keeps its
own signal handling. Torch's threads, which keep a core busy while they wait for work, are told to do so briefly: that
can be told them only as torch is imported.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType

from evergraph.core import fork_server
from evergraph.version import __version__

SPINS = "GOMP_SPINCOUNT"  # environment variable of GNU's OpenMP library: how often a waiting thread looks for work


def is_the_program(arguments: list[str]) -> bool:
    """Whether these are the arguments of `evergraph …` or `python -m evergraph …`."""
    name = Path(arguments[0]).stem if arguments else ""
    return name == "evergraph" or (len(arguments) > 2 and "-m" in arguments and "evergraph" in arguments)


def _stop(number: int, frame: FrameType | None) -> None:
    """Exit at once. An exception would not do: some libraries take one during an import for a missing module."""
    os.write(2, b"stopped\n")
    os._exit(128 + number)


def ready() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, now that everything is imported."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _named() -> bool:
    return is_the_program(sys.argv[:1]) or (sys.argv[:1] == ["-m"] and is_the_program(sys.orig_argv))


def asks_for_processes(words: list[str]) -> bool:
    """Whether the command line asks for more than one parallel process (`--jobs`)."""
    following = [value for word, value in itertools.pairwise(words) if word == "--jobs"]
    following += [word.partition("=")[2] for word in words if word.startswith("--jobs=")]
    return any(value.isdecimal() and int(value) > 1 for value in following)


@contextlib.contextmanager
def brief_spins() -> Iterator[None]:
    """Within this context, GNU's OpenMP library is loaded with threads that soon sleep when they have nothing to do.

    By default they spin for milliseconds after each operation. On a machine that does other work too, or beside threads
    of other libraries, they take the cores from those whom they wait for, and steps last many times as long.
    """
    if any(name in os.environ for name in ("OMP_WAIT_POLICY", SPINS)):  # someone has decided
        yield
        return
    os.environ[SPINS] = "1000"  # what the library itself takes if there are more threads than cores
    try:
        yield
    finally:
        del os.environ[SPINS]


if _named() and sys.argv[1:] == ["--version"]:  # answered before the slow imports
    with contextlib.suppress(OSError):  # a full disk or a closed pipe is handled with all other output
        os.write(1, f"evergraph {__version__}\n".encode())
        raise SystemExit(0)

# neither in a worker process, nor where Ctrl-C is ignored (nohup) or already handled
if _named() and parent_process() is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)

if _named() and parent_process() is None and asks_for_processes(sys.argv):  # imports in parallel to this one
    fork_server.start()

with brief_spins():
    import torch  # noqa: F401
