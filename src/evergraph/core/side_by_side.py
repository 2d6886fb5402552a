"""How work is divided among cores: threads within one BLAS product, or jobs side by side with one thread each.

Several products at once make better use of cores than threads within one, which wait for each other after every panel.
Jobs of unequal length may divide their own work into jobs, which threads that have run out of jobs take on. The number
of threads is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock, local
from typing import Any, TypeVar

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

ONE = 2e6  # multiplications: enough to set a limit, too few to share, so that BLAS gets one thread
LITTLE = 1e6  # multiplications up to which BLAS uses one thread anyway
WORTH_SHARING = 1e8  # multiplications above which threads share them: a millisecond or two of one thread

Result = TypeVar("Result")


@cache
def controller() -> ThreadpoolController:
    """Return the controller of the loaded BLAS libraries."""
    return ThreadpoolController()


_lock = Lock()
_limits = list[int]()  # of each computation under way
_before = list[Any]()  # restores the limits that others had set, while a computation is under way
_here = local()  # `pool`: the threads of which this one is running a job; None if it is not


@contextmanager
def blas_threads(work: float) -> Iterator[None]:
    """Give BLAS as many threads as torch has for `work` multiplications, or one if they are too few to share.

    Limits apply to the whole process: of several computations at once the last one's holds, and the original limits
    are restored when all have ended. A job of `side_by_side` always has one thread. Overflow raises no warning, since
    it shows in the result.
    """
    alone = work > LITTLE and getattr(_here, "pool", None) is None
    limit = torch.get_num_threads() if work > WORTH_SHARING else 1
    if alone:
        _begin(limit)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        if alone:
            _end(limit)


def _begin(limit: int) -> None:
    with _lock:
        if not _limits:
            _before.append(controller().limit(limits=limit, user_api="blas"))
        elif _limits[-1] != limit:
            controller().limit(limits=limit, user_api="blas")
        _limits.append(limit)


def _end(limit: int) -> None:
    with _lock:
        held = _limits[-1]
        del _limits[len(_limits) - 1 - _limits[::-1].index(limit)]  # the last of equal ones
        if not _limits:
            _before.pop().restore_original_limits()
        elif _limits[-1] != held:
            controller().limit(limits=_limits[-1], user_api="blas")


def side_by_side(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run jobs, as many at once as torch has threads, each with one BLAS thread; return their results.

    Jobs should use numpy and scipy, since torch counts its own threads separately in each thread. Within a job, further
    jobs run in this thread, and in those that have no job left. Results do not depend on how many jobs run at once.
    """
    with blas_threads(ONE):
        if (pool := getattr(_here, "pool", None)) is not None:
            return _shared(pool, jobs)
        workers = min(torch.get_num_threads(), len(jobs))
        if workers < 2:
            return [job() for job in jobs]  # a job that is alone may ask for more threads
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(partial(_carried_out, pool), jobs))


def _shared(pool: ThreadPoolExecutor, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run the jobs of a job, each here unless another thread has taken it on before its turn.

    A cancelled offer waits in the queue until a thread comes by. The job, and the matrices that it refers to, do not
    wait with it.
    """
    held = [[job] for job in jobs]
    offered = [pool.submit(_taken_on, pool, job) for job in held]
    try:
        here = {number: held[number].pop()() for number, offer in enumerate(offered) if offer.cancel()}
        return [here[number] if number in here else offer.result() for number, offer in enumerate(offered)]
    finally:
        for offer, job in zip(offered, held):
            if offer.cancel():
                job.clear()


def _taken_on(pool: ThreadPoolExecutor, held: list[Callable[[], Result]]) -> Result:
    return _carried_out(pool, held.pop())


def _carried_out(pool: ThreadPoolExecutor, job: Callable[[], Result]) -> Result:
    _here.pool = pool
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # of this thread
            return job()
    finally:
        _here.pool = None
