"""Proposers of the trials' settings: a Sobol sequence or, if there is a score to maximize, Optuna."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from evergraph.errors import EvergraphError, first_line
from evergraph.experiments.selection.space import Choices, Point, Range, Space
from evergraph.persistence.files import remove_file, write_atomically

STUDY = "study.log"
STARTUP = 8  # trials spread over the space before Optuna follows the scores
DRAWN_AT_ONCE = 32  # points of the Sobol sequence
REPEATS = 4  # points of the Sobol sequence drawn for each point of a space of choices, since it repeats some
MOST_DRAWN = 2**16  # for the whole space


class Proposer(Protocol):
    """Proposes trials in batches and receives their scores."""

    def ask(self) -> list[tuple[int, Point]]:
        """Return the next trials with their numbers, first those of earlier runs; empty when there are enough."""

    def tell(self, number: int, score: float | None) -> None:
        """Record a trial's score; None if it failed."""


def spread(space: Space, count: int, start: int = 0) -> list[Point]:
    """Points `start` to `start + count` of a sequence spread over the space; fewer if the space has no more.

    How many are asked for does not change the sequence, so a search can go on with more trials.
    """
    return list(itertools.islice(_sequence(space), start, start + count))


def whole(space: Space) -> Iterator[Point]:
    """Every point of a space of choices."""
    lists = [dimension.values for dimension in space.dimensions.values() if isinstance(dimension, Choices)]
    return (dict(zip(space.dimensions, values)) for values in itertools.product(*lists))


def _sequence(space: Space) -> Iterator[Point]:
    """A Sobol sequence; of choices alone, each point where it first comes, then those that have not come."""
    if math.isinf(space.size):
        yield from _sobol(space)
    seen: set[str] = set()
    drawn = itertools.islice(_sobol(space), min(REPEATS * int(space.size), MOST_DRAWN))
    for point in itertools.chain(drawn, whole(space)):
        if len(seen) == space.size:
            return
        if (known := repr(point)) not in seen:
            seen.add(known)
            yield point


def _sobol(space: Space) -> Iterator[Point]:
    """A Sobol sequence without its first point, which is a corner."""
    from scipy.stats import qmc  # slow to import, and only searches need it

    sequence = qmc.Sobol(len(space.dimensions), scramble=False)
    sequence.fast_forward(1)
    while True:
        for positions in sequence.random(DRAWN_AT_ONCE):
            yield space.at(map(float, positions))


class Spread:
    """Proposes all trials at once, spread over the space, without regard to scores."""

    def __init__(self, space: Space, trials: int) -> None:
        self._points: list[Point] = spread(space, trials)

    def ask(self) -> list[tuple[int, Point]]:
        """Return all trials, once."""
        points, self._points = self._points, []
        return list(enumerate(points))

    def tell(self, number: int, score: float | None) -> None:
        """Ignore the score."""


def has_optuna() -> bool:
    """Whether Optuna can be imported."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        return False
    return True


class Climb:
    """Optuna's tree-structured Parzen estimator, after some trials spread over the space.

    The study is a file in the folder. Proposals depend only on the trials before them, so an interrupted study
    continues as if it had not been interrupted; trials that were proposed but not finished come first. Where there is
    room for all points that were not tried yet, they are the next trials.
    """

    def __init__(self, space: Space, trials: int, folder: Path, batch: int) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        self._optuna, self._space, self._trials, self._batch = optuna, space, trials, batch
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = (folder / STUDY).absolute()
        _mend(path)
        backend = JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))
        try:
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name="evergraph tune",
                direction="maximize",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise EvergraphError(f"{path} is damaged ({first_line(error)}); name another folder with --out") from None
        self._distributions = {key: self._distribution(key) for key in space.dimensions}
        self._known = self._proposed()

    def _proposed(self) -> list[tuple[int, Point]]:
        """The study's trials; one that a killed process left without all its settings is marked as failed."""
        trials, whole = self._study.get_trials(deepcopy=False), []
        for trial in trials:
            if trial.params.keys() == self._space.dimensions.keys():
                whole.append((trial.number, self._rounded(trial.params)))
            elif not trial.state.is_finished():
                self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        return whole

    def ask(self) -> list[tuple[int, Point]]:
        """Return the trials of earlier runs; then all spread trials; then as many at a time as run in parallel."""
        if self._known:
            known, self._known = self._known, []
            return known[: self._trials]
        proposed = self._proposed()
        number = len(proposed)
        if self._space.size <= self._trials:
            tried = [point for _, point in proposed]
            left = [point for point in spread(self._space, self._trials) if point not in tried]
            return [self._add(point) for point in left[: max(self._trials - number, 0)]]
        if number < min(STARTUP, self._trials):
            return [self._add(point) for point in spread(self._space, min(STARTUP, self._trials) - number, number)]
        self._study.sampler = self._sampler(number)
        asked = [self._study.ask(self._distributions) for _ in range(min(self._batch, self._trials - number))]
        return [(trial.number, self._rounded(trial.params)) for trial in asked]

    def _add(self, point: Point) -> tuple[int, Point]:
        """Add a trial with given settings to the study."""
        running = self._optuna.trial.TrialState.RUNNING
        self._study.add_trial(
            self._optuna.trial.create_trial(state=running, params=point, distributions=self._distributions)
        )
        return len(self._study.trials) - 1, point

    def tell(self, number: int, score: float | None) -> None:
        """Record the score in the study, unless it is there. A failed trial counts as worse than all others."""
        if self._study.trials[number].state.is_finished():
            return
        if score is None:
            self._study.tell(number, state=self._optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(number, score)

    def _rounded(self, params: dict[str, Any]) -> Point:
        return {key: dimension.rounded(params[key]) for key, dimension in self._space.dimensions.items()}

    def _sampler(self, seed: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna 4 calls two of these options experimental
            return self._optuna.samplers.TPESampler(
                seed=seed, multivariate=True, constant_liar=True, n_startup_trials=0
            )

    def _distribution(self, key: str) -> Any:
        dimension, kinds = self._space.dimensions[key], self._optuna.distributions
        if isinstance(dimension, Range):
            if dimension.integer:
                return kinds.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
            return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.log)
        return kinds.CategoricalDistribution(dimension.values)


def _mend(path: Path) -> None:
    """Remove what a killed process may leave: a stale lock (this process holds the folder) and a partial last line."""
    remove_file(path.with_name(f"{path.name}.lock"))
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        write_atomically(path, content[: content.rfind(b"\n") + 1])


def batches(proposer: Proposer) -> Iterator[list[tuple[int, Point]]]:
    """Yield the proposer's batches until there are enough trials."""
    while batch := proposer.ask():
        yield batch
