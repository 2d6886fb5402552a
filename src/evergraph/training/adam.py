"""Adam for a few parameters on a GPU.

torch's fused kernel assigns 65,536 elements to each block, so that a weight matrix of 1.7 million keeps only 27 of an
H200's 132 multiprocessors busy, and a small one only a single one. Here a block has 1,024 elements.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capability, capable
from evergraph.core.compiled import Pull
from evergraph.core.row_pieces import row_kernel
from evergraph.core.shortcuts import fast
from evergraph.methods.base import Context, Method

MOST = 8  # parameters; beyond that, one kernel for all of them is faster


class PlainAdam(torch.optim.Adam):
    """`torch.optim.Adam` without the wrappers that spend a second or two on loading torch's compiler to disable it."""


for _name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
    setattr(PlainAdam, _name, inspect.unwrap(getattr(torch.optim.Adam, _name)))


class WideAdam(PlainAdam):
    """`torch.optim.Adam`, with the same state and results, but one kernel for every two parameters.

    Args:
        params: float32 parameters on one GPU.
        lr: the learning rate, a tensor on that GPU.
        weight_decay: L2 term added to gradients, as in `torch.optim.Adam`.
    """

    def __init__(self, params: Iterable[Tensor], lr: Tensor, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, capturable=lr.is_cuda)

    _pulls: Mapping[Tensor, Pull] = {}  # quadratic penalties of the next step

    @capability(rests_on=("step",))
    def pulled_by(self, pulls: dict[Tensor, Pull]) -> bool:
        """Add quadratic penalties to the gradients during the next step; returns False if the kernel cannot do that."""
        params = {param for group in self.param_groups for param in group["params"] if param.grad is not None}
        alike = all(_laid_out_alike(param, *anchored) for param, (*anchored, _) in pulls.items())
        strengths = {strength for *_, strength in pulls.values()}
        suited = not pulls or (params == set(pulls) and alike and len(strengths) == 1)
        self._pulls = pulls if suited else {}
        return suited

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        from evergraph.training.adam_kernel import launch

        loss, pulls = asked(closure), self._pulls
        self._pulls = {}
        strength = next((pull[2] for pull in pulls.values()), None)
        for group in self.param_groups:
            moved: list[tuple[Any, dict[str, Any]]] = [
                (param, begun(self.state[param], param)) for param in group["params"] if param.grad is not None
            ]
            if moved:
                torch._foreach_add_([state["step"] for _, state in moved], 1)
            settings = group["lr"], group["betas"], group["eps"], group["weight_decay"], strength
            parts = [(*_taken_apart(*one), *pulls.get(one[0], (one[0], one[0]))[:2]) for one in moved]
            for one, other in zip_longest(parts[::2], parts[1::2]):
                launch(one, other, *settings)
        return loss


def pulled_while_moving(context: Context, method: Method, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the method only adds a quadratic penalty to gradients, and the optimizer does that during its update."""
    pulled_by, pulls = capable(optimizer, "pulled_by"), capable(method, "pulls")
    return pulled_by is not None and pulls is not None and pulled_by(pulls(context))


def asked(closure: Callable[[], float] | None) -> float | None:
    """Return the loss computed by an optimizer step's closure; None if there is no closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def begun(state: dict[str, Any], param: Tensor) -> dict[str, Any]:
    """Return Adam's state of a parameter, filled with zeros at its first step."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
    return state


def _taken_apart(param: Tensor, state: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return a parameter, its gradient in the same memory layout, its averages and its number of steps."""
    grad = param.grad
    assert grad is not None
    if grad.stride() != param.stride():
        grad = torch.empty_like(param).copy_(grad)
    return param, grad, state["exp_avg"], state["exp_avg_sq"], state["step"]


def _laid_out_alike(param: Tensor, *others: Tensor) -> bool:
    """Whether tensors have a parameter's shape and dtype and are contiguous."""
    return all(other.shape == param.shape and other.dtype == param.dtype and other.is_contiguous() for other in others)


def wide_adam_suits(params: Sequence[Tensor]) -> bool:
    """Whether these are a few float32 parameters on a GPU where Triton's kernels work."""
    return (
        fast("adam")
        and len(params) <= MOST
        and all(param.is_cuda and param.dtype == torch.float32 and param.is_contiguous() for param in params)
        and row_kernel() is not None
    )
