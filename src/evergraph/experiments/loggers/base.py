"""The logger interface: five hooks, all of them optional."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from evergraph import registry
from evergraph.errors import EvergraphError, first_line
from evergraph.evaluation import SUMMARIES, as_array

LOGGERS: registry.Registry[type[Logger]] = registry.loggers


class Logger:
    """Sends a run's numbers to an experiment tracker. Subclass it and override the hooks you need."""

    name = "logger"

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """Called when a run starts or resumes, with its folder and everything its numbers depend on."""

    def epoch(self, seed: int, task: int, step: int, values: dict[str, float]) -> None:
        """Called after an epoch; `step` counts the seed's epochs over all its tasks, `task` counts from 0."""

    def task(self, seed: int, task: int, values: dict[str, float]) -> None:
        """Called after a task, with `ap` and `af` so far, and `accuracy/task-1`, … on each task seen."""

    def finish(self, result: dict[str, Any]) -> None:
        """Called when all seeds are done, with the content of `result.json`."""

    def close(self, ok: bool) -> None:
        """Called last, whatever happened; `ok` says whether the run finished."""


LOGGERS.accept(subclasses_of=Logger)


class Logging:
    """Forwards to several loggers, to each a copy of its own.

    A logger that breaks in mid-run is dropped with a warning; the run continues.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = list(loggers)

    def __enter__(self) -> Logging:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._each(lambda logger: logger.close(kind is None))

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """Start all loggers; an error here is raised, since nothing has been trained yet."""
        for logger in self.loggers:
            try:
                logger.start(folder, deepcopy(settings))
            except EvergraphError:
                raise
            except Exception as error:
                raise EvergraphError(f"--log {logger.name}: cannot start ({first_line(error)})") from None

    def epoch(self, seed: int, task: int, step: int, row: dict[str, float]) -> None:
        """Forward a row of the per-epoch log."""
        values = {key: value for key, value in row.items() if key != "epoch"}
        self._each(lambda logger: logger.epoch(seed, task, step, dict(values)))

    def task(self, seed: int, matrix: Sequence[Sequence[float | None]], *, higher_is_better: bool) -> None:
        """Forward the accuracy matrix so far; its last row is that of the finished task. Negative AF is forgetting."""
        learned = as_array([row[: len(matrix)] for row in matrix])
        values = {key: SUMMARIES[key].of(learned, higher_is_better=higher_is_better) for key in ("ap", "af")}
        values |= {f"accuracy/task-{i + 1}": value for i, value in enumerate(learned[-1].tolist())}
        self._each(lambda logger: logger.task(seed, len(matrix) - 1, dict(values)))

    def finish(self, result: dict[str, Any]) -> None:
        """Forward the run's result."""
        self._each(lambda logger: logger.finish(deepcopy(result)))

    def _each(self, call: Callable[[Logger], None]) -> None:
        for logger in list(self.loggers):
            try:
                call(logger)
            except Exception as error:
                self.loggers.remove(logger)
                print(f"warning: logger {logger.name} stopped ({first_line(error)}); the run goes on", file=sys.stderr)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names, as loggers list them."""
    flattened: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value
    return flattened


def summary(result: dict[str, Any]) -> dict[str, float]:
    """Mean and standard deviation of a result's AP and AF."""
    return {f"{key}_{part}": result[key][part] for key in ("ap", "af") for part in ("mean", "std")}
