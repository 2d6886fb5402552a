"""Ray: the machines of a cluster, or a local cluster that is started for the occasion."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any

from evergraph.errors import EvergraphError, first_line
from evergraph.experiments.engines.base import Engine, Work, passed_on
from evergraph.experiments.engines.processes import ProcessDiedError, begin_process, in_words


class RayEngine(Engine):
    """Runs work as Ray tasks: on the cluster that RAY_ADDRESS names, else on a local one with this machine's cores.

    A task takes one core, and a quarter of a GPU if the run uses one. The folders of the runs must be on a file system
    that all machines share, and evergraph must be installed on each.

    Args:
        jobs: tasks at a time on a local cluster; one per core by default.
    """

    def __init__(self, jobs: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise EvergraphError(
                f"--on ray needs Ray ({first_line(error)}); pip install 'evergraph[ray]', or use --jobs"
            ) from None
        self._ray: Any = ray
        self._started = not ray.is_initialized()
        settings: dict[str, Any] = {"runtime_env": {"env_vars": passed_on()}}
        if not os.environ.get("RAY_ADDRESS"):
            settings |= {"num_cpus": jobs, "include_dashboard": False}
        if self._started:
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning not meant for users
            try:
                ray.init(logging_level=logging.ERROR, log_to_driver=False, **settings)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise EvergraphError(f"--on ray: no cluster ({first_line(error)}); is RAY_ADDRESS right?") from None
        self._task = ray.remote(max_retries=0, num_cpus=1)(_do)
        self._running: dict[Any, Work] = {}

    def submit(self, work: Work) -> None:
        """Submit the work as a Ray task; Ray starts it when there is room."""
        share = 0.25 if work.spec.device.startswith("cuda") else 0
        self._running[self._task.options(num_gpus=share).remote(work)] = work

    def wait(self) -> list[tuple[Work, Exception | None]]:
        """Wait for the next finished task."""
        done, _ = self._ray.wait(list(self._running), num_returns=1)
        return [(work := self._running.pop(task), self._ended(task, work)) for task in done]

    def _ended(self, task: Any, work: Work) -> Exception | None:
        try:
            return in_words(self._ray.get(task), work)
        except self._ray.exceptions.RayError as error:  # the process or its machine is gone
            return ProcessDiedError(
                f"{work.key}: its process died ({first_line(error)}); --resume goes on with the rest"
            )

    def close(self, *, at_once: bool) -> None:
        """Cancel running tasks if `at_once`, and shut the cluster down if it was started here."""
        for task in self._running if at_once else ():
            with suppress(Exception):
                self._ray.cancel(task, force=True)
        if self._started:
            self._ray.shutdown()


def _do(work: Work) -> Exception | None:
    """Body of a Ray task; an error is returned rather than raised, so that it arrives unchanged."""
    begin_process()
    try:
        work.do()
    except Exception as error:
        return error
    return None
