"""scipy's BLAS and LAPACK, called without Python's global lock, so that jobs in threads run side by side.

`scipy.linalg.blas` and `scipy.linalg.lapack` hold the lock while a routine runs. `scipy.linalg.cython_blas` and
`cython_lapack` expose the same routines as pointers, and ctypes releases the lock. Matrices are numpy's, in row-major
order, which Fortran reads as their transposes: "lower" here is "upper" there.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.linalg import cython_blas, cython_lapack

from evergraph.core import large
from evergraph.core.compiled import address, few_columns, kernels

KINDS = {np.dtype(np.float32): ("s", ctypes.c_float), np.dtype(np.float64): ("d", ctypes.c_double)}
TYPES = {kind: dtype for dtype, kind in large.KINDS.items()}
INTEGERS = {"syrk": 4, "potrf": 3, "potrs": 5}  # number of a routine's integer arguments


@cache
def usable() -> bool:
    """Return whether scipy's routines are available, with 32-bit integers."""
    try:
        return all(
            _name(name, kind).count(b" int *") == number
            for name, number in INTEGERS.items()
            for kind, _ in KINDS.values()
        )
    except KeyError:
        return False


def rank_update(rows: np.ndarray) -> np.ndarray:
    """Return the upper triangle of rowsᵀ rows; the lower one is undefined.

    Args:
        rows: a matrix with contiguous rows or columns.
    """
    width, across = rows.shape[1], rows.strides[1] == rows.itemsize
    found = large.array((width, width), rows.dtype)
    if not rows.size:
        found.fill(0)
        return found
    step = _step(rows.strides[0 if across else 1], rows, rows.shape[1 if across else 0])
    scalar = KINDS[rows.dtype][1]
    one, zero = ctypes.byref(scalar(1.0)), ctypes.byref(scalar(0.0))
    how = b"N" if across else b"T"
    _call("syrk", rows, b"L", how, width, rows.shape[0], one, address(rows), step, zero, address(found), max(width, 1))
    return found


def factorize(matrix: np.ndarray) -> bool:
    """Overwrite the lower triangle, the only part that is read, with the Cholesky factor L; False if there is none."""
    failed = ctypes.c_int(0)
    _call("potrf", matrix, b"U", len(matrix), address(matrix), max(len(matrix), 1), ctypes.byref(failed))
    return failed.value == 0 and bool(np.isfinite(np.diagonal(matrix)).all())


def solve_factorized(factor: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return (L Lᵀ)⁻¹ columns, in the factor's type; for few columns, a kernel reads the factor once each way.

    The factor may be a leading part of a larger one.
    """
    compiled = kernels(TYPES[factor.dtype], torch.int64)
    few = few_columns(columns, factor.dtype) if compiled is not None else None
    if compiled is not None and few is not None:
        compiled.solve(factor, few)
        return few[:, : columns.shape[1]]
    found, failed = np.array(columns.T, dtype=factor.dtype, order="C"), ctypes.c_int(0)
    size, step = len(factor), _step(factor.strides[0], factor, len(factor))
    ends = address(found), max(size, 1), ctypes.byref(failed)
    _call("potrs", factor, b"U", size, len(found), address(factor), step, *ends)
    return found.T


def _step(stride: int, rows: np.ndarray, least: int) -> int:
    """Return the distance between rows, in numbers; the stride of a single row is meaningless."""
    return max(stride // rows.itemsize, least, 1)


def _call(name: str, like: np.ndarray, *values: Any) -> None:
    """Call a routine; numbers are passed by reference."""
    held = [
        ctypes.c_char_p(value) if isinstance(value, bytes)
        else ctypes.byref(ctypes.c_int(value)) if isinstance(value, int)
        else value
        for value in values
    ]  # fmt: skip
    _routine(name, KINDS[like.dtype][0])(*held)


@cache
def _routine(name: str, kind: str) -> Any:
    capsule = _capsule(name, kind)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = _name(name, kind)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * signature.count(b"*"))(pointer(capsule, signature))


def _name(name: str, kind: str) -> bytes:
    """Return the routine's signature, which is needed to get its pointer."""
    named = ctypes.pythonapi.PyCapsule_GetName
    named.restype, named.argtypes = ctypes.c_char_p, [ctypes.py_object]
    found: bytes = named(_capsule(name, kind))
    return found


def _capsule(name: str, kind: str) -> Any:
    module = cython_blas if name == "syrk" else cython_lapack
    return module.__pyx_capi__[f"{kind}{name}"]
