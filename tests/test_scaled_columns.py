"""Dense columns of unlike scales and offsets are brought alike, exactly as if forgotten nodes had never been there."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from benchmarks import column_scales

import evergraph as eg
from cases import slow
from evergraph.core.features import as_dense
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import make_graph
from evergraph.errors import EvergraphError, EvergraphWarning
from evergraph.models import input_scaling
from evergraph.models.input_scaling import InputScaling, measured_columns, with_scales
from evergraph.training.description import describe

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*outweighs it"),
    pytest.mark.filterwarnings("ignore:.*features are whole numbers"),
]

UNITS = np.array([1, 12, 1e4, 1e-3, 8, 1e6, 4])
OFFSETS = np.array([0, 40, 3e4, 0, 290, 0, 2015])


def table(nodes: int = 300, seed: int = 1) -> eg.Graph:
    """Six classes, in the units of a table."""
    graph = sbm(nodes=nodes, classes=6, degree=4, features=7, signal=2.0, seed=seed)
    return graph.altered(x=torch.as_tensor(as_dense(graph.x).double().numpy() * UNITS + OFFSETS))


def learner_of(model: str = "random-features", **settings: Any) -> eg.Learner:
    return eg.Learner(eg.make_model(model, hidden=140, **settings), "auto", dtype=torch.float64)


def features(x: np.ndarray) -> eg.Graph:
    return make_graph(x, np.zeros((2, 0), int))


# what is measured


def naive(column: np.ndarray) -> tuple[float, float]:
    """Centre and scale, one number at a time."""
    if set(column) <= {0.0, 1.0} and any(column):
        return 0.0, 1.0
    ordered = sorted(column)
    middle = ordered[(len(ordered) - 1) // 2] if sum(column == 0) < 0.2 * len(column) else 0.0
    away = sorted(abs(value - middle) for value in column)
    others = [distance for distance in away if distance]
    if not others:
        return middle, 0.0
    there = sorted(abs(value - middle) for value in column if value)
    most = there[int(np.ceil(0.95 * len(there))) - 1] if there else 0.0
    quartile = away[int(np.ceil(0.75 * len(away))) - 1]
    spread = max(quartile / 1.1503, most / 8) if quartile else others[(len(others) - 1) // 2]
    if len(others) < 0.01 * len(away):
        spread = max(spread, 1.0)
    scale = 2.0 ** round(np.log2(spread))
    if abs(middle) > 2 * scale:
        return round(middle / scale) * scale, scale
    return 0.0, 1.0 if 0.5 <= scale <= 2 else scale


def test_columns_are_measured_by_the_definition() -> None:
    random = np.random.default_rng(0)
    z = random.standard_normal((501, 12))
    rare = np.where(np.arange(501) < 3, 1e-8, 0.0)
    x = np.stack([
        z[:, 0], 1e6 * z[:, 1], 290 + 8 * z[:, 2], 1e-3 * z[:, 3], np.exp(10 + 2 * z[:, 4]),
        np.round(2015 + 4 * z[:, 5]), z[:, 6] > 1, np.where(z[:, 7] > 1, 1e4 * np.exp(z[:, 7]), 0),
        np.full(501, 273.15), np.zeros(501), rare,
        1e9 * np.abs(z[:, 8]), np.where(z[:, 9] > -1, 290 + z[:, 9], 0), np.ones(501), 1.5 * z[:, 10],
    ], axis=1)  # fmt: skip
    found = {number: (centre, scale) for number, centre, scale in measured_columns(features(x))}
    wanted = {number: naive(column) for number, column in enumerate(x.T)}
    assert found == {number: pair for number, pair in wanted.items() if pair != (0.0, 1.0)}
    assert sorted(set(range(15)) - set(found)) == [0, 6, 10, 13, 14]  # standardized, 0 and 1, rare, ones, nearly
    assert [found[column][1] for column in (2, 5, 8, 9)] == [8, 4, 0, 0]
    read = as_dense(InputScaling(tuple(measured_columns(features(x)))).apply(torch.as_tensor(x)))
    assert float(read[:, [0, 1, 2, 3, 4, 5, 7, 11, 12, 14]].abs().median(0).values.max()) < 4
    assert bool((read[:, [8, 9]] == 0).all())


@pytest.mark.parametrize(("spoilt", "by"), [(18, 1e12), (60, 0.0)])
def test_some_of_a_column_may_be_anything(spoilt: int, by: float) -> None:
    """A twentieth, or a quarter that is missing as 0."""
    z = 1000 + np.random.default_rng(0).standard_normal((400, 1)) * 50
    other = np.where(np.arange(400)[:, None] < spoilt, by, z)
    for column in (z, other):
        ((_, centre, scale),) = measured_columns(features(column))
        assert (abs(centre - 1000) < 64, scale) == (True, 64)


def test_a_column_that_is_mostly_at_one_end_is_not_narrow() -> None:
    """As the middle pixel of some digits: 253 at most nodes, anything below at the others."""
    pixel = np.where(np.arange(400) % 5 < 4, 253 - np.arange(400) % 2, np.random.default_rng(0).uniform(0, 253, 400))
    ((_, _, scale),) = measured_columns(features(pixel[:, None]))
    assert scale >= 16
    blank = np.where(np.arange(400) % 4 == 0, 0.0, pixel)
    assert measured_columns(features(blank[:, None])) == [(0, 0.0, 256.0)]


def test_what_is_not_finite_says_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((50, 2)) * 300
    graph = features(x)
    graph.x[3, 0] = torch.nan
    graph.x[:, 1] = torch.inf
    assert measured_columns(graph) == [(0, 0.0, 256.0), (1, 0.0, 0.0)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_types_of_numbers_are_measured_alike(dtype: type) -> None:
    x = np.random.default_rng(0).integers([-600, 1400, -600], [600, 2600, 600], (80, 3))
    assert measured_columns(features(x.astype(dtype))) == measured_columns(features(x.astype(np.float64)))


def test_sparse_features_and_those_of_0_and_1_stay_as_they_are() -> None:
    random = np.random.default_rng(0)
    counts = random.poisson(0.2, (100, 40)) * 900.0
    assert measured_columns(features(sp.csr_matrix(counts))) == []
    assert measured_columns(features(np.minimum(counts, 1))) == []
    assert measured_columns(features(counts)) == []  # many columns of one unit
    for odd in (counts * np.where(np.arange(40) == 3, 1e3, 1), counts * np.where(np.arange(40) < 4, 1e-2, 1),
                counts + np.where(np.arange(40) < 4, 1e5, 0)):  # fmt: skip
        assert len(measured_columns(features(odd))) > 30
    graph = sbm(nodes=80, classes=4, features=40, signal=2.0)
    words = graph.altered(x=(graph.x > 1).float())
    stream = eg.TaskStream(words, 2)
    same = [
        eg.Learner(eg.MixedFeatures(hidden=70, scales=on), "auto").fit(stream).logits(words) for on in (True, False)
    ]
    assert torch.equal(*same)


def test_rows_of_a_graph_in_parts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever process holds them; of a large graph every so manieth."""
    x = torch.randn(103, 4, dtype=torch.float64)
    monkeypatch.setattr(input_scaling, "ROWS", 20)
    whole = input_scaling._some_rows(features(x.numpy()))
    assert torch.equal(whole, x[::6])
    for starts in ([0, 103], [0, 1, 50, 51, 103], [0, 30, 30, 103]):
        given = list[torch.Tensor]()
        group = SimpleNamespace(sum=lambda tensors, given=given: (given.extend(tensors), tensors)[1])
        monkeypatch.setattr(input_scaling, "workers", lambda group=group: group)
        for first, last in pairwise(starts):
            part = features(x.numpy()[:1]).altered(x=x[first:last], rows=SimpleNamespace(start=first, starts=starts))
            input_scaling._some_rows(part)
        assert torch.equal(sum(given), whole)


