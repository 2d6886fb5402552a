"""Parallel processes on this machine."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Hashable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

import torch

from evergraph.core import fork_server
from evergraph.errors import EvergraphError, EvergraphWarning, first_line, is_out_of_memory
from evergraph.experiments.engines.base import Engine, Work
from evergraph.training import pick_device
from evergraph.training.side_by_side import AT_ONCE, side_by_side
from evergraph.training.stacked import may_be_stacked, stacking_key

LOOK_EVERY = 5.0  # seconds between two checks for finished pieces of a group
MOST_ON_GPU = 15  # processes that share a GPU by default
TOGETHER, FEWEST = 16, 3  # pieces of work on a GPU at once; fewest that share a process if there are many


class ProcessDiedError(EvergraphError):
    """A process died or ran out of memory; the message is the one line that users see."""


class ProcessEngine(Engine):
    """Parallel processes, each in its own pool, so that one that dies takes nothing else with it.

    Args:
        jobs: number of parallel processes.
    """

    def __init__(self, jobs: int) -> None:
        self._idle: list[ProcessPoolExecutor] = []
        self._room, self._new, self._waiting = jobs, list[Work](), list[list[Work]]()
        self._running: dict[Future[list[Exception | None]], tuple[list[Work], ProcessPoolExecutor]] = {}
        self._told: set[Work] = set()  # reported as done while their group is not
        self._closed = False

    def submit(self, work: Work) -> None:
        """Queue the work; `wait` starts it, knowing all that is queued."""
        self._new.append(work)

    def wait(self) -> list[tuple[Work, Exception | None]]:
        """Wait for the next finished work; the pieces of a group are returned as each is done."""
        if self._closed:
            raise EvergraphError("stopped; --resume goes on with what is there")
        self._waiting[:0] = grouped(self._new, self._room)  # runs chosen by trials do not wait for all the rest
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
                pool.shutdown()  # a new process replaces it
            else:
                self._idle.append(pool)
            outcomes = future.result() if error is None else [error] * len(group)
            told = [(work, in_words(outcome, work)) for work, outcome in zip(group, outcomes)]
            done += [(work, outcome) for work, outcome in told if work not in self._told]
            self._told.difference_update(group)
        self._start()
        return done

    def _is_done_early(self, work: Work) -> bool:
        """Whether work is done while its group still runs; an unreadable folder is left for the group to report."""
        with suppress(EvergraphError):
            return work not in self._told and work.is_done()
        return False

    def close(self, *, at_once: bool) -> None:
        """End the processes. Stopped work resumes where it was when it is submitted again.

        Processes that have finished exit by themselves, which takes a second on a GPU; the program waits for them.
        """
        self._closed = True
        pools = [*self._idle, *(pool for _, pool in self._running.values())]
        if at_once:
            for pool in pools:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
        with ThreadPoolExecutor(len(pools) or 1) as closing:  # in parallel
            list(closing.map(lambda pool: pool.shutdown(wait=at_once, cancel_futures=True), pools))

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._room and not self._closed:
            pool = self._idle.pop() if self._idle else _one_process()
            group = self._waiting.pop(0)
            self._running[pool.submit(_do_together, group)] = (group, pool)


def grouped(works: list[Work], jobs: int) -> list[list[Work]]:
    """Group the work that shares a process: on a CPU each piece alone; on a GPU a few pieces, which take turns.

    The seeds of a run stay together if they can be trained stacked, and so do runs whose steps differ in factors only,
    up to an equal share of the work. Beyond that, no process is left idle for the sake of a group, and a few processes
    with a run each are better than one with many, whose steps wait for one another.

    A group is sorted by seed: processes that wait for one another's first tasks must take them in the same order.
    """
    if not works or pick_device(works[0].spec.device).type != "cuda":
        return [[work] for work in works]
    share, groups = len(works) // jobs, list[list[Work]]()
    size = max(1, min(max(FEWEST, TOGETHER // jobs), share))
    for some in _stackable(works, min(share, AT_ONCE)):
        if groups and len(groups[-1]) + len(some) <= size:
            groups[-1] += some
        else:
            groups += [some[first : first + AT_ONCE] for first in range(0, len(some), AT_ONCE)]
    return [sorted(group, key=lambda work: work.seed) for group in groups]


def _stackable(works: list[Work], most: int) -> list[list[Work]]:
    """Split work into runs that can be stacked, `most` pieces or one run at a time, and single pieces of the others."""
    together = dict[Hashable, list[list[Work]]]()
    for key, run in itertools.groupby(works, key=lambda work: work.key):
        seeds = list(run)
        kin = _kin(seeds[0])
        for some in [seeds] if kin is not None else [[seed] for seed in seeds]:
            batches = together.setdefault((key, some[0].seed) if kin is None else kin, [[]])
            if batches[-1] and len(batches[-1]) + len(some) > most:
                batches.append([])
            batches[-1] += some
    found = (batch for batches in together.values() for batch in batches)
    return sorted(found, key=lambda batch: works.index(batch[0]))


def _kin(work: Work) -> Hashable | None:
    """What runs must have in common to be stacked: all but settings that steps do not read; None if they cannot be."""
    try:
        learner = work.spec.learner(work.seed)
    except EvergraphError:
        return None  # each seed reports the error itself
    if not may_be_stacked(learner.model, learner.method, learner.training):
        return None
    data = (work.spec.source, str(work.spec.stream), work.spec.problem, work.spec.pieces)
    return (*data, str(learner.training), *stacking_key(learner.model, learner.method))


def _do_together(group: list[Work]) -> list[Exception | None]:
    """Run the pieces of a group in a worker process; return the error of each, or None."""
    kin = {key: _kin(work) or key for key, work in {work.key: work for work in group}.items()}  # once for each run
    jobs, device = [work.do for work in group], pick_device(group[0].spec.device)
    return side_by_side(jobs, device, kin=[kin[work.key] for work in group])


def in_words(error: BaseException | None, work: Work) -> Exception | None:
    """Turn a dead process or a lack of memory into a one-line error; return other errors as they are."""
    memory = error is not None and (isinstance(error, torch.OutOfMemoryError) or is_out_of_memory(error))
    if memory or isinstance(error, BrokenProcessPool):
        assert error is not None
        what = "ran out of memory" if memory else "died"
        return ProcessDiedError(
            f"{work.key}: its process {what} ({first_line(error)}); with fewer --jobs each has more memory, "
            "and --resume goes on with what is there"
        )
    if error is not None and not isinstance(error, Exception):
        return ProcessDiedError(f"{work.key}: its process was stopped ({type(error).__name__})")
    return error


def _one_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, fork_server.context(), initializer=_begin_worker, initargs=(dict(os.environ),))


def begin_process() -> None:
    """Use one thread, since processes share the cores, and do not repeat the parent's warnings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EvergraphWarning)


def _begin_worker(environment: Mapping[str, str] | None = None) -> None:
    """Use the parent's environment (the fork server's may be older), leave Ctrl-C to the parent, and exit with it."""
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
    """One process per core; on a GPU, where steps are launch-bound, at most `MOST_ON_GPU`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if pick_device(device).type == "cpu" else min(cores, MOST_ON_GPU)
