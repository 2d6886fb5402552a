"""Parallel searches, each with its share of the processes, so that none waits for another's last trial."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from evergraph.experiments.engines import Engine, MakeEngine, ProcessEngine

SearchWith = Callable[[int, "MakeEngine | None"], dict[str, Any]]
"""A search, given its number of processes and what makes the engine of its trials."""


def search_side_by_side(searches: Mapping[str, SearchWith], jobs: int) -> dict[str, dict[str, Any]]:
    """Run the searches and return their results by name; all finish before the first error is raised.

    Each search has a thread here, and its trials run in processes of its own.

    Args:
        searches: the searches to run, by name.
        jobs: total number of processes.
    """
    if jobs == 1 or len(searches) < 2:
        return {name: search(jobs, None) for name, search in searches.items()}
    share, engines, stopped = max(1, jobs // len(searches)), list[Engine](), threading.Event()

    def make(folder: Path) -> Engine:
        engines.append(engine := ProcessEngine(share))
        if stopped.is_set():
            engine.close(at_once=True)
        return engine

    with ThreadPoolExecutor(min(jobs, len(searches))) as threads:
        found = {name: threads.submit(search, share, make) for name, search in searches.items()}
        try:
            wait(found.values())
        except BaseException:  # Ctrl-C: finished trials are on disk
            threads.shutdown(wait=False, cancel_futures=True)
            stopped.set()
            for engine in engines:
                engine.close(at_once=True)
            raise
    return {name: future.result() for name, future in found.items()}
