"""Which nodes of a class to keep: the samplers of ER-GNN and TEM, as pure functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse as sp
from torch import Tensor

from evergraph.core.params import Params
from evergraph.core.sparse import SparseMatrix
from evergraph.curvature import fisher_product, forward_product
from evergraph.curvature.products import OutputFunction, pull_back
from evergraph.problems.base import Problem

ROWS_AT_ONCE = 512


def nearest_to_mean(x: Tensor) -> Tensor:
    """Return the rows' indices in order of distance from the mean of all rows, the nearest first."""
    return (x - x.mean(0)).norm(dim=1).argsort(stable=True)


def strangers_within(x: Tensor, others: Tensor, radius: float) -> Tensor:
    """Return, for each row of x, the number of rows of `others` closer than the radius.

    Distances come from products of rows, which is fast; in double precision, since the products cancel where features
    are far from zero.
    """
    others = others.double()
    parts = [(torch.cdist(rows.double(), others) < radius).sum(1) for rows in x.split(ROWS_AT_ONCE)]
    return torch.cat(parts)


def mean_distance(x: Tensor, generator: torch.Generator, pairs: int = 4096) -> float:
    """Estimate the mean distance between different rows from random pairs; 0 if there is only one row."""
    if x.size(0) < 2:
        return 0.0
    left = torch.randint(x.size(0), (pairs,), generator=generator)
    right = (left + torch.randint(1, x.size(0), (pairs,), generator=generator)) % x.size(0)
    return float((x[left] - x[right]).norm(dim=1).mean())


def covered(adjacency: SparseMatrix, hops: int) -> Tensor:
    """Return the number of nodes within `hops` hops of each node, including itself."""
    one = adjacency.to_scipy().astype(np.float32)
    step = (one + sp.identity(one.shape[0], dtype=np.float32, format="csr")).tocsr()
    counts = []
    for start in range(0, step.shape[0], ROWS_AT_ONCE):
        reach = sp.identity(step.shape[0], dtype=np.float32, format="csr")[start : start + ROWS_AT_ONCE]
        for _ in range(hops):
            reach = reach @ step
            reach.data[:] = 1
        counts.append(np.diff(reach.indptr))
    return torch.from_numpy(np.concatenate(counts)).double()


def influences(
    function: OutputFunction,
    params: Params,
    problem: Problem,
    targets: Tensor,
    judged: tuple[OutputFunction, Tensor],
    damping: float,
    iterations: int,
) -> Tensor:
    """Return how much the loss on judged examples grows if a training example is left out: ∇L(J)ᵀ H⁻¹ ∇ℓ_v / n.

    This is the influence function of Koh and Liang (ICML 2017). H is the Fisher matrix of the n training examples
    divided by n, that is, the Gauss-Newton part of the Hessian, plus `damping` on its diagonal; H⁻¹ ∇L(J) comes from
    conjugate gradients, and one forward-mode pass gives the products with all ∇ℓ_v at once.

    Args:
        function: maps parameters to the outputs of the training examples.
        params: parameters at which to evaluate.
        problem: defines the loss of the outputs.
        targets: targets of the training examples.
        judged: function and targets of the examples whose summed loss is L(J).
        damping: added to the diagonal of H.
        iterations: maximum number of conjugate-gradient iterations.
    """
    number = targets.numel()
    with torch.no_grad():
        wanted = pull_back(judged[0], params, -problem.score(judged[0](params), judged[1]))

    def hessian(direction: Params) -> Params:
        product = fisher_product(function, params, direction, problem)
        return {name: product[name] / number + damping * direction[name] for name in direction}

    solved = conjugate_gradients(hessian, wanted, iterations)
    outputs, tangent = forward_product(function, {name: value.detach() for name, value in params.items()}, solved)
    return -(problem.score(outputs.detach(), targets) * tangent).sum(1) / number


def conjugate_gradients(
    product: Callable[[Params], Params], right: Params, iterations: int, tolerance: float = 1e-6
) -> Params:
    """Solve A x = right for a positive definite A, given as a function."""
    x = {name: torch.zeros_like(value) for name, value in right.items()}
    residual = {name: value.clone() for name, value in right.items()}
    direction, size = dict(residual), _dot(residual, residual)
    stop = tolerance**2 * size
    for _ in range(iterations):
        if size <= stop:
            break
        moved = product(direction)
        step = size / _dot(direction, moved)
        x = {name: x[name] + step * direction[name] for name in x}
        residual = {name: residual[name] - step * moved[name] for name in x}
        size, before = _dot(residual, residual), size
        direction = {name: residual[name] + size / before * direction[name] for name in x}
    return x


def _dot(left: Params, right: Params) -> float:
    return sum(float((left[name] * right[name]).sum()) for name in left)
