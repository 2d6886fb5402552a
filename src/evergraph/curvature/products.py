"""Products with the full Fisher matrix, without forming it, for any function from parameters to outputs.

`function(params)` returns outputs `(examples, units)`; `params` and directions are dictionaries of tensors with
the same names; the problem says what the outputs mean. All results are sums over examples.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from evergraph.core.params import Direction, Params
from evergraph.curvature.labels import apply_output_fisher, label_factors

if TYPE_CHECKING:
    from evergraph.problems.base import Problem

OutputFunction = Callable[[Params], Tensor]


def forward_product(function: OutputFunction, params: Params, direction: Direction) -> tuple[Tensor, Tensor]:
    """Logits z and u = J d in one forward-mode pass; double reverse if an operator has no forward mode.

    The dual level is exited before backward is called: inside it, backward would carry tangents too.
    """
    _load_forward_mode()
    try:
        with forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(value, direction[name]) for name, value in params.items()}
            outputs, tangent = forward_ad.unpack_dual(function(dual))
            # a function that ignores its parameters has no tangent
            return outputs, torch.zeros_like(outputs) if tangent is None else tangent.detach()
    except (NotImplementedError, RuntimeError) as error:
        if "forward AD" not in str(error) and "jvp" not in str(error):
            raise
        return double_reverse_product(function, params, direction)


@functools.cache
def _load_forward_mode() -> None:
    """Load forward mode without the warning that torch compiles parts of it with a deprecated tool at its first use."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        forward_ad.make_dual(torch.zeros(1), torch.ones(1))


def double_reverse_product(function: OutputFunction, params: Params, direction: Direction) -> tuple[Tensor, Tensor]:
    """z and J d by reverse mode alone: Jᵀw is linear in w, and its own reverse product with d is J d."""
    with torch.enable_grad():
        leaves = {
            name: value if value.requires_grad else value.detach().requires_grad_() for name, value in params.items()
        }
        outputs = function(leaves)
        if not outputs.requires_grad:  # a function that ignores its parameters
            return outputs, torch.zeros_like(outputs)
        w = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, list(leaves.values()), w, create_graph=True, allow_unused=True)
        pairs = [(g, direction[name]) for g, name in zip(pulled, leaves) if g is not None]
        (tangent,) = torch.autograd.grad([g for g, _ in pairs], w, [d for _, d in pairs], retain_graph=True)
    return outputs, tangent.detach()


def pull_back(function: OutputFunction, params: Params, cotangent: Tensor) -> Params:
    """Jᵀc."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        grads = torch.autograd.grad(function(leaves), list(leaves.values()), cotangent, allow_unused=True)
    return {name: torch.zeros_like(v) if g is None else g for (name, v), g in zip(leaves.items(), grads)}


def fisher_product(
    function: OutputFunction,
    params: Params,
    direction: Direction,
    problem: Problem,
    labels: str = "exact",
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Params:
    """F d = Σ_v J_vᵀ H_v J_v d: forward mode for u = J d, then reverse mode with the cotangent H u."""
    fixed = {name: value.detach() for name, value in params.items()}
    outputs, tangent = forward_product(function, fixed, direction)
    return pull_back(
        function, fixed, apply_output_fisher(problem, outputs.detach(), tangent, labels, targets, generator)
    )


def quadratic_form(
    function: OutputFunction,
    params: Params,
    direction: Direction,
    problem: Problem,
    labels: str = "exact",
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """dᵀ F d = Σ_v u_vᵀ H_v u_v, from one forward-mode pass alone."""
    fixed = {name: value.detach() for name, value in params.items()}
    outputs, tangent = forward_product(function, fixed, direction)
    return (tangent * apply_output_fisher(problem, outputs, tangent, labels, targets, generator)).sum()


def jacobian(function: OutputFunction, params: Params) -> Tensor:
    """∂z/∂θ with all parameters concatenated: `(examples, units, num_parameters)`. For small models."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        outputs = function(leaves)
        units = torch.eye(outputs.numel(), dtype=outputs.dtype, device=outputs.device).unflatten(1, outputs.shape)
        rows = torch.autograd.grad(outputs, list(leaves.values()), units, is_grads_batched=True, allow_unused=True)
    flat = [
        torch.zeros(outputs.numel(), v.numel(), dtype=v.dtype, device=v.device) if r is None else r.flatten(1)
        for r, v in zip(rows, leaves.values())
    ]
    return torch.cat(flat, dim=1).unflatten(0, outputs.shape)


def dense_fisher(
    function: OutputFunction,
    params: Params,
    problem: Problem,
    labels: str = "exact",
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The full Fisher matrix Σ_v J_vᵀ H_v J_v, as a dense matrix of side `num_parameters`. For small models."""
    with torch.no_grad():
        outputs = function({name: value.detach() for name, value in params.items()})
    factors = label_factors(problem, outputs, labels, targets, generator)
    rows = torch.einsum("vkc,vcp->vkp", factors, jacobian(function, params)).flatten(0, 1)
    return rows.T @ rows
