"""Engines: where the runs of a table are carried out, several at a time."""

from evergraph.experiments.engines.base import Engine, Work
from evergraph.experiments.engines.processes import ProcessDiedError, ProcessEngine, default_jobs

__all__ = ["Engine", "ProcessDiedError", "ProcessEngine", "Work", "default_jobs"]
