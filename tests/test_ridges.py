"""The ridge of each set of blocks, against loops over ridges and validation nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

import evergraph as eg
from evergraph.data import Graph
from evergraph.data.datasets.sbm import sbm
from evergraph.methods.closed_form.block_sets import GRID, PREFERRED
from evergraph.methods.closed_form.hits import rows_of
from evergraph.methods.closed_form.ridges import tops
from evergraph.methods.closed_form.sums import HeadRequest
from evergraph.models.base import neighbourhoods


@pytest.fixture(scope="module")
def graph() -> Graph:
    return sbm(nodes=240, classes=4, degree=5, homophily=0.5, features=10, signal=1.5, seed=3)


def learned(graph: Graph, tasks: int = 2, hidden: int = 56) -> eg.Learner:
    learner = eg.Learner(eg.MixedFeatures(hidden=hidden), eg.Auto(), dtype=torch.float64, device="cpu")
    for task in list(eg.TaskStream(graph, 2))[:tasks]:
        learner.learn(task)
    return learner


def error_by_nodes(learner: eg.Learner, graph: Graph, head: torch.Tensor) -> float:
    """The squared error of a head at the validation nodes of both tasks, node by node."""
    method, total = learner.method, 0.0
    assert isinstance(method, eg.Auto)
    for task in eg.TaskStream(graph, 2):
        features = neighbourhoods(learner.model, task.graph).x
        assert isinstance(features, torch.Tensor)
        for node in task.val.tolist():
            label = int(task.graph.y[node])
            wanted = torch.eye(head.size(1), dtype=torch.float64)[label]
            weight = method.class_sizes_[label] ** -method.balance
            total += weight * float((features[node] @ head - wanted).square().sum())
    return total


HILLS = [[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1], [1, 4, 3, 2, 1, 0, -1], [1, 2, 5, 9, 11, 12, 4], [3, 2], [7]]


@pytest.mark.parametrize("start", [None, 0, 1, 4, 6])
def test_the_search_ends_at_the_top_of_every_hill(start: int | None) -> None:
    for hill in HILLS:
        asked = list[tuple[str, int]]()

        def explained(
            wanted: Mapping[str, Sequence[int]], hill: list[int] = hill, asked: list[tuple[str, int]] = asked
        ) -> dict[str, dict[int, float]]:
            asked += [(name, place) for name, places in wanted.items() for place in places]
            return {name: {place: float(hill[place]) for place in places} for name, places in wanted.items()}

        first = None if start is None else min(start, len(hill) - 1)
        found = tops({"one": first, "another": None}, len(hill), explained)
        assert found == dict.fromkeys(("one", "another"), hill.index(max(hill)))
        assert len(asked) == len(set(asked))  # nothing is measured twice


@pytest.mark.parametrize("hidden", [560, 56], ids=["factors", "sums"])
def test_errors_from_the_sums_are_those_of_all_validation_nodes(graph: Graph, hidden: int) -> None:
    learner = learned(graph, hidden=hidden)
    method = learner.method
    assert isinstance(method, eg.Auto)
    assert bool(method.factor_) == (hidden == 560)
    block_of_row = learner.model.feature_blocks()[1]  # type: ignore[operator]
    for blocks in method._sets(learner.model)[0].values():
        wanted = HeadRequest(GRID, ("train",), rows_of(block_of_row, blocks))
        naive = [error_by_nodes(learner, graph, head) for head in method.solve(*wanted)]
        assert method.validation_errors(wanted) == pytest.approx(naive, rel=1e-6)


def test_every_set_has_the_ridge_that_explains_most(graph: Graph) -> None:
    learner = learned(graph)
    method = learner.method
    assert isinstance(method, eg.Auto)
    block_of_row = learner.model.feature_blocks()[1]  # type: ignore[operator]
    for name, blocks in method._sets(learner.model)[0].items():
        heads = method.solve(GRID, ("train",), rows_of(block_of_row, blocks))
        errors = [error_by_nodes(learner, graph, head) for head in heads]
        assert method.ridge_places_[name] == errors.index(min(errors)), name


@pytest.mark.parametrize(
    ("place", "tasks", "used"),
    [
        (3, [(9, 3, 50)], 2),
        (3, [(8, 5, 50)], 3),  # may be chance
        (3, [(0, 0, 50)], 3),
        (3, [(3, 9, 50)], 3),
        (0, [(9, 3, 50)], 0),  # none is smaller
        (3, [(9, 0, 900), (0, 1, 50), (0, 1, 50)], 3),  # a gain in one large task, and a loss in two small ones
        (3, [(9, 0, 50), (0, 1, 900), (0, 1, 900)], 2),
    ],
)
def test_the_next_smaller_ridge_is_used_where_it_has_clearly_more_hits(
    place: int, tasks: list[tuple[int, int, int]], used: int
) -> None:
    method = eg.Auto()
    method.chosen_, method.ridge_places_ = "smooth", {"smooth": place}
    for right, wrong, validated in tasks:
        method._count("smooth", 40, [right, wrong], validated)
    assert method.chosen_ridge() == GRID[used]
    assert method.set_hits_ == {"smooth": 40 * len(tasks)}


def test_without_validation_nodes_the_ridge_is_one(graph: Graph) -> None:
    split = torch.full((graph.num_nodes, 1), 0)
    split[::4] = 2
    learner = learned(graph.altered(splits=split))
    assert isinstance(learner.method, eg.Auto)
    assert set(learner.method.ridge_places_.values()) == {PREFERRED}
    assert learner.method.chosen_ridge() == 1.0


def test_a_learner_that_counted_hits_of_each_ridge_learns_on(graph: Graph) -> None:
    """Older versions had a list of hits for each set, and took the ridge with most of them."""
    learner = learned(graph, tasks=1)
    method = learner.method
    assert isinstance(method, eg.Auto)
    state = method.state_dict()
    before = dict(method.set_hits_)
    older = {name: [hits - 2, hits, hits, hits - 1, 0, 0, 0] for name, hits in before.items()}
    del state["ridge_places_"], state["smaller_"]
    method.load_state_dict({**state, "set_hits_": older})
    assert method.set_hits_ == before
    assert set(method.ridge_places_.values()) == {PREFERRED}  # of two ridges with most hits
    learner.learn(eg.TaskStream(graph, 2)[1])
    assert learner.evaluate(eg.TaskStream(graph, 2)).ap > 50


def test_a_task_of_one_class_has_the_ridge_one(graph: Graph) -> None:
    """Nothing varies that a ridge could explain."""
    learner = eg.Learner(eg.MixedFeatures(hidden=56), eg.Auto(), device="cpu")
    learner.learn(eg.TaskStream(graph, 1)[0])
    assert isinstance(learner.method, eg.Auto)
    assert set(learner.method.ridge_places_.values()) == {PREFERRED}
