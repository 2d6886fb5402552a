"""Executors: how the steps of an epoch are carried out. The loop takes the first that suits a task."""

from collections.abc import Sequence

from evergraph.core.capabilities import No
from evergraph.methods.base import Context, Method
from evergraph.training.executors.ahead import AheadExecutor
from evergraph.training.executors.base import Executor, TrainStep
from evergraph.training.executors.captured import CapturedExecutor
from evergraph.training.executors.divided import DividedExecutor
from evergraph.training.executors.plain import PlainExecutor
from evergraph.training.executors.whole import WholeBatchExecutor

EXECUTORS: tuple[type[Executor], ...] = (
    DividedExecutor,
    CapturedExecutor,
    WholeBatchExecutor,
    AheadExecutor,
    PlainExecutor,
)


def executor_for(
    context: Context, method: Method, step: TrainStep, kinds: Sequence[type[Executor]] = EXECUTORS
) -> Executor:
    """Make the first executor that suits a task; it keeps the reasons why those before it did not."""
    reasons: list[str] = []
    for kind in kinds:
        answer = kind.suits(context, method)
        if answer:
            break
        reasons += [answer.reason] if isinstance(answer, No) and answer.reason not in reasons else []
    executor = kind(context, step)
    executor.passed_over = reasons
    return executor


__all__ = [
    "EXECUTORS",
    "AheadExecutor",
    "CapturedExecutor",
    "DividedExecutor",
    "Executor",
    "PlainExecutor",
    "TrainStep",
    "WholeBatchExecutor",
    "executor_for",
]
