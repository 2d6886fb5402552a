"""What an engine is: it carries out the seeds of runs somewhere, and says how each ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evergraph.experiments.run import run_seed
from evergraph.experiments.seed_run import seed_is_done
from evergraph.experiments.specification import RunSpec
from evergraph.training.known_trainings import known_trainings


@dataclass(frozen=True)
class Work:
    """One seed of a run: what a process does at a time.

    Args:
        key: the run's name in its table.
        spec: the run.
        folder: the run's folder.
        seed: the seed.
        data_root: folder of the datasets.
        shared: folder of what the runs of the table have in common (`evergraph.training.known_trainings`).
    """

    key: str
    spec: RunSpec = field(compare=False, hash=False)
    folder: str
    seed: int
    data_root: str | None = None
    shared: str | None = None

    def do(self) -> None:
        """Run the seed from wherever it stands into the run's folder, in this process."""
        with known_trainings(Path(self.shared) if self.shared else None):
            run_seed(self.spec, Path(self.folder), self.seed, data_root=self.data_root)

    def is_done(self) -> bool:
        """Whether the seed has all its results, wherever it was run."""
        return seed_is_done(Path(self.folder), self.seed)


class Engine:
    """Carries out work somewhere. Used as a context: left by an error, it waits for nothing that is under way."""

    attempts: int = 2
    """How often work is tried that ends in anything but an error about its input: a machine may have been lost."""

    def submit(self, work: Work) -> None:
        """Take on one piece of work; returns at once."""
        raise NotImplementedError

    def wait(self) -> list[tuple[Work, Exception | None]]:
        """Wait until some of the work is done: each piece, with the error that it ended in."""
        raise NotImplementedError

    def close(self, *, at_once: bool) -> None:
        """Give back what the engine holds; `at_once` stops what is under way (it can be resumed)."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=kind is not None)
