"""Several searches at a time, each with its share of the processes, so that none waits for another's last trial."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from evergraph.experiments.engines import Engine, MakeEngine, ProcessEngine

SearchWith = Callable[[int, "MakeEngine | None"], dict[str, Any]]
"""A search, given its number of processes and where its trials are run."""


def search_side_by_side(searches: Mapping[str, SearchWith], jobs: int) -> dict[str, dict[str, Any]]:
    """What each search finds, by name; all come to their end before the first error is raised.

    A search has a thread here, and its trials are run by processes of its own.

    Args:
        searches: what to run.
        jobs: processes in all.
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
        except BaseException:  # Ctrl-C: what is done is on disk
            threads.shutdown(wait=False, cancel_futures=True)
            stopped.set()
            for engine in engines:
                engine.close(at_once=True)
            raise
    return {name: future.result() for name, future in found.items()}
