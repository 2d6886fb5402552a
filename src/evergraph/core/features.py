"""Feature matrices, dense or sparse: products with them, their rows, and further columns and entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.sparse import SparseMatrix

Features = Tensor | SparseMatrix
"""A feature matrix, one row per node: dense or sparse."""


AnyFeatures = TypeVar("AnyFeatures", Tensor, SparseMatrix, Features)


def product(matrix: Features, dense: Tensor) -> Tensor:
    """Return X W for constant X and W, or for each W of stacked networks; records no gradient if X is sparse."""
    if isinstance(matrix, SparseMatrix):
        return matrix.multiply(dense)
    return matrix @ dense if dense.dim() == 2 else (matrix @ dense.flatten(1)).unflatten(1, dense.shape[1:])


def take_rows(features: Features, rows: Tensor) -> Features:
    """Return rows of a dense or sparse feature matrix."""
    if isinstance(features, SparseMatrix):
        return features.rows(rows)
    return large.rows(features, rows.to(features.device))


def sparse_product(left: SparseMatrix, right: Features) -> Features:
    """Return A X, sparse if X is sparse."""
    if not isinstance(right, SparseMatrix):
        return left @ right
    return SparseMatrix.from_scipy(left.to_scipy() @ right.to_scipy(), right.dtype).to(right.device)


def as_dense(features: Features) -> Tensor:
    """Return the features as a dense tensor."""
    return features.dense() if isinstance(features, SparseMatrix) else features


def with_ones(features: AnyFeatures) -> AnyFeatures:
    """Return [X 1], the features with a column of ones, so that a bias is a row of the weight matrix."""
    dtype, device = features.dtype, features.device
    return with_column(features, torch.ones(features.size(0), dtype=dtype, device=device))


def with_column(features: AnyFeatures, column: Tensor) -> AnyFeatures:
    """Return [X c], the features with one more column."""
    if not isinstance(features, SparseMatrix):
        return torch.cat([features, column.unsqueeze(1)], dim=1)
    last = features.indptr[1:] + torch.arange(features.num_rows, device=features.device)
    return _with_entries(features, last, torch.full_like(last, features.num_columns), column, features.num_columns + 1)


def with_self_loops(matrix: SparseMatrix) -> SparseMatrix:
    """Return A + I for a matrix without diagonal, with each row's self-loop first."""
    rows = torch.arange(matrix.num_rows, device=matrix.device)
    return _with_entries(matrix, matrix.indptr[:-1] + rows, rows, torch.ones_like(rows).to(matrix.dtype))


def _with_entries(
    matrix: SparseMatrix, where: Tensor, columns: Tensor, values: Tensor, num_columns: int | None = None
) -> SparseMatrix:
    """Return the matrix with one more entry in every row, at position `where` of the new list of entries."""
    indptr = matrix.indptr + torch.arange(matrix.num_rows + 1, device=matrix.device)
    new = torch.zeros(matrix.nnz + matrix.num_rows, dtype=torch.bool, device=matrix.device)
    new[where] = True
    all_columns = torch.empty(new.numel(), dtype=torch.long, device=matrix.device)
    all_values = torch.empty(new.numel(), dtype=matrix.dtype, device=matrix.device)
    all_columns[new], all_columns[~new] = columns, matrix.indices.long()
    all_values[new], all_values[~new] = values.to(matrix.dtype), matrix.values
    return SparseMatrix(indptr, all_columns, all_values, num_columns or matrix.num_columns)


def block_diagonal(matrices: Sequence[SparseMatrix]) -> SparseMatrix:
    """Return the block-diagonal matrix of the given ones."""
    shifted, start = [], 0
    for matrix in matrices:
        shifted.append(SparseMatrix(matrix.indptr, matrix.indices + start, matrix.values, 0))
        start += matrix.num_columns
    return SparseMatrix.stack(shifted, start)
