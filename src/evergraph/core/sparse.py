"""Sparse matrices with fast selection of rows and differentiable products.

`SparseMatrix` is a compressed-sparse-row matrix with constant values. `A @ W` is differentiable in
the dense factor `W` in every mode of autograd: backward (Aᵀ G), forward (A Ẇ), double backward and
batched (`vmap`). torch's own sparse product lacks the last three.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.compiled import Kernels, kernels, readable
from evergraph.core.frequent_columns import FrequentColumns, frequent_columns
from evergraph.core.row_pieces import Flags, RowPieces, row_kernel
from evergraph.core.shortcuts import fast

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")


@dataclass(eq=False, repr=False)
class SparseMatrix:
    """A constant matrix in CSR form.

    Args:
        indptr: where each row starts, `num_rows + 1` integers.
        indices: the column of each stored entry, row after row.
        values: the stored entries.
        num_columns: the number of columns.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor
    num_columns: int
    _transpose: SparseMatrix | None = None
    _native: Tensor | None = None
    _padded_rows: list[tuple[Tensor, Tensor]] | None = None
    _pieces: RowPieces | None = None
    _longest: int | None = None
    _readable: bool | None = None
    _ends: dict[int, int] = field(default_factory=dict)  # number of entries in the first n rows, for each n used so far
    _needed: Flags = (None, None)
    _frequent: FrequentColumns | None = None

    def __repr__(self) -> str:
        return f"SparseMatrix({self.num_rows} × {self.num_columns}, {self.nnz} entries, {self.dtype})"

    @classmethod
    def from_scipy(cls, matrix: sp.spmatrix, dtype: torch.dtype = torch.float32) -> SparseMatrix:
        """Convert any scipy sparse matrix; duplicates are summed and columns sorted."""
        matrix = sp.csr_matrix(matrix)
        matrix.sum_duplicates()
        return cls(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(np.ascontiguousarray(matrix.data)).to(dtype),
            matrix.shape[1],
        )

    @classmethod
    def from_dense(cls, matrix: Tensor) -> SparseMatrix:
        """Convert a dense matrix."""
        csr = matrix.to_sparse_csr()
        return cls(csr.crow_indices(), csr.col_indices(), csr.values(), matrix.size(1))

    @classmethod
    def stack(cls, matrices: Sequence[SparseMatrix], num_columns: int) -> SparseMatrix:
        """Stack matrices vertically."""
        ends = torch.tensor([0, *(matrix.nnz for matrix in matrices)]).cumsum(0).tolist()
        indptr = [matrix.indptr[1:] + end for matrix, end in zip(matrices, ends)]
        return cls(
            torch.cat([matrices[0].indptr[:1], *indptr]),
            torch.cat([matrix.indices for matrix in matrices]),
            torch.cat([matrix.values for matrix in matrices]),
            num_columns,
        )

    def to_scipy(self) -> sp.csr_matrix:
        """Return the same matrix for scipy (shares memory if the device is a CPU)."""
        parts = (self.values.cpu().numpy(), self.indices.cpu().numpy(), self.indptr.cpu().numpy())
        return sp.csr_matrix(parts, shape=self.shape)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.indptr.numel() - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.num_rows, self.num_columns

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.indices.numel()

    @property
    def device(self) -> torch.device:
        """Device of the entries."""
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored entries."""
        return self.values.dtype

    def size(self, dim: int) -> int:
        """Return `shape[dim]`, like a tensor."""
        return self.shape[dim]

    def counts(self) -> Tensor:
        """Return the number of stored entries in each row."""
        return self.indptr[1:] - self.indptr[:-1]

    def padded_rows(self) -> list[tuple[Tensor, Tensor]]:
        """Return rows grouped by similar length, computed once: their indices, and columns padded with `num_columns`.

        Groups have up to 8 entries per row, up to 16, up to 32, and so on: all tables together have at most twice as
        many entries as the matrix, or 8 for each row.
        """
        if self._padded_rows is None:
            counts, self._padded_rows = self.counts(), []
            doublings = (counts / 8).clamp(min=1).log2().ceil()
            for doubling in doublings.unique():
                rows = torch.nonzero(doublings == doubling).reshape(-1)
                place = torch.arange(int(counts[rows].max()), device=self.device)
                entry = (self.indptr[rows].unsqueeze(1) + place).clamp(max=self.nnz - 1)
                columns = torch.where(place < counts[rows].unsqueeze(1), self.indices[entry], self.num_columns)
                self._padded_rows.append((rows, columns))
        return self._padded_rows

    def row_sums(self) -> Tensor:
        """Return the sum of each row's entries."""
        total = torch.zeros(self.num_rows, dtype=self.dtype, device=self.device)
        return total.index_add_(0, self.row_of_entry(), self.values)

    def row_of_entry(self) -> Tensor:
        """Return the row of each stored entry."""
        rows = torch.arange(self.num_rows, device=self.device)
        return torch.repeat_interleave(rows, self.counts(), output_size=self.nnz)

    def all_ones(self) -> bool:
        """Return whether all entries are the same 1 in memory, as for a graph on disk without edge weights."""
        return self.nnz > 0 and self.values.stride(0) == 0 and float(self.values[0]) == 1

    def with_values(self, values: Tensor) -> SparseMatrix:
        """Return a matrix with the same pattern and other entries."""
        return SparseMatrix(self.indptr, self.indices, values, self.num_columns, _ends=self._ends)

    def bare(self) -> SparseMatrix:
        """Return the same matrix without what was derived from its entries, such as its transpose."""
        return SparseMatrix(self.indptr, self.indices, self.values, self.num_columns)

    def to(self, target: torch.device | str | torch.dtype) -> SparseMatrix:
        """Return the matrix on another device, or with entries of another type."""
        values = self.values.to(target)
        if values is self.values:
            return self
        device = values.device
        return SparseMatrix(self.indptr.to(device), self.indices.to(device), values, self.num_columns)

    def top(self, num_rows: int, num_columns: int | None = None) -> SparseMatrix:
        """Return the first rows, without a copy; `num_columns` may cut off columns that those rows do not use."""
        if num_columns is None:
            num_columns = self.num_columns
        if (num_rows, num_columns) == self.shape:
            return self
        if num_rows not in self._ends:
            self._ends[num_rows] = int(self.indptr[num_rows])
        end = self._ends[num_rows]
        return SparseMatrix(self.indptr[: num_rows + 1], self.indices[:end], self.values[:end], num_columns)

    def entries_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(indptr, positions)` of the entries of `rows`, in the order of `rows`."""
        starts = self.indptr.index_select(0, rows)  # several times faster than indexing
        counts = self.indptr.index_select(0, rows + 1) - starts
        indptr = torch.zeros(rows.numel() + 1, dtype=torch.long, device=self.device)
        torch.cumsum(counts, 0, out=indptr[1:])
        total = int(indptr[-1])
        shift = torch.repeat_interleave(starts - indptr[:-1], counts, output_size=total)
        return indptr, torch.arange(total, device=self.device) + shift

    def rows(self, rows: Tensor) -> SparseMatrix:
        """Return the given rows, in the given order."""
        indptr, positions = self.entries_of(rows)
        indices, values = (entries.index_select(0, positions) for entries in (self.indices, self.values))
        return SparseMatrix(indptr, indices, values, self.num_columns)

    def dense(self) -> Tensor:
        """Return the matrix as a dense tensor."""
        out = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return out.index_put_((self.row_of_entry(), self.indices), self.values, accumulate=True)

    def t(self) -> SparseMatrix:
        """Return the transpose, computed once. It has no reference to its matrix: a cycle would keep batches alive."""
        if self._transpose is None and (compiled := self.kernels()) is not None:
            flipped = compiled.transpose(self.parts(), self.num_columns)
            self._transpose = SparseMatrix(*flipped, self.num_rows)
        elif self._transpose is None and self.device.type == "cpu":
            flipped = self.to_scipy().tocsc()  # a counting sort: several times faster than argsort
            indptr, indices = torch.from_numpy(flipped.indptr), torch.from_numpy(flipped.indices)
            self._transpose = SparseMatrix(indptr, indices, torch.from_numpy(flipped.data), self.num_rows)
        elif self._transpose is None:
            order = torch.argsort(self.indices, stable=True)
            counts = self.indices.new_zeros(self.num_columns + 1).index_add_(  # bincount would wait for the device
                0, self.indices + 1, torch.ones_like(self.indices)
            )
            indptr = counts.cumsum(0)
            self._transpose = SparseMatrix(indptr, self.row_of_entry()[order], self.values[order], self.num_rows)
        return self._transpose

    def for_many_products(self) -> SparseMatrix:
        """Prepare the matrix for many products, like those of a captured step, and return it."""
        if self._pieces is None and fast("sparse"):
            self._pieces = RowPieces.of(self.indptr, self.indices)
            if self.device.type == "cuda":
                row_kernel()  # tested now, while nothing is captured
        return self

    def with_frequent_columns(self) -> SparseMatrix:
        """Prepare the matrix and its transpose for many products, with dense ones for frequent columns; return it."""
        flipped = self.for_many_products().t().for_many_products()
        if self._frequent is None and self._pieces is not None and fast("frequent"):
            self._frequent, flipped._frequent = frequent_columns(self, flipped)
        return self

    def as_needed(self, rows: Tensor | None, columns: Tensor | None) -> SparseMatrix:
        """Return the same matrix, prepared for many products of which only some rows and columns are needed.

        Other rows of a product are undefined: they are zero if that saves reading them. The needed rows of the
        transpose are the needed columns here.

        Args:
            rows: flags, `(rows, networks)`, which may change from one product to the next; None for all.
            columns: likewise. Needed rows have entries in these columns only.
        """
        matrix, flipped = copy(self.for_many_products()), copy(self.t().for_many_products())
        matrix._needed, flipped._needed = (rows, None), (columns, rows)
        matrix._transpose = flipped
        return matrix

    def multiply(self, dense: Tensor) -> Tensor:
        """Return the product with a dense matrix; no gradient is recorded.

        For stacked matrices of several networks, `(columns, networks, …)`, it is the product with each of them.
        """
        if dense.dim() > 2:
            return self._multiply(dense.flatten(1), dense.size(1)).unflatten(1, dense.shape[1:])
        return self._multiply(dense, 1)

    def _multiply(self, dense: Tensor, networks: int) -> Tensor:
        """Like `multiply`, with a matrix in which the columns of `networks` networks follow one another."""
        if self.nnz == 0:
            return dense.new_zeros(self.num_rows, dense.size(1))
        # within `is_grads_batched` torch loops over the batch, which it cannot do for bags
        if self.dtype == dense.dtype and not torch._C._functorch.is_legacy_batchedtensor(dense):
            if self._pieces is not None and fast("sparse"):
                known = all(flags is None or flags.size(1) == networks for flags in self._needed)
                needed = self._needed if known else (None, None)
                if self._frequent is not None and self._frequent.suits(dense):
                    return self._frequent.multiply(dense, needed)
                return self._pieces.multiply(self.values, dense, needed)
            if (compiled := self.kernels_with(dense)) is not None:
                return compiled.multiply(self.parts(), dense.detach().contiguous(), self.num_rows)
            if self.device.type == "cpu" and self.dtype == torch.float32 and fast("bags"):
                return self._bags(dense.detach())
        if self._native is None:
            entries = self.values.contiguous()
            self._native = torch.sparse_csr_tensor(
                self.indptr,
                self.indices,
                entries,
                self.shape,
                check_invariants=False,  # it warns where this is left out
            )
        return self._native @ dense

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return row pointers, columns and entries."""
        return self.indptr, self.indices, self.values

    def longest_row(self) -> int:
        """Return the largest number of entries in a row, computed once."""
        if self._longest is None:
            self._longest = int(self.counts().max()) if self.num_rows else 0
        return self._longest

    def kernels(self) -> Kernels | None:
        """Return the compiled kernels if they can read this matrix, else None."""
        if self._readable is None:
            self._readable = self.indptr.dtype == self.indices.dtype and readable(*self.parts())
        return kernels(self.dtype, self.indices.dtype) if self._readable else None

    def kernels_with(self, dense: Tensor, rows: int | None = None) -> Kernels | None:
        """Return the compiled kernels if they can multiply this matrix with `dense`, else None.

        `dense` must have `rows` rows, by default one for each column; with any other shape, torch raises the error.
        """
        functorch = torch._C._functorch
        batched = functorch.is_functorch_wrapped_tensor(dense) or functorch.is_legacy_batchedtensor(dense)
        if batched or dense.dtype != self.dtype or dense.device.type != "cpu" or dense.dim() != 2:
            return None
        return self.kernels() if dense.size(0) == (self.num_columns if rows is None else rows) else None

    def _bags(self, dense: Tensor) -> Tensor:
        """Return the product as weighted sums of rows: FBGEMM's kernel is about twice as fast as MKL's."""
        weights = None if self.all_ones() else self.values
        return F.embedding_bag(
            self.indices, dense.contiguous(), self.indptr, mode="sum", per_sample_weights=weights,
            include_last_offset=True,
        )  # fmt: skip

    def __matmul__(self, dense: Tensor) -> Tensor:
        return _product(dense, self, None)


class _SparseProduct(torch.autograd.Function):
    """Y = A W for constant sparse A. Linear, so the tangent is A Ẇ and the cotangent Aᵀ G.

    `flipped` is Aᵀ if it is known already: a double backward pass multiplies by A again.
    """

    @staticmethod
    def forward(dense: Tensor, matrix: SparseMatrix, flipped: SparseMatrix | None) -> Tensor:
        return matrix.multiply(dense)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, SparseMatrix, SparseMatrix | None], output: Tensor) -> None:
        _, ctx.matrix, ctx.flipped = inputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, None, None]:
        flipped = ctx.matrix.t() if ctx.flipped is None else ctx.flipped
        if not (torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()):
            return flipped.multiply(cotangents[0]), None, None
        return _product(cotangents[0], flipped, ctx.matrix), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        return _SparseProduct.apply(tangents[0], ctx.matrix, ctx.flipped)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None, None], dense: Tensor, matrix: SparseMatrix, flipped: Any) -> Any:
        return _SparseProduct.apply(dense.movedim(in_dims[0], 1), matrix, flipped), 1


# torch looks it up at every call, and computing it takes longer than a small product
_SparseProduct.forward.__signature__ = inspect.signature(_SparseProduct.forward)  # type: ignore[attr-defined]


def _product(dense: Tensor, matrix: SparseMatrix, flipped: SparseMatrix | None) -> Tensor:
    """Return A W. torch's lookups for functorch take longer than a small product, so they are made only if needed."""
    transformed = torch._C._are_functorch_transforms_active()
    apply = _SparseProduct.apply if transformed else super(torch.autograd.Function, _SparseProduct).apply
    made: Tensor = apply(dense, matrix, flipped)
    return made
