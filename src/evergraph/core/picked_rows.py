"""Rows of a sparse matrix that are read where they stand: a batch's inputs without a copy and without a transpose.

A batch of a small graph reads most of its rows. X_b W reads them out of X, and X_bᵀ G goes through the entries of Xᵀ,
which is made once for all batches, and leaves out the rows that are not in the batch.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from evergraph.core.sparse import SparseMatrix

MOST_OF_IT = 0.25  # share of the rows from which the transpose of the whole is read in place of one of its own


class _Unwritten(SparseMatrix):
    """Rows of a whole matrix, or their transpose: multiplied with as they are, written out when entries are asked for.

    Args:
        whole: the matrix.
        picked: the rows, int64.
        num_columns: its own.
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
        """Where the entries are."""
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
        """The transpose: entries of the whole's, where that has few besides."""
        if self._transpose is None:
            most = self.num_rows >= MOST_OF_IT * self.whole.num_rows
            self._transpose = _FlippedRows(self.whole, self.picked) if most else self._written.t()
        return self._transpose


class _FlippedRows(_Unwritten):
    """The transpose of picked rows. It does not know them: a cycle would keep batches alive."""

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
