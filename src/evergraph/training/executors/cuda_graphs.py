"""Steps as CUDA graphs: what the executors that capture have in common."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evergraph.core.capabilities import Answer, No, capable
from evergraph.errors import first_line
from evergraph.methods.base import Context, Method
from evergraph.methods.state import held
from evergraph.models.base import Form
from evergraph.training.executors.watch import Watch

Replay = Callable[[], Tensor]
"""Carries out a recorded step and returns its loss."""


class Recorded:
    """A step that reads and writes the same memory every time: carried out, watched, captured, then replayed.

    The first call carries it out as it is, which also warms up the libraries and allocates what the step keeps. The
    second looks for operations that a recording cannot repeat (`Watch`). The third captures it. A step that cannot be
    captured, for whatever reason, is carried out as it is from then on, with everything as it was before the attempt.

    Args:
        step: returns its loss.
        context: the task.
        watched: whether the like of it was watched already, so that it need not be.
        capture: from a step to its recording; by default a CUDA graph's.
    """

    def __init__(
        self,
        step: Callable[[], Tensor],
        context: Context,
        *,
        watched: bool = False,
        capture: Callable[[Callable[[], Tensor]], Replay] | None = None,
    ) -> None:
        self._step, self._context = step, context
        self._capture = capture or cuda_graph_of
        self._replay: Replay | None = None
        self._warm, self.watched = False, watched
        self.reason = ""
        """Why it is not captured; empty as long as it is, or may still be."""

    @property
    def captured(self) -> bool:
        """Whether there is a recording."""
        return self._replay is not None

    def __call__(self) -> Tensor:
        """One step."""
        if self._replay is None and self.watched and self._warm and not self.reason:
            self._try_to_capture()
        if self._replay is not None:
            return self._replay()
        if self._warm and not self.watched:
            with Watch(self._context.device) as watch:
                loss = aside(self._step, self._context.device)
            self.watched, self.reason = True, watch.reason
            return loss
        self._warm = True
        return aside(self._step, self._context.device)

    def _try_to_capture(self) -> None:
        """While a step is captured nothing is computed on the device; Python's part of it is undone if it fails.

        A second attempt is made without what waits to be collected: memory, and graphs of an earlier task, which can
        pin gradients to another stream.
        """
        for attempt in range(2):
            restore = remembered(self._context)
            try:
                self._replay = self._capture(self._step)
                return
            except Exception as error:
                reason = f"its capture failed ({first_line(error)})"
                restore()
            if not attempt:
                gc.collect()
                if self._context.device.type == "cuda":
                    torch.cuda.empty_cache()
        self.reason = reason


def remembered(context: Context) -> Callable[[], None]:
    """A function that undoes what a failed capture did to Python's objects, to numbers on the CPU and to gradients.

    Numbers on the device are left alone: a capture does not touch them.
    """
    parts = context.method.parts() if context.method is not None else []
    states = [(part, held(part.state_dict())) for part in parts]
    cache, generator, host = dict(context.cache), context.generator.get_state(), torch.get_rng_state()
    device = torch.cuda.get_rng_state(context.device) if context.device.type == "cuda" else None

    def restore() -> None:
        for part, state in states:
            for key in part.state_dict():
                delattr(part, key)
            for key, value in state.items():
                setattr(part, key, value)
        context.cache.clear()
        context.cache.update(cache)
        context.generator.set_state(generator)
        torch.set_rng_state(host)
        if device is not None:
            renew_generator(context.device, device)
        context.model.zero_grad(set_to_none=True)  # gradients lie in the memory of the graph that was given up

    return restore


def renew_generator(device: torch.device, state: Tensor) -> None:
    """Give a GPU's default generator a state of its own again: a failed capture leaves the old one unusable."""
    fresh = torch.Generator(device)
    fresh.set_state(state)
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())


def cuda_graph_of(step: Callable[[], Tensor], generators: Sequence[torch.Generator] = ()) -> Replay:
    """The step as a CUDA graph; nothing is computed yet.

    Args:
        step: what to record.
        generators: that it draws from, besides the device's own.
    """
    graph, stream = torch.cuda.CUDAGraph(), side_stream()
    for generator in generators:
        graph.register_generator_state(generator)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()  # torch.cuda.graph would also empty the allocator's cache, at every shape of every task
        try:
            loss = step()
        except BaseException:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it may be said that nothing was captured yet
                graph.capture_end()
            raise
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="The CUDA Graph is empty")  # whose replay would train nothing
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def aside(step: Callable[[], Tensor], device: torch.device) -> Tensor:
    """A step outside of a capture, on the stream that the capture will use."""
    if device.type != "cuda":
        return step()
    stream = side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss = step()
    torch.cuda.current_stream().wait_stream(stream)
    return loss


def side_stream() -> Any:
    """The stream that steps are captured on: the current one, or beside a device's default stream one for all of them.

    What one step has freed, the next can use.
    """
    current = torch.cuda.current_stream()
    return current if current != torch.cuda.default_stream() else _shared_stream(torch.cuda.current_device())


@functools.cache
def _shared_stream(device: int) -> Any:
    return torch.cuda.Stream(device)


def can_capture(context: Context, method: Method, form: Form) -> Answer:
    """Whether a step is the same kernels every time, by what the model and the method declare.

    Args:
        context: the task.
        method: the method.
        form: the form in which the step reads its examples.
    """
    model_claim = capable(context.model, "steps_can_be_captured")
    if model_claim is None:
        return No(f"{type(context.model).__name__} does not say that its steps are the same kernels every time")
    method_claim = capable(method, "steps_can_be_captured")
    if method_claim is None:
        return No(f"{method.title} does not say that its steps are the same kernels every time")
    by_method: Answer = method_claim(context)
    answer: Answer = by_method and model_claim(context.batcher, form)
    return answer
