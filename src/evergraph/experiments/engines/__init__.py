"""Engines: where the runs of a table are executed, several at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evergraph.errors import one_of
from evergraph.experiments.engines.base import Engine, Work
from evergraph.experiments.engines.processes import MOST_ON_GPU, ProcessDiedError, ProcessEngine, default_jobs
from evergraph.experiments.engines.ray import RayEngine
from evergraph.experiments.engines.slurm import FOLDER, SCRIPT, ArrayWrittenError, SlurmEngine, work_on

MakeEngine = Callable[[Path], Engine]
"""Makes the engine for the runs in a folder."""

ENGINES = {
    "local": "processes of this machine",
    "ray": "a Ray cluster: the one that RAY_ADDRESS names, else one of this machine's cores",
    "slurm": "an array job, to be submitted by hand; --resume gathers its results",
}


def engine_for(name: str, jobs: int | None) -> MakeEngine | None:
    """Return the factory of the named engine; None for a single process on this machine."""
    one_of("engine", name, ENGINES)
    if name == "ray":
        return lambda folder: RayEngine(jobs)
    if name == "slurm":
        return lambda folder: SlurmEngine(folder / FOLDER, jobs)
    return (lambda folder: ProcessEngine(jobs or 1)) if (jobs or 1) > 1 else None


__all__ = [
    "ENGINES",
    "FOLDER",
    "MOST_ON_GPU",
    "SCRIPT",
    "ArrayWrittenError",
    "Engine",
    "MakeEngine",
    "ProcessDiedError",
    "ProcessEngine",
    "RayEngine",
    "SlurmEngine",
    "Work",
    "default_jobs",
    "engine_for",
    "work_on",
]
