"""Cells: the runs of one table, each in its own folder, executed in parallel.

A finished cell is never run again; an interrupted one resumes where it stopped.
"""

from __future__ import annotations

import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evergraph.data import TaskStream
from evergraph.errors import EvergraphError, first_line
from evergraph.experiments.engines import Engine, MakeEngine, ProcessDiedError, Work, engine_for
from evergraph.experiments.run import finish_run
from evergraph.experiments.run_folder import check_folder, finished_result
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import remove_file, taken_folder, write_atomically
from evergraph.training.known_trainings import known_trainings

Results = dict[str, dict[str, Any]]
Finished = Iterator[tuple["Cell", "dict[str, Any] | Exception"]]
Finish = Callable[[list["Cell"], str, "str | Path | None"], Finished]
Failed = Callable[["Cell", Exception], "dict[str, Any] | None"]
OnSeed = Callable[[str, int, bool], None]
SHARED = ".trainings"  # in the cells' folder, until all are done: trainings that several runs share
FAILURES = "failures.txt"  # in the cells' folder: tracebacks of errors that are not about the input
LONGEST_FIRST = (  # so that no long run starts when all others are done; lwf's runs wait for trials
    "auto", "joint", "twp", "lwf", "curvature", "hpn", "gem", "puma", "delome", "tpp", "fgn", "ncl", "kfac", "ewc",
    "mas",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One entry of a table: its folder relative to the table's, and the specification of its run."""

    key: str
    spec: RunSpec

    def finish(
        self, out: str | Path, data_root: str | Path | None, streams: dict[str, TaskStream] | None = None
    ) -> dict[str, Any]:
        """Do the rest of the cell's run in this process and return its result.

        `streams` caches the streams of cells whose results only have to be gathered; streams made here are added.
        """
        folder = Path(out) / self.key
        look = partial(check_folder, folder, self.spec, resume=True)
        # the table's own folder is locked by the caller
        with taken_folder(folder, look) if self.key else nullcontext():
            if streams is None:
                return finish_run(self.spec, folder, data_root=data_root)
            name = f"{self.spec.source} {self.spec.stream} {self.spec.seeds[0]}"
            if name not in streams:
                streams[name] = self.spec.make_stream(self.spec.seeds[0], data_root)
            return finish_run(self.spec, folder, data_root=data_root, first=streams[name])


@dataclass(frozen=True)
class Choice:
    """Cells whose settings are chosen from the results of trials, as soon as all trials are done."""

    trials: tuple[Cell, ...]
    choose: Callable[[Results], list[Cell]]


class CellsFailedError(EvergraphError):
    """Some cells failed; the others are done.

    Args:
        errors: the error of each failed cell, by key.
        results: the result of each finished cell, by key.
        folder: the folder of the cells.
    """

    def __init__(self, errors: Mapping[str, Exception], results: Results, folder: str | Path) -> None:
        self.errors, self.results = dict(errors), results
        alike: dict[str, list[str]] = {}  # keys of the cells by error message
        for key, error in errors.items():
            alike.setdefault(in_a_line(error).removeprefix(f"{key}: "), []).append(key)
        named = "; ".join(f"{', '.join(keys)}: {said}" for said, keys in alike.items())
        mistakes = any(not isinstance(error, EvergraphError) for error in errors.values())
        where = f" (tracebacks in {Path(folder) / FAILURES})" if mistakes else ""
        total = len(errors) + len(results)
        super().__init__(f"{len(errors)} of {total} runs failed, --resume tries them again; {named}{where}")


@contextmanager
def _trainings_of(out: Path) -> Iterator[None]:
    """Remove shared trainings before and after: those of an earlier attempt may come from other code."""
    shutil.rmtree(out / SHARED, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(out / SHARED, ignore_errors=True)


def run_cells(
    cells: Iterable[Cell],
    out: str | Path,
    *,
    choices: Iterable[Choice] = (),
    known: Callable[[Cell], dict[str, Any] | None] = lambda cell: None,
    failed: Failed = lambda cell, error: None,
    data_root: str | Path | None = None,
    jobs: int = 1,
    engine: MakeEngine | None = None,
    on_done: Callable[[str, int, int], None] | None = None,
    on_result: Callable[[Results], None] | None = None,
    on_seed: OnSeed | None = None,
) -> Results:
    """Run all cells, in `jobs` parallel processes or wherever `engine` runs them; return the results by key.

    The caller holds the lock on `out` (`taken_folder`). A cell whose settings differ from those of a finished run in
    its folder is an error: runs are never mixed. A failing cell does not stop the others: when they are done,
    `CellsFailedError` names those that failed. Errors that are not about the input are retried.

    Args:
        cells: the cells to run.
        out: the folder that contains the cells' folders.
        choices: cells whose settings are chosen from trials.
        known: returns the result of a cell that need not be run, or None.
        failed: returns a substitute for the result of a failed cell; None counts the cell as failed.
        data_root: folder of the datasets.
        jobs: number of parallel processes; 1 runs the cells in this process.
        engine: makes the engine that executes the runs, instead of processes on this machine.
        on_done: called as (key, cells done, total number of cells).
        on_result: called after every cell with the results so far.
        on_seed: called as (key, seed, whether it failed) when an engine has finished a seed.
    """
    open_choices = list(choices)
    waiting = list({cell.key: cell for cell in [*_trials(open_choices), *cells]}.values())
    total, results, errors = len(waiting) + len(open_choices), dict[str, dict[str, Any]](), dict[str, Exception]()
    ends: dict[str, Exception] = {}  # including those that `failed` replaces with a result
    if on_done is not None:
        on_done("starting", 0, total)
    remove_file(Path(out) / FAILURES)
    making = engine or engine_for("local", jobs)
    with _trainings_of(Path(out)), making(Path(out)) if making is not None else nullcontext() as carried_out_by:
        finish = _in_turn if carried_out_by is None else partial(_by_engine, carried_out_by, on_seed)
        for cell, ended in _known_first(finish, known, waiting, str(out), data_root):
            result = ended if isinstance(ended, dict) else failed(cell, ended)
            if isinstance(ended, Exception):
                ends[cell.key] = ended
            if result is None:
                assert isinstance(ended, Exception)
                errors[cell.key] = ended
            else:
                results[cell.key] = result
                if on_result is not None:
                    on_result(results)
            if on_done is not None:
                done = len(results) + len(errors)
                how = " failed" if result is None else f" failed: {result['error']}" if "error" in result else ""
                on_done(f"{cell.key}{how}", done, max(total, done))
            ready = [choice for choice in open_choices if {trial.key for trial in choice.trials} <= results.keys()]
            open_choices = [choice for choice in open_choices if choice not in ready]
            waiting += [cell for choice in ready for cell in choice.choose(results)]  # `finish` runs them next
    write_tracebacks(ends, out)
    return all_or_error(results, errors, out)


def all_or_error(results: Results, errors: Mapping[str, Exception], out: str | Path) -> Results:
    """Return the results if no cell failed; otherwise raise one error for all, or a lone cell's own error."""
    if not errors:
        return results
    if len(errors) == 1 and not results:
        raise next(iter(errors.values()))
    raise CellsFailedError(errors, results, out)


def write_tracebacks(errors: Mapping[str, Exception], out: str | Path) -> None:
    """Write `failures.txt`: the tracebacks of errors that are not about the input."""
    mistakes = {key: error for key, error in errors.items() if not isinstance(error, EvergraphError)}
    if mistakes:
        texts = ["".join([f"{key}\n", *traceback.format_exception(error)]) for key, error in mistakes.items()]
        with suppress(EvergraphError):  # such as a full disk, which may have caused the failure
            write_atomically(Path(out) / FAILURES, "\n".join(texts))


def in_a_line(error: Exception) -> str:
    """An error's message in one line, with its type if it is not about the input."""
    return str(error) if isinstance(error, EvergraphError) else f"{type(error).__name__}: {first_line(error)}"


def _known_first(
    finish: Finish,
    known: Callable[[Cell], dict[str, Any] | None],
    waiting: list[Cell],
    out: str,
    data_root: str | Path | None,
) -> Finished:
    """Yield the cells whose results are known, then those to run; cells added meanwhile are treated alike."""
    while waiting:
        to_run = []
        while waiting:
            cell = waiting.pop(0)
            if (result := known(cell)) is not None:
                yield cell, result
            else:
                to_run.append(cell)
        for pair in finish(to_run, out, data_root):
            yield pair
            to_run += [cell for cell in waiting if known(cell) is None]
            waiting[:] = [cell for cell in waiting if known(cell) is not None]


def _trials(choices: Iterable[Choice]) -> Iterator[Cell]:
    for choice in choices:
        yield from choice.trials


def _in_turn(
    waiting: list[Cell], out: str, data_root: str | Path | None, streams: dict[str, TaskStream] | None = None
) -> Finished:
    """Finish the cells one after another, including those added meanwhile."""
    while waiting:
        cell = waiting.pop(0)
        try:
            with known_trainings(Path(out) / SHARED):
                ended: dict[str, Any] | Exception = cell.finish(out, data_root, streams)
        except Exception as error:
            ended = error
        yield cell, ended


@dataclass
class _Open:
    """A cell in progress: the number of seeds left and the first error."""

    cell: Cell
    left: int
    error: Exception | None = None


def _by_engine(
    engine: Engine, on_seed: OnSeed | None, waiting: list[Cell], out: str, data_root: str | Path | None
) -> Finished:
    """Finish each cell when its last seed is done, including cells added meanwhile; the engine runs seed by seed."""
    under_way, tries, streams = dict[str, _Open](), Counter[Work](), dict[str, TaskStream]()
    while waiting or under_way:
        new = sorted(waiting, key=_rank)
        waiting.clear()
        complete = []
        for cell in new:
            folder = Path(out) / cell.key
            try:
                seeds = [] if finished_result(folder, cell.spec, data_root) is not None else cell.spec.seeds
            except EvergraphError as unreadable:
                yield cell, unreadable
                continue
            under_way[cell.key] = _Open(cell, len(seeds))
            for seed in seeds:
                root, shared = str(data_root) if data_root else None, str(Path(out) / SHARED)
                engine.submit(Work(cell.key, cell.spec, str(folder), seed, root, shared))
            complete += [] if seeds else [under_way[cell.key]]
        for work, error in engine.wait() if under_way and not complete else ():
            tries[work] += 1
            if error is not None and _may_pass(error) and tries[work] < engine.attempts:
                engine.submit(work)
                continue
            if on_seed is not None:
                on_seed(work.key, work.seed, error is not None)
            one = under_way[work.key]
            one.error = one.error or error
            one.left -= 1
            complete += [] if one.left else [one]
        for one in complete:
            del under_way[one.cell.key]
            if one.error is not None:
                yield one.cell, one.error
            else:
                # nothing is left to train: this only gathers the results
                yield from _in_turn([one.cell], out, data_root, streams)


def _rank(cell: Cell) -> int:
    """Position of a cell in the queue: methods with long runs come first."""
    return LONGEST_FIRST.index(cell.spec.method) if cell.spec.method in LONGEST_FIRST else len(LONGEST_FIRST)


def _may_pass(error: Exception) -> bool:
    """Whether a second attempt may succeed: an error about the input would only recur."""
    return isinstance(error, ProcessDiedError) or not isinstance(error, EvergraphError)
