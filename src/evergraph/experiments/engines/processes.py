"""Processes of this machine, side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import torch

from evergraph.errors import EvergraphError, EvergraphWarning, first_line
from evergraph.experiments.engines.base import Engine, Work


class ProcessDiedError(EvergraphError):
    """A process that died, or found no memory, as the one line that people see."""


class ProcessEngine(Engine):
    """A number of processes. Each has a pool of its own: one that dies takes nothing else with it.

    Args:
        jobs: processes side by side.
    """

    def __init__(self, jobs: int) -> None:
        self._idle: list[ProcessPoolExecutor] = []
        self._room, self._waiting = jobs, list[Work]()
        self._running: dict[Future[None], tuple[Work, ProcessPoolExecutor]] = {}

    def submit(self, work: Work) -> None:
        """Started at once where a process is free, else when one is."""
        self._waiting.append(work)
        self._start()

    def wait(self) -> list[tuple[Work, Exception | None]]:
        """The work that is done next."""
        done = []
        for future in wait(self._running, return_when=FIRST_COMPLETED).done:
            work, pool = self._running.pop(future)
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                pool.shutdown()  # another process takes its place
            else:
                self._idle.append(pool)
            done.append((work, in_words(error, work)))
        self._start()
        return done

    def close(self, *, at_once: bool) -> None:
        """End the processes. Work that is stopped goes on where it was when it is submitted again."""
        pools = [*self._idle, *(pool for _, pool in self._running.values())]
        if at_once:
            for pool in pools:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
        for pool in pools:
            pool.shutdown(cancel_futures=True)

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._room:
            pool = self._idle.pop() if self._idle else _one_process()
            work = self._waiting.pop(0)
            self._running[pool.submit(work.do)] = (work, pool)


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
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin_worker)


def begin_process() -> None:
    """One thread, since processes share the cores; what the parent has said is not said again."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EvergraphWarning)


def _begin_worker() -> None:
    """No life beyond the parent's, whose Ctrl-C it is."""
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
