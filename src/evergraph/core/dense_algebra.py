"""Dense products and ridge solutions: by scipy's BLAS and LAPACK on a CPU, by torch elsewhere and as the plain path.

A symmetric product costs half as much as a general one, and a factorization in float32, refined in float64, about half
as much as one in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
import torch
from torch import Tensor

from evergraph.core import lapack, large
from evergraph.core.compiled import kernels
from evergraph.core.shared_factor import (
    CLOSE,
    ShiftedSystem,
    Solver,
    by_size,
    grouped,
    nearby_solver,
    ratio,
    rough_solutions,
)
from evergraph.core.shortcuts import fast
from evergraph.core.side_by_side import WORTH_SHARING, blas_threads, side_by_side
from evergraph.core.symmetric import Panel, SymmetricSum, pack, packed_size, panels

NARROW, TALL = 64, 64  # columns up to which a product takes a kernel of its own, and rows from which it does
ROWS = 1024  # rows of a product that are computed by one thread
SMALL = 512  # rows of a matrix up to which float64 is as fast
EXACT = 1e-8  # relative error of a solution
SLOW = 0.1  # share of the error that a refinement may leave; beyond it, float32 is too inexact
ACROSS = 1024  # columns of a panel that are computed at once: they are added to the total from the cache
SPARSE = 0.03  # share of nonzero entries up to which a product is formed from these alone


class SingularError(ValueError):
    """Raised if a matrix is not positive definite to float64's precision; `shift` was added to its diagonal."""

    def __init__(self, shift: float) -> None:
        super().__init__(f"not positive definite with a shift of {shift:g}")
        self.shift = shift


def by_blas(*tensors: Tensor) -> bool:
    """Return whether scipy computes with these tensors."""
    return (
        fast("blas")
        and lapack.usable()
        and all(tensor.device.type == "cpu" and tensor.dtype in large.KINDS for tensor in tensors)
    )


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices of the same type."""
    if not by_blas(left, right) or left.dtype != right.dtype or left.size(1) != right.size(0):
        return left @ right  # which raises the error
    factor, other, work = left.detach().numpy(), right.detach().numpy(), left.numel() * right.size(1)
    multiply = _narrow_product(factor, other) or np.matmul
    found = large.array((len(factor), other.shape[1]), factor.dtype)
    if work <= WORTH_SHARING:
        with blas_threads(work):
            multiply(factor, other, out=found)
        return torch.from_numpy(found)
    pieces = [slice(start, start + ROWS) for start in range(0, len(factor), ROWS)]  # whatever the number of threads
    side_by_side([partial(multiply, factor[piece], other, out=found[piece]) for piece in pieces])
    return torch.from_numpy(found)


def _narrow_product(left: np.ndarray, right: np.ndarray) -> Callable[..., None] | None:
    """Return a kernel that multiplies these matrices faster than BLAS does; None if there is none."""
    suits = 0 < right.shape[1] <= NARROW and len(left) >= TALL and left.strides[1] == left.itemsize
    compiled = kernels(lapack.TYPES[left.dtype], torch.int64) if suits and left.strides[0] > 0 else None
    return compiled.product if compiled is not None else None


def outer_product(rows: Tensor) -> Tensor:
    """Return rows rowsᵀ as a packed matrix (`symmetric`), from the nonzero entries if there are few, as in words."""
    if by_blas(rows) and np.count_nonzero(rows[::16].numpy()) <= SPARSE * rows[::16].numel():
        entries = scipy.sparse.csr_matrix(rows.numpy())
        return pack(torch.from_numpy((entries @ entries.T).toarray()))
    found = large.empty((packed_size(rows.size(0)),), rows.dtype, rows.device)
    _add_panels([None] * len(panels(found)), rows.T, 1, panels(found))
    return found


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues, in ascending order, and eigenvectors of a symmetric matrix."""
    if not by_blas(matrix):
        return tuple(torch.linalg.eigh(matrix))
    with blas_threads(matrix.size(0) ** 3):
        lengths, directions = scipy.linalg.eigh(matrix.numpy(), driver="evd", check_finite=False)
    return torch.from_numpy(lengths), torch.from_numpy(directions)


def add_symmetric_product(total: Tensor, rows: Tensor, sign: int = 1, out: Tensor | None = None) -> Tensor:
    """Return total + sign · rowsᵀ rows as a packed matrix (`symmetric`); products are formed in the type of the rows.

    Args:
        total: a packed symmetric matrix, whose type the result has.
        rows: the factor, of the total's type or a less precise one.
        sign: 1 or -1.
        out: where to write; `total` itself, or None for a new matrix.
    """
    found = large.empty(total.shape, total.dtype, total.device) if out is None else out
    _add_panels(panels(total), rows, sign, panels(found))
    return found


