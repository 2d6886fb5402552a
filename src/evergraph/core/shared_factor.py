"""Solutions of shifted systems (M + shift · I) X = T from as few factorizations as possible.

Systems share a factorization in two ways:

- **Shifts.** With A = M + λ I factorized, (A + δ I) x = b is x + δ A⁻¹ x = A⁻¹ b, which takes a few steps of conjugate
  gradients, each of which solves with the factor. Where a rough solution will do, one Lanczos basis serves all shifts.
- **Leading rows.** The factor of a matrix that is the leading part of another is the leading part of its factor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from evergraph.core import lapack
from evergraph.core.symmetric import SymmetricSum

REACH = 6.0  # largest ratio of neighbouring shifts that share a factorization
FROM = 3  # neighbouring shifts that share one; two are as fast side by side
CLOSE = 1.1  # ratio of shifts up to which refinements alone bridge the difference
FAR = 30.0  # largest ratio of a rough system's shift to the factorized one
STEPS = 12  # largest number of steps of conjugate gradients
LEFT = 3e-3  # share of the residual that is left to refinements
ROUGH_STEPS = 40  # largest number of Lanczos steps
ROUGH = 1e-4  # share of the residual that a rough solution leaves
FIRST_CHECK = 6  # number of Lanczos steps after which the residual is looked at

Solver = Callable[[np.ndarray], np.ndarray]


class ShiftedSystem(NamedTuple):
    """The system (M + shift · I) X = T.

    Args:
        matrix: M.
        shift: number to add to its diagonal.
        targets: T, one right-hand side per column, in float64.
        rough: whether a relative error of about a thousandth will do.
    """

    matrix: SymmetricSum
    shift: float
    targets: Tensor
    rough: bool = False


def grouped(systems: Sequence[ShiftedSystem]) -> list[list[int]]:
    """Return the groups of systems that share a factorization, by index, the one to factorize first."""
    left = sorted(range(len(systems)), key=lambda place: -systems[place].matrix.size)
    found = list[list[int]]()
    while left:
        largest = systems[left[0]].matrix
        family = [place for place in left if systems[place].matrix.leads(largest)]
        left = [place for place in left if place not in family]
        found += _grouped_family(systems, family)
    return found


def _grouped_family(systems: Sequence[ShiftedSystem], family: Sequence[int]) -> list[list[int]]:
    """Group systems whose matrices are leading parts of one another, given in descending size."""
    groups = list[list[int]]()

    def nearest(place: int, reach: float) -> list[int] | None:
        """Return the group with the nearest shift whose factor can serve a system; None if there is none."""
        own = systems[place]
        able = [(ratio(own, systems[group[0]]), number) for number, group in enumerate(groups)
                if systems[group[0]].matrix.size >= own.matrix.size]  # fmt: skip
        smallest, number = min(able, default=(np.inf, -1))
        return groups[number] if smallest <= reach else None

    exact, rough = ([place for place in family if systems[place].rough == wanted] for wanted in (False, True))
    for place in exact:
        group = nearest(place, CLOSE)
        group.append(place) if group is not None else groups.append([place])
    if len({systems[group[0]].matrix.size for group in groups}) == 1:
        joined = shared([systems[group[0]].shift for group in groups])
        groups = [[place for number in numbers for place in groups[number]] for numbers in joined]
    while alone := [place for place in rough if nearest(place, FAR) is None]:
        largest = [place for place in alone if systems[place].matrix.size == systems[alone[0]].matrix.size]
        groups.append([sorted(largest, key=lambda place: systems[place].shift)[len(largest) // 2]])
        rough.remove(groups[-1][0])
    for place in rough:
        group = nearest(place, FAR)
        assert group is not None
        group.append(place)
    return groups


def ratio(one: ShiftedSystem, other: ShiftedSystem) -> float:
    """Return the larger shift over the smaller one."""
    small, large = sorted((one.shift, other.shift))
    return large / small if small > 0 else np.inf


def shared(shifts: Sequence[float]) -> list[list[int]]:
    """Return the groups of shifts of one matrix that share a factorization, by index, the one to factorize first."""
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
    """Return a solver of (A + δ I) x = b with a δ per column, accurate to a few thousandths, from A's factor.

    The system x + δ A⁻¹ x = A⁻¹ b has a matrix with eigenvalues between 1 and (λ + δ) / λ, so each step of conjugate
    gradients leaves 0.4 of the error if shifts differ by a factor of five.
    """

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


def rough_solutions(factor: np.ndarray, differences: Sequence[float], columns: np.ndarray) -> list[np.ndarray] | None:
    """Return (A + δ I)⁻¹ columns for each δ, from A's factor; None if that takes too many steps.

    Lanczos steps with A⁻¹ give an orthonormal basis V of the Krylov space of each column's A⁻¹ b, in which A⁻¹ is a
    tridiagonal matrix T. The solution of x + δ A⁻¹ x = A⁻¹ b in that space is ‖A⁻¹ b‖ V (I + δ T)⁻¹ e₁ for every δ.
    """
    start = lapack.solve_factorized(factor, columns)
    length = np.sqrt(_products(start, start))
    basis = [(start * _over(np.ones_like(length), length)).astype(factor.dtype)]
    on, beside = list[np.ndarray](), list[np.ndarray]()  # the tridiagonal matrix of each column
    for step in range(1, ROUGH_STEPS + 1):
        new = lapack.solve_factorized(factor, basis[-1])
        on.append(_products(basis[-1], new))
        new -= on[-1].astype(factor.dtype) * basis[-1]
        if beside:
            new -= beside[-1].astype(factor.dtype) * basis[-2]
        beside.append(np.sqrt(_products(new, new)))
        if step >= FIRST_CHECK or not beside[-1].any():
            weights = [_tridiagonal_solution(np.stack(on), np.stack(beside[:-1] or beside), d) for d in differences]
            left = [np.abs(d * beside[-1] * each[-1]) for d, each in zip(differences, weights)]
            if all((each <= ROUGH).all() for each in left):
                return [_combined(basis, length * each) for each in weights]
        basis.append(new * _over(np.ones_like(length), beside[-1]).astype(factor.dtype))
    return None


def _tridiagonal_solution(on: np.ndarray, beside: np.ndarray, difference: float) -> np.ndarray:
    """Return (I + δ T)⁻¹ e₁ for each column's T: `on` and `beside` its diagonal, one row per step."""
    steps, count = on.shape
    places, system = np.arange(steps), np.zeros((count, steps, steps))
    system[:, places, places] = 1 + difference * on.T
    system[:, places[1:], places[:-1]] = system[:, places[:-1], places[1:]] = difference * beside[: steps - 1].T
    first = np.zeros((count, steps, 1))
    first[:, 0] = 1
    found: np.ndarray = np.linalg.solve(system, first)[:, :, 0].T
    return found


def _combined(basis: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Return the sum of the basis vectors of each column, weighted by a row of weights each."""
    found = np.zeros_like(basis[0])
    for vectors, own in zip(basis, weights):
        found += own.astype(found.dtype) * vectors
    return found


def by_size(systems: Sequence[ShiftedSystem], places: Sequence[int]) -> Iterator[list[int]]:
    """Yield the places of systems of each size."""
    for size in dict.fromkeys(systems[place].matrix.size for place in places):
        yield [place for place in places if systems[place].matrix.size == size]


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of each column with its counterpart, in float64, so that small squares do not underflow."""
    found: np.ndarray = np.einsum("ij,ij->j", left, right, dtype=np.float64)
    return found


def _over(number: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return the quotient; 0 for a column that has converged."""
    return np.divide(number, by, out=np.zeros_like(number), where=by > 0)
