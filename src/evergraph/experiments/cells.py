"""Cells: runs that belong to one table, each in a folder of its own, worked off side by side.

A cell that is finished is never run again; one that was stopped goes on where it was.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evergraph.errors import EvergraphError, EvergraphWarning, first_line
from evergraph.experiments.run import finish_run, run_seeds
from evergraph.experiments.run_folder import check_folder, finished_result
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import taken_folder
from evergraph.training import pick_device
from evergraph.training.side_by_side import AT_ONCE

Results = dict[str, dict[str, Any]]
Finish = Callable[[list["Cell"], str, "str | Path | None"], Iterator[tuple["Cell", dict[str, Any]]]]
Failed = Callable[["Cell", EvergraphError], "dict[str, Any] | None"]
TOGETHER = 4  # seeds that share a process on a GPU, and more where there are more than that for each process
LONGEST_FIRST = ("twp", "joint", "curvature", "lwf")  # so that no long run starts when all others are done


@dataclass(frozen=True)
class Cell:
    """One entry of a table: its folder below the table's, and what is run for it."""

    key: str
    spec: RunSpec

    def finish(self, out: str | Path, data_root: str | Path | None) -> dict[str, Any]:
        """What is left to do for it, in this process; returns its result."""
        folder = Path(out) / self.key
        look = partial(check_folder, folder, self.spec, resume=True)
        with (
            taken_folder(folder, look) if self.key else nullcontext()
        ):  # the table's own folder is the caller's to hold
            return finish_run(self.spec, folder, data_root=data_root)


@dataclass(frozen=True)
class Choice:
    """Entries whose settings are chosen among trials, as soon as all of them are done."""

    trials: tuple[Cell, ...]
    choose: Callable[[Results], list[Cell]]


def run_cells(
    cells: Iterable[Cell],
    out: str | Path,
    *,
    choices: Iterable[Choice] = (),
    known: Callable[[Cell], dict[str, Any] | None] = lambda cell: None,
    failed: Failed = lambda cell, error: None,
    data_root: str | Path | None = None,
    jobs: int = 1,
    on_done: Callable[[str, int, int], None] | None = None,
) -> Results:
    """Run all cells, `jobs` processes side by side, one seed each; returns the results by key.

    The caller holds `out` (`taken_folder`). A cell whose settings differ from those of a finished run in its folder
    is an error: nothing is mixed.

    Args:
        cells: what to run.
        out: the folder that the cells' folders are in.
        choices: entries that are chosen among trials.
        known: the result of a cell that need not be run.
        failed: what stands for the result of a cell whose run ended in an error; None raises it.
        data_root: folder of the datasets.
        jobs: processes side by side.
        on_done: called as (key, cells done, cells in all).
    """
    open_choices = list(choices)
    waiting = list({cell.key: cell for cell in [*_trials(open_choices), *cells]}.values())
    total, results = len(waiting) + len(open_choices), dict[str, dict[str, Any]]()
    if on_done is not None:
        on_done("starting", 0, total)
    with nullcontext(partial(_in_turn, failed)) if jobs <= 1 else _side_by_side(jobs, failed) as finish:
        for cell, result in _known_first(finish, known, waiting, str(out), data_root):
            results[cell.key] = result
            if on_done is not None:
                on_done(cell.key, len(results), max(total, len(results)))
            ready = [choice for choice in open_choices if {trial.key for trial in choice.trials} <= results.keys()]
            open_choices = [choice for choice in open_choices if choice not in ready]
            waiting += [cell for choice in ready for cell in choice.choose(results)]  # `finish` goes on with them
    return results


