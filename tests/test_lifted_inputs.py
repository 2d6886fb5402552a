"""Few columns have one more, a constant: rows of length one still say how long they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import make_graph
from evergraph.models.input_scaling import FEW_COLUMNS, typical_entry

HIDDEN = 160


def amounts(size: float = 1.0) -> eg.TaskStream:
    """A class is an interval of the one feature, which is positive everywhere."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 4, (400, 1))
    return eg.TaskStream(
        make_graph(size * x, random.integers(0, 400, (2, 300)), x[:, 0].astype(int), undirected=True), 2
    )


@pytest.mark.parametrize("size", [1e-5, 1e5])
def test_one_column_of_positive_numbers_tells_classes_apart(size: float) -> None:
    stream = amounts(size)
    for scales, unit in ((False, size), (True, 1.0)):
        model = eg.MixedFeatures(hidden=7 * HIDDEN, scales=scales)
        assert eg.Learner(model, "auto").fit(stream).evaluate(stream).ap > 84
        assert unit / 2 <= model.lift <= 2 * unit


def test_graphs_and_links_of_few_columns_are_told_apart_too() -> None:
    """A graph's class is an interval that its nodes' one feature is in; a link's, the one that both ends are in."""
    random = np.random.default_rng(0)
    place = random.uniform(0, 4, 300)
    graphs = eg.make_graphs(
        np.repeat(place, 2)[:, None],
        np.arange(600).reshape(-1, 2).T,
        np.repeat(np.arange(300), 2),
        place.astype(int),
        undirected=True,
    )
    ends = np.argsort(place)[np.stack([np.arange(296), np.arange(296) + 4])]
    links = eg.make_links(place[:, None], ends, place[ends[0]].astype(int))
    for examples in (graphs, links):
        stream = eg.TaskStream(examples, 2)
        learner = eg.Learner("analytic").fit(stream)
        assert learner.model.encoder.lift in (1.0, 2.0)
        assert learner.evaluate(stream).ap > 85


@pytest.mark.parametrize("sparse", [False, True])
def test_a_typical_entry_is_a_geometric_mean(sparse: bool) -> None:
    x = np.random.default_rng(1).standard_normal((50, 5)) * 37
    x[::7] = 0
    x[3] *= 1e6  # one row in fifty moves the mean by a factor of 1.3
    graph = make_graph(sp.csr_matrix(x) if sparse else x, np.zeros((2, 0), int))
    wanted = np.exp(np.mean([np.log(abs(entry)) for row in x for entry in row if entry]))
    found = typical_entry(graph)
    assert np.log2(found) == np.ceil(np.log2(wanted))
    assert typical_entry(make_graph(0 * x, np.zeros((2, 0), int))) == 0


@pytest.mark.parametrize(("features", "lifts"), [(FEW_COLUMNS, True), (FEW_COLUMNS + 1, False)])
def test_many_columns_are_left_as_they_are(features: int, lifts: bool) -> None:
    model = eg.RandomFeatures(hidden=50)
    eg.Learner(model, "analytic").learn(eg.TaskStream(sbm(nodes=60, classes=2, features=features), 2)[0])
    assert bool(model.lift) == lifts
    assert model.projection.size(0) == features + lifts


def test_a_lifted_learner_is_saved_loaded_and_goes_on(tmp_path: Path) -> None:
    stream = amounts()
    learners = [eg.Learner(eg.MixedFeatures(hidden=70), "auto").fit([stream[0]]) for _ in range(2)]
    learners[0].save(tmp_path / "kept")
    learners[0] = eg.Learner.load(tmp_path / "kept")
    assert learners[0].model.lift == learners[1].model.lift > 0
    logits = [learner.fit([stream[1]]).logits(stream.graph) for learner in learners]
    assert torch.equal(*logits)


def test_forgetting_the_nodes_that_the_lift_was_measured_at() -> None:
    """Most of the first task's nodes have rows a thousand times as long: without them the lift is another."""
    stream = amounts()
    first = stream[0]
    gone = first.train[: len(first.train) * 2 // 3]
    x = first.graph.x.clone()
    x[gone] *= 1000
    task = eg.Task.of(first.graph.altered(x=x))
    gone = task.train[x[task.train, 0] > 5]
    assert len(gone) > 20
    models = [eg.RandomFeatures(hidden=100, scales=False) for _ in range(2)]
    found, never = (eg.Learner(model, "auto", dtype=torch.float64) for model in models)
    found.fit([task, stream[1]])
    before = found.model.lift
    found.forget(gone, [task, stream[1]])
    never.fit([task.without(gone), stream[1]])
    assert before != found.model.lift == never.model.lift
    assert (found.logits(stream.graph) - never.logits(stream.graph)).abs().max() < 1e-8


def test_forgetting_graphs_that_the_lift_was_measured_at() -> None:
    """Of graphs that are forgotten nothing is left, as in a set that never had them."""
    random = np.random.default_rng(0)
    place = random.uniform(0, 4, 200)
    size = np.where(place < 2, 1000.0, 1.0)  # the first task's graphs have large features

    def graphs(kept: np.ndarray) -> eg.Graph:
        number = int(kept.sum())
        x, owner = np.repeat((place * size)[kept], 2)[:, None], np.repeat(np.arange(number), 2)
        return eg.make_graphs(
            x, np.arange(2 * number).reshape(-1, 2).T, owner, place[kept].astype(int).astype(str), undirected=True
        )

    tasks = [eg.Task.of(graphs((place >= low) & (place < low + 2))) for low in (0, 2)]
    models = [eg.Pooled(eg.RandomFeatures(hidden=320, scales=False)) for _ in range(2)]
    found, never = (eg.Learner(model, "analytic", dtype=torch.float64) for model in models)
    found.fit(tasks)
    before = found.model.encoder.lift
    found.forget(classes=["0", "1"], data=tasks)
    never.learn(tasks[1])
    assert before > 100 > found.model.encoder.lift == never.model.encoder.lift
    assert found.classes_ == never.classes_ == ["2", "3"]
    assert (found.logits(tasks[1].graph)[:, :2] - never.logits(tasks[1].graph)).abs().max() < 1e-8


def test_a_model_made_by_hand_takes_up_the_lift_of_a_checkpoint(tmp_path: Path) -> None:
    stream = amounts()
    learner = eg.Learner(eg.RandomFeatures(hidden=50), "analytic").fit(stream)
    learner.save(tmp_path / "kept")
    loaded = eg.Learner.load(tmp_path / "kept", model=eg.RandomFeatures(hidden=50))
    assert torch.equal(loaded.logits(stream.graph), learner.logits(stream.graph))


def test_a_lift_that_is_given_stays() -> None:
    for lift in (0.0, 3.0):
        model = eg.RandomFeatures(hidden=50, lift=lift)
        eg.Learner(model, "analytic").learn(amounts()[0])
        assert model.lift == lift == model.hyperparameters()["lift"]


def test_a_model_that_had_another_learner_is_lifted_by_the_new_one_s_data() -> None:
    model = eg.RandomFeatures(hidden=50, scales=False)
    for size in (1.0, 1024.0):
        eg.Learner(model, "analytic").learn(amounts(size)[0])
        assert model.lift == pytest.approx(size, rel=1.0)


def test_rounding_does_not_decide_how_large_a_typical_entry_is() -> None:
    """Columns r and 1/r have the geometric mean 1."""
    random = np.random.default_rng(0)
    r = random.uniform(0.1, 10, 200)
    for _ in range(8):
        r = random.permutation(r)
        assert typical_entry(make_graph(np.stack([r, 1 / r], axis=1), np.zeros((2, 0), int))) == 1
