"""Dense products and ridge solutions on a CPU by scipy's BLAS and LAPACK; elsewhere, and as the plain path, by torch.

A symmetric product costs half of a product, and a factorization in float32, refined in float64, about half of one in
float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import scipy.linalg
import scipy.sparse
import torch
from torch import Tensor

from evergraph.core import lapack, large
from evergraph.core.shortcuts import fast
from evergraph.core.side_by_side import blas_threads, side_by_side
from evergraph.core.symmetric import SymmetricSum

PANEL = 256  # columns that are mirrored at once
SMALL = 512  # rows of a matrix up to which float64 is as fast
EXACT, ROUGH = 1e-8, 1e-5  # relative errors of a solution: to be kept, and to count hits with
SLOW = 0.1  # share of the error that a refinement may leave; beyond, float32 says too little
SPARSE = 0.03  # share of entries up to which a product is formed of these alone
KINDS = (torch.float32, torch.float64)


class SingularError(ValueError):
    """A matrix that is not positive definite to float64's precision; `shift` is what its diagonal was raised by."""

    def __init__(self, shift: float) -> None:
        super().__init__(f"not positive definite with a shift of {shift:g}")
        self.shift = shift


def by_blas(*tensors: Tensor) -> bool:
    """Whether scipy computes with these."""
    return (
        fast("blas")
        and lapack.usable()
        and all(tensor.device.type == "cpu" and tensor.dtype in KINDS for tensor in tensors)
    )


def product(left: Tensor, right: Tensor) -> Tensor:
    """A product of matrices of one type."""
    if not by_blas(left, right):
        return left @ right
    with blas_threads(left.numel() * right.size(1)):
        return torch.from_numpy(left.detach().numpy() @ right.detach().numpy())


def symmetric_product(rows: Tensor) -> Tensor:
    """rowsᵀ rows: one triangle is computed, the other is its copy."""
    width = rows.size(1)
    if not by_blas(rows):
        found = rows.new_empty(width, width)
        for start in range(0, width, 4 * PANEL):
            panel = slice(start, min(start + 4 * PANEL, width))
            torch.mm(rows[:, panel].T, rows[:, start:], out=found[panel, start:])
        return found.triu() + found.triu(1).T
    factor = rows.detach() if 1 in rows.stride() else rows.detach().contiguous()
    with blas_threads(rows.numel() * width / 2):
        return torch.from_numpy(_mirrored(lapack.rank_update(factor.numpy())))


def outer_product(rows: Tensor) -> Tensor:
    """rows rowsᵀ; by its entries where hardly any are not zero, as words are."""
    if by_blas(rows) and np.count_nonzero(rows[::16].numpy()) <= SPARSE * rows[::16].numel():
        entries = scipy.sparse.csr_matrix(rows.numpy())
        return torch.from_numpy((entries @ entries.T).toarray())
    return symmetric_product(rows.T)


