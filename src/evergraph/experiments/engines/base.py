"""The engine interface: executes the seeds of runs somewhere and reports how each ended."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from evergraph.core.shortcuts import SWITCHES
from evergraph.experiments.run import run_seed
from evergraph.experiments.seed_run import seed_is_done
from evergraph.experiments.specification import RunSpec
from evergraph.registry import FILES
from evergraph.training.known_trainings import known_trainings

PASSED_ON = (FILES, "PYTHONPATH", "EVERGRAPH_DATA", SWITCHES)
"""Environment variables that results may depend on, for processes that do not inherit this one's environment."""


def passed_on() -> dict[str, str]:
    """Return the environment variables, of those that are set, that processes elsewhere need; they use one thread."""
    return {**{key: os.environ[key] for key in PASSED_ON if key in os.environ}, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Work:
    """One seed of a run: the unit of work of a process.

    Args:
        key: the run's name in its table.
        spec: the run's specification.
        folder: the run's folder.
        seed: the seed.
        data_root: folder of the datasets.
        shared: folder of trainings that the table's runs share (`evergraph.training.known_trainings`).
    """

    key: str
    spec: RunSpec = field(compare=False, hash=False)
    folder: str
    seed: int
    data_root: str | None = None
    shared: str | None = None

    def do(self) -> None:
        """Run the seed into the run's folder in this process, from where it left off."""
        with known_trainings(Path(self.shared) if self.shared else None):
            run_seed(self.spec, Path(self.folder), self.seed, data_root=self.data_root)

    def is_done(self) -> bool:
        """Whether the seed has all its results, wherever it was run."""
        return seed_is_done(Path(self.folder), self.seed)


class Engine:
    """Executes work somewhere. A context manager: if left by an error, it does not wait for work in progress."""

    attempts: int = 2
    """Number of attempts at work that fails for a reason other than its input, such as a lost machine."""

    def submit(self, work: Work) -> None:
        """Accept one piece of work and return at once."""
        raise NotImplementedError

    def wait(self) -> list[tuple[Work, Exception | None]]:
        """Wait until some work is done; return each finished piece with its error, or None."""
        raise NotImplementedError

    def close(self, *, at_once: bool) -> None:
        """Release the engine's resources; `at_once` stops work in progress (it can be resumed)."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=kind is not None)
