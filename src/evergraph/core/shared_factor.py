"""Solutions of ridge systems that differ only in the ridge, from the factorization of the middle one.

With A = M + λ I factorized, (A + δ I) x = b is x + δ A⁻¹ x = A⁻¹ b. This system's matrix has eigenvalues between 1 and
(λ + δ) / λ, so each step of conjugate gradients leaves 0.4 of the error if ridges differ by a factor of five, and
costs one solve with the factor, for all right-hand sides at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from evergraph.core import lapack

REACH = 6.0  # largest ratio of neighbouring ridges that share a factorization
FROM = 3  # neighbouring ridges that share one; two ridges are as fast side by side
STEPS = 12  # largest number of steps of conjugate gradients
LEFT = 3e-3  # share of the residual that is left to refinements

Solver = Callable[[np.ndarray], np.ndarray]


def shared(shifts: Sequence[float]) -> list[list[int]]:
    """Return the groups of shifts that share a factorization, by index, the one to factorize first."""
    left, found = sorted(range(len(shifts)), key=lambda place: shifts[place]), list[list[int]]()
    while left:
        group = left[:FROM]
        near = all(0 < shifts[a] <= shifts[b] <= REACH * shifts[a] for a, b in itertools.pairwise(group))
        group = group if near and len(group) == FROM else group[:1]
        left = left[len(group) :]
        middle = len(group) // 2
        found.append([group[middle], *group[:middle], *group[middle + 1 :]])
    return found


def nearby_solver(factor: np.ndarray, differences: np.ndarray) -> Solver:
    """Return a solver of (A + δ I) x = b with a δ per column, accurate to a few thousandths, from A's factor."""

    def solve(columns: np.ndarray) -> np.ndarray:
        residual = lapack.solve_factorized(factor, columns)
        delta = differences.astype(factor.dtype)
        found, step, length = np.zeros_like(residual), residual.copy(), _products(residual, residual)
        enough = LEFT**2 * length
        for _ in range(STEPS):
            moved = step + delta * lapack.solve_factorized(factor, step)
            size = _over(length, _products(step, moved)).astype(factor.dtype)
            found += size * step
            residual -= size * moved
            before, length = length, _products(residual, residual)
            if (length <= enough).all():
                break
            step = residual + _over(length, before).astype(factor.dtype) * step
        return found

    return solve


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of each column with its counterpart, in float64, so that small squares do not underflow."""
    found: np.ndarray = np.einsum("ij,ij->j", left, right, dtype=np.float64)
    return found


def _over(number: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return the quotient; 0 for a column that has converged."""
    return np.divide(number, by, out=np.zeros_like(number), where=by > 0)
