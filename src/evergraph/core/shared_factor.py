"""Ridge systems that differ in the ridge alone, from one factorization: the middle one's.

With A = M + λ I factorized, (A + δ I) x = b is x + δ A⁻¹ x = A⁻¹ b. That matrix has eigenvalues between 1 and
(λ + δ) / λ, so that conjugate gradients leave 0.4 of the error a step where ridges differ by a factor of five, and a
step costs one solution with the factor, of all right-hand sides at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from evergraph.core import lapack

REACH = 6.0  # from one ridge to the next, up to which they share a factorization
FROM = 3  # ridges in a row from which on they do: two are as fast side by side
STEPS = 12  # of conjugate gradients at most
LEFT = 3e-3  # of the residual: what is left is for refinements

Solver = Callable[[np.ndarray], np.ndarray]


def shared(shifts: Sequence[float]) -> list[list[int]]:
    """Which shifts share a factorization: their places, the one that is factorized first."""
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
    """What solves (A + δ I) x = b for each column with a δ of its own, to a few thousandths, from A's factor."""

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
    """Of each column with its counterpart; in float64, where squares of small numbers are still numbers."""
    found: np.ndarray = np.einsum("ij,ij->j", left, right, dtype=np.float64)
    return found


def _over(number: np.ndarray, by: np.ndarray) -> np.ndarray:
    """A quotient; 0 for a column that is done."""
    return np.divide(number, by, out=np.zeros_like(number), where=by > 0)
