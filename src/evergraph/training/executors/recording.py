"""Base class of executors that capture steps: one recorded step for each batch shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

from evergraph.core.capabilities import Answer, No
from evergraph.core.shortcuts import fast
from evergraph.methods.base import Context
from evergraph.training.executors.base import Executor, TrainStep
from evergraph.training.executors.cuda_graphs import Recorded, Replay


class RecordingExecutor(Executor):
    """Keeps a recorded step for each shape; if one cannot be captured, none is, and the reason is kept."""

    def __init__(self, context: Context, step: TrainStep) -> None:
        super().__init__(context, step)
        self.captures = bool(self.can_record(context))
        self.recorded: dict[tuple[Hashable, Hashable], Recorded] = {}  # by phase and shape
        self.capture: Callable[[Callable[[], Tensor]], Replay] | None = None  # by default a CUDA graph
        self.reason = ""
        """Why steps are not captured; empty as long as they are, or may still be."""

    @classmethod
    def can_record(cls, context: Context) -> Answer:
        """Whether steps can be recorded on the context's device."""
        if context.device.type != "cuda":
            return No("on a CPU")
        return fast("capture") or No("the fast path capture is turned off")

    def replay(self, size: Hashable, make: Callable[[], Callable[[], Tensor]]) -> Tensor:
        """Carry out the step of a shape; `make` makes the step when the shape is first met."""
        method = self.context.method
        phase = None if method is None else method.phase(self.context)
        shape = phase, size
        if shape not in self.recorded:
            watched = any(other.watched for (its, _), other in self.recorded.items() if its == phase)
            self.recorded[shape] = Recorded(make(), self.context, watched=watched, capture=self.capture)
            self.recorded[shape].reason = self.reason
        recorded = self.recorded[shape]
        loss = recorded()
        self.reason = self.reason or recorded.reason
        return loss

    def close(self) -> None:
        """Release the recordings, whose memory would otherwise wait for the garbage collector."""
        self.recorded.clear()

    @property
    def settled(self) -> bool:
        """Whether every shape met so far is captured."""
        return bool(self.recorded) and all(recorded.captured for recorded in self.recorded.values())

    def how(self) -> str:
        """`captured` if steps were replayed; else `eager` and why."""
        if self.reason:
            return f"eager: {self.reason}"
        captured = any(recorded.captured for recorded in self.recorded.values())
        return "captured" if captured else "eager: too few steps to be worth a capture"
