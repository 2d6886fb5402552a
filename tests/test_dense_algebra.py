"""Dense products and ridge solutions by scipy's BLAS, against torch in float64; and what rests on them."""

from __future__ import annotations

import functools
import math
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import evergraph as eg
from evergraph.core import dense_algebra, lapack, large, symmetric
from evergraph.core.dense_algebra import (
    EXACT,
    SMALL,
    SingularError,
    add_symmetric_product,
    eigen,
    outer_product,
    product,
    solutions,
    symmetric_sum,
)
from evergraph.core.finite import has_nan, is_finite
from evergraph.core.shared_factor import FAR, ShiftedSystem, grouped, rough_solutions, shared
from evergraph.core.shortcuts import FAST_PATHS, fast_paths
from evergraph.core.side_by_side import blas_threads, controller, side_by_side
from evergraph.core.symmetric import (
    SymmetricSum,
    clear,
    diagonal,
    entries_at,
    full_rows,
    leading,
    num_rows,
    pack,
    packed_size,
    unpack,
)
from evergraph.data.datasets.sbm import sbm
from evergraph.models import block_steps

BLAS, PLAIN = FAST_PATHS, ()


@pytest.mark.parametrize("paths", [BLAS, PLAIN], ids=["blas", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_is_the_same_whatever_the_number_of_threads(dtype: torch.dtype, paths: tuple[str, ...]) -> None:
    """Of few rows, and of so many that they are divided among threads."""
    before, close = torch.get_num_threads(), 1e-3 if dtype == torch.float32 else 1e-11
    try:
        for height in (3, 2050):
            left, right = torch.randn(height, 300, dtype=dtype), torch.randn(800, 300, dtype=dtype).T
            found = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                with fast_paths(*paths):
                    found.append(product(left, right))
            assert torch.allclose(found[0], left @ right, atol=close)
            assert torch.equal(*found) or not paths
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 15, 33, 64, 65])
def test_a_narrow_product_is_the_product_in_float64(dtype: torch.dtype, columns: int) -> None:
    """Its kernel is about as exact as BLAS, gives the same bits whatever the threads, and reads rows far apart."""
    before, generator = torch.get_num_threads(), torch.Generator().manual_seed(columns)
    whole = torch.randn(2500, 1300, generator=generator, dtype=torch.float64).to(dtype)
    right = torch.randn(1000, columns, generator=generator, dtype=torch.float64).to(dtype)
    lefts = {"rows": whole[:, :1000], "every other row": whole[::2, 7:1007], "columns": whole[:1000].T[:1300]}
    try:
        for name, left in lefts.items():
            found = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                found.append(product(left, right))
            expected = left.double() @ right.double()
            error, ordinary = ((each.double() - expected).abs().max() for each in (found[0], left @ right))
            assert torch.equal(*found), name
            assert error <= 10 * ordinary + 1e-12, name
    finally:
        torch.set_num_threads(before)


def test_a_large_symmetric_product_is_the_same_whatever_the_number_of_threads() -> None:
    """It is divided into jobs, and each entry of the lower triangle is read for both triangles."""
    before, found = torch.get_num_threads(), []
    whole = torch.randn(1400, 1400, dtype=torch.float64)
    matrices, rows = [whole + whole.T, whole @ whole.T], torch.cat([torch.tensor([1399]), torch.arange(20, 1390)])
    columns = torch.randn(rows.numel(), 16, dtype=torch.float64)
    sums = SymmetricSum([pack(matrix) for matrix in matrices], rows)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(sums.product(columns))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
    assert torch.allclose(found[0], sum(matrices)[rows][:, rows] @ columns, rtol=1e-9)


@pytest.mark.parametrize("paths", [BLAS, PLAIN], ids=["blas", "plain"])
@pytest.mark.parametrize("share", [0.01, 1.0], ids=["words", "dense"])
def test_an_outer_product_is_the_product(share: float, paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "PANEL", 40)
    rows = torch.randn(90, 300) * (torch.rand(90, 300) < share)
    with fast_paths(*paths):
        found = unpack(outer_product(rows))
        assert torch.allclose(found.float(), rows @ rows.T, atol=1e-4)
        assert torch.equal(found, found.T)
        assert not outer_product(torch.zeros(4, 9)).any()


