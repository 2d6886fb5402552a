"""What a logger is: five hooks, each of which may be left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evergraph import registry
from evergraph.errors import EvergraphError, first_line
from evergraph.evaluation import forgetting, performance

LOGGERS: registry.Registry[type[Logger]] = registry.loggers


class Logger:
    """Takes a run's numbers to where people keep their runs. Subclass it and write the hooks you need."""

    name = "logger"

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """A run begins or is resumed: its folder, and everything its numbers depend on."""

    def epoch(self, seed: int, task: int, step: int, values: dict[str, float]) -> None:
        """An epoch is over; `step` counts the seed's epochs over all its tasks, `task` counts from 0."""

    def task(self, seed: int, task: int, values: dict[str, float]) -> None:
        """A task is over: `ap` and `af` so far, and `accuracy/task-1`, … on each task met."""

    def finish(self, result: dict[str, Any]) -> None:
        """All seeds are done: what `result.json` will hold."""

    def close(self, ok: bool) -> None:
        """The last call, whatever happened; `ok` says whether the run came to its end."""


class Logging:
    """Several loggers as one. A logger that breaks in mid-run is dropped with a warning; the run goes on."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = list(loggers)

    def __enter__(self) -> Logging:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._each(lambda logger: logger.close(kind is None))

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """Here an error is the user's to know: nothing has been trained yet."""
        for logger in self.loggers:
            try:
                logger.start(folder, settings)
            except EvergraphError:
                raise
            except Exception as error:
                raise EvergraphError(f"--log {logger.name}: cannot start ({first_line(error)})") from None

    def epoch(self, seed: int, task: int, step: int, row: dict[str, float]) -> None:
        """A row of the per-epoch log."""
        values = {key: value for key, value in row.items() if key != "epoch"}
        self._each(lambda logger: logger.epoch(seed, task, step, values))

    def task(self, seed: int, matrix: Sequence[Sequence[float | None]], *, higher_is_better: bool) -> None:
        """The accuracy matrix so far; its last row is the task that is over. AF is negative where it has forgotten."""
        now = [float("nan") if value is None else value for value in matrix[-1][: len(matrix)]]
        first = [float(row[i] or 0.0) for i, row in enumerate(matrix)]
        values = {"ap": performance(now), "af": forgetting(now, first) * (1 if higher_is_better else -1)}
        values |= {f"accuracy/task-{i + 1}": value for i, value in enumerate(now)}
        self._each(lambda logger: logger.task(seed, len(matrix) - 1, values))

    def finish(self, result: dict[str, Any]) -> None:
        """The run's result."""
        self._each(lambda logger: logger.finish(result))

    def _each(self, call: Callable[[Logger], None]) -> None:
        for logger in list(self.loggers):
            try:
                call(logger)
            except Exception as error:
                self.loggers.remove(logger)
                print(f"warning: logger {logger.name} stopped ({first_line(error)}); the run goes on", file=sys.stderr)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, as loggers list them."""
    flattened: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value
    return flattened


def summary(result: dict[str, Any]) -> dict[str, float]:
    """A result's headline numbers."""
    return {f"{key}_{part}": result[key][part] for key in ("ap", "af") for part in ("mean", "std")}
