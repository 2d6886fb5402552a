"""Dense products and ridge solutions on a CPU by scipy's BLAS and LAPACK; elsewhere, and as the plain path, by torch.

A symmetric product costs half of a product, and a factorization in float32, refined in float64, about half of one in
float64. How many threads scipy may use is what torch is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import scipy.linalg
import torch
from scipy.linalg import blas, lapack
from threadpoolctl import ThreadpoolController
from torch import Tensor

from evergraph.core.shortcuts import fast

PANEL = 256  # columns that are mirrored, or multiplied by torch, at once
SMALL = 512  # rows of a matrix up to which float64 is as fast
EXACT, ROUGH = 1e-8, 1e-5  # relative errors of a solution: to be kept, and to count hits with
SLOW = 0.1  # share of the error that a refinement may leave; beyond, float32 says too little
WORTH_SHARING = 1e9  # multiplications from which on threads share them: some ten milliseconds of one
KINDS = (torch.float32, torch.float64)


class SingularError(ValueError):
    """A matrix that is not positive definite to float64's precision; `shift` is what its diagonal was raised by."""

    def __init__(self, shift: float) -> None:
        super().__init__(f"not positive definite with a shift of {shift:g}")
        self.shift = shift


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


_lock, _limits = Lock(), list[Any]()  # what puts back the limits that others had set, of each computation under way


@contextmanager
def _threads(work: float) -> Iterator[None]:
    """As many threads as torch has for so many multiplications; one where they take less than waiting for others.

    Limits are the whole process's: of several computations at once the last one's holds, and the end of all puts back
    what was before the first. What overflows is told by what comes out.
    """
    with _lock:
        limit = torch.get_num_threads() if work > WORTH_SHARING else 1
        _limits.append(_controller().limit(limits=limit, user_api="blas"))
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        with _lock:
            last = _limits.pop()
            if not _limits:  # it is the first one's: the others' would put back what was set meanwhile
                last.restore_original_limits()


def by_blas(*tensors: Tensor) -> bool:
    """Whether scipy computes with these."""
    return fast("blas") and all(tensor.device.type == "cpu" and tensor.dtype in KINDS for tensor in tensors)


def product(left: Tensor, right: Tensor) -> Tensor:
    """A product of matrices of one type."""
    if not by_blas(left, right):
        return left @ right
    with _threads(left.numel() * right.size(1)):
        return torch.from_numpy(left.detach().numpy() @ right.detach().numpy())


def symmetric_product(rows: Tensor) -> Tensor:
    """rowsᵀ rows: one triangle is computed, the other is its copy."""
    width = rows.size(1)
    if not by_blas(rows):
        found = rows.new_empty(width, width)
        for start in range(0, width, 4 * PANEL):
            panel = slice(start, min(start + 4 * PANEL, width))
            torch.mm(rows[:, panel].T, rows[:, start:], out=found[panel, start:])
        return mirrored(found)
    update = blas.ssyrk if rows.dtype == torch.float32 else blas.dsyrk
    with _threads(rows.numel() * width / 2):
        if rows.stride(0) == 1 and rows.size(0) > 1:  # a transpose
            found = torch.from_numpy(update(1.0, rows.detach().numpy(), trans=1, lower=1).T)
        else:
            found = torch.from_numpy(update(1.0, rows.detach().contiguous().numpy().T, lower=1).T)
    return mirrored(found)


def mirrored(matrix: Tensor) -> Tensor:
    """The matrix with the upper triangle copied to the lower one."""
    width = matrix.size(0)
    for start in range(0, width, PANEL):
        stop = min(start + PANEL, width)
        corner = matrix[start:stop, start:stop]
        corner.copy_(corner.triu() + corner.triu(1).T)
        matrix[stop:, start:stop] = matrix[start:stop, stop:].T
    return matrix


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, from the smallest, and eigenvectors of a symmetric matrix."""
    if not by_blas(matrix):
        return tuple(torch.linalg.eigh(matrix))
    with _threads(matrix.size(0) ** 3):
        lengths, directions = scipy.linalg.eigh(matrix.numpy(), driver="evd", check_finite=False)
    return torch.from_numpy(lengths), torch.from_numpy(directions)


def shifted_solutions(
    matrix: Tensor, shifts: Sequence[float], targets: Tensor, error: float = EXACT
) -> Iterator[Tensor]:
    """(M + shift · I)⁻¹ targets for each shift, of a symmetric matrix in float64; raises `SingularError`.

    Args:
        matrix: M; its diagonal is overwritten.
        shifts: what is added to its diagonal.
        targets: one column for each system.
        error: relative error up to which a solution is refined.
    """
    if not by_blas(matrix, targets):
        diagonal = matrix.diagonal().clone()
        for shift in shifts:
            matrix.diagonal().copy_(diagonal + shift)
            factor, failed = torch.linalg.cholesky_ex(matrix)
            if int(failed):
                raise SingularError(shift)
            yield torch.cholesky_solve(targets, factor)
        return
    dense, wanted = matrix.numpy(), targets.numpy()
    plain = np.diagonal(dense).copy()
    for shift in shifts:
        np.fill_diagonal(dense, plain + shift)
        with _threads(dense.shape[0] ** 3 / 3):
            found = _refined(dense, wanted, error) if dense.shape[0] > SMALL else None
            if found is None:
                factor, failed = lapack.dpotrf(dense.T, clean=0)
                if failed:
                    raise SingularError(shift)
                found, _ = lapack.dpotrs(factor, wanted)
        yield torch.from_numpy(np.ascontiguousarray(found))


def _refined(dense: np.ndarray, wanted: np.ndarray, error: float) -> np.ndarray | None:
    """A solution by a factorization in float32, refined by float64 residuals; None where that says too little.

    Every refinement leaves about the same share of the error; its size times that share is the error that is left.
    """
    factor, failed = lapack.spotrf(dense.astype(np.float32).T, clean=0, overwrite_a=1)
    if failed:
        return None
    found = lapack.spotrs(factor, wanted.astype(np.float32))[0].astype(np.float64)
    size, before = np.linalg.norm(found, axis=0), 1.0
    size[size == 0] = 1.0  # of a column of zeros
    while True:
        step = lapack.spotrs(factor, (wanted - dense @ found).astype(np.float32))[0]
        found += step
        change = float((np.linalg.norm(step, axis=0) / size).max(initial=0.0))
        if not change <= SLOW * before:
            return None
        if change * change / before <= error / 10:  # shares differ from step to step
            return found
        before = change
