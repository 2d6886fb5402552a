"""Dense products and ridge solutions by scipy's BLAS, against torch in float64; and what rests on them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import evergraph as eg
from evergraph.core import dense_algebra
from evergraph.core.dense_algebra import (
    EXACT,
    ROUGH,
    SMALL,
    SingularError,
    eigen,
    product,
    shifted_solutions,
    symmetric_product,
)
from evergraph.core.finite import has_nan, is_finite
from evergraph.core.shortcuts import FAST_PATHS, fast_paths
from evergraph.core.side_by_side import blas_threads, controller
from evergraph.core.symmetric import SymmetricSum
from evergraph.data.datasets.sbm import sbm
from evergraph.models import block_steps

BLAS, PLAIN = FAST_PATHS, ()


@pytest.mark.parametrize("paths", [BLAS, PLAIN], ids=["blas", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 256, 1030])
def test_a_symmetric_product_is_the_product(width: int, dtype: torch.dtype, paths: tuple[str, ...]) -> None:
    rows = torch.randn(5, width, dtype=dtype)
    with fast_paths(*paths):
        for factor in (rows, rows.T, rows[:, ::2], rows[:1]):
            found = symmetric_product(factor)
            assert torch.allclose(found, factor.T @ factor, atol=1e-5 if dtype == torch.float32 else 1e-12)
            assert torch.equal(found, found.T)
        assert torch.allclose(product(rows.T, rows), rows.T @ rows, atol=1e-5)


def system(size: int, condition: float) -> tuple[Tensor, Tensor]:
    """A symmetric matrix with eigenvalues from 1 down to 1/condition, and targets, one column of them zero."""
    generator = torch.Generator().manual_seed(size)
    directions, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    lengths = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64)
    targets = torch.randn(size, 3, dtype=torch.float64, generator=generator)
    targets[:, 1] = 0
    return directions * lengths @ directions.T, targets


@pytest.mark.parametrize("error", [EXACT, ROUGH])
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


def test_float32_gives_up_where_it_says_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of condition 1e9 is solved in float64, one of 1e4 in float32 with refinement."""
    answers = []
    refined = dense_algebra._refined
    monkeypatch.setattr(dense_algebra, "_refined", lambda *given: answers.append(refined(*given)) or answers[-1])
    for condition in (1e4, 1e9):
        matrix, targets = system(SMALL + 20, condition)
        shifted_solutions(SymmetricSum([matrix]), [0.0], targets)
    assert [answer is None for answer in answers] == [False, True]


@pytest.mark.parametrize("paths", [BLAS, PLAIN], ids=["blas", "plain"])
@pytest.mark.parametrize("size", [30, SMALL + 20])
def test_a_singular_matrix_is_said_to_be_one(size: int, paths: tuple[str, ...]) -> None:
    with fast_paths(*paths), pytest.raises(SingularError) as raised:
        negative = SymmetricSum([-torch.eye(size, dtype=torch.float64)])
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
        for told, work, used in ((1, 1e12, 1), (2, 1e12, 2), (2, 1e6, 1)):
            torch.set_num_threads(told)
            with blas_threads(work):
                pools = [pool for pool in controller().info() if pool["user_api"] == "blas"]
            assert pools
            assert all(pool["num_threads"] == used for pool in pools)
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
        first, second = blas_threads(1.0), blas_threads(1.0)
        first.__enter__()
        second.__enter__()
        assert set(limits()) == {1}
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert limits() == before