@pytest.mark.parametrize("paths", [BLAS, PLAIN], ids=["blas", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 512, 1100])
def test_a_symmetric_product_is_added_panel_by_panel(width: int, dtype: torch.dtype, paths: tuple[str, ...]) -> None:
    rows, square = torch.randn(7, width, dtype=dtype), torch.randn(width, width, dtype=torch.float64)
    square, close = square + square.T, 1e-4 if dtype == torch.float32 else 1e-12
    for sign in (1, -1):
        product_alone = rows.double().T @ rows.double()
        total = pack(square)
        before = total.clone()
        with fast_paths(*paths):
            found = add_symmetric_product(total, rows, sign)
            assert torch.equal(total, before)  # left as it was
            assert add_symmetric_product(before, rows, sign, out=before) is before
            alone = symmetric_sum(rows)
        for packed, expected in ((alone, product_alone), (found, square + sign * product_alone)):
            assert torch.allclose(unpack(packed), expected, atol=close)
            assert torch.equal(unpack(packed), unpack(packed).T)
        assert torch.equal(before, found)


@pytest.mark.parametrize("rows", [None, [*range(3), *range(9, 700), 799], [*range(0, 800, 3)]])
@pytest.mark.parametrize("kinds", [(torch.float64, torch.float64), (torch.float32,)])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "square"])
def test_a_sum_among_some_rows_is_read_where_it_stands(
    kinds: tuple[torch.dtype, ...], rows: list[int] | None, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symmetric, "PANEL", 100)
    matrices = [torch.randn(800, 800, dtype=torch.float64) for _ in kinds]
    square = [(matrix + matrix.T).to(kind) for kind, matrix in zip(kinds, matrices)]
    parts = [pack(part) for part in square] if packed else square
    chosen = torch.arange(800) if rows is None else torch.tensor(rows)
    expected = torch.stack([part.double() for part in square]).sum(0)[chosen][:, chosen]
    found = SymmetricSum(parts, None if rows is None else chosen)
    columns = torch.randn(chosen.numel(), 2, dtype=torch.float64)
    assert torch.equal(found.formed(), expected)
    assert torch.equal(found.diagonal(), expected.diagonal())
    assert torch.allclose(torch.from_numpy(found.times(columns.numpy())), expected @ columns, atol=1e-10)
    assert torch.allclose(found.product(columns), expected @ columns, atol=1e-10)
    triangle = torch.from_numpy(found.single_triangle(2.0)).tril()
    shifted = (expected + 2 * torch.eye(chosen.numel(), dtype=torch.float64)).tril()
    assert torch.allclose(triangle.double(), shifted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 350])
