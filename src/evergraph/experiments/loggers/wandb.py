"""Weights & Biases: one W&B run per run (WANDB_MODE=offline keeps it on disk)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evergraph.experiments.loggers.base import LOGGERS, Logger, flat, summary
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import read_text


@LOGGERS.register
class WandbLogger(Logger):
    """Logs settings as the config, `seed-0/loss`, … over `seed-0/epoch` and `seed-0/ap`, … over `seed-0/task`.

    The W&B run's id is kept in the run's folder (`wandb_run_id`), so that a resumed run continues it.

    Args:
        project: the W&B project.
    """

    name = "wandb"

    def __init__(self, project: str = "evergraph") -> None:
        import wandb

        self._wandb, self._project = wandb, project
        self._run: Any = None
        self._seeds: set[int] = set()

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """Create the W&B run, or continue it."""
        known = folder / "wandb_run_id"
        run_id = read_text(known).strip() if known.exists() else None
        self._run = self._wandb.init(
            project=self._project, name=folder.name, id=run_id, resume="allow", dir=str(folder), config=flat(settings)
        )
        write_atomically(known, str(self._run.id))

    def epoch(self, seed: int, task: int, step: int, values: dict[str, float]) -> None:
        """Log one point per curve."""
        self._log(seed, "epoch", step, values)

    def task(self, seed: int, task: int, values: dict[str, float]) -> None:
        """Log one point per curve."""
        self._log(seed, "task", task + 1, values)

    def finish(self, result: dict[str, Any]) -> None:
        """Log the mean and standard deviation over the seeds."""
        self._run.summary.update(summary(result))

    def close(self, ok: bool) -> None:
        """Send the rest and set the exit code of the W&B run."""
        if self._run is not None:
            self._run.finish(exit_code=0 if ok else 1)

    def _log(self, seed: int, axis: str, step: int, values: dict[str, float]) -> None:
        prefix = f"seed-{seed}/"
        if seed not in self._seeds:  # W&B's own step only counts calls; these are the axes to plot over
            self._seeds.add(seed)
            for name in ("loss", "validation_loss"):
                self._run.define_metric(prefix + name, step_metric=f"{prefix}epoch")
            for name in ("ap", "af", "accuracy/*"):
                self._run.define_metric(prefix + name, step_metric=f"{prefix}task")
        self._run.log({f"{prefix}{axis}": step, **{prefix + key: value for key, value in values.items()}})
