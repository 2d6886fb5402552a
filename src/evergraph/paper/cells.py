"""Cells: runs that belong to one table, each in a folder of its own, worked off side by side.

A cell that is finished is never run again; one that was stopped goes on where it was.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergraph.runs import RunSpec, run


@dataclass(frozen=True)
class Cell:
    """One entry of a table: where it goes, and what is run for it."""

    key: str
    spec: RunSpec


def run_cells(
    cells: Iterable[Cell],
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    jobs: int = 1,
    on_done: Callable[[str, int, int], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Run all cells, `jobs` processes side by side; returns the results by key.

    A cell whose settings differ from those of a finished run in its folder is an error: nothing is mixed.
    """
    unique = {cell.key: cell for cell in cells}
    results: dict[str, dict[str, Any]] = {}
    if jobs <= 1 or len(unique) <= 1:
        for key, cell in unique.items():
            results[key] = _run_cell(cell, str(out), data_root)
            if on_done is not None:
                on_done(key, len(results), len(unique))
        return results
    # the slowest first, so that no long run starts when all others are done
    ordered = sorted(unique.values(), key=lambda cell: cell.spec.method != "joint")
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_one_thread) as pool:
        waiting = {pool.submit(_run_cell, cell, str(out), data_root): cell.key for cell in ordered}
        for future in as_completed(waiting):
            results[waiting[future]] = future.result()
            if on_done is not None:
                on_done(waiting[future], len(results), len(unique))
    return {key: results[key] for key in unique}


def _one_thread() -> None:
    """Processes side by side share the cores: one thread each."""
    import torch

    torch.set_num_threads(1)


def _run_cell(cell: Cell, out: str, data_root: str | Path | None) -> dict[str, Any]:
    return run(cell.spec, Path(out) / cell.key, data_root=data_root, resume=True)


def default_jobs(device: str) -> int:
    """As many processes as cores; on a GPU, where steps are launch-bound, at most twelve share it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 12) if device != "cpu" else cores
