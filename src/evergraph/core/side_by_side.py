"""Who computes how much: threads within one product of BLAS, or jobs side by side with one thread each.

Several products at once make better use of cores than threads within one, which wait for each other after every panel.
How many threads there are is what torch is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from typing import Any, TypeVar

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

ONE = 2e6  # multiplications: enough to set a limit, too few to share, so that BLAS has one thread
LITTLE = 1e6  # multiplications up to which BLAS uses one thread by itself
WORTH_SHARING = 3e8  # multiplications from which on threads share them: some milliseconds of one

Result = TypeVar("Result")


@cache
def controller() -> ThreadpoolController:
    """Of the BLAS libraries that are loaded."""
    return ThreadpoolController()


_lock = Lock()
_limits = list[int]()  # of each computation under way
_before = list[Any]()  # what puts back the limits that others had set, while there is one
_here = local()  # whether this thread carries out a job


@contextmanager
def blas_threads(work: float) -> Iterator[None]:
    """As many threads as torch has for so many multiplications; one where they take less than waiting for others.

    Limits are the whole process's: of several computations at once the last one's holds, and the end of all puts back
    what was before the first. Within a job of `side_by_side` there is one. What overflows is told by what comes out.
    """
    alone = work > LITTLE and not getattr(_here, "in_job", False)
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
        del _limits[len(_limits) - 1 - _limits[::-1].index(limit)]  # of equal ones the last
        if not _limits:
            _before.pop().restore_original_limits()
        elif _limits[-1] != held:
            controller().limit(limits=_limits[-1], user_api="blas")


def side_by_side(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """What the jobs return; as many run at once as there are threads, each with one thread of BLAS.

    They are for numpy and scipy: torch's own threads are counted anew in each thread. What they return does not depend
    on how many run at once.
    """
    workers = min(torch.get_num_threads(), len(jobs))
    if workers < 2 or getattr(_here, "in_job", False):
        return [job() for job in jobs]
    with blas_threads(WORTH_SHARING), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(_carried_out, jobs))


def _carried_out(job: Callable[[], Result]) -> Result:
    _here.in_job = True
    try:
        return job()
    finally:
        _here.in_job = False
