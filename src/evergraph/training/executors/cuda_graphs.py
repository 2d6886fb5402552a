"""Steps as CUDA graphs: what the executors that capture have in common."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.methods.base import Context, Method


class Recorded:
    """A step that reads and writes the same memory every time: captured when it is called again, then replayed.

    The first call carries it out as it is, which also warms up the libraries and allocates what the step keeps.

    Args:
        step: returns its loss.
    """

    def __init__(self, step: Callable[[], Tensor]) -> None:
        self._step, self._warm = step, False
        self._stream = shared_stream(torch.cuda.current_device())
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss = torch.empty(0)

    def __call__(self) -> Tensor:
        """One step."""
        if not self._warm:
            self._warm = True
            gc.collect()  # a graph of an earlier measurement that waits in a cycle would pin gradients to its stream
            return self._aside()
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._loss = self._step()  # recorded; nothing is computed yet
            self._graph = graph
        self._graph.replay()
        return self._loss

    def _aside(self) -> Tensor:
        """A step outside of a capture, on the stream that the capture will use."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._step()
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss


@functools.cache
def shared_stream(device: int) -> torch.cuda.Stream:
    """One for all steps that are captured on a device: what one of them has freed, the next can use."""
    return torch.cuda.Stream(device)


def can_capture(context: Context, method: Method, *, padded: bool) -> bool:
    """Whether a step is the same kernels every time, by what the model and the method declare.

    Args:
        context: the task.
        method: the method.
        padded: on mini-batches padded to one shape; else on one batch of all examples.
    """
    model_claim = capable(context.model, "steps_can_be_captured")
    method_claim = capable(method, "steps_can_be_captured")
    if padded is (context.batch_size is None) or model_claim is None or method_claim is None:
        return False
    return bool(model_claim(context.batcher, padded) and method_claim(context))
