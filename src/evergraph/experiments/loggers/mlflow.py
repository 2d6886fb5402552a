"""MLflow: one MLflow run per run, in the store that MLFLOW_TRACKING_URI names (else MLflow's own default)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from evergraph.experiments.loggers.base import LOGGERS, Logger, flat, summary
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import read_text

EXPERIMENT = "evergraph"
BATCH = 500  # metrics sent at once; MLflow accepts up to 1,000
SECONDS = 5.0  # after which metrics are sent at the latest


@LOGGERS.register
class MLflowLogger(Logger):
    """Logs settings as parameters and curves as metrics `seed-0/loss`, `seed-0/ap`, …

    The MLflow run's id is kept in the run's folder (`mlflow_run_id`), so that a resumed run continues it.

    Args:
        tracking_uri: the store, e.g. `sqlite:///mlflow.db`; MLflow's own default if None.
        experiment: the experiment's name.
    """

    name = "mlflow"

    def __init__(self, tracking_uri: str | None = None, experiment: str = EXPERIMENT) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri)
        self._experiment = experiment
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        self._run_id = ""

    def start(self, folder: Path, settings: dict[str, Any]) -> None:
        """Create the MLflow run, or continue it."""
        known = folder / "mlflow_run_id"
        if known.exists():
            self._run_id = read_text(known).strip()
            self._client.update_run(self._run_id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self._experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        tags = {"run_dir": str(folder.resolve())}
        self._run_id = self._client.create_run(number, run_name=folder.name, tags=tags).info.run_id
        for key, value in flat(settings).items():
            self._client.log_param(self._run_id, key, value)
        write_atomically(known, self._run_id)

    def epoch(self, seed: int, task: int, step: int, values: dict[str, float]) -> None:
        """Buffer the values for a moment: a database transaction per epoch would be slow."""
        self._keep(f"seed-{seed}/", step, values)
        if len(self._waiting) >= BATCH or time.monotonic() - self._sent > SECONDS:
            self._send()

    def task(self, seed: int, task: int, values: dict[str, float]) -> None:
        """Send the values at once."""
        self._keep(f"seed-{seed}/", task + 1, values)
        self._send()

    def finish(self, result: dict[str, Any]) -> None:
        """Log the mean and standard deviation over the seeds."""
        self._keep("", 0, {**summary(result), "seconds": result["seconds"]})

    def close(self, ok: bool) -> None:
        """Send the rest and set the final status of the MLflow run."""
        if self._run_id:
            self._send()
            self._client.set_terminated(self._run_id, "FINISHED" if ok else "KILLED")

    def _keep(self, prefix: str, step: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._waiting += [Metric(prefix + key, float(value), now, step) for key, value in values.items()]

    def _send(self) -> None:
        for start in range(0, len(self._waiting), BATCH):
            self._client.log_batch(self._run_id, metrics=self._waiting[start : start + BATCH])
        self._waiting, self._sent = [], time.monotonic()
