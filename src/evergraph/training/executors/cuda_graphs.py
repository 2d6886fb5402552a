"""CUDA graphs of training steps, for the executors that capture."""

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

    The first call runs it as it is, which also warms up the libraries and allocates what the step keeps. The second
    looks for operations that a recording cannot repeat (`Watch`). The third captures it. A step that cannot be
    captured, for whatever reason, is run as it is from then on, with everything restored to before the attempt.

    Args:
        step: the step; returns its loss.
        context: the task.
        watched: whether a step like this one was watched already, so that it need not be.
        capture: makes a recording of a step; by default a CUDA graph.
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
        """Why the step is not captured; empty if it is, or may still be."""

    @property
    def captured(self) -> bool:
        """Whether there is a recording."""
        return self._replay is not None

    def __call__(self) -> Tensor:
        """Carry out one step."""
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
        """Capture the step, which computes nothing on the device; if that fails, undo its effects in Python.

        A second attempt is made after garbage collection, which frees memory, and graphs of an earlier task that can
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
    """Return a function that undoes what a failed capture did to Python objects, numbers on the CPU and gradients.

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
        context.model.zero_grad(set_to_none=True)  # gradients are in the memory of the abandoned graph

    return restore


def renew_generator(device: torch.device, state: Tensor) -> None:
    """Give a GPU's default generator a new state object: a failed capture leaves the old one unusable."""
    fresh = torch.Generator(device)
    fresh.set_state(state)
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())


def cuda_graph_of(step: Callable[[], Tensor], generators: Sequence[torch.Generator] = ()) -> Replay:
    """Capture a step as a CUDA graph; nothing is computed yet.

    Args:
        step: the step to record.
        generators: generators that it draws from, besides the device's own.
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
                warnings.simplefilter("ignore")  # torch may warn that nothing was captured yet
                graph.capture_end()
            raise
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="The CUDA Graph is empty")  # its replay would train nothing
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def aside(step: Callable[[], Tensor], device: torch.device) -> Tensor:
    """Run a step outside of a capture, on the stream that the capture will use."""
    if device.type != "cuda":
        return step()
    stream = side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss = step()
    torch.cuda.current_stream().wait_stream(stream)
    return loss


def side_stream() -> Any:
    """Stream to capture steps on: the current one or, if that is the device's default stream, one shared by all steps.

    Memory that one step has freed can be used by the next.
    """
    current = torch.cuda.current_stream()
    return current if current != torch.cuda.default_stream() else _shared_stream(torch.cuda.current_device())


@functools.cache
def _shared_stream(device: int) -> Any:
    return torch.cuda.Stream(device)


def can_capture(context: Context, method: Method, form: Form) -> Answer:
    """Whether the model and the method declare that a step is the same kernels every time.

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
