"""What counts alike in `auto`'s decisions: the correction against a naive one, and where it goes."""

from __future__ import annotations

import math

import pytest
import torch

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph
from evergraph.methods.closed_form.hits import rows_of
from evergraph.methods.closed_form.prior import log_worth, seen_in_several_tasks, stretch
from evergraph.models.base import neighbourhoods

SIZES, TASKS = [30, 6, 12, 0, 5, 9], [0, 0, 1, 1, 2, -1]


@pytest.fixture
def graph() -> Graph:
    made = sbm(nodes=90, classes=5, degree=3, features=6, signal=3.0, seed=2)
    made.y[torch.nonzero(made.y == 4).reshape(-1)[9:]] = 0  # classes of different sizes
    return made


def learned(graph: Graph, **settings: object) -> eg.Learner:
    learner = eg.Learner(eg.MixedFeatures(hidden=56), eg.Auto(**settings), dtype=torch.float64, device="cpu")
    return learner.fit(eg.TaskStream(graph, 2))


def naive(prior: str, weight_of_node: list[float], sizes: list[int], tasks: list[int]) -> list[float]:
    """Unit after unit, from what one node counts over what it weighs."""
    met = [unit for unit, size in enumerate(sizes) if size and tasks[unit] >= 0]
    counts = {}
    for unit in met:
        in_task = sum(sizes[other] for other in met if tasks[other] == tasks[unit])
        counts[unit] = {"tasks": 1 / in_task, "classes": 1 / sizes[unit], "nodes": 1.0}[prior] / weight_of_node[unit]
    mean = math.prod(counts.values()) ** (1 / len(met))
    return [math.log(counts[unit] / mean) if unit in met else 0.0 for unit in range(len(sizes))]


@pytest.mark.parametrize("prior", ["tasks", "classes", "nodes"])
def test_the_correction_is_what_a_node_counts_over_what_it_weighs(prior: str) -> None:
    weight_of_node = [max(size, 1) ** -0.75 for size in SIZES]
    weights = torch.tensor([size * weight for size, weight in zip(SIZES, weight_of_node)], dtype=torch.float64)
    found = log_worth(prior, weights, torch.tensor(SIZES), torch.tensor(TASKS))  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx(naive(prior, weight_of_node, SIZES, TASKS), abs=1e-12)


def test_weights_and_nothing_learned_correct_nothing() -> None:
    sizes, tasks = torch.tensor(SIZES), torch.tensor(TASKS)
    assert not log_worth("weights", sizes.double(), sizes, tasks).any()
    assert not log_worth("tasks", torch.zeros(6), 0 * sizes, tasks).any()


@pytest.mark.parametrize("prior", ["tasks", "classes", "nodes", "weights"])
def test_the_head_is_the_solution_with_logits_raised(graph: Graph, prior: str) -> None:
    learner = learned(graph, prior=prior)
    method, model = learner.method, learner.model
    assert isinstance(method, eg.Auto)
    rows = rows_of(model.feature_blocks()[1], method.blocks_)  # type: ignore[operator]
    solved = method.solve([method.chosen_ridge()], ("train", "val"), rows)[0]
    nodes = torch.cat([task.graph.y[task.train] for task in eg.TaskStream(graph, 2)])
    sizes = torch.bincount(nodes, minlength=5).tolist()
    raised = [0.0] * 5
    if prior != "weights":
        raised = naive(prior, [size**-method.balance for size in sizes], sizes, [0, 0, 1, 1, 2])
    expected = method._refined(model, solved, ("train", "val")).clone()
    expected[-1] += 0.1 / method.stretch_ * torch.tensor(raised, dtype=torch.float64)
    assert torch.allclose(model.output_weight(), expected, atol=1e-9)  # type: ignore[operator]


def test_examples_of_old_classes_weigh_what_they_weigh_in_the_sums(graph: Graph) -> None:
    """A class that comes again has nodes of several weights: their sum is what is corrected."""
    stream = eg.TaskStream(graph, order=[[0, 1], [0, 2]])
    method = (
        eg.Learner(eg.MixedFeatures(hidden=56), eg.Auto(prior="classes"), dtype=torch.float64, device="cpu")
        .fit(stream)
        .method
    )
    assert isinstance(method, eg.Auto)
    sizes, weights = [0, 0, 0], [0.0, 0.0, 0.0]
    for task in stream:
        labels = task.graph.y[task.train].tolist()
        sizes = [size + labels.count(unit) for unit, size in enumerate(sizes)]
        weights = [w + labels.count(unit) * max(sizes[unit], 1) ** -method.balance for unit, w in enumerate(weights)]
    expected = -torch.tensor(weights, dtype=torch.float64).log()
    assert torch.allclose(method._log_worth()[:3], expected - expected.mean(), atol=1e-9)


