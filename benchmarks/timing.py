"""Timing that is robust on a shared machine: contenders take turns, and medians are compared.

With one thread on a CPU the clock is the process's own processor time, which other programs do not
affect; with more threads, and on a GPU, it is wall-clock time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Contender = Callable[[], object]


def alternate(
    contenders: Mapping[str, Contender], *, seconds: float, least: int = 5, device: torch.device | None = None
) -> dict[str, float]:
    """Median seconds of each contender, where every round runs all of them once.

    Args:
        contenders: functions to time, by name.
        seconds: rounds are added until this much time has passed.
        least: minimum number of rounds.
        device: if it is a GPU, it is synchronized before the clock is read.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        contender()  # first runs allocate, compile and fill caches
    on_gpu = device is not None and device.type == "cuda"
    clock = time.perf_counter if on_gpu or torch.get_num_threads() > 1 else time.process_time
    start = time.perf_counter()
    rounds = 0
    while rounds < least or time.perf_counter() - start < seconds:
        for name, contender in contenders.items():
            _wait(device)
            before = clock()
            contender()
            _wait(device)
            times[name].append(clock() - before)
        rounds += 1
    return {name: statistics.median(found) for name, found in times.items()}


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
