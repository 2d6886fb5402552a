"""Real processes that are forked from the tests' own, so that none of them has to import everything again."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import typer

from evergraph import cli
from evergraph.experiments.engines import processes


class Forked:
    """A function in a process of its own, with what `subprocess.Popen` offers: `poll`, `wait`, `kill`, `communicate`.

    Args:
        run: what it does; its exit status is that of `sys.exit`, 0 at the end, 1 after an error.
        environment: variables besides those of the tests.
        folder: where it works.
        stdout: a file descriptor in place of one that `communicate` reads.
        stderr: likewise.
        session: it leads a session of its own, as a command of an interactive shell does.
    """

    def __init__(
        self,
        run: Callable[[], object],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        session: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  # as long as the process
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                if session:
                    os.setsid()
                os.environ.update(environment or {})
                os.chdir(folder or os.getcwd())
                os.dup2(self._files[0].fileno() if stdout is None else stdout, 1)
                os.dup2(self._files[1].fileno() if stderr is None else stderr, 2)
                sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
                sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
                signal.signal(signal.SIGINT, signal.default_int_handler)
                status = _ended(run)
            finally:
                os._exit(status)

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        """The exit status, when it has ended."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                self.kill()
                raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """A signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """What it has written to stdout and to stderr, when it has ended."""
        self.wait(timeout)
        written = []
        for file in self._files:
            file.seek(0)
            written.append(file.read().decode())
            file.close()
        return written[0], written[1]


def _ended(run: Callable[[], object]) -> int:
    """Run a function as an interpreter runs a program; returns its exit status."""
    try:
        run()
    except SystemExit as ended:
        code = ended.code
        status = code if isinstance(code, int) else 0 if code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    else:
        status = 0
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return status


@functools.cache
def made_once() -> click.Command:
    """All commands, which take longer to make than most calls take."""
    return typer.main.get_command(cli.make_app())


def command_line(*words: object) -> Callable[[], None]:
    """The command line with these words, for `Forked`."""
    commands = made_once()

    def run() -> None:
        cli.make_app = lambda: commands
        sys.argv = ["evergraph", *map(str, words)]
        cli.main()

    return run


def forked_pool() -> ProcessPoolExecutor:
    """What `evergraph.experiments.engines.processes` makes for each process, but forked."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"), initializer=processes._begin_worker)