def _known_first(
    finish: Finish,
    known: Callable[[Cell], dict[str, Any] | None],
    waiting: list[Cell],
    out: str,
    data_root: str | Path | None,
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """The cells whose results are known, then those to run; whatever is added meanwhile is treated alike."""
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
    failed: Failed, waiting: list[Cell], out: str, data_root: str | Path | None
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Finish the cells one after the other, those added meanwhile too."""
    while waiting:
        cell = waiting.pop(0)
        try:
            result = cell.finish(out, data_root)
        except EvergraphError as error:
            result = _instead(failed, cell, error)
        yield cell, result


def _instead(failed: Failed, cell: Cell, error: EvergraphError) -> dict[str, Any]:
    """What stands for the result of a cell that ended in an error, or the error."""
    if (result := failed(cell, error)) is None:
        raise error
    return result


@contextmanager
def _side_by_side(jobs: int, failed: Failed) -> Iterator[Finish]:
    """Finishes cells in several processes. Stopped, it waits for none of them: cells go on where they were."""
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        yield partial(_in_processes, pool, jobs, failed)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _in_processes(
    pool: ProcessPoolExecutor, jobs: int, failed: Failed, waiting: list[Cell], out: str, data_root: str | Path | None
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Finish the cells as their last seeds are done, those added meanwhile too; a seed is a process's work."""
    running: dict[Future[list[Exception | None]], list[Cell]] = {}
    left: dict[str, int] = {}
    instead: dict[str, dict[str, Any]] = {}  # for cells of which a seed failed
    while waiting or running:
        new = sorted(waiting, key=lambda cell: cell.spec.method not in LONGEST_FIRST)
        waiting.clear()
        complete, seeds = [], list[tuple[Cell, int]]()
        for cell in new:
            done = finished_result(Path(out) / cell.key, cell.spec) is not None
            seeds += [] if done else [(cell, seed) for seed in cell.spec.seeds]
            left[cell.key] = 0 if done else len(cell.spec.seeds)
            complete += [cell] if done else []
        for group in _groups(seeds, jobs):
            parts = [(cell.spec, Path(out) / cell.key, seed) for cell, seed in group]
            running[pool.submit(run_seeds, parts, data_root=data_root)] = [cell for cell, _ in group]
        if running and not complete:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cells = running.pop(future)
                for cell, error in zip(cells, _errors(future, cells)):
                    if error is not None:
                        instead[cell.key] = _instead(failed, cell, error)
                    left[cell.key] -= 1
                    complete += [] if left[cell.key] else [cell]
        yield from ((cell, instead[cell.key]) for cell in complete if cell.key in instead)
        whole = [cell for cell in complete if cell.key not in instead]
        yield from _in_turn(failed, whole, out, data_root)  # nothing is left to train: the results are put together


def _groups(seeds: list[tuple[Cell, int]], jobs: int) -> list[list[tuple[Cell, int]]]:
    """The seeds that share a process: each alone on a CPU; on a GPU several, which take turns there.

    They are dealt out like cards, so that every group has its share of the longest.
    """
    if not seeds:
        return []
    on_gpu = pick_device(seeds[0][0].spec.device).type == "cuda"
    size = min(AT_ONCE, max(TOGETHER, math.ceil(len(seeds) / jobs))) if on_gpu else 1
    number = math.ceil(len(seeds) / size)
    return [seeds[first::number] for first in range(number)]


def _errors(future: Future[list[Exception | None]], cells: list[Cell]) -> list[EvergraphError | None]:
    """What each seed of a group ended in; a process that died, or found no memory, in one line."""
    try:
        outcomes = future.result()
    except (BrokenProcessPool, torch.OutOfMemoryError) as error:
        outcomes = [error] * len(cells)
    return [_one_line(outcome, cell) for outcome, cell in zip(outcomes, cells)]


def _one_line(outcome: Exception | None, cell: Cell) -> EvergraphError | None:
    if outcome is None or isinstance(outcome, EvergraphError):
        return outcome
    if not isinstance(outcome, (BrokenProcessPool, torch.OutOfMemoryError)):
        raise outcome
    return EvergraphError(
        f"{cell.key}: its process died ({first_line(outcome)}); with fewer --jobs each has more memory, "
        "and --resume goes on with what is there"
    )


def _begin_worker() -> None:
    """One thread, since processes share the cores; no life beyond the parent's, whose Ctrl-C it is."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EvergraphWarning)  # the parent has said it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def default_jobs(device: str) -> int:
    """As many processes as cores; on a GPU, where steps are launch-bound, at most fifteen share it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 15) if device != "cpu" else cores