def test_a_packed_matrix_is_the_square_one(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "PANEL", 100)
    square = torch.randn(size, size, dtype=torch.float64)
    square = square + square.T
    packed = pack(square)
    assert packed.numel() == packed_size(size) <= size * (size + 1) // 2 + 50 * size
    assert num_rows(packed) == num_rows(square) == size
    assert pack(packed) is packed
    assert torch.equal(unpack(packed), square)
    if size:
        assert torch.equal(diagonal(packed), square.diagonal())
        assert torch.equal(torch.cat([rows for _, rows in full_rows(packed)]), square)
    for first in {0, size // 3, size // 2, size}:
        assert torch.equal(unpack(leading(packed, first))[:first, :first], square[:first, :first])
        for place in (slice(0, first), slice(first, size), slice(first // 2, first)):
            assert torch.equal(entries_at(packed, place, slice(first, size)), square[place, first:])
            assert torch.equal(entries_at(square, place, slice(0, first)), square[place, :first])
    gone = torch.arange(size) % 7 == 3
    clear(packed, gone)
    square[gone], square[:, gone] = 0.0, 0.0
    assert torch.equal(unpack(packed), square)


def test_a_factorization_lets_other_threads_run() -> None:
    """Jobs in threads are side by side only if a routine does not hold Python's lock for as long as it takes."""
    matrix = np.eye(2500, dtype=np.float32) * 9 + 1
    began, ended = threading.Event(), threading.Event()
    steps = []

    def factorize() -> None:
        began.set()
        assert lapack.factorize(matrix)
        ended.set()

    thread = threading.Thread(target=factorize)
    thread.start()
    began.wait()
    while not ended.is_set():
        steps.append(ended.is_set())
    thread.join()
    assert len(steps) > 1000  # a thread that waits for the lock gets on once or twice


def test_jobs_side_by_side_return_what_they_return_one_by_one() -> None:
    """The same bits with two threads as with one; an error comes through; the limits are as they were."""
    matrix, targets = system(SMALL + 20, 1e4)
    shifts, before = [0.1, 0.2, 0.5], torch.get_num_threads()
    found = []
    try:
        for told in (1, 2):
            torch.set_num_threads(told)
            found.append(shifted_solutions(SymmetricSum([matrix]), shifts, targets))
            with pytest.raises(SingularError):
                shifted_solutions(SymmetricSum([-matrix]), shifts, targets)
            limits = [pool["num_threads"] for pool in controller().info() if pool["user_api"] == "blas"]
            nested = side_by_side([lambda: side_by_side([torch.get_num_threads])] * 2)
            assert [len(inner) for inner in nested] == [1, 1]
            assert limits == [pool["num_threads"] for pool in controller().info() if pool["user_api"] == "blas"]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found))


def test_a_thread_without_jobs_takes_on_those_of_another_job() -> None:
    """The two jobs of the long job wait for each other, so they return only if two threads run them."""
    before, together = torch.get_num_threads(), threading.Barrier(2)

    def long() -> list[int]:
        return side_by_side([lambda: together.wait(30) * 0 + 1, lambda: together.wait(30) * 0 + 2, lambda: 3])

    def failing() -> list[int]:
        return side_by_side([lambda: 1, lambda: 1 // 0, lambda: 2])

    try:
        torch.set_num_threads(2)
        assert side_by_side([long, lambda: []]) == [[1, 2, 3], []]
        for _ in range(20):
            with pytest.raises(ZeroDivisionError):
                side_by_side([failing, failing, failing])
    finally:
        torch.set_num_threads(before)


def test_what_a_job_refers_to_is_free_once_its_own_jobs_are_done() -> None:
    """Though the other thread is busy, so that what the job offered to it is still in the queue."""

    class Matrix:
        pass

    before, done, gone = torch.get_num_threads(), threading.Event(), list[bool]()

    def first() -> None:
        for _ in range(3):
            matrix = Matrix()
            alive = weakref.ref(matrix)
            side_by_side([functools.partial(repr, matrix), functools.partial(repr, matrix)])
            del matrix
            gone.append(alive() is None)
        done.set()

    try:
        torch.set_num_threads(2)
        side_by_side([first, lambda: done.wait(30)])
    finally:
        torch.set_num_threads(before)
    assert gone == [True] * 3


def test_products_that_do_not_fit_are_errors() -> None:
    left = torch.ones(100, 50)
    for right in (torch.ones(40, 5), torch.ones(50, 5, dtype=torch.float64)):
        with pytest.raises(RuntimeError):
            product(left, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.long])
def test_large_matrices_are_torchs(dtype: torch.dtype) -> None:
    matrix = torch.randn(1100, 1000).mul(100).to(dtype)
    places = torch.randint(1100, (1050,))
    assert torch.equal(large.rows(matrix, places), matrix[places])
    assert not large.zeros((3, 4), dtype).any()
    assert large.empty((3, 4), dtype).dtype == dtype
    parts = matrix[:5], matrix[5:5], matrix[7:]
    assert torch.equal(large.stacked(parts), torch.cat(parts))
    alone = large.stacked([matrix[:0], matrix[:5]])
    assert torch.equal(alone, matrix[:5])
    assert alone.untyped_storage().nbytes() == alone.nbytes  # nothing of the other rows goes along
    assert large.stacked([matrix]) is matrix


def system(size: int, condition: float) -> tuple[Tensor, Tensor]:
    """A copy of `made_system`, which may be written into."""
    matrix, targets = made_system(size, condition)
    return matrix.clone(), targets.clone()


@functools.cache
def made_system(size: int, condition: float) -> tuple[Tensor, Tensor]:
    """A symmetric matrix with eigenvalues from 1 down to 1/condition, and targets, one column of them zero."""
    generator = torch.Generator().manual_seed(size)
    directions, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    lengths = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64)
    targets = torch.randn(size, 3, dtype=torch.float64, generator=generator)
    targets[:, 1] = 0
    return directions * lengths @ directions.T, targets


def shifted_solutions(matrix: SymmetricSum, shifts: list[float], targets: Tensor, error: float = EXACT) -> list[Tensor]:
    """The solutions of one matrix with several shifts, all of them exact."""
    found = solutions([ShiftedSystem(matrix, shift, targets) for shift in shifts], error)
    assert all(one.exact for one in found)
    return [one.found for one in found]


@pytest.mark.parametrize("error", [EXACT, 1e-3])
@pytest.mark.parametrize(("size", "condition"), [(40, 1e4), (SMALL + 20, 1e4), (SMALL + 20, 1e9)])
def test_shifted_solutions_are_those_of_float64(size: int, condition: float, error: float) -> None:
    matrix, targets = system(size, condition)
    shifts = [0.0, 1e-6, 1.0]
    found = shifted_solutions(SymmetricSum([matrix]), shifts, targets, error)
    with fast_paths():
        plain = shifted_solutions(SymmetricSum([matrix]), shifts, targets)
    for shift, solution, expected in zip(shifts, found, plain):
        exact = torch.linalg.solve(matrix + shift * torch.eye(size, dtype=torch.float64), targets)
        rounding = 1e-15 * condition  # of float64, in the answers that are compared with
        assert float((expected - exact).norm() / exact.norm()) < 10 * rounding
        assert float((solution - exact).norm() / exact.norm()) < 10 * (error + rounding)
        assert not solution[:, 1].any()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("paths", [BLAS, ("blas",)], ids=["compiled", "lapack"])
@pytest.mark.parametrize("size", [1, 7, 8, 67])
def test_few_columns_are_solved_as_many(size: int, kind: type, paths: tuple[str, ...]) -> None:
    rng = np.random.default_rng(size)
    rows = rng.normal(size=(size, size))
    matrix = rows @ rows.T + np.eye(size)
    factor = np.where(np.tri(size), matrix, np.nan).astype(kind)
    assert lapack.factorize(factor)
    with fast_paths(*paths):
        for width in (1, 8, 15, 33, 64, 65):
            columns = rng.normal(size=(size, width))
            found = lapack.solve_factorized(factor, columns)
            assert found.dtype == kind
            assert np.allclose(found, np.linalg.solve(matrix, columns), atol=1e-4 if kind == np.float32 else 1e-10)


def test_memory_is_used_again_while_a_learner_learns() -> None:
    """A matrix that is gone leaves its memory to the next one of about its size, and to none while it is there."""
    shape = (1024, 1100)
    with large.reused():
        first, other = large.empty(shape, torch.float32), large.empty((4 * 1024, 1100), torch.float32)
        view, place = first[3:], first.data_ptr()
        del first
        second = large.empty(shape, torch.float32)
        assert second.data_ptr() != place  # a view is left
        del view
        again = large.empty((1020, 1100), torch.float32)
        assert again.data_ptr() == place
        with large.reused():
            assert large.empty(shape, torch.float32).data_ptr() != place
        del again, second, other
    assert not large._pool.idle
    assert large.empty(shape, torch.float32).untyped_storage().nbytes() == 4 * 1024 * 1100


@pytest.mark.parametrize("error", [EXACT, 1e-3])
@pytest.mark.parametrize("condition", [1e2, 1e4, 1e9])
def test_shifts_near_one_another_share_a_factorization(
    condition: float, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One factorization for three ridges in a row, and solutions as exact as by one each, zero columns included."""
    matrix, targets = system(SMALL + 20, condition)
    shifts, sizes = [0.05, 0.001, 0.25, 0.01, 90.0], []
    assert shared(shifts) == [[1], [0, 3, 2], [4]]
    assert shared([1.0, 1.0]) == [[0], [1]]
    factorize = lapack.factorize
    monkeypatch.setattr(lapack, "factorize", lambda matrix: sizes.append(len(matrix)) or factorize(matrix))
    found = shifted_solutions(SymmetricSum([matrix]), shifts, targets, error)
    assert len(sizes) == 3
    for shift, solution in zip(shifts, found):
        exact = torch.linalg.solve(matrix + shift * torch.eye(len(matrix), dtype=torch.float64), targets)
        assert float((solution - exact).norm() / exact.norm()) < 10 * error
        assert not solution[:, 1].any()


def leading_systems(size: int, shift: float, rough: bool = False) -> list[ShiftedSystem]:
    """A matrix, its leading half, and its last row before the leading third, with about the same shift."""
    matrix, targets = system(size, 1e4)
    parts = [SymmetricSum([matrix])]
    parts = [SymmetricSum(parts[0].parts, rows) for rows in (
        torch.arange(size).roll(1), torch.arange(size).roll(1)[: size // 2], torch.arange(size).roll(1)[: size // 3],
    )]  # fmt: skip
    return [ShiftedSystem(part, shift * (1 + 0.01 * k), targets[part.rows], rough) for k, part in enumerate(parts)]


@functools.cache
def leading_solutions(size: int, shift: float) -> list[Tensor]:
    """What solves each of them, in one go."""
    return [
        torch.linalg.solve(
            asked.matrix.formed() + asked.shift * torch.eye(asked.matrix.size, dtype=torch.float64), asked.targets
        )
        for asked in leading_systems(size, shift)
    ]


@pytest.mark.parametrize("paths", [BLAS, ("blas",), PLAIN], ids=["compiled", "lapack", "plain"])
def test_a_leading_part_is_solved_by_the_factor_of_the_whole(
    paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    systems, sizes, factorize = leading_systems(3 * (SMALL + 20), 0.01), [], lapack.factorize
    monkeypatch.setattr(lapack, "factorize", lambda matrix: sizes.append(len(matrix)) or factorize(matrix))
    with fast_paths(*paths):
        found = solutions(systems)
    assert sizes == ([] if paths == PLAIN else [systems[0].matrix.size])
    for one, exact in zip(found, leading_solutions(3 * (SMALL + 20), 0.01)):
        assert one.exact
        assert float((one.found - exact).norm() / exact.norm()) < 1e-7


def test_a_matrix_leads_another_if_its_rows_are_the_first_of_the_same_sum() -> None:
    matrix, other = (torch.eye(8, dtype=torch.float64) for _ in range(2))
    whole = SymmetricSum([matrix])
    assert SymmetricSum([matrix], torch.arange(3)).leads(whole)
    assert whole.leads(whole)
    assert not whole.leads(SymmetricSum([matrix], torch.arange(3)))
    assert not SymmetricSum([matrix], torch.tensor([0, 2])).leads(whole)
    assert not SymmetricSum([other], torch.arange(3)).leads(whole)
    assert not SymmetricSum([matrix, other], torch.arange(3)).leads(whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_in_any_order_are_read_in_that_order(dtype: torch.dtype) -> None:
    """Packed matrices, with rows that cross panels: the triangle, the products and the diagonal are those formed."""
    size = 700
    rows = torch.randn(size, size, dtype=torch.float64)
    parts = [pack((rows @ rows.T).to(dtype)), pack((rows.T @ rows).to(dtype))]
    order = torch.cat([torch.tensor([699]), torch.arange(400, 600), torch.arange(20, 320)])
    sums = SymmetricSum(parts, order)
    expected = sum(unpack(part).double() for part in parts)[order][:, order]
    assert torch.allclose(sums.formed(), expected)
    assert torch.allclose(sums.diagonal(), expected.diagonal())
    columns = torch.randn(order.numel(), 5, dtype=torch.float64)
    assert torch.allclose(sums.product(columns), expected @ columns)
    triangle = torch.from_numpy(sums.single_triangle(2.0)).double().tril()
    shifted = expected + 2 * torch.eye(order.numel(), dtype=torch.float64)
    assert torch.allclose(triangle, shifted.tril(), rtol=1e-5)


def test_rough_systems_share_the_nearest_factorization() -> None:
    matrix, targets = system(SMALL + 20, 1e4)
    whole = SymmetricSum([matrix])
    half = SymmetricSum([matrix], torch.arange(SMALL // 2))

    def places(*wanted: tuple[SymmetricSum, float, bool]) -> list[list[int]]:
        return grouped([ShiftedSystem(one, shift, targets[: one.size], rough) for one, shift, rough in wanted])

    assert places((whole, 1.0, False), (whole, 5.0, True), (whole, 0.2, True)) == [[0, 1, 2]]
    assert places((whole, 0.2, True), (whole, 1.0, True), (whole, 5.0, True)) == [[1, 0, 2]]  # the middle one
    assert places((whole, 0.1, False), (whole, 1.0, False), (whole, 2.0, True)) == [[0], [1, 2]]
    assert places((whole, 1.0, False), (whole, 2 * FAR, True)) == [[0], [1]]
    assert places((half, 1.0, False), (whole, 1.0, True)) == [[0], [1]]  # the factor of a part is no help
    assert places((half, 1.0, True), (whole, 1.01, True)) == [[1, 0]]
    assert places((half, 1.0, False), (whole, 1.01, False)) == [[1, 0]]
    assert places((whole, 0.0, False), (whole, 1.0, True)) == [[0], [1]]


@pytest.mark.parametrize("paths", [BLAS, PLAIN], ids=["blas", "plain"])
def test_rough_solutions_are_right_to_a_thousandth(paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """One factorization for five shifts that lie a factor of 600 apart; the factorized one is exact."""
    matrix, targets = system(SMALL + 88, 1e3)
    whole, sizes, factorize = SymmetricSum([matrix]), [], lapack.factorize
    monkeypatch.setattr(lapack, "factorize", lambda matrix: sizes.append(len(matrix)) or factorize(matrix))
    asked = [ShiftedSystem(whole, shift, targets, rough=True) for shift in (0.01, 0.05, 0.25, 1.25, 6.0)]
    with fast_paths(*paths):
        found = solutions(asked)
    assert sizes == ([] if paths == PLAIN else [len(matrix)])
    assert [one.exact for one in found] == [paths == PLAIN or number == 2 for number in range(5)]
    for one, (_, shift, _, _) in zip(found, asked):
        exact = torch.linalg.solve(matrix + shift * torch.eye(len(matrix), dtype=torch.float64), targets)
        assert float((one.found - exact).norm() / exact.norm()) < 2e-3
        assert not one.found[:, 1].any()


def test_rough_solutions_that_take_too_many_steps_are_solved_by_their_own_factorization() -> None:
    matrix, targets = system(SMALL + 20, 1e4)
    dense = matrix.numpy() + 20 * np.eye(len(matrix))
    assert lapack.factorize(dense)
    assert rough_solutions(dense, [-20 + 1e-4], targets.numpy()) is None
    few = [ShiftedSystem(SymmetricSum([matrix]), shift, targets, True) for shift in (1e-4, 1e-4 * FAR * 0.9)]
    few[1] = few[1]._replace(matrix=few[0].matrix, rough=False)
    for one, asked in zip(solutions(few), few):
        shift = asked.shift * torch.eye(len(matrix), dtype=torch.float64)
        exact = torch.linalg.solve(matrix + shift, targets)
        assert float((one.found - exact).norm() / exact.norm()) < 5e-3


def test_a_basis_that_is_exhausted_has_the_exact_solution() -> None:
    """Three distinct eigenvalues take three steps, a column of zeros none."""
    lengths = np.repeat([1.0, 2.0, 7.0], 200)
    factor = np.diag(np.sqrt(lengths))
    columns = np.random.default_rng(0).normal(size=(600, 3))
    columns[:, 2] = 0
    found = rough_solutions(factor, [0.5, 40.0], columns)
    assert found is not None
    for one, difference in zip(found, (0.5, 40.0)):
        assert np.allclose(one, columns / (lengths + difference)[:, None])


def test_float32_gives_up_where_it_says_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of condition 1e9 is solved in float64, one of 1e4 in float32 with refinement."""
    given_up, solved = [], dense_algebra._by_one_factor

    def watched(*given: Any) -> dict[int, tuple[np.ndarray, bool]]:
        found = solved(*given)
        given_up.append(not found)
        return found

    monkeypatch.setattr(dense_algebra, "_by_one_factor", watched)
    for condition in (1e4, 1e9):
        matrix, targets = system(SMALL + 20, condition)
        shifted_solutions(SymmetricSum([matrix]), [0.0], targets)
    assert given_up == [False, True]


@pytest.mark.parametrize("paths", [BLAS, PLAIN], ids=["blas", "plain"])
@pytest.mark.parametrize("size", [30, SMALL + 20])
def test_a_singular_matrix_is_said_to_be_one(size: int, paths: tuple[str, ...]) -> None:
    negative = SymmetricSum([-torch.eye(size, dtype=torch.float64)])
    with fast_paths(*paths), pytest.raises(SingularError) as raised:
        shifted_solutions(negative, [0.5], torch.ones(size, 1, dtype=torch.float64))
    assert raised.value.shift == 0.5


def test_eigenvectors_take_the_matrix_apart() -> None:
    matrix, _ = system(60, 1e3)
    lengths, directions = eigen(matrix)
    assert torch.allclose(directions * lengths @ directions.T, matrix)
    assert bool((lengths.diff() >= 0).all())


def test_scipy_uses_as_many_threads_as_torch_where_that_pays() -> None:
    before = torch.get_num_threads()
    try:
        for told, work, used in ((1, 1e12, 1), (2, 1e12, 2), (2, 1e8, 1)):
            torch.set_num_threads(told)
            with blas_threads(work):
                pools = [pool for pool in controller().info() if pool["user_api"] == "blas"]
            assert pools
            assert all(pool["num_threads"] == used for pool in pools)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_jobs_have_one_thread_of_blas_each_and_overflow_in_silence(threads: int) -> None:
    """With one thread of torch too, where they run one after another."""

    def job() -> set[int]:
        assert np.isinf(np.float32(3e38) * np.ones(2, dtype=np.float32) * 10).all()
        return {pool["num_threads"] for pool in controller().info() if pool["user_api"] == "blas"}

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert side_by_side([job, job, job]) == [{1}] * 3
    finally:
        torch.set_num_threads(before)


def test_sums_tell_whether_numbers_are_finite() -> None:
    large = torch.full((4,), 3e38)  # their sum is not a float32
    assert is_finite([large, torch.zeros(0)])
    assert not is_finite([torch.tensor([1.0, math.inf, -math.inf])])
    assert not is_finite([torch.tensor([1.0, math.nan])])
    assert has_nan({"a": [torch.tensor([1.0, math.nan])]})
    assert not has_nan([large, torch.tensor([math.inf, -math.inf])])


@pytest.mark.parametrize("method", ["analytic", "auto"])
@pytest.mark.parametrize("hidden", [42, 1400], ids=["the sums", "factors"])
def test_a_learner_is_the_same_without_the_shortcut(method: str, hidden: int) -> None:
    graph = sbm(nodes=90, classes=4, degree=4, features=6, signal=3.0, seed=3)
    heads = []
    for paths in (BLAS, PLAIN):
        with fast_paths(*paths):
            stream = eg.TaskStream(graph, 2)
            learner = eg.Learner(eg.MixedFeatures(hidden=hidden), method, dtype=torch.float64).fit(stream)
            assert bool(learner.method.factor_) == (hidden > 1000)  # type: ignore[attr-defined]
            heads.append(learner.model.output_weight().detach())
    assert torch.allclose(*heads, atol=1e-7 * float(heads[0].abs().max()))


def test_features_in_pieces_are_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = sbm(nodes=30, classes=3, degree=3, features=5, seed=1)
    model = eg.MixedFeatures(hidden=70).double()
    model.setup(5, 3)
    model.double()
    operator = model.operator(graph).to(torch.float64)
    whole = model.graph_features(graph.x.double(), operator)
    monkeypatch.setattr(block_steps, "PIECE", 3)
    projected: dict[int, Tensor] = {}
    for _ in range(2):  # computed, then taken up again
        assert torch.allclose(model.graph_features(graph.x.double(), operator, projected), whole, atol=1e-12)
    assert len(projected) == 7 * 4


def test_scores_of_a_graph_are_kept_until_the_learner_changes() -> None:
    graph = sbm(nodes=60, classes=4, degree=4, features=6, signal=3.0, seed=5)
    stream = eg.TaskStream(graph, 2)
    learner = eg.Learner(eg.MixedFeatures(hidden=28), "auto")
    for task in stream:
        learner.learn(task)
        everything = learner.logits(graph)
        one_by_one = torch.cat([learner.logits(graph, [node]) for node in range(graph.num_nodes)])
        assert torch.equal(everything, one_by_one)
        assert torch.equal(everything, learner.logits(graph.altered()))  # nothing is kept with this one
    with torch.no_grad():
        learner.method.elsewhere_, learner.method.vote_ = {}, {}  # type: ignore[attr-defined]
        learner.model.output_weight().mul_(2)
    assert torch.equal(learner.logits(graph), learner.logits(graph.altered()))
    assert not torch.equal(learner.logits(graph), everything)


def test_threads_that_compute_at_once_leave_the_limits_as_they_were() -> None:
    """A enters, B enters, A ends, B ends."""
    loaded = controller()

    def limits() -> list[int]:
        return [library["num_threads"] for library in loaded.info() if library["user_api"] == "blas"]

    with loaded.limit(limits=2, user_api="blas"):
        before = limits()
        first, second = blas_threads(1e8), blas_threads(1e8)
        first.__enter__()
        second.__enter__()
        assert set(limits()) == {1}
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert limits() == before
