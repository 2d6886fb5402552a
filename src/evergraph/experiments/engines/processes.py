"""Processes of this machine, side by side."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

import torch

from evergraph.core import fork_server
from evergraph.errors import EvergraphError, EvergraphWarning, first_line
from evergraph.experiments.engines.base import Engine, Work
from evergraph.training import pick_device
from evergraph.training.side_by_side import AT_ONCE, side_by_side
from evergraph.training.stacked import may_be_stacked

LOOK_EVERY = 5.0  # seconds between two looks at which pieces of a group are done
TOGETHER, FEWEST = 16, 3  # pieces of work on a GPU at once; and those that share a process where there are many


class ProcessDiedError(EvergraphError):
    """A process that died, or found no memory, as the one line that people see."""


class ProcessEngine(Engine):
    """A number of processes. Each has a pool of its own: one that dies takes nothing else with it.

    Args:
        jobs: processes side by side.
    """

    def __init__(self, jobs: int) -> None:
        self._idle: list[ProcessPoolExecutor] = []
        self._room, self._new, self._waiting = jobs, list[Work](), list[list[Work]]()
        self._running: dict[Future[list[Exception | None]], tuple[list[Work], ProcessPoolExecutor]] = {}
        self._told: set[Work] = set()  # done, though the group that it is of is not
        self._closed = False

    def submit(self, work: Work) -> None:
        """Started by `wait`, which knows what else there is."""
        self._new.append(work)

    def wait(self) -> list[tuple[Work, Exception | None]]:
        """The work that is done next; of a group, each piece as it is."""
        if self._closed:
            raise EvergraphError("stopped; --resume goes on with what is there")
        self._waiting[:0] = grouped(self._new, self._room)  # what trials have chosen does not wait for all the rest
        self._new = []
        self._start()
        done: list[tuple[Work, Exception | None]] = []
        in_groups = any(len(group) > 1 for group, _ in self._running.values())
        while not (ended := wait(self._running, LOOK_EVERY if in_groups else None, FIRST_COMPLETED).done):
            if early := [work for group, _ in self._running.values() for work in group if self._is_done_early(work)]:
                self._told.update(early)
                return [(work, None) for work in early]
        for future in ended:
            group, pool = self._running.pop(future)
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                pool.shutdown()  # another process takes its place
            else:
                self._idle.append(pool)
            outcomes = future.result() if error is None else [error] * len(group)
            told = [(work, in_words(outcome, work)) for work, outcome in zip(group, outcomes)]
            done += [(work, outcome) for work, outcome in told if work not in self._told]
            self._told.difference_update(group)
        self._start()
        return done

    def _is_done_early(self, work: Work) -> bool:
        """Whether work has all its results while its group goes on; of a folder that cannot be read the group tells."""
        with suppress(EvergraphError):
            return work not in self._told and work.is_done()
        return False

    def close(self, *, at_once: bool) -> None:
        """End the processes. Work that is stopped goes on where it was when it is submitted again.

        Those that are through end by themselves, which takes one on a GPU a second; the program does not end before.
        """
        self._closed = True
        pools = [*self._idle, *(pool for _, pool in self._running.values())]
        if at_once:
            for pool in pools:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
        with ThreadPoolExecutor(len(pools) or 1) as closing:  # all at once
            list(closing.map(lambda pool: pool.shutdown(wait=at_once, cancel_futures=True), pools))

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._room and not self._closed:
            pool = self._idle.pop() if self._idle else _one_process()
            group = self._waiting.pop(0)
            self._running[pool.submit(_do_together, group)] = (group, pool)


def grouped(works: list[Work], jobs: int) -> list[list[Work]]:
    """The work that shares a process: each piece alone on a CPU; on a GPU a few, which take turns there.

    The seeds of a run stay together where they train as one; beyond that no process is left idle for it, and a few
    processes with a run each are better than one with many, whose steps wait for one another.
    """
    if not works or pick_device(works[0].spec.device).type != "cuda":
        return [[work] for work in works]
    size, groups = max(1, min(max(FEWEST, TOGETHER // jobs), len(works) // jobs)), list[list[Work]]()
    for _, run in itertools.groupby(works, key=lambda work: work.key):
        seeds = list(run)
        for some in [seeds] if _train_as_one(seeds[0]) else [[seed] for seed in seeds]:
            if groups and len(groups[-1]) + len(some) <= size:
                groups[-1] += some
            else:
                groups += [some[first : first + AT_ONCE] for first in range(0, len(some), AT_ONCE)]
    return groups


def _train_as_one(work: Work) -> bool:
    """Whether the seeds of a run may train as one, by what its method, its model and its settings declare."""
    try:
        learner = work.spec.learner(work.seed)
    except EvergraphError:
        return False  # each seed says what is wrong with it
    return may_be_stacked(learner.model, learner.method, learner.training)


def _do_together(group: list[Work]) -> list[Exception | None]:
    """What a process does: the pieces of a group, and the error of each that ended in one."""
    kin = [work.key for work in group]
    return side_by_side([work.do for work in group], pick_device(group[0].spec.device), kin=kin)


def in_words(error: BaseException | None, work: Work) -> Exception | None:
    """A run whose process died, or found no memory, in one line; other errors as they are."""
    if isinstance(error, (BrokenProcessPool, torch.OutOfMemoryError, MemoryError)):
        return ProcessDiedError(
            f"{work.key}: its process died ({first_line(error)}); with fewer --jobs each has more memory, "
            "and --resume goes on with what is there"
        )
    if error is not None and not isinstance(error, Exception):
        return ProcessDiedError(f"{work.key}: its process was stopped ({type(error).__name__})")
    return error


def _one_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, fork_server.context(), initializer=_begin_worker, initargs=(dict(os.environ),))


def begin_process() -> None:
    """One thread, since processes share the cores; what the parent has said is not said again."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EvergraphWarning)


def _begin_worker(environment: Mapping[str, str] | None = None) -> None:
    """No life beyond the parent's, whose Ctrl-C it is, and whose variables may be others than when its server began."""
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    begin_process()
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