# what comes of it


def test_units_and_offsets_do_not_matter() -> None:
    """Other units, by powers of two, and other offsets, by multiples of them: the same outputs, to the last bit."""
    graph = table()
    start = 64 * torch.tensor(as_dense(graph.x).numpy() / UNITS - OFFSETS / UNITS) + 300.0 * torch.arange(7)
    other = start * 2.0 ** torch.tensor([0, 20, -20, 3, -9, 5, 11])
    outputs = []
    for x in (start, other, other + 2.0**30 * (torch.arange(7) == 1)):
        stream = eg.TaskStream(graph.altered(x=x), 2)
        outputs.append(learner_of("mixed-features").fit(stream).logits(stream.graph))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.allclose(outputs[0], outputs[2], atol=1e-6)


@pytest.mark.parametrize("method", ["auto", "analytic"])
def test_a_table_is_learned_as_if_standardized_by_hand(method: str) -> None:
    graph = table(600)
    x = as_dense(graph.x)
    by_hand = graph.altered(x=(x - x.mean(0)) / x.std(0))
    found = {}
    for name, given, scales in (("scaled", graph, True), ("by hand", by_hand, False), ("as given", graph, False)):
        stream = eg.TaskStream(given, 2)
        learner = eg.Learner(eg.MixedFeatures(hidden=350, scales=scales), method)
        found[name] = learner.fit(stream).evaluate(stream).ap
    assert found["scaled"] > found["by hand"] - 3 > found["as given"] + 10


