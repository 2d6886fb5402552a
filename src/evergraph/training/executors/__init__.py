"""Executors: how the steps of an epoch are carried out. The loop takes the first that suits a task."""

from evergraph.training.executors.base import Executor, TrainStep
from evergraph.training.executors.captured import CapturedExecutor
from evergraph.training.executors.divided import DividedExecutor
from evergraph.training.executors.plain import PlainExecutor
from evergraph.training.executors.whole import WholeBatchExecutor

EXECUTORS: tuple[type[Executor], ...] = (DividedExecutor, CapturedExecutor, WholeBatchExecutor, PlainExecutor)

__all__ = [
    "EXECUTORS",
    "CapturedExecutor",
    "DividedExecutor",
    "Executor",
    "PlainExecutor",
    "TrainStep",
    "WholeBatchExecutor",
]
