"""Rows of a sparse matrix that are read in place: a batch's inputs without a copy and without a transpose.

A batch of a small graph reads most of its rows. X_b W reads them from X, and X_bᵀ G goes through the entries of Xᵀ,
which is computed once for all batches, and skips the rows that are not in the batch.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from evergraph.core.sparse import SparseMatrix

MOST_OF_IT = 0.25  # share of the rows from which on the transpose of the whole is read, instead of one of their own


class _Unwritten(SparseMatrix):
    """Rows of a whole matrix, or their transpose: multiplied in place, and copied only if entries are requested.

    Args:
        whole: the matrix.
        picked: the rows, int64.
        num_columns: number of columns of the rows, or of their transpose.
    """

    def __init__(self, whole: SparseMatrix, picked: Tensor, num_columns: int) -> None:
        self.whole, self.picked, self.num_columns = whole, picked, num_columns
        self._transpose, self._native, self._padded_rows, self._pieces = None, None, None, None
        self._longest, self._readable = None, None
        self._ends = {}

    def _written_out(self) -> SparseMatrix:
        raise NotImplementedError

    @cached_property
    def _written(self) -> SparseMatrix:
        return self._written_out()

    @property
    def device(self) -> torch.device:
        """Device of the entries."""
        return self.whole.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored entries."""
        return self.whole.dtype

    @property
    def indptr(self) -> Tensor:  # type: ignore[override]
        """Where each row starts."""
        return self._written.indptr

    @property
    def indices(self) -> Tensor:  # type: ignore[override]
        """The column of each stored entry."""
        return self._written.indices

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """The stored entries."""
        return self._written.values


class PickedRows(_Unwritten):
    """The given rows of a matrix, in the given order, each once.

    Args:
        whole: the matrix.
        picked: the rows, int64.
    """

    def __init__(self, whole: SparseMatrix, picked: Tensor) -> None:
        super().__init__(whole, picked, whole.num_columns)

    def _written_out(self) -> SparseMatrix:
        return self.whole.rows(self.picked)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.picked.numel()

    @cached_property
    def nnz(self) -> int:
        """Number of stored entries."""
        begin = self.whole.indptr
        return int((begin.index_select(0, self.picked + 1) - begin.index_select(0, self.picked)).sum())

    def _multiply(self, dense: Tensor, networks: int) -> Tensor:
        compiled = self.whole.kernels_with(dense)
        if compiled is None:
            return self._written._multiply(dense, networks)
        return compiled.multiply(self.whole.parts(), dense.detach().contiguous(), self.num_rows, self.picked)

    def t(self) -> SparseMatrix:
        """Return the transpose, which reads that of the whole if enough of its rows are picked."""
        if self._transpose is None:
            most = self.num_rows >= MOST_OF_IT * self.whole.num_rows
            self._transpose = _FlippedRows(self.whole, self.picked) if most else self._written.t()
        return self._transpose


class _FlippedRows(_Unwritten):
    """The transpose of picked rows, without a reference to them: a cycle would keep batches alive."""

    def __init__(self, whole: SparseMatrix, picked: Tensor) -> None:
        super().__init__(whole, picked, picked.numel())

    def _written_out(self) -> SparseMatrix:
        return self.whole.rows(self.picked).t()

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.whole.num_columns

    def _multiply(self, dense: Tensor, networks: int) -> Tensor:
        flipped = self.whole.t()
        compiled = flipped.kernels_with(dense, rows=self.num_columns)
        if compiled is None:
            return self._written._multiply(dense, networks)
        place = compiled.places(self.picked, self.whole.num_rows)
        return compiled.multiply_flipped(
            flipped.parts(), dense.detach().contiguous(), self.num_rows, place, flipped.longest_row()
        )
