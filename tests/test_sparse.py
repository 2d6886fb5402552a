"""Sparse matrices against dense ones: every product, in every mode of autograd, and every way to take rows."""

import gc
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from scipy import sparse as sp
from torch import Tensor
from torch.autograd import forward_ad

from evergraph.core.features import sparse_product, take_rows, with_ones
from evergraph.core.shortcuts import fast_paths
from evergraph.core.sparse import SparseMatrix
from evergraph.core.tangent_products import pair_product


def made(rows: int = 9, columns: int = 7, share: float = 0.4, dtype: torch.dtype = torch.float64) -> SparseMatrix:
    """A random matrix, some of whose rows are empty."""
    matrix = sp.random(rows, columns, share, format="lil", rng=3, dtype="float64")
    matrix[2] = 0
    return SparseMatrix.from_scipy(matrix, dtype)


@pytest.mark.parametrize("width", [1, 3, 16, 33])
@pytest.mark.parametrize("paths", [("bags",), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_the_dense_ones(width: int, paths: tuple[str, ...], dtype: torch.dtype) -> None:
    matrix, dense = made(dtype=dtype), torch.randn(7, width, dtype=dtype)
    with fast_paths(*paths):
        found, back = matrix @ dense, matrix.t() @ torch.randn(9, width, dtype=dtype)
    assert back.shape == (7, width)
    torch.testing.assert_close(found, matrix.dense() @ dense)


def test_torch_s_own_product_does_not_warn() -> None:
    matrix, dense = made(), torch.randn(7, 2, dtype=torch.float64)
    torch.set_warn_always(True)  # else it says so once in a process
    try:
        with fast_paths(), warnings.catch_warnings(record=True) as told:
            warnings.filterwarnings("always", message="Sparse invariant checks")
            torch.testing.assert_close(matrix @ dense, matrix.dense() @ dense)
    finally:
        torch.set_warn_always(False)
    assert [str(warning.message) for warning in told] == []


@pytest.mark.parametrize("width", [1, 5, 257])
def test_bags_are_the_plain_product_to_float_tolerance(width: int) -> None:
    matrix, dense = made(200, 50, 0.2, torch.float32), torch.randn(50, width)
    exact = matrix.to(torch.float64).dense() @ dense.double()
    for paths in (("bags",), ()):
        with fast_paths(*paths):
            assert float((matrix @ dense - exact).norm() / exact.norm()) < 1e-6
            strided = torch.randn(width, 50).T  # not contiguous
            torch.testing.assert_close(matrix @ strided, matrix.dense() @ strided, rtol=1e-4, atol=1e-5)


def test_a_matrix_without_entries_gives_zeros() -> None:
    empty = SparseMatrix.from_scipy(sp.csr_matrix((4, 6)))
    assert torch.equal(empty @ torch.randn(6, 3), torch.zeros(4, 3))
    assert torch.equal(empty.t() @ torch.randn(4, 3), torch.zeros(6, 3))


def test_every_mode_of_autograd() -> None:
    matrix, dense, tangent = made(), torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    reference = matrix.dense()

    def ours(w: Tensor) -> Tensor:
        return (matrix @ w.sin()).square()

    def plain(w: Tensor) -> Tensor:
        return (reference @ w.sin()).square()

    def backward(function: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = dense.clone().requires_grad_()
        return torch.autograd.grad(function(leaf).sum(), leaf)[0]

    def double_backward(function: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = dense.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0]

    def forward(function: Callable[[Tensor], Tensor]) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(dense, tangent))).tangent

    def batched(function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.func.vmap(function)(torch.stack([dense, tangent]))

    def batched_backward(function: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = dense.clone().requires_grad_()
        out = function(leaf)
        cotangents = torch.randn(4, *out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0))
        return torch.autograd.grad(out, leaf, cotangents, is_grads_batched=True)[0]

    for mode in (backward, double_backward, forward, batched, batched_backward):
        torch.testing.assert_close(mode(ours), mode(plain))


def test_batched_gradients_in_float32_use_torch_s_own_loop() -> None:
    matrix, leaf = made(dtype=torch.float32), torch.randn(7, 3, requires_grad=True)
    cotangents = torch.randn(4, 9, 3)
    (found,) = torch.autograd.grad(matrix @ leaf, leaf, cotangents, is_grads_batched=True)
    torch.testing.assert_close(found, matrix.dense().T @ cotangents)


@pytest.mark.parametrize("read_often", [0, 1000])
def test_a_pair_is_two_products_and_only_the_first_has_a_gradient(
    read_often: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one product of both side by side, and as two."""
    monkeypatch.setattr("evergraph.core.tangent_products.READ_OFTEN", read_often)
    for matrix in (made(), made().dense()):
        w, tangent = (torch.randn(7, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
        product, moved = pair_product(matrix, w, tangent)
        reference = matrix.dense() if isinstance(matrix, SparseMatrix) else matrix
        torch.testing.assert_close(product, reference @ w)
        torch.testing.assert_close(moved, reference @ tangent.detach())
        assert not moved.requires_grad
        cotangent = torch.randn_like(product)
        torch.testing.assert_close(torch.autograd.grad(product, w, cotangent)[0], reference.T @ cotangent)


def test_transpose_and_back() -> None:
    matrix = made()
    assert torch.equal(matrix.t().dense(), matrix.dense().T)
    assert torch.equal(matrix.t().t().dense(), matrix.dense())
    assert matrix.t() is matrix.t()  # computed once


def test_a_batch_s_matrices_are_freed_at_once() -> None:
    """A transpose that knew its matrix would keep both until the next garbage collection."""
    matrix = made()
    seen = weakref.ref(matrix)
    leaf = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    (matrix @ leaf).sum().backward()
    assert matrix._transpose is not None
    gc.disable()
    try:
        del matrix
        assert seen() is None
    finally:
        gc.enable()


def test_rows_columns_and_prefixes() -> None:
    matrix, rows = made(), torch.tensor([4, 2, 4, 0])
    assert torch.equal(matrix.rows(rows).dense(), matrix.dense()[rows])
    assert torch.equal(matrix.rows(rows[:0]).dense(), matrix.dense()[rows[:0]])
    assert torch.equal(matrix.top(3).dense(), matrix.dense()[:3])
    assert matrix.top(9) is matrix
    assert torch.equal(take_rows(matrix.dense(), rows), matrix.dense()[rows])
    assert torch.equal(matrix.counts(), (matrix.dense() != 0).sum(1))


def test_a_column_of_ones() -> None:
    matrix = made()
    expected = torch.cat([matrix.dense(), torch.ones(9, 1, dtype=torch.float64)], dim=1)
    assert torch.equal(with_ones(matrix).dense(), expected)
    assert torch.equal(with_ones(matrix.dense()), expected)


def test_sparse_times_sparse_stays_sparse() -> None:
    left, right = made(), made(7, 5)
    found = sparse_product(left, right)
    assert isinstance(found, SparseMatrix)
    torch.testing.assert_close(found.dense(), left.dense() @ right.dense())
    torch.testing.assert_close(sparse_product(left, right.dense()), left.dense() @ right.dense())


def test_duplicates_are_summed() -> None:
    twice = sp.coo_matrix(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2))
    assert torch.equal(SparseMatrix.from_scipy(twice).dense(), torch.tensor([[0.0, 3.0], [0.0, 0.0]]))


def test_rows_of_like_length_stand_in_tables_padded_with_no_column() -> None:
    lengths = [0, 3, 8, 9, 16, 17, 40, 1]
    dense = torch.zeros(len(lengths), 50)
    for row, length in enumerate(lengths):
        dense[row, torch.randperm(50)[:length]] = 1
    tables = SparseMatrix.from_dense(dense).padded_rows()
    assert [rows.tolist() for rows, _ in tables] == [[0, 1, 2, 7], [3, 4], [5], [6]]
    for rows, columns in tables:
        assert columns.size(1) == max(lengths[row] for row in rows)
        for row, own in zip(rows.tolist(), columns.tolist()):
            assert [column for column in own if column < 50] == torch.nonzero(dense[row]).reshape(-1).tolist()
