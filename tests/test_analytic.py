"""The closed-form head: equal to joint learning, whatever the order and the batches."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

import evergraph as eg
from evergraph.core.features import as_dense, with_self_loops
from evergraph.core.sparse import SparseMatrix
from evergraph.core.symmetric import packed_size, unpack
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph
from evergraph.methods.closed_form import block_prediction
from evergraph.methods.closed_form.analytic import Analytic
from evergraph.methods.closed_form.block_prediction import BlockPrediction, Way
from evergraph.methods.closed_form.judged_edges import judge_edges
from evergraph.models.base import neighbourhoods
from evergraph.models.random_features import unit_rows

pytestmark = pytest.mark.filterwarnings("ignore:.*was learned already")

BLOCKS = ((0, 0.5), (1, 1.0), (2, 0.5), (2, 0.0))


def encoder() -> eg.RandomFeatures:
    return eg.RandomFeatures(hidden=32, blocks=BLOCKS)


def built(graph: Graph, classes: int = 6) -> eg.RandomFeatures:
    torch.manual_seed(3)
    model = encoder().double()
    model.setup(graph.num_features, classes)
    return model.double()


@pytest.fixture
def graph() -> Graph:
    return sbm(nodes=90, classes=6, degree=4, features=7, signal=3.0, seed=2)


def dense_features(model: eg.RandomFeatures, graph: Graph) -> Tensor:
    """The blocks' formula with dense matrices."""
    x = as_dense(graph.x).double()
    for column, centre, scale in model.scales or []:
        z = (x[:, column] - centre) / scale
        x[:, column] = torch.tensor([v if abs(v) <= 8 else math.copysign(8 + 8 * math.log(abs(v) / 8), v) for v in z])
    if model.lift:
        x = torch.cat([x, torch.full((graph.num_nodes, 1), model.lift, dtype=torch.float64)], dim=1)
    x = x / x.norm(dim=1, keepdim=True)
    looped = graph.adjacency.dense().double() + torch.eye(graph.num_nodes, dtype=torch.float64)
    degree = looped.sum(1)
    blocks = []
    for number, (depth, balance) in enumerate(BLOCKS):
        propagate = torch.diag(degree ** (balance - 1)) @ looped @ torch.diag(degree**-balance)
        h = x @ model.projection[:, 8 * number : 8 * (number + 1)]
        h = torch.linalg.matrix_power(propagate, depth) @ h
        blocks.append((h / h.norm(dim=1, keepdim=True)).relu() * (8 / 4) ** 0.5)
    return torch.cat([*blocks, torch.ones(graph.num_nodes, 1, dtype=torch.float64)], dim=1)


