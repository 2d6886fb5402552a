"""The test graph `node`, against nodes that really join one at a time; and the leak score, against loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GIN

import evergraph as eg
from evergraph.core.features import as_dense
from evergraph.core.sparse import SparseMatrix
from evergraph.data import TEST_GRAPHS, neighbourhood_means
from evergraph.data.datasets.sbm import sbm
from evergraph.data.mapped import read_mapped, write_mapped
from evergraph.evaluation import nearest_profile

pytestmark = pytest.mark.filterwarnings("ignore:.*keeps the directions of its edges")

GRAPH = sbm(nodes=90, classes=6, degree=5, homophily=0.6, features=6, signal=3.0, seed=2)
LAST = 2


def make_stream(graph: eg.Graph = GRAPH, **options: object) -> eg.TaskStream:
    return eg.TaskStream(graph, 2, test_graph="node", **options)


def one_node_graph(stream: eg.TaskStream, node: int, after: int) -> eg.Graph:
    """The training nodes of the tasks seen, and one more node that reads its neighbours among them. By hand."""
    whole = stream.graph
    joined = as_dense(whole.adjacency).tolist()  # [v][u] is 1 where v reads u
    classes = {position for classes in stream.tasks_classes[: after + 1] for position in classes}
    part = stream._part
    members = [v for v in range(whole.num_nodes) if part[v] == 0 and int(whole.y[v]) in classes]
    nodes = [*members, node]
    edges = [(i, j) for j, v in enumerate(nodes) for i, u in enumerate(members) if joined[v][u]]
    x = as_dense(whole.x)[nodes]
    graph = eg.make_graph(
        x, np.array(edges).T.reshape(2, -1), whole.y[nodes], class_names=whole.class_names, undirected=False
    )
    graph.joining = torch.arange(len(nodes)) == len(members)
    return graph


def node_outputs(learner: eg.Learner, stream: eg.TaskStream, after: int) -> tuple[Tensor, Tensor]:
    """Outputs at all test nodes on the test graph `node`, and one node at a time."""
    task = stream.seen(after, alone=True)
    number = torch.nonzero((stream._task_of >= 0) & (stream._task_of <= after)).reshape(-1)
    together = learner.logits(task.graph, task.test)
    alone = []
    for node in number[task.test].tolist():
        graph = one_node_graph(stream, node, after)
        alone.append(learner.logits(graph, [graph.num_nodes - 1]))
    return together, torch.cat(alone)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: eg.GCN(hidden=5),
    "gcn, three layers": lambda: eg.GCN(hidden=5, num_layers=3, propagate_inputs=False),
    "sage": lambda: eg.GraphSAGE(hidden=5),
    "gat": lambda: eg.GAT(hidden=4, heads=2),
    "random features": lambda: eg.RandomFeatures(hidden=15),
    "foreign module": lambda: GIN(in_channels=6, hidden_channels=5, num_layers=2, out_channels=6),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("between", [False, True], ids=["cut", "joined"])
def test_every_model_predicts_as_if_each_node_had_joined_alone(name: str, between: bool) -> None:
    stream = make_stream(edges_between_tasks=between)
    learner = eg.Learner(MODELS[name](), eg.Finetune(), epochs=2, lr=0.05, device="cpu", dtype=torch.float64)
    for task in stream:
        learner.learn(task)
    together, alone = node_outputs(learner, stream, LAST)
    assert together.size(0) == sum(task.test.numel() for task in stream)
    assert torch.allclose(together, alone, rtol=1e-10, atol=1e-10)
    assert float(together.std()) > 0.01  # they are not all alike


CLOSED: dict[str, dict[str, object]] = {"analytic": {}, "auto": {}, "no judging": {"judge_edges": False}}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize(
    ("votes", "smooths"),
    [
        (True, True),
        (False, False),
        *(pytest.param(*way, marks=pytest.mark.slow) for way in [(True, False), (False, True)]),
    ],
)
def test_the_closed_form_predicts_as_if_each_node_had_joined_alone(name: str, votes: bool, smooths: bool) -> None:
    stream = make_stream()
    kind = eg.Auto if name == "auto" else eg.Analytic
    method = kind(**CLOSED[name])
    learner = eg.Learner(eg.RandomFeatures(hidden=40), method, device="cpu", dtype=torch.float64)
    learner.fit(stream)
    method.votes_, method.smoothing_share_ = votes, 0.5 * smooths
    method.doubt_ = -1.0  # every edge may be one between tasks
    together, alone = node_outputs(learner, stream, LAST)
    assert torch.allclose(together, alone, rtol=1e-9, atol=1e-9)
    plain = learner.model(learner.problem.batcher(learner.model, stream.seen(LAST, alone=True).graph).batch(
        stream.seen(LAST, alone=True).test))  # fmt: skip
    if smooths or name != "no judging":
        assert not torch.allclose(together, plain / method.temperature)  # something was judged, voted on or smoothed


def test_the_graph_is_that_of_seen_without_edges_that_leave_test_or_validation_nodes() -> None:
    stream = make_stream()
    for after in range(3):
        seen, alone = stream.seen(after), stream.seen(after, alone=True)
        assert torch.equal(seen.test, alone.test)
        wanted = as_dense(seen.graph.adjacency).clone()
        training = torch.zeros(seen.graph.num_nodes, dtype=torch.bool)
        training[seen.train] = True
        wanted[:, ~training] = 0
        assert torch.equal(as_dense(alone.graph.adjacency), wanted)
        assert torch.equal(alone.graph.joining, ~training)
        assert seen.graph.joining is None
    assert float(wanted.sum()) > 0


def test_evaluation_on_it_is_the_share_of_nodes_right_one_by_one() -> None:
    stream = make_stream()
    learner = eg.Learner(eg.GCN(hidden=5), epochs=5, lr=0.05, device="cpu", dtype=torch.float64).fit(stream)
    values = learner.evaluate(stream).accuracies
    assert values == learner.evaluate(stream, test_graph="node").accuracies
    assert learner.evaluate(stream).af is None  # measured right after learning on another graph
    for index in range(3):
        nodes = torch.nonzero((stream._task_of == index) & (stream._part == 2)).reshape(-1).tolist()
        right = 0
        for node in nodes:
            graph = one_node_graph(stream, node, LAST)
            told = learner.predict(graph, [graph.num_nodes - 1]).labels[0]
            right += told == stream.graph.class_names[int(stream.graph.y[node])]
        assert values[index] == pytest.approx(100 * right / len(nodes))


def test_validation_nodes_join_alone_too() -> None:
    stream = make_stream()
    graph, nodes = stream.tests(LAST, 1, part="val")
    assert bool(graph.joining[nodes].all())
    learner = eg.Learner(eg.GCN(hidden=5), epochs=1, device="cpu").fit(stream)
    assert len(learner.evaluate(stream, part="val").accuracies) == 3


def test_on_disk_it_is_the_same_graph(tmp_path: Path) -> None:
    mapped = make_stream(read_mapped(write_mapped(GRAPH, tmp_path / "graph")))
    for after in (0, LAST):
        here, there = make_stream().seen(after, alone=True), mapped.seen(after, alone=True)
        assert torch.equal(as_dense(here.graph.adjacency), as_dense(there.graph.adjacency))
        assert torch.equal(here.graph.joining, there.graph.joining)
    assert mapped.seen(LAST) is not mapped.seen(LAST, alone=True)


def test_a_graph_on_another_device_knows_its_joining_nodes() -> None:
    graph = make_stream().seen(LAST, alone=True).graph
    assert graph.to("meta").joining.shape == graph.joining.shape
    assert graph.to("meta").joining.device.type == "meta"


# the leak score


def naive_score(stream: eg.TaskStream, test_graph: str) -> float:
    """By loops over nodes and tasks, on the whole graph."""
    x, y = as_dense(stream.graph.x).double(), stream.graph.y
    read = as_dense(stream.graph.adjacency).bool()
    task_of = [next(t for t, classes in enumerate(stream.tasks_classes) if int(label) in classes) for label in y]
    part = stream._part.tolist()
    nodes = range(len(part))
    profiles = [x[[v for v in nodes if task_of[v] == t and part[v] == 0]].mean(0) for t in range(len(stream))]

    def named(query: Tensor) -> int:
        distances = [float((query - profile).norm()) for profile in profiles]
        return distances.index(min(distances))

    shares = []
    for task in range(len(stream)):
        test = [v for v in nodes if task_of[v] == task and part[v] == 2]
        if test_graph == "task":
            shares.append(float(named(x[test].mean(0)) == task))
            continue
        hits = 0
        for v in test:
            neighbours = [u for u in nodes if read[v, u] and (test_graph == "seen" or part[u] == 0)]
            hits += named(x[[v, *neighbours]].mean(0)) == task
        shares.append(hits / len(test))
    return 100 * sum(shares) / len(shares)


@pytest.mark.parametrize("test_graph", list(TEST_GRAPHS))
@pytest.mark.parametrize("signal", [0.0, 0.5, 3.0])
def test_the_leak_score_is_that_of_loops(test_graph: str, signal: float) -> None:
    graph = sbm(nodes=90, classes=6, degree=4, homophily=0.7, features=6, signal=signal, seed=3)
    stream = eg.TaskStream(graph, 2, order="random", seed=1)
    assert eg.leak_score(stream, test_graph) == pytest.approx(naive_score(stream, test_graph), abs=1e-9)
    sparse = eg.Graph(SparseMatrix.from_dense(graph.x), graph.adjacency, graph.y, graph.class_names)
    again = eg.leak_score(eg.TaskStream(sparse, 2, order="random", seed=1, test_graph=test_graph))
    assert again == pytest.approx(naive_score(stream, test_graph), abs=1e-9)


def test_a_task_graph_gives_the_task_away_where_single_nodes_do_not() -> None:
    graph = sbm(nodes=600, classes=8, degree=2, homophily=0.5, features=16, signal=1.5, seed=0)
    scores = {name: eg.leak_score(eg.TaskStream(graph, 2), name) for name in TEST_GRAPHS}
    assert scores["task"] == 100
    assert scores["node"] < 60
    assert scores["node"] > 25  # above chance: features do tell


def test_neighbourhood_means_read_what_the_graph_lets_them_read() -> None:
    graph = eg.make_graph(np.eye(3), np.array([[0, 1], [2, 2]]), [0, 0, 0], undirected=False)  # 2 reads 0 and 1
    means = neighbourhood_means(graph, torch.tensor([2, 0]), torch.tensor([[3.0], [6.0], [0.0]]))
    assert means.tolist() == [[3.0], [3.0]]


def test_the_first_of_equally_near_profiles_is_named() -> None:
    assert nearest_profile(torch.zeros(1, 2), torch.ones(2)).tolist() == [0]
