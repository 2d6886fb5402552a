"""Adam on a CPU with a kernel in C: one pass over each parameter, its gradient and its averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.compiled import Pull, kernels, kernels_over, readable
from evergraph.training.adam import PlainAdam, asked, begun


class CompiledAdam(PlainAdam):
    """`torch.optim.Adam`, with the same state and results, but without the lookups that torch repeats at every step.

    Args:
        params: parameters of one dtype on a CPU.
        lr: the learning rate; a tensor may change from step to step.
        weight_decay: L2 term added to gradients, as in `torch.optim.Adam`.
    """

    def __init__(self, params: Iterable[Tensor], lr: float | Tensor, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    _pulls: Mapping[Tensor, Pull] = {}  # quadratic penalties of the next step

    @capability(rests_on=("step",))
    def pulled_by(self, pulls: dict[Tensor, Pull]) -> bool:
        """Add quadratic penalties to the gradients during the next step; returns False if the kernel cannot do that."""
        suited = all(
            param.grad is not None and kernels_over(param, param.grad, anchor, importance) is not None
            for param, (anchor, importance, _) in pulls.items()
        )
        self._pulls = pulls if suited else {}
        return suited

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None."""
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss, pulls = asked(closure), self._pulls
        self._pulls = {}
        for group in self.param_groups:
            rate, (beta1, beta2) = float(group["lr"]), group["betas"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = begun(self.state[param], param)
                state["step"] += 1
                count = float(state["step"])
                settings = (
                    rate / (1 - beta1**count), beta1, beta2, math.sqrt(1 - beta2**count), group["eps"],
                    group["weight_decay"],
                )  # fmt: skip
                compiled = kernels(param.dtype, torch.int32)
                assert compiled is not None
                averages = state["exp_avg"], state["exp_avg_sq"]
                compiled.adam(param, param.grad.contiguous(), averages, settings, pulls.get(param))
        return loss


vars(CompiledAdam)["step"].hooked = True  # or torch would wrap every step for its profiler


def compiled_adam_suits(params: Sequence[Tensor]) -> bool:
    """Whether these are parameters on a CPU that compiled kernels can update."""
    dtypes = {param.dtype for param in params}
    return len(dtypes) == 1 and readable(*params) and kernels(dtypes.pop(), torch.int32) is not None