@pytest.mark.parametrize("propagate", [True, False], ids=["whole graph", "batches"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize(("lift", "scales"), [(0.0, False), (0.5, False), (0.5, [(2, 0.0, 8.0), (5, 1.5, 0.0625)])])
def test_features_are_the_formula(graph: Graph, propagate: bool, sparse: bool, lift: float, scales: Any) -> None:
    model = built(graph)
    model.lift, model.scales = lift, scales
    if sparse:
        dense = as_dense(graph.x)
        graph.x = SparseMatrix.from_scipy(sp.csr_matrix(dense.numpy()))
    cut = neighbourhoods(model, graph, propagate=propagate)
    assert cut.num_hops == (0 if propagate else 2)
    nodes = torch.tensor([5, 17, 80, 3])
    assert torch.allclose(model.features(cut.batch(nodes)), dense_features(model, graph)[nodes], atol=1e-6)


def joint_head(features: Tensor, y: Tensor, weights: Tensor, ridge: float, classes: int) -> Tensor:
    """Ridge regression on everything at once, by its normal equations."""
    targets = nn.functional.one_hot(y, classes).double()
    gram = features.T @ (weights[:, None] * features)
    diagonal = gram.diagonal()  # a feature that is zero everywhere does not count
    damping = ridge * diagonal[diagonal > 0].mean() / len(y.unique())
    eye = torch.eye(gram.size(0), dtype=torch.float64)
    return torch.linalg.solve(gram + damping * eye, features.T @ (weights[:, None] * targets))


def head_of_columns(everything: tuple[Tensor, Tensor, Tensor], columns: slice | list[int]) -> Tensor:
    """The joint head of some features, with zeros at the others."""
    features, labels, weights = everything
    head = torch.zeros(features.size(1), 6, dtype=torch.float64)
    head[columns] = joint_head(features[:, columns], labels, weights, 0.3, 6)
    return head


@pytest.mark.parametrize("order", ["labelled", "random:1", "size"])
def test_learning_in_turn_is_learning_at_once(graph: Graph, order: str) -> None:
    stream = eg.TaskStream(graph, 2, order=order)
    learner = eg.Learner(encoder(), eg.Analytic(ridge=0.3, balance=0.5), dtype=torch.float64)
    features, labels, weights = [], [], []
    for task in stream:
        learner.learn(task)
        cut = neighbourhoods(learner.model, task.graph)
        for nodes in (task.train, task.val):
            sizes = torch.bincount(task.graph.y[task.train], minlength=6).double()
            features.append(learner.model.features(cut.batch(nodes)))
            labels.append(task.graph.y[nodes])
            weights.append(sizes[task.graph.y[nodes]] ** -0.5)
    everything = (torch.cat(features), torch.cat(labels), torch.cat(weights))
    head = head_of_columns(everything, slice(8, 33))  # the blocks with propagation, and the ones
    assert (learner.model.output_weight() - head).abs().max() < 1e-8 * head.abs().max()
    own = head_of_columns(everything, [*range(8), 32])
    near = head_of_columns(everything, [*range(8, 16), 32])
    assert isinstance(learner.method, Analytic)
    assert (learner.method.vote_["head"] - (head + own + near)).abs().max() < 1e-8 * head.abs().max()


@pytest.mark.parametrize("ridge", [5e-3, 1e-4, 1e-8])
def test_a_ridge_near_zero_is_solved_from_few_rows(ridge: float) -> None:
    """From factors in float64, in a float32 model: as exact as the singular values of all rows at once, and small."""
    stream = eg.TaskStream(sbm(nodes=90, classes=6, degree=4, features=7, signal=3.0, seed=2), 2)
    learner = eg.Learner(eg.RandomFeatures(hidden=300), eg.Analytic(ridge=ridge, balance=0.0), device="cpu")
    features, labels = [], []
    for task in stream:
        learner.learn(task)
        cut = neighbourhoods(learner.model, task.graph)
        features.append(learner.model.features(cut.batch(task.train)).detach().double())
        labels.append(task.graph.y[task.train])
    rows, targets = torch.cat(features), nn.functional.one_hot(torch.cat(labels), 6).double()
    squares = rows.square().sum(0)
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    damped = values / (values.square() + ridge * squares[squares > 0].mean() / 6)
    want = right.T @ (damped.unsqueeze(1) * (left.T @ targets))
    (found,) = learner.method.solve([ridge], ("train",))
    assert (found - want).norm() < 1e-10 * want.norm()
    width = rows.size(1)
    assert learner.method.kept_bytes() < 2 * 8 * width**2 / 2  # G of training and validation nodes


def test_mini_batches_change_nothing(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do inputs that are propagated once: three blocks of seven features take less than 33 features."""
    stream = eg.TaskStream(graph, 2)
    heads, outputs, ways, once = [], [], [], 8 * 27 * stream[0].graph.num_nodes
    for at_hand, nodes in ((2**31, 4096), (0, 7), (once, 7)):
        monkeypatch.setattr("evergraph.models.random_features.AT_HAND", at_hand)
        monkeypatch.setattr("evergraph.methods.closed_form.hits.NODES_AT_ONCE", nodes)
        monkeypatch.setattr("evergraph.methods.closed_form.sums.NODES_AT_ONCE", nodes)
        for task in stream:
            task.graph.cache.clear()
        learner = eg.Learner(encoder(), eg.Analytic(ridge=0.3), dtype=torch.float64)
        learner.fit(stream)
        ways.append(type(neighbourhoods(learner.model, stream[0].graph)).__name__)
        heads.append(learner.model.output_weight().clone())
        outputs.append(learner.logits(stream[0].graph))
    assert ways == ["Neighbourhoods", "Neighbourhoods", "PartNeighbourhoods"]
    for head, scores in zip(heads[1:], outputs[1:]):
        assert torch.allclose(heads[0], head, atol=1e-10)
        assert torch.allclose(outputs[1], scores, atol=1e-8)  # the first are judged by edges too


def test_new_examples_of_an_old_class_add_up(graph: Graph) -> None:
    halves = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0)).chunk(2)
    learner = eg.Learner(encoder(), eg.Analytic(ridge=0.3, balance=0.0), num_classes=6, dtype=torch.float64)
    total = 0
    for nodes in halves:
        part = graph.subgraph(nodes.sort().values)
        task = eg.Task(0, list(range(6)), part, torch.arange(part.num_nodes), nodes[:0], nodes[:0], 6)
        learner.learn(task)
        total += part.num_nodes
    method = learner.method
    assert isinstance(method, Analytic)
    assert unpack(method.gram_["train"])[-1, -1] == total  # the column of ones counts the nodes
    assert learner.classes_ == graph.class_names


def test_state_does_not_grow_beyond_the_gram_matrix(graph: Graph) -> None:
    stream = eg.TaskStream(graph, 1)
    learner = eg.Learner(encoder(), eg.Analytic())
    sizes = []
    for task in stream:
        learner.learn(task)
        state = learner.method.state_dict()
        kept = ("gram_", "cross_", "factor_", "factor_targets_")
        sizes.append(sum(part.numel() for key in kept for part in state[key].values()))
    features, units = learner.model.output_weight().shape
    assert max(sizes) == 2 * (packed_size(features) + features * units)
    assert len(set(sizes[-4:])) == 1


def test_keeps_what_fine_tuning_forgets() -> None:
    stream = eg.stream("digits")
    learner = eg.Learner(eg.RandomFeatures(hidden=512), eg.Analytic())
    result = learner.fit(stream).evaluate(stream)
    assert result.ap > 97
    assert result.af is not None
    assert result.af > -1.5
    assert learner.evaluate(stream, test_graph="seen").ap > 95


def test_resumes_identically(graph: Graph, tmp_path: object) -> None:
    stream = eg.TaskStream(graph, 2)
    unbroken = eg.Learner(encoder(), eg.Analytic())
    unbroken.learn(stream[0])
    unbroken.save(f"{tmp_path}/learner")
    loaded = eg.Learner.load(f"{tmp_path}/learner")
    for learner in (unbroken, loaded):
        learner.learn(stream[1])
    assert torch.equal(unbroken.model.output_weight(), loaded.model.output_weight())
    assert unbroken.evaluate(stream).accuracies == loaded.evaluate(stream).accuracies


def test_output_grows(graph: Graph) -> None:
    stream = eg.TaskStream(graph, 2)
    fixed = eg.Learner(encoder(), eg.Analytic(ridge=0.3))
    growing = eg.Learner(encoder(), eg.Analytic(ridge=0.3), num_classes=2)
    for number, task in enumerate(stream):
        if number:
            growing.grow(2 * number + 2)
        fixed.learn(task)
        growing.learn(task)
    assert torch.allclose(fixed.model.output_weight(), growing.model.output_weight(), atol=1e-6)


def test_auto_mixes_nodes_with_their_neighbours_only_where_it_helps() -> None:
    read = {}
    for homophily in (0.9, 0.25):  # a quarter is chance: such edges say nothing
        graph = sbm(nodes=900, classes=4, degree=12, homophily=homophily, features=16, signal=1.6, seed=4)
        learner = eg.Learner(eg.MixedFeatures(hidden=140), eg.Auto(memory="2MB"))  # too little to keep all sets
        learner.learn(eg.TaskStream(graph, 4)[0])
        assert isinstance(learner.method, eg.Auto)
        read[homophily] = set(learner.method.blend_)
    assert "own" not in read[0.9]
    assert "own" in read[0.25]
    assert "smooth" not in read[0.25]


def test_a_head_without_propagation_has_nobody_to_vote_with(graph: Graph) -> None:
    method = eg.Analytic(ridge=0.3)
    method.blocks_ = [True, False, False, False]
    learner = eg.Learner(encoder(), method)
    learner.learn(eg.TaskStream(graph, 2)[0])
    head = learner.model.output_weight()
    assert head[[*range(8), 32]].any()
    assert not head[8:32].any()
    assert torch.equal(method.vote_["head"], head)


def test_a_node_that_says_nothing_is_told_by_its_neighbours(graph: Graph) -> None:
    model = built(graph)
    prediction = BlockPrediction(
        head=model.head, vote=model.head, task_of_unit=torch.tensor([0, 0, 1, 1, 2, 2]),
        graph_features=model.graph_features, graph_scores=model.graph_scores, feature_scores=model.feature_scores,
        temperature=0.1, smoothing=0.5, judges=False, tolerated=0.02, elsewhere=Way(torch.zeros(0), 0),
    )  # fmt: skip
    scores = torch.zeros(graph.num_nodes, 6, dtype=torch.float64)
    scores[torch.arange(graph.num_nodes), graph.y] = 1.0
    silent = int(graph.adjacency.counts().argmax())
    scores[silent] = 0.0
    smoothed = prediction.smooth(graph.adjacency.to(torch.float64), scores, 0.5)
    assert smoothed[silent].max() - smoothed[silent].min() > 0.1
    assert torch.allclose(smoothed.exp().sum(1), torch.ones(graph.num_nodes, dtype=torch.float64))


@pytest.mark.parametrize(
    "elsewhere",
    [(2, 0.0), (1, 0.0), (0, 0.5), (1, 0.25), (2, 0.75, None, 0.25), (1, 0.0, None, 0.5), (0, 0.5, None, 1.0)],
)
@pytest.mark.parametrize("tolerated", [0.02, 1.0], ids=["judged", "as it stands"])
@pytest.mark.parametrize("first", [False, True], ids=["the vote judges", "another head judges first"])
def test_scores_are_the_same_with_features_at_hand_and_without(
    graph: Graph, elsewhere: tuple[Any, ...], tolerated: float, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_prediction, "MISLED", -10.0)  # the vote always counts as misled
    torch.manual_seed(1)  # the features' seed
    model = eg.MixedFeatures(hidden=70)
    model.setup(graph.num_features, 6)
    generator = torch.Generator().manual_seed(1)
    head, vote, other, judge = (torch.randn(model.head.shape, generator=generator) for _ in range(4))
    way = Way(other, *elsewhere)._replace(own=judge if first else None)  # type: ignore[arg-type]
    prediction = BlockPrediction(
        head=head, vote=vote, task_of_unit=torch.tensor([0, 0, 1, 1, 2, 2]), graph_features=model.graph_features,
        graph_scores=model.graph_scores, feature_scores=model.feature_scores, temperature=0.1,
        smoothing=0.5 if tolerated > 0.5 else 0.0, judges=True, tolerated=tolerated, elsewhere=way,
    )  # fmt: skip
    x, adjacency = graph.x.float(), graph.adjacency.to(torch.float32)
    features = model.graph_features(x, model.operator(graph).to(torch.float32))
    assert torch.allclose(model.feature_scores(features, vote), features @ vote, atol=1e-5)
    found = prediction.scores(x, adjacency, features)
    assert torch.equal(prediction.scores(x, adjacency, None), found)
    by_vote = dataclasses.replace(prediction, elsewhere=way._replace(own=None))
    judged_otherwise = first and tolerated < 0.5 and way.unjudged < 1
    # BLAS sums a head in another order beside one head than beside two, which is not so on every processor
    assert judged_otherwise != torch.allclose(by_vote.scores(x, adjacency, features), found, rtol=1e-3, atol=1e-3)
    assert first != (by_vote.key(model, torch.device("cpu")) == prediction.key(model, torch.device("cpu")))
    reading = prediction.reading(x, adjacency, features)
    scores = model.feature_scores(reading.features, reading.head)
    over = reading.smoothed_over
    parts = [share * model.graph_scores(x, with_self_loops(edges), reading.head) for edges, share in reading.over]
    assert len(parts) == (2 if len(elsewhere) > 2 and elsewhere[0] and tolerated < 0.5 else 1)
    assert torch.allclose(torch.stack(parts).sum(0), scores, atol=1e-5)
    expected = scores / 0.1 if over is None else prediction.smooth(over, scores, reading.smoothing)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("margin", "misled"), [(0.08, False), (0.12, True)])
def test_own_features_judge_first_where_they_find_a_tenth_fewer_edges_within_tasks(
    graph: Graph, margin: float, misled: bool
) -> None:
    model = built(graph)
    prediction = BlockPrediction(
        head=model.head, vote=model.head, task_of_unit=torch.tensor([0, 0, 1, 1, 2, 2]),
        graph_features=model.graph_features, graph_scores=model.graph_scores, feature_scores=model.feature_scores,
        temperature=0.1, smoothing=0.0, judges=True, tolerated=0.02, elsewhere=Way(model.head, 2, own=model.head),
    )  # fmt: skip
    adjacency = graph.adjacency.to(torch.float64)
    own = torch.nn.functional.one_hot(graph.y, 6).double()
    judged, share = prediction.weigh(adjacency, own)
    row, task = adjacency.row_of_entry(), graph.y // 2
    assert share == pytest.approx(float((task[row] != task[adjacency.indices]).double().mean()), abs=0.01)
    by_vote = 1 - (1 - share) / (1 - margin)  # the vote finds this share of edges between tasks, fewer than there are
    found = prediction.first_judged(adjacency, adjacency, by_vote, [own], None)
    assert torch.equal(found.values, judged.values if misled else adjacency.values)
    assert prediction.first_judged(adjacency, adjacency, by_vote, [], None) is adjacency


@pytest.mark.parametrize("width", [10, 128, 300])
def test_scores_are_features_times_weights_piece_by_piece(graph: Graph, width: int) -> None:
    """The same bits from features and without them, whether or not X̂ W is known from an earlier pass."""
    model = eg.MixedFeatures(hidden=7 * width)
    model.setup(graph.num_features, 6)
    weights = torch.randn(model.head.shape, generator=torch.Generator().manual_seed(1))
    x, operator = graph.x.float(), model.operator(graph).to(torch.float32)
    features, projected = model.graph_features(x, operator), dict[int, Tensor]()
    found = model.feature_scores(features, weights)
    scale = (features.double().abs() @ weights.double().abs()).max()
    assert (found.double() - features.double() @ weights.double()).abs().max() < 1e-6 * scale
    for kept in (None, projected, projected):
        assert torch.equal(model.graph_scores(x, operator, weights, kept), found)
        assert torch.equal(model.graph_features(x, operator, kept), features)


def sampled_tasks(graph: Graph, tasks: int, noise: float) -> Tensor:
    """Calibrated opinions on each node's task: the posterior of a noisy measurement of it."""
    truth = nn.functional.one_hot(graph.y % tasks, tasks).double()
    generator = torch.Generator().manual_seed(0)
    measured = truth + noise * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    return (measured / noise**2).softmax(1)


@pytest.mark.parametrize("noise", [0.3, 0.6])
def test_the_share_of_edges_between_tasks_is_the_most_likely_one(noise: float) -> None:
    graph = sbm(nodes=600, classes=6, degree=8, homophily=0.5, seed=3)
    adjacency, tasks = graph.adjacency.to(torch.float64), sampled_tasks(graph, 3, noise)
    weighed, share = judge_edges(adjacency, tasks, rounds=500)
    ends = list(zip(adjacency.row_of_entry().tolist(), adjacency.indices.tolist()))
    shares = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    likelihood, of = torch.zeros_like(shares), tasks.tolist()
    for number, (u, v) in enumerate(ends):
        within = sum(of[u][t] * of[v][t] / 3 for t in range(3))
        between = sum(of[u][t] * of[v][s] / 6 for t in range(3) for s in range(3) if s != t)
        likelihood += ((1 - shares) * within + shares * between).log()
        if number % 50 == 0:
            posterior = (1 - share) * within / ((1 - share) * within + share * between)
            assert float(weighed.values[number]) == pytest.approx(float(posterior), abs=1e-4)
    assert share == pytest.approx(float(shares[likelihood.argmax()]), abs=0.002)
    between_tasks = graph.y[adjacency.row_of_entry()] % 3 != graph.y[adjacency.indices] % 3
    assert share == pytest.approx(float(between_tasks.double().mean()), abs=0.05)


def test_a_graph_of_one_task_keeps_its_edges() -> None:
    graph = sbm(nodes=300, classes=3, degree=8, seed=3)
    graph.y.zero_()
    weighed, share = judge_edges(graph.adjacency.to(torch.float64), sampled_tasks(graph, 3, 0.6), rounds=500)
    assert share < 0.01
    assert (weighed.values > 0.9).all()


def test_doubt_removes_no_edge() -> None:
    graph = sbm(nodes=60, classes=3, degree=4, seed=3)
    tasks = torch.full((60, 4), 0.25, dtype=torch.float64)
    weighed, share = judge_edges(graph.adjacency.to(torch.float64), tasks)
    assert torch.allclose(weighed.values, torch.full_like(weighed.values, 1 - share))
    assert share == pytest.approx(0.1)  # nothing was learned about it


def test_a_noisy_task_is_no_foreign_graph() -> None:
    """Where edges within a task are often taken for others, that many are expected, and the head predicts."""
    graph = sbm(nodes=600, classes=6, degree=6, homophily=0.9, features=16, signal=0.6, seed=2)
    stream, found = eg.TaskStream(graph, 2), {}
    for judges in (True, False):
        method = Analytic(judge_edges=judges, smoothing=0.0)
        learner = eg.Learner(eg.RandomFeatures(hidden=200), method, device="cpu")
        found[judges] = learner.fit(stream).evaluate(stream).ap
        if judges:
            assert method.doubt_ > 0.01
    assert found[True] == pytest.approx(found[False])


@pytest.mark.parametrize("ridge", [1e-3, 1e-6, 1e-8])
def test_small_ridges_can_be_solved(ridge: float) -> None:
    graph = sbm(nodes=300, classes=4, degree=6, features=8, signal=2.0, seed=0)
    learner = eg.Learner(eg.RandomFeatures(hidden=1000), Analytic(ridge=ridge), device="cpu")
    stream = eg.TaskStream(graph, 2)
    assert learner.fit(stream).evaluate(stream).ap > 60


def test_no_edges_no_judgement() -> None:
    nodes = torch.arange(4)
    empty = SparseMatrix(torch.zeros(5, dtype=torch.long), nodes[:0], torch.zeros(0), 4)
    assert judge_edges(empty, torch.full((4, 2), 0.5)) == (empty, 0.0)


def test_tasks_without_a_class_of_their_own_do_not_count_when_edges_are_judged(graph: Graph) -> None:
    """An edge between tasks joins two that brought classes: of these there are two, whatever came between them."""
    first, second = list(eg.TaskStream(graph, 3))[:2]
    found = []
    for tasks in ([first, second], [first, first, second]):
        learner = eg.Learner(encoder(), eg.Analytic(ridge=0.3, balance=0.0), dtype=torch.float64)
        for task in tasks:
            learner.learn(task)
        assert isinstance(learner.method, Analytic)
        prediction = learner.method._prediction(learner.model)
        assert prediction.judges
        vote = torch.randn(graph.num_nodes, prediction.head.size(1), generator=torch.Generator().manual_seed(0))
        found.append(prediction.weigh(graph.adjacency, vote))
    assert torch.allclose(found[0][0].values, found[1][0].values)
    assert found[0][1] == pytest.approx(found[1][1])


def test_edges_between_tasks_do_less_harm_than_they_would() -> None:
    """On average over generated graphs: how much it is on one of them is chance."""
    gains = []
    for seed in (4, 5, 6, 7):
        graph = sbm(nodes=1200, classes=6, degree=12, homophily=0.6, features=16, signal=2.0, seed=seed)
        stream = eg.TaskStream(graph, 2)
        found = {}
        for judges in (True, False):
            method = eg.Analytic(premium=1.0, judge_edges=judges, smoothing=0)
            learner = eg.Learner(eg.RandomFeatures(hidden=300), method, seed=0)
            learner.fit(stream)
            found[judges] = {kind: learner.evaluate(stream, test_graph=kind).ap for kind in ("task", "seen")}
        gains.append({kind: found[True][kind] - found[False][kind] for kind in ("task", "seen")})
    assert sum(gain["seen"] for gain in gains) > len(gains)
    assert min(gain["task"] for gain in gains) > -0.5


@pytest.mark.parametrize("premium", [0.0, 1.0])
def test_the_vote_is_counted_on_validation_nodes(graph: Graph, premium: float) -> None:
    task = eg.TaskStream(graph, 6)[0]
    learner = eg.Learner(encoder(), eg.Analytic(ridge=0.3, balance=0.0, premium=premium), dtype=torch.float64)
    learner.learn(task)
    assert isinstance(learner.method, Analytic)
    assert isinstance(learner.model, eg.RandomFeatures)
    features = dense_features(learner.model, task.graph)
    train = (features[task.train], task.graph.y[task.train], torch.ones(task.train.numel(), dtype=torch.float64))
    heads = [head_of_columns(train, columns) for columns in (slice(8, 33), [*range(8), 32], [*range(8, 16), 32])]
    plain, vote = (features[task.val] @ head for head in (heads[0], sum(heads)))
    y = task.graph.y[task.val]
    better = sum(int(v.argmax() == c != p.argmax()) for p, v, c in zip(plain, vote, y))
    worse = sum(int(p.argmax() == c != v.argmax()) for p, v, c in zip(plain, vote, y))
    assert learner.method.voting_ == [better, worse]
    assert learner.method.votes_ == (worse - better <= premium * y.numel())


def test_negative_settings_are_refused() -> None:
    with pytest.raises(eg.EvergraphError, match="premium"):
        eg.Analytic(premium=-0.1)
    with pytest.raises(eg.EvergraphError, match="smoothing"):
        eg.Analytic(smoothing=-0.1)
    with pytest.raises(eg.EvergraphError, match="temperature"):
        eg.Analytic(temperature=0.0)


def test_a_model_without_a_linear_head_is_refused(small_stream: eg.TaskStream) -> None:
    learner = eg.Learner(eg.GAT(hidden=8), eg.Analytic())
    with pytest.raises(eg.EvergraphError, match="linear head"):
        learner.learn(small_stream[0])


@pytest.mark.parametrize("judges", [True, False])
def test_probabilities_use_the_temperature(judges: bool) -> None:
    stream = eg.stream("digits")
    learner = eg.Learner(eg.RandomFeatures(hidden=128), eg.Analytic(judge_edges=judges))
    learner.learn(stream[0])
    learner.learn(stream[1])
    sure = learner.predict(stream[1].graph, stream[1].test).probabilities
    assert float(sure.median()) > 0.9


def test_rows_of_length_one() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert torch.allclose(as_dense(unit_rows(x)), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


@pytest.mark.parametrize("learns", [True, False])
def test_the_head_has_the_labels_that_it_is_said_to_have(graph: Graph, learns: bool) -> None:
    """Ridge regression written out, over training nodes and, where it learns from them, validation nodes."""
    task = eg.TaskStream(graph, 6)[0]
    learner = eg.Learner(encoder(), Analytic(ridge=0.2, balance=0, learn_validation=learns), dtype=torch.float64)
    learner.learn(task)
    nodes = torch.cat([task.train, task.val]) if learns else task.train
    rows = neighbourhoods(learner.model, task.graph).x
    assert isinstance(rows, Tensor)
    _, head = learner.model.features, learner.model.output_weight()
    read = torch.nonzero(head.abs().sum(1)).reshape(-1)  # blocks with a step of propagation, and the ones
    phi, y = rows[nodes][:, read], nn.functional.one_hot(task.graph.y[nodes], 6).double()
    gram = phi.T @ phi
    weight = 0.2 * gram.diagonal().mean() / 6
    wanted = torch.linalg.solve(gram + weight * torch.eye(read.numel()), phi.T @ y)
    assert torch.allclose(head[read], wanted, rtol=1e-6, atol=1e-8)