def test_where_a_class_comes_again_nodes_count_alike(graph: Graph) -> None:
    """Months that bring known classes and new ones: a new class that comes alone is no task of its own."""
    for order, counted in (([[0, 1], [2]], "tasks"), ([[0, 1], [0, 2]], "nodes")):
        learner = eg.Learner(eg.MixedFeatures(hidden=56), eg.Auto(), dtype=torch.float64, device="cpu")
        method = learner.fit(eg.TaskStream(graph, order=order)).method
        assert isinstance(method, eg.Auto)
        weights, sizes, tasks = method.cross_["train"][-1], method.class_sizes_, method.task_of_unit_
        assert seen_in_several_tasks(weights, torch.tensor(sizes), method.balance) == (counted == "nodes")
        per_node = [float(weight) / size for weight, size in zip(weights, sizes)]
        assert method._log_worth().tolist()[:3] == pytest.approx(naive(counted, per_node, sizes, tasks)[:3], abs=1e-9)


@torch.no_grad()
def test_where_own_features_say_nothing_scores_are_multiplied_and_no_edge_is_judged(graph: Graph) -> None:
    learner = learned(graph)
    method, model = learner.method, learner.model
    assert isinstance(method, eg.Auto)
    method.own_explains_ = 0.0
    method.write(learner.problem, model)
    block_of_row, heads = model.feature_blocks()[1], []  # type: ignore[operator]
    for blocks in method._mixed_sets(model):
        rows = rows_of(block_of_row, blocks)
        heads.append(method.solve([method._explained(model, blocks)[1]], ("train", "val"), rows)[0])
    solved = torch.stack(heads).mean(0)
    method.smoothing_elsewhere_ = [0, 0, 0, 0, 50, 0]  # among a task's own classes smoothing pays
    way = method._prediction(model).elsewhere
    assert (way.judgements, way.smoothing, way.unjudged, way.smoothing_over_all(0.4)) == (0, 0.75, 1.0, 0.75)
    assert torch.allclose(way.head, solved * method._log_worth().exp(), atol=1e-9)
    method.own_explains_, method.votes_ = 1.0, False
    method.own_within_ = {way: [0, 0] for way in method.own_within_}
    method.write(learner.problem, model)
    assert method.elsewhere() == "smooth"
    way = method._prediction(model).elsewhere
    assert (way.judgements, way.smoothing, way.unjudged, way.smoothing_over_all(0.4)) == (2, 0.75, 1 / 3, 0.75 * 0.6)
    method.smoothing = 0.0
    way = method._prediction(model).elsewhere
    assert (way.judgements, way.smoothing, way.unjudged) == (2, 0.0, 1 / 3)


def test_scores_fall_short_by_what_fits_all_validation_nodes_best(graph: Graph) -> None:
    learner = learned(graph)
    method, model = learner.method, learner.model
    assert isinstance(method, eg.Auto)
    rows = rows_of(model.feature_blocks()[1], method.blocks_)  # type: ignore[operator]
    head = method.solve([method.chosen_ridge()], ("train",), rows)[0]
    nodes = []
    for task in eg.TaskStream(graph, 2):
        features = neighbourhoods(model, task.graph).x
        for node in task.val.tolist():
            label = int(task.graph.y[node])
            weight = method.class_sizes_[label] ** -method.balance
            nodes.append((weight, features[node] @ head, torch.eye(5, dtype=torch.float64)[label]))  # type: ignore[index]
    total = sum(weight for weight, _, _ in nodes)
    shares, mean = (sum(weight * each[place] for weight, *each in nodes) / total for place in (1, 0))

    def error(factor: float) -> float:
        return sum(
            weight * float((shares + factor * (scores - mean) - label).square().sum())
            for weight, scores, label in nodes
        )

    assert error(method.stretch_) < min(error(method.stretch_ * 1.001), error(method.stretch_ / 1.001))


def test_without_validation_nodes_nothing_is_stretched() -> None:
    assert stretch(torch.ones(3, 2), torch.zeros(3, 2), lambda head: 0.0) == 1.0


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_scores_that_are_the_same_everywhere_are_not_stretched_by_rounding(sign: int) -> None:
    features = torch.ones(10, 3, dtype=torch.float64)
    targets = torch.eye(2, dtype=torch.float64)[[0, 1] * 5]
    head, cross = torch.full((3, 2), 1 / 6, dtype=torch.float64), features.T @ targets
    assert stretch(head, cross, lambda head: float((features @ head).square().sum()) * (1 + sign * 1e-15)) == 1.0