def test_it_is_said_where_a_column_still_outweighs_the_others() -> None:
    task = eg.TaskStream(table().altered(feature_names=[*"abcdef", "year"]), 2)[0]
    for learner in (eg.Learner("finetune", epochs=1), learner_of(scales=False)):
        with pytest.warns(EvergraphWarning, match="column 'f' is more than 100 times as large as a typical one"):
            learner.learn(task)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        learner_of().learn(task)


def test_graphs_and_links_are_scaled_too() -> None:
    random = np.random.default_rng(0)
    place = random.uniform(0, 4, 300)
    rows = np.stack([1e6 * random.standard_normal(300), 290 + place], axis=1)
    graphs = eg.make_graphs(
        np.repeat(rows, 2, axis=0), np.arange(600).reshape(-1, 2).T, np.repeat(np.arange(300), 2), place.astype(int),
        undirected=True,
    )  # fmt: skip
    ends = np.argsort(place)[np.stack([np.arange(296), np.arange(296) + 4])]
    links = eg.make_links(rows, ends, place[ends[0]].astype(int))
    for examples in (graphs, links):
        stream = eg.TaskStream(examples, 2)
        learner = eg.Learner("analytic").fit(stream)
        assert [column for column, _, _ in learner.model.encoder.scales] == [0, 1]
        assert learner.evaluate(stream).ap > 80


def test_reasons_add_up_to_the_logit() -> None:
    stream = eg.TaskStream(table(), 2)
    learner = learner_of("mixed-features").fit(stream)
    logits = learner.logits(stream.graph)
    for node in (0, 17):
        found = learner.why(stream.graph, node)
        assert found.logit == pytest.approx(float(logits[node].max()), abs=1e-9)
        assert found.constant + sum(amount for _, amount in found.features) == pytest.approx(found.logit, abs=1e-9)
        assert {name for name, _ in found.features} == {f"feature {column}" for column in range(7)}


@pytest.mark.parametrize("name", list(column_scales.STREAMS))
def test_the_study_s_columns_are_brought_alike(name: str) -> None:
    """Three in four numbers lie within a few spreads of the middle."""
    graph = column_scales.graph_of(name, seed=1)
    read = as_dense(InputScaling(tuple(measured_columns(graph))).apply(graph.x))
    spreads = (read - read.median(0).values).abs().quantile(0.75, dim=0)
    assert bool((spreads < 3.3).all())
    assert float(as_dense(column_scales.graph_of(name, seed=1, by_hand=True).x).std(0).max()) < 1.01


# columns that come later


def late() -> list[eg.Task]:
    """Column 1 is zero in the first task, column 4 the same everywhere; both vary from the second on."""
    tasks = [eg.Task.of(part.graph) for part in eg.TaskStream(table(), 2)]
    x = tasks[0].graph.x.clone()
    x[:, 1], x[:, 4] = 0, 290.1
    return [eg.Task.of(tasks[0].graph.altered(x=x)), *tasks[1:]]


