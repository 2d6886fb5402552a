"""What the commands print: consoles, JSON and progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from evergraph.experiments.seed_run import OnProgress


def console(stderr: bool = False) -> Console:
    """A console that prints text as it is: a class may be called "[/b]", which would otherwise be markup."""
    return Console(stderr=stderr, markup=False, emoji=False)


stderr = console(stderr=True)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


@contextmanager
def counting_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr that counts runs (what was done, number done, total); lines outside a terminal.

    It appears with the first count, when the input has been checked.
    """
    counts = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    columns = (*counts, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    bar = Progress(*columns, console=stderr, disable=not stderr.is_terminal)
    line = bar.add_task("starting", total=None)

    def update(what: str, done: int, total: int) -> None:
        if not stderr.is_terminal:
            print(f"{done}/{total} {what}".rstrip(), file=sys.stderr, flush=True)
            return
        bar.start()
        bar.update(line, description=what, completed=done, total=total)

    try:
        yield update
    finally:
        bar.stop()


@contextmanager
def progress_bar(label: str, seeds: int) -> Iterator[OnProgress]:
    """A progress bar on stderr with the time left; it counts epochs over all tasks and seeds."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    hidden = not stderr.is_terminal  # outside a terminal it would leave an empty line
    with Progress(*columns, TimeRemainingColumn(), console=stderr, transient=True, disable=hidden) as bar:
        line = bar.add_task(label, total=None)

        def update(seed: int, task: int, tasks: int, epoch: int, epochs: int) -> None:
            done = (seed * tasks + task) * epochs + epoch
            text = f"{label}: seed {seed + 1}/{seeds}, task {task + 1}/{tasks}, epoch {epoch}/{epochs}"
            bar.update(line, total=seeds * tasks * epochs, completed=done, description=text)

        yield update
