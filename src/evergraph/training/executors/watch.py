"""Detection of operations that a recorded step cannot repeat, by watching a step as it is carried out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

TORCH = str(Path(torch.__file__).parent)
COPIES = ("aten::_to_copy", "aten::copy_")
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class Watch(TorchDispatchMode):
    """Notes the first operation within it that a recording cannot repeat.

    A CUDA graph repeats kernels with the same shapes on the same memory. So a step may not make Python wait for a
    value, hold a tensor whose shape depends on values, move numbers between host and device, or draw random numbers
    from any generator but the device's own. Operations inside a library's kernels are not seen; a capture that fails
    on one of them says so itself.

    Args:
        device: where the step runs. On a CPU, copies and generators are not checked, since there they are the same
            for every step that can be captured elsewhere.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, or torch would spend a second or two on loading its compiler, only to disable it."""
        return False

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.on_gpu, self.reason = device.type == "cuda", ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out the operation; note it if it is the first that cannot be repeated."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.reason and (what := self._obstacle(func, args, kwargs, result)):
            self.reason = f"{what} ({_name(func).removeprefix('aten::')} in {_place()})"
        return result

    def _obstacle(self, func: Any, args: Any, kwargs: Any, result: Any) -> str:
        """Why an operation cannot be repeated; empty if it can."""
        name, tags = _name(func), getattr(func, "tags", ())
        if torch.Tag.data_dependent_output in tags:
            return "it reads a value back"
        if name in INDEXING:
            if not any(_is_mask(part) for part in _parts(args[1:2])):
                return ""
            filled = name != "aten::index" and args[2].numel() == 1  # like masked_fill, whose shape is fixed
            return "" if filled else "it picks entries by a mask"
        if torch.Tag.dynamic_output_shape in tags and kwargs.get("output_size") is None:
            return "it makes a tensor whose size depends on values"
        if not self.on_gpu:
            return ""
        if name in COPIES and {part.device.type for part in _parts((args, result))} == {"cpu", "cuda"}:
            return "it moves numbers between host and device"
        if torch.Tag.nondeterministic_seeded in tags:
            generator = kwargs.get("generator")
            elsewhere = generator is not None and generator.device.type == "cpu"
            if elsewhere or any(not part.is_cuda for part in _parts(result)):
                return "it draws random numbers on the CPU"
        return ""


def _name(func: Any) -> str:
    """Name of an operator; higher-order operators have no schema."""
    return str(getattr(getattr(func, "_schema", None), "name", func))


def _is_mask(part: Tensor) -> bool:
    return part.dtype in {torch.bool, torch.uint8}


def _parts(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _parts(part)


def _place() -> str:
    """Innermost line of code outside of torch and of this file."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith((TORCH, "<")):
            return f"{Path(file).name}, line {frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a backward pass"