def test_columns_that_come_later_change_no_sum() -> None:
    tasks = late()
    learner = learner_of("mixed-features").fit(tasks[:1])
    assert {(1, 0.0, 0.0), (4, 290.1, 0.0)} <= set(learner.model.scales)
    scales = with_scales(learner.model.scales, tasks[1].graph)
    assert {1, 4} <= {column for column, _, scale in scales if scale}
    learner.fit(tasks[1:])
    assert learner.model.scales == scales
    given = learner_of("mixed-features", scales=scales).fit(tasks)
    assert torch.equal(learner.logits(tasks[2].graph), given.logits(tasks[2].graph))


def test_columns_of_0_and_1_that_come_later_stay_as_they_are() -> None:
    x = np.array([[0.0, 300], [0, 900], [0, -200]])
    columns = measured_columns(features(x))
    assert (0, 0.0, 0.0) in columns
    assert with_scales(columns, features(np.array([[1.0, 0], [0, 0]]))) == columns[1:]
    assert with_scales(columns, features(x)) == columns


# what was learned is forgotten


@pytest.mark.parametrize("keep_in_graph", [False, True])
def test_forgetting_nodes_that_scales_were_measured_at(keep_in_graph: bool) -> None:
    tasks = [eg.Task.of(part.graph) for part in eg.TaskStream(table(), 2)]
    gone = tasks[0].train[: len(tasks[0].train) * 3 // 4]
    x = tasks[0].graph.x.clone()
    x[gone, 3] *= 1e5
    tasks[0] = eg.Task.of(tasks[0].graph.altered(x=x))
    found, never = learner_of(), learner_of()
    found.fit(tasks)
    before = found.model.scales
    found.forget(gone, tasks, keep_in_graph=keep_in_graph)
    never.fit([tasks[0].without(gone, keep_in_graph=keep_in_graph), *tasks[1:]])
    assert found.model.scales == never.model.scales
    assert (before != found.model.scales) != keep_in_graph  # nodes that stay in the graph are still measured
    assert (found.logits(tasks[1].graph) - never.logits(tasks[1].graph)).abs().max() < 1e-8


@pytest.mark.parametrize(
    ("number", "alone"),
    [
        (0, False),
        (1, True),
        (2, False),
        *(slow(*way) for way in ((0, True), (1, False), (2, True))),
    ],
)
@pytest.mark.filterwarnings("ignore:heads are as if these")
def test_forgetting_a_few_nodes_of_any_task(number: int, alone: bool) -> None:
    tasks = late()
    found, never = learner_of(), learner_of()
    found.fit(tasks)
    gone = tasks[number].train[::20]
    found.forget(gone, tasks[number] if alone else [tasks[number], *tasks[:number], *tasks[number + 1 :]])
    never.fit([task.without(gone) if place == number else task for place, task in enumerate(tasks)])
    assert found.model.scales == never.model.scales
    assert (found.model.head - never.model.head).abs().max() < 1e-8


def test_forgetting_the_task_that_brought_a_column() -> None:
    tasks = late()
    x = tasks[1].graph.x.clone()
    x[:, 1] *= 1000
    tasks[1] = eg.Task.of(tasks[1].graph.altered(x=x))
    found, never = learner_of(), learner_of()
    found.fit(tasks)
    before = found.model.scales
    found.forget(classes=tasks[1].class_names, data=tasks)
    never.fit([tasks[0], tasks[2]])
    assert before != found.model.scales == never.model.scales
    assert found.classes_ == never.classes_
    units = len(never.classes_)
    assert (found.logits(tasks[2].graph)[:, :units] - never.logits(tasks[2].graph)[:, :units]).abs().max() < 1e-8


def test_a_model_that_had_another_learner_is_measured_anew_after_forgetting_too() -> None:
    tasks = [eg.Task.of(part.graph) for part in eg.TaskStream(table(), 2)]
    model = eg.RandomFeatures(hidden=140)
    eg.Learner(model, "auto", dtype=torch.float64).learn(eg.Task.of(tasks[1].graph.altered(x=tasks[1].graph.x * 4096)))
    found, never = eg.Learner(model, "auto", dtype=torch.float64), learner_of()
    found.fit(tasks)
    gone = tasks[0].train[:30]
    found.forget(gone, tasks)
    never.fit([tasks[0].without(gone), *tasks[1:]])
    assert found.model.scales == never.model.scales


# saved and given


def test_a_scaled_learner_is_saved_loaded_and_goes_on(tmp_path: Path) -> None:
    tasks = late()
    first = learner_of("mixed-features").fit(tasks[:1])
    first.save(tmp_path / "kept")
    learners = [
        eg.Learner.load(tmp_path / "kept"),
        eg.Learner.load(tmp_path / "kept", model=eg.MixedFeatures(hidden=140)),
        first,
    ]
    told = describe(tmp_path / "kept")["scaled_columns"]
    assert "1: not read yet, 0 everywhere so far" in told
    assert any(line.startswith("2: (x − ") for line in told)
    logits = [learner.fit(tasks[1:]).logits(tasks[1].graph) for learner in learners]
    assert torch.equal(logits[0], logits[2])
    assert torch.equal(logits[1], logits[2])
    gone = tasks[0].train[:20]
    for learner in learners:
        learner.forget(gone, tasks)
    assert learners[0].model.scales == learners[2].model.scales
    assert torch.allclose(learners[0].logits(tasks[1].graph), learners[2].logits(tasks[1].graph), atol=1e-8)


def test_a_learner_from_before_columns_were_scaled_goes_on_without(tmp_path: Path) -> None:
    tasks = [eg.Task.of(part.graph) for part in eg.TaskStream(table(), 2)]
    learner = learner_of(scales=False).fit(tasks[:1])
    learner.model.scales = True  # what a model without the setting is read as
    learner.save(tmp_path / "kept")
    loaded = eg.Learner.load(tmp_path / "kept").fit(tasks[1:])
    assert loaded.model.scales is True
    assert torch.equal(loaded.logits(tasks[0].graph), learner_of(scales=False).fit(tasks).logits(tasks[0].graph))


def test_scales_that_are_given_stay() -> None:
    task = eg.TaskStream(table(), 2)[0]
    for scales in (False, [[2, 3e4, 8192.0]]):
        learner = learner_of(scales=scales)
        learner.learn(task)
        assert learner.model.hyperparameters()["scales"] == scales
    for wrong in ([[1, 2]], [[-1, 0, 1]], [[1, 0, -2]]):
        with pytest.raises(EvergraphError, match="is not a list of columns"):
            eg.RandomFeatures(scales=wrong)
    with pytest.raises(EvergraphError, match="scales names column 7; there are 0 to 6"):
        learner_of(scales=[[7, 0, 2]]).learn(task)


def test_a_column_that_varies_only_at_rows_not_looked_at_is_not_lost() -> None:
    """Every second row of 20,000 is looked at; the column says something at the others alone."""
    random = np.random.default_rng(0)
    x = random.standard_normal((20_000, 3))
    x[:, 2] = np.where(np.arange(20_000) % 2, x[:, 2] * 50, 0.0)
    assert measured_columns(features(x)) == []
    assert with_scales([(2, 0.0, 0.0)], features(x)) == []


@pytest.mark.parametrize(("method", "advice"), [("finetune", "as auto and analytic do"), ("auto", "set scales=")])
def test_a_column_that_outweighs_the_others_is_told_with_advice_that_helps(method: str, advice: str) -> None:
    """To a learner that scales columns by itself, and was told not to, as well."""
    graph = sbm(nodes=200, classes=4, features=8, seed=0)
    x = graph.x.clone()
    x[:, 3] *= 1e4
    model = eg.MixedFeatures(hidden=70, scales=False) if method == "auto" else eg.GCN(hidden=8)
    learner = eg.Learner(model, eg.make_method(method), device="cpu")
    with pytest.warns(eg.EvergraphWarning, match="column 3 is more than 100 times as large") as told:
        learner.learn(eg.TaskStream(graph.altered(x=x), 2)[0])
    assert any(advice in str(each.message) for each in told)


def test_of_dense_columns_in_a_sparse_matrix_it_is_said_that_they_are_not_scaled() -> None:
    graph = sbm(nodes=200, classes=4, features=8, seed=0)
    x = graph.x.clone()
    x[:, 3] *= 1e4
    sparse = make_graph(sp.csr_matrix(x.numpy()), graph.edge_index, graph.y)
    learner = eg.Learner(eg.MixedFeatures(hidden=70), "auto", device="cpu")
    with pytest.warns(eg.EvergraphWarning, match=r"column 3 is more than 100 times .* give them dense"):
        learner.learn(eg.TaskStream(sparse, 2)[0])