def symmetric_sum(rows: Tensor) -> Tensor:
    """Return rowsᵀ rows as a packed float64 matrix; products are formed in the type of the rows."""
    found = large.empty((packed_size(rows.size(1)),), torch.float64, rows.device)
    _add_panels([None] * len(panels(found)), rows, 1, panels(found))
    return found


def _add_panels(totals: Sequence[Panel | None], rows: Tensor, sign: int, found: Sequence[Panel]) -> None:
    """Write the panels of total + sign · rowsᵀ rows to `found`; on a CPU side by side, the largest first.

    A total of None is zero.
    """
    if not by_blas(rows, *(panel.entries for panel in found)):
        for total, panel in zip(totals, found):
            _add_panel_by_torch(total, rows, sign, panel)
        return
    factor = rows.detach().numpy()
    before = [None if total is None else total.entries.numpy() for total in totals]
    jobs = [
        partial(_add_panel, total, factor, sign, panel.entries.numpy(), panel.start)
        for total, panel in zip(before, found)
    ]
    side_by_side(jobs[::-1])


def _add_panel_by_torch(total: Panel | None, rows: Tensor, sign: int, found: Panel) -> None:
    own = rows[:, found.start : found.stop]
    new = own.T @ rows[:, : found.stop]
    corner = new[:, found.start :]
    corner.copy_(corner.tril() + corner.tril(-1).T)
    if total is None:
        found.entries.copy_(new)
    else:
        torch.add(total.entries, new.to(total.entries.dtype), alpha=sign, out=found.entries)


def _add_panel(total: np.ndarray | None, rows: np.ndarray, sign: int, found: np.ndarray, start: int) -> None:
    stop = start + len(found)
    own = rows[:, start:stop]
    if own.strides[0] != own.itemsize:  # rows are far apart
        own = np.ascontiguousarray(own)
    corner = np.triu(lapack.rank_update(own))
    corner += np.triu(corner, 1).T
    _put(total, corner, sign, found, slice(start, stop))
    room = np.empty((len(found), min(start, ACROSS)), dtype=rows.dtype)
    for first in range(0, start, ACROSS):
        place = slice(first, min(first + ACROSS, start))
        new = room[:, : place.stop - first]
        _put(total, np.matmul(own.T, rows[:, place], out=new), sign, found, place)


def _put(total: np.ndarray | None, new: np.ndarray, sign: int, found: np.ndarray, place: slice) -> None:
    """Write total + sign · new to some columns of `found`; a total of None is zero."""
    if total is None:
        found[:, place] = new
    else:
        (np.add if sign > 0 else np.subtract)(total[:, place], new, out=found[:, place])


class Solution(NamedTuple):
    """The solution of a shifted system, in float64, and whether it is as exact as was asked for, or rough."""

    found: Tensor
    exact: bool


def solutions(systems: Sequence[ShiftedSystem], error: float = EXACT) -> list[Solution]:
    """Solve systems to a relative error of `error`, those that may be rough perhaps less exactly.

    On a CPU as few matrices as possible are factorized (`shared_factor`), side by side, the largest first. Raises
    `SingularError`.
    """
    if not all(by_blas(system.targets, *system.matrix.parts) for system in systems):
        return [Solution(_by_torch(*system[:3]), True) for system in systems]
    groups = sorted(grouped(systems), key=lambda group: -systems[group[0]].matrix.size)
    jobs = [partial(_group_solutions, [systems[place] for place in group], error) for group in groups]
    by_place = {place: one for group, some in zip(groups, side_by_side(jobs)) for place, one in zip(group, some)}
    return [by_place[place] for place in range(len(systems))]


def _group_solutions(systems: Sequence[ShiftedSystem], error: float) -> list[Solution]:
    """Solve systems that share the first one's factorization."""
    used = [system.targets.numpy().any(0) for system in systems]  # the targets of a unit without nodes are zero
    wanted = [system.targets.numpy()[:, own] for system, own in zip(systems, used)]
    with blas_threads(systems[0].matrix.size ** 3 / 30):  # threads within a factorization wait for each other
        known = _by_one_factor(systems, wanted, error) if systems[0].matrix.size > SMALL else {}
        for place, system in enumerate(systems):
            if place and place not in known and system.matrix.size > SMALL:  # the first one has been tried
                known.update(zip([place], _by_one_factor([system], [wanted[place]], error).values()))
            if place not in known:
                known[place] = _plain(system.matrix, system.shift, wanted[place]), True
    solved = list[Solution]()
    for place, (system, own) in enumerate(zip(systems, used)):
        found, exact = known[place]
        whole = np.zeros(system.targets.shape)
        whole[:, own] = found
        solved.append(Solution(torch.from_numpy(whole), exact))
    return solved