def _mirrored(matrix: np.ndarray) -> np.ndarray:
    """The matrix with the upper triangle copied to the lower one."""
    for start in range(0, len(matrix), PANEL):
        stop = start + PANEL
        corner = np.triu(matrix[start:stop, start:stop])
        matrix[start:stop, start:stop] = corner + np.triu(corner, 1).T
        matrix[stop:, start:stop] = matrix[start:stop, stop:].T
    return matrix


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, from the smallest, and eigenvectors of a symmetric matrix."""
    if not by_blas(matrix):
        return tuple(torch.linalg.eigh(matrix))
    with blas_threads(matrix.size(0) ** 3):
        lengths, directions = scipy.linalg.eigh(matrix.numpy(), driver="evd", check_finite=False)
    return torch.from_numpy(lengths), torch.from_numpy(directions)


def add_symmetric_product(total: Tensor, rows: Tensor, sign: int = 1, out: Tensor | None = None) -> Tensor:
    """total + sign · rowsᵀ rows, in the total's type: products in that of the rows, panels side by side.

    Args:
        total: a symmetric matrix.
        rows: the factor, of that type or a smaller one.
        sign: 1 or -1.
        out: where to write; `total` itself, or None for a new matrix.
    """
    if not by_blas(total, rows):
        return torch.add(total, symmetric_product(rows), alpha=sign, out=out)
    found, rows = large.empty(total.shape, total.dtype) if out is None else out, rows.contiguous()
    starts = range(0, rows.size(1), 2 * PANEL)
    side_by_side([partial(_add_panel, total.numpy(), rows.numpy(), sign, found.numpy(), start) for start in starts])
    return found


def _add_panel(total: np.ndarray, rows: np.ndarray, sign: int, found: np.ndarray, start: int) -> None:
    """Some rows of the sum from the diagonal on, and the columns that mirror them."""
    stop = min(start + 2 * PANEL, rows.shape[1])
    own = np.ascontiguousarray(rows[:, start:stop])
    with blas_threads(own.size * (rows.shape[1] - start)):
        corner = np.triu(lapack.rank_update(own))
        corner += np.triu(corner, 1).T
        right = own.T @ rows[:, stop:]
    np.add(total[start:stop, start:stop], sign * corner, out=found[start:stop, start:stop])
    if sign < 0:
        np.negative(right, out=right)
    np.add(total[start:stop, stop:], right, out=found[start:stop, stop:])
    found[stop:, start:stop] = found[start:stop, stop:].T


def shifted_solutions(
    matrix: SymmetricSum, shifts: Sequence[float], targets: Tensor, error: float = EXACT
) -> list[Tensor]:
    """(M + shift · I)⁻¹ targets for each shift, in float64; raises `SingularError`.

    Args:
        matrix: M.
        shifts: what is added to its diagonal.
        targets: one column for each system, in float64.
        error: relative error up to which a solution is refined.
    """
    if by_blas(targets, *matrix.parts):
        return side_by_side([partial(shifted_solution, matrix, shift, targets, error) for shift in shifts])
    return [shifted_solution(matrix, shift, targets, error) for shift in shifts]


def shifted_solution(matrix: SymmetricSum, shift: float, targets: Tensor, error: float = EXACT) -> Tensor:
    """As `shifted_solutions`, for one shift."""
    if not by_blas(targets, *matrix.parts):
        dense = matrix.formed()
        dense.diagonal().add_(shift)
        plain, wrong = torch.linalg.cholesky_ex(dense)
        if int(wrong):
            raise SingularError(shift)
        return torch.cholesky_solve(targets, plain)
    wanted = targets.numpy()
    used = wanted.any(0)  # a unit that has met no node has zeros
    found = np.zeros(wanted.shape)
    with blas_threads(matrix.size**3 / 3):
        own = wanted[:, used]
        refined = _refined(matrix, shift, own, error) if matrix.size > SMALL else None
        found[:, used] = _plain(matrix, shift, own) if refined is None else refined
    return torch.from_numpy(found)


def _plain(matrix: SymmetricSum, shift: float, wanted: np.ndarray) -> np.ndarray:
    """A solution by a factorization in float64."""
    dense = matrix.formed().numpy()
    np.fill_diagonal(dense, np.diagonal(dense) + shift)
    if not lapack.factorize(dense):
        raise SingularError(shift)
    return lapack.solve_factorized(dense, wanted)


def _refined(matrix: SymmetricSum, shift: float, wanted: np.ndarray, error: float) -> np.ndarray | None:
    """A solution by a factorization in float32, refined by float64 residuals; None where that says too little.

    Every refinement leaves about the same share of the error; its size times that share is the error that is left.
    """
    factor = matrix.single_triangle(shift)
    if not lapack.factorize(factor):
        return None
    found = lapack.solve_factorized(factor, wanted).astype(np.float64)
    size, before = np.linalg.norm(found, axis=0), 1.0
    size[size == 0] = 1.0  # of a column of zeros
    while True:
        residual = wanted - matrix.times(found) - shift * found
        step = lapack.solve_factorized(factor, residual)
        found += step
        change = float((np.linalg.norm(step, axis=0) / size).max(initial=0.0))
        if not change <= SLOW * before:
            return None
        if change * change / before <= error / 10:  # shares differ from step to step
            return found
        before = change
