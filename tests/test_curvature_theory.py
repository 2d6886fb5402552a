"""The paper's two propositions, as far as numbers can show them."""

import itertools

import pytest
import torch
from torch import Tensor

from brute_force import close, flat, make, node_fisher_rows, pull, seeded, step_gradient
from evergraph.curvature import fisher_product, quadratic_form
from evergraph.methods import OnlineCurvature
from evergraph.methods.base import Context, Method


@pytest.mark.parametrize("case", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("labels", ["exact", "empirical"])
def test_proposition_1_the_rank_does_not_fall_as_nodes_are_added(case: str, labels: str) -> None:
    setting = make(case)
    size = flat(setting.params).numel()
    fisher, ranks = torch.zeros(size, size, dtype=torch.float64), [0]
    for rows in node_fisher_rows(setting, labels):
        stacked = torch.stack(rows)
        fisher += stacked.T @ stacked
        ranks.append(int(torch.linalg.matrix_rank(fisher, hermitian=True)))
    assert ranks == sorted(ranks)
    # a node brings at most (classes − 1) directions, and the first ones do bring them
    each = 3 if labels == "exact" else 1
    assert all(after - before <= each for before, after in itertools.pairwise(ranks))
    assert ranks[1] == each
    assert ranks[-1] > ranks[3]


def error_rate(draws: Tensor, exact: Tensor) -> float:
    """The slope of log(error of a mean of n draws) over log n: −½ for unbiased independent draws."""
    sizes = [1, 4, 16]
    errors = []
    for n in sizes:
        means = draws[: draws.size(0) // n * n].unflatten(0, (-1, n)).mean(1)
        errors.append(float((means - exact).square().sum(1).mean().sqrt()))
    x, y = torch.tensor(sizes).log(), torch.tensor(errors).log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def unbiased(draws: Tensor, exact: Tensor) -> None:
    """The mean lies within what its own spread allows, everywhere; and the error falls as 1/√n."""
    allowed = 5 * draws.std(0) / draws.size(0) ** 0.5 + 1e-12
    assert ((draws.mean(0) - exact).abs() <= allowed).all()
    assert float(draws.std(0).max()) > 0
    assert error_rate(draws, exact) == pytest.approx(-0.5, abs=0.12)


def test_proposition_2_regularizer_and_product_are_unbiased() -> None:
    setting, d, generator = make("gcn"), make("gcn").direction(), seeded()
    exact = quadratic_form(setting.function, setting.params, d, setting.problem)
    draws = torch.stack(
        [
            quadratic_form(setting.function, setting.params, d, setting.problem, "sample", generator=generator)
            for _ in range(256)
        ]
    )
    unbiased(draws.unsqueeze(1), exact.reshape(1))
    product = flat(fisher_product(setting.function, setting.params, d, setting.problem))
    sampled = [
        flat(fisher_product(setting.function, setting.params, d, setting.problem, "sample", generator=generator))
        for _ in range(160)
    ]
    unbiased(torch.stack(sampled), product)


def draw(method: OnlineCurvature, context: Context, times: int) -> Tensor:
    """What the method adds to the gradient at so many steps at the same parameters."""
    loss = flat(step_gradient(Method(), context))
    return torch.stack([flat(step_gradient(method, context)) for _ in range(times)]) - loss


def anchored(method: OnlineCurvature) -> tuple[OnlineCurvature, Context]:
    """The method after two tasks that ended at random parameters, and the model at others."""
    setting = make("gcn")
    theta, context = setting.params, setting.context()
    for seed in (1, 2):
        setting.load(setting.direction(seed))
        method.end_task(context)
    setting.load(theta)
    return method, context


def test_proposition_2_sampled_training_gradients_are_unbiased() -> None:
    exact, context = anchored(OnlineCurvature(estimator="exact", ema=0))
    want = pull(exact, context)
    sampled, context = anchored(OnlineCurvature(estimator="sampled", ema=0))
    unbiased(draw(sampled, context, 192), want)


def test_at_fixed_parameters_the_queue_is_unbiased_too() -> None:
    exact, context = anchored(OnlineCurvature(estimator="exact", ema=0))
    want = pull(exact, context)
    # a queue of one entry is one draw
    single, context = anchored(OnlineCurvature(estimator="queue", queue_size=1, ema=0))
    draws = draw(single, context, 320)
    unbiased(draws, want)
    # and a long queue is the mean of the draws it holds
    long, context = anchored(OnlineCurvature(estimator="queue", queue_size=200, ema=0))
    close(draw(long, context, 100)[-1], draws[:100].mean(0))