def _by_torch(matrix: SymmetricSum, shift: float, targets: Tensor) -> Tensor:
    dense = matrix.formed()
    dense.diagonal().add_(shift)
    plain, wrong = torch.linalg.cholesky_ex(dense)
    if int(wrong):
        raise SingularError(shift)
    return torch.cholesky_solve(targets, plain)


def _plain(matrix: SymmetricSum, shift: float, wanted: np.ndarray) -> np.ndarray:
    """Solve by a factorization in float64."""
    dense = matrix.formed().numpy()
    np.fill_diagonal(dense, np.diagonal(dense) + shift)
    if not lapack.factorize(dense):
        raise SingularError(shift)
    return lapack.solve_factorized(dense, wanted)


def _by_one_factor(
    systems: Sequence[ShiftedSystem], wanted: Sequence[np.ndarray], error: float
) -> dict[int, tuple[np.ndarray, bool]]:
    """Solve by a factorization in float32 of the first system; returns the solutions that could be found, by place.

    Each comes with whether it is exact. `wanted` has the targets that are not zero.
    """
    first = systems[0]
    factor = first.matrix.single_triangle(first.shift)
    if not lapack.factorize(factor):
        return {}

    def refine(places: Sequence[int], solve: Solver) -> dict[int, tuple[np.ndarray, bool]]:
        """Solve systems of one matrix exactly, if refinements allow it."""
        shifts = np.repeat([systems[place].shift for place in places], wanted[places[0]].shape[1])
        some = _refined(systems[places[0]].matrix, shifts, np.hstack([wanted[p] for p in places]), solve, error)
        parts = [] if some is None else np.split(some, len(places), axis=1)
        return {place: (one, True) for place, one in zip(places, parts)}

    def roughly(places: Sequence[int], leading: np.ndarray) -> dict[int, tuple[np.ndarray, bool]]:
        differences = [systems[place].shift - first.shift for place in places]
        some = rough_solutions(leading, differences, wanted[places[0]])
        return {place: (one, False) for place, one in zip(places, some or [])}

    if not (found := refine([0], partial(lapack.solve_factorized, factor))):
        return {}
    others, jobs = range(1, len(systems)), list[Callable[[], dict[int, tuple[np.ndarray, bool]]]]()
    close = [place for place in others if ratio(first, systems[place]) <= CLOSE]
    for places in by_size(systems, [place for place in others if place not in close]):
        leading = factor[: systems[places[0]].matrix.size, : systems[places[0]].matrix.size]
        exact, rough = ([place for place in places if systems[place].rough == wish] for wish in (False, True))
        if exact:
            each = np.repeat([systems[place].shift - first.shift for place in exact], wanted[exact[0]].shape[1])
            jobs.append(partial(refine, exact, nearby_solver(leading, each)))
        if rough:
            jobs.append(partial(roughly, rough, leading))
    for place in close:
        leading = factor[: systems[place].matrix.size, : systems[place].matrix.size]
        jobs.append(partial(refine, [place], partial(lapack.solve_factorized, leading)))
    for some in side_by_side(jobs):
        found |= some
    return found


def _refined(
    matrix: SymmetricSum, shifts: np.ndarray, wanted: np.ndarray, solve: Solver, error: float
) -> np.ndarray | None:
    """Solve with a shift per column, refining by float64 residuals; returns None if `solve` is too inexact.

    Every refinement leaves about the same share of the error; its size times that share is the error that remains.
    """
    found = solve(wanted).astype(np.float64)
    size, before = np.linalg.norm(found, axis=0), 1.0
    size[size == 0] = 1.0  # columns of zeros
    while True:
        residual = wanted - matrix.times(found) - shifts * found
        step = solve(residual)
        found += step
        change = float((np.linalg.norm(step, axis=0) / size).max(initial=0.0))
        if not change <= SLOW * before:
            return None
        if change * change / before <= error / 10:  # with a margin, since shares differ from step to step
            return found
        before = change
