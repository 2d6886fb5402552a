"""TensorBoard: event files in the run's own folder (`tensorboard --logdir RUN/tensorboard`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evergraph.experiments.loggers.base import LOGGERS, Logger, flat, summary


@LOGGERS.register
class TensorBoardLogger(Logger):
    """One event folder per seed, so that TensorBoard shows seeds as curves of one chart.

    Curves per epoch are under `loss`, `validation_loss`; per task under `ap`, `af`, `accuracy/task-N`.
    """

    name = "tensorboard"

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make = SummaryWriter
        self._writers: dict[str, Any] = {}

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """Write the settings as a text table."""
        self._folder = folder / "tensorboard"
        rows = "\n".join(f"| {key} | `{value}` |" for key, value in flat(settings).items())
        self._writer("run").add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def epoch(self, seed: int, task: int, step: int, values: dict[str, float]) -> None:
        """Add one point per curve."""
        self._add(f"seed-{seed}", step, values)

    def task(self, seed: int, task: int, values: dict[str, float]) -> None:
        """Add one point per curve and flush: a task may take hours."""
        self._add(f"seed-{seed}", task + 1, values)
        self._writer(f"seed-{seed}").flush()

    def finish(self, result: dict[str, Any]) -> None:
        """Add the mean and standard deviation over the seeds."""
        self._add("run", 0, summary(result))

    def close(self, ok: bool) -> None:
        """Write what is buffered and close the event files."""
        for writer in self._writers.values():
            writer.close()

    def _add(self, name: str, step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            self._writer(name).add_scalar(key, value, step)

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = self._make(str(self._folder / name))
        return self._writers[name]
