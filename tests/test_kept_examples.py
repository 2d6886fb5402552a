"""What memories and closed forms keep of nodes, graphs and links, with classes, labels and numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.core.capabilities import capable
from evergraph.methods.memory import Piece
from evergraph.problems import PROBLEMS
from test_problems import make_data
from test_problems_end_to_end import STREAMS

pytestmark = [
    pytest.mark.usefixtures("without_pictures"),
    pytest.mark.filterwarnings("ignore:.*no effect; .* learns in one pass"),
    pytest.mark.filterwarnings("ignore:.*join the ends of validation and test links"),
    pytest.mark.filterwarnings("ignore:.*so that it is .* whatever is predicted"),
]

SMALL = {"epochs": 2, "lr": 0.02, "weight_decay": 0.0, "batch_size": 0, "label_scope": "seen", "device": "cpu"}
MEMORIES = ("reservoir", "gdumb", "gem", "a-gem")
NODES_ALONE = ("er-gnn", "ssm", "sem", "tem", "cat", "puma", "delome")
each_problem = pytest.mark.parametrize("problem", PROBLEMS)


def known_stream(problem: str) -> eg.TaskStream:
    """A small stream in which every target is known."""
    stream = STREAMS[problem]()
    if not stream.graph.has_classes:
        stream.graph.y[stream.graph.y.isnan()] = 0
    return stream


# memories


@each_problem
def test_memories_hold_examples_of_every_problem(problem: str) -> None:
    """Each learns to the end within its budget; what is replayed pulls, and at strength 0 it does not."""
    stream = STREAMS[problem]()
    plain = eg.Learner(eg.GCN(hidden=4), "finetune", problem=problem, **SMALL).fit(stream)
    for name in MEMORIES:
        method = eg.make_method(name, {"memory": "3000"})
        one = eg.Learner(eg.GCN(hidden=4), method, problem=problem, **SMALL).fit(stream)
        assert 0 < method.kept_bytes() <= 3000
        assert {piece.level for piece in method.pieces()} == {one.problem.level}
        assert all(np.isfinite(one.evaluate(stream).accuracies))
        pairs = list(zip(plain.model.parameters(), one.model.parameters()))
        if name in ("reservoir", "gdumb"):  # gradients that do not disagree are left as they are
            assert any(not torch.equal(a, b) for a, b in pairs)
        if name == "reservoir":
            method = eg.make_method(name, {"memory": "3000", "strength": 0})
            none = eg.Learner(eg.GCN(hidden=4), method, problem=problem, **SMALL).fit(stream)
            assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), none.model.parameters()))


@pytest.mark.parametrize("name", NODES_ALONE)
@pytest.mark.parametrize("problem", ["graph-classification", "link-prediction", "node-regression"])
def test_a_memory_of_nodes_with_classes_refuses_others(name: str, problem: str) -> None:
    with pytest.raises(eg.EvergraphError, match=f"{name} works on nodes with classes, and {problem} has "):
        eg.Learner(method=name, problem=problem)


def kept(problem: str, chosen: list[int]) -> tuple[eg.GraphModel, Piece, torch.Tensor, eg.Graph]:
    """A model in float64, the piece that a memory keeps of some examples, their true outputs, and the graph."""
    graph = make_data(problem)
    task = eg.Task(0, list(range(3)), graph, torch.arange(20), torch.arange(0), torch.arange(0), 3)
    one = eg.Learner(eg.GCN(hidden=3), "reservoir", problem=problem, dtype=torch.float64, **{**SMALL, "epochs": 0})
    method, found = one.method, {}
    method.end_task = lambda context: found.update(piece=method.store(context, torch.tensor(chosen)))  # type: ignore
    one.learn(task)
    return one.model, found["piece"], one.logits(graph, torch.tensor(chosen)), graph


def outputs_of(model: eg.GraphModel, piece: Piece, problem: str) -> torch.Tensor:
    graph = Piece.unpack(piece.pack()).graph()
    return model(PROBLEMS[problem]().batcher(model, graph).batch(torch.arange(graph.num_examples))).detach()


def test_a_graph_in_memory_has_the_outputs_that_it_had() -> None:
    chosen = [7, 2, 19, 3]
    model, piece, outputs, graph = kept("graph-classification", chosen)
    assert torch.allclose(outputs_of(model, piece, "graph-classification"), outputs)
    assert piece.units.tolist() == graph.y[chosen].tolist()
    some = piece.take(torch.tensor([1, 3]))
    assert torch.allclose(outputs_of(model, some, "graph-classification"), outputs[[1, 3]])
    assert some.num_nodes == int(graph.members.counts()[[2, 3]].sum())


def test_a_link_in_memory_is_read_over_the_edges_between_kept_ends() -> None:
    chosen = [4, 11, 5]
    model, piece, _, graph = kept("link-regression", chosen)
    ends = graph.members.rows(torch.tensor(chosen)).indices.view(-1, 2)
    for examples in ([0, 1, 2], [0, 2]):
        nodes = sorted(set(ends[examples].reshape(-1).tolist()))
        place = {node: number for number, node in enumerate(nodes)}
        edges = [(place[a], place[b]) for a, b in graph.edge_index.T.tolist() if a in place and b in place]
        links = np.array([[place[node] for node in link] for link in ends[examples].tolist()]).T
        alone = eg.make_links(graph.x[nodes], links, np.zeros((len(examples), 3)), edge_index=np.array(edges).T)
        batcher = PROBLEMS["link-regression"]().batcher(model, alone)
        want = model(batcher.batch(torch.arange(len(examples)))).detach()
        got = outputs_of(model, piece.take(torch.tensor(examples)), "link-regression")
        assert torch.allclose(got, want)
    assert torch.equal(piece.rows.nan_to_num(-1), graph.y[chosen].double().nan_to_num(-1))


@pytest.mark.parametrize("problem", ["graph-classification", "link-prediction", "node-labelling"])
@pytest.mark.parametrize("name", ["reservoir", "gdumb"])
def test_killed_and_resumed_with_a_memory_ends_in_the_same_bits(problem: str, name: str, tmp_path: Path) -> None:
    stream = STREAMS[problem]()
    whole = eg.Learner(eg.GCN(hidden=4), name, problem=problem, **SMALL).fit(stream)

    class KilledError(Exception):
        pass

    stopped = eg.Learner(eg.GCN(hidden=4), name, problem=problem, **SMALL)
    stopped.learn(stream[0])

    def stop(progress: eg.Progress, epochs: int) -> None:
        stopped.save(tmp_path / "half")
        raise KilledError

    with pytest.raises(KilledError):
        stopped.learn(stream[1], stop)
    resumed = eg.Learner.load(tmp_path / "half", device="cpu")
    for task in list(stream)[1:]:
        resumed.learn(task)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters()))


# the closed form


@each_problem
def test_the_closed_form_is_ridge_regression_on_all_examples(problem: str) -> None:
    """Task after task: the head of all training examples at once, by the normal equations in float64.

    Numbers are less their mean, which is the weight of the constant feature.
    """
    stream = known_stream(problem)
    method = eg.Analytic(balance=0.0, ridge=0.3, learn_validation=False, smoothing=0.0, judge_edges=False)
    settings = {"dtype": torch.float64, "num_classes": stream.num_classes, **SMALL}
    one = eg.Learner(eg.RandomFeatures(hidden=20, blocks=[(1, 0.5)]), method, problem=problem, **settings).fit(stream)
    model, rows, targets = one.model, [], []
    features, head = capable(model, "features"), capable(model, "output_weight")
    for task in stream:
        batcher = one.problem.batcher(model, task.graph, targets=one.problem.targets(task.graph, one.classes_))
        batch = batcher.batch(task.train)
        rows.append(features(batch).detach().numpy())
        y = batch.y
        targets.append((torch.nn.functional.one_hot(y, len(one.classes_)) if y.dim() == 1 else y).double().numpy())
    phi, y = np.concatenate(rows), np.concatenate(targets)
    gram = phi.T @ phi
    diagonal, used = np.diag(gram), max(int((np.abs(phi.T @ y) > 0).any(0).sum()), 1)
    ridge = 0.3 * diagonal[diagonal > 0].mean() / used
    mean = y.mean(0) if one.problem.kind == "numbers" else np.zeros(y.shape[1])
    want = np.linalg.solve(gram + ridge * np.eye(len(gram)), phi.T @ (y - mean))
    assert np.allclose(phi[:, -1], 1)
    want[-1] += mean
    assert np.allclose(head().detach().numpy(), want, rtol=1e-6, atol=1e-9)
    evaluation = one.evaluate(stream)
    assert all(np.isfinite(evaluation.accuracies))
    if one.problem.kind == "labels":  # ½ is as probable as not
        scores = phi[: stream[0].train.numel()] @ want
        held = one.predict(stream[0].graph, stream[0].train).probabilities.numpy() > 0.5
        assert ((scores > 0.5) == held).all()


def test_the_closed_form_refuses_targets_that_are_known_of_some() -> None:
    data = make_data("graph-labelling", 40)
    data.y[5:30, 1] = torch.nan
    with pytest.raises(eg.EvergraphError, match="examples of which some targets are not known"):
        eg.Learner(eg.RandomFeatures(hidden=20), "analytic", problem="graph-labelling", **SMALL).learn(eg.Task.of(data))
    first, second = make_data("node-regression", 40), make_data("node-regression", 40, seed=1)
    first.y[0], second.y[0] = 0, 0
    one = eg.Learner(eg.RandomFeatures(hidden=20), "analytic", problem="node-regression", **SMALL)
    one.learn(eg.Task.of(first))
    wider = second.altered(y=torch.cat([second.y, second.y[:, :1]], 1), class_names=[*second.class_names, "more"])
    with pytest.raises(eg.EvergraphError, match="brings a column that earlier tasks did not have"):
        one.learn(eg.Task.of(wider))


def test_random_features_of_a_links_ends_have_a_width(tmp_path: Path) -> None:
    stream = STREAMS["link-classification"]()
    wide = eg.Learner(method="analytic", problem="link-classification", **SMALL)
    wide.learn(stream[0])
    assert wide.model.output_weight().shape[0] == 3 * 640 + 1  # 5,120 features would be too many of a pair
    narrow = eg.Learner(eg.make_model("random-features", width=30), "analytic", **SMALL).fit(stream)
    assert narrow.model.output_weight().shape[0] == 3 * 30 + 1
    narrow.save(tmp_path / "saved")
    again = eg.Learner.load(tmp_path / "saved", device="cpu")
    assert torch.equal(again.logits(stream[0].graph), narrow.logits(stream[0].graph))


# the command line


def test_a_file_says_what_its_problem_is(evergraph, tmp_path: Path) -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    random = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, 3, generator=random)
    graphs = [Data(x=x[number], edge_index=edges, y=torch.tensor(number % 4)) for number in range(40)]
    torch.save(graphs, tmp_path / "graphs.pt")
    status, out, err = evergraph("run", tmp_path / "graphs.pt", "--hidden", 20, "--out", tmp_path / "run", "--json")
    assert status == 0, err
    result = json.loads(out)
    assert (result["method"], result["protocol"]["problem"]) == ("analytic", "graph-classification")
    status, _, err = evergraph("run", tmp_path / "graphs.pt", "--method", "er-gnn", "--out", tmp_path / "other")
    assert status == 2
    assert "er-gnn works on nodes with classes, and graph-classification has graphs with classes" in err
    rated = Data(x=torch.randn(6, 3, generator=random), edge_index=edges)
    rated.edge_label_index = torch.randint(6, (2, 40), generator=random)
    rated.edge_label = torch.arange(40) % 4
    torch.save(rated, tmp_path / "links.pt")
    words = ["run", tmp_path / "links.pt", "--hidden", 20, "--out", tmp_path / "links", "--json"]
    status, out, err = evergraph(*words)
    assert status == 0, err
    assert json.loads(out)["protocol"]["problem"] == "link-classification"


def test_a_single_pass_without_boundaries_on_the_command_line(evergraph, tmp_path: Path) -> None:
    source = "sbm:nodes=80,classes=4,features=6,degree=4"
    words = ["run", source, "--method", "reservoir", "--pieces", 10, "--hidden", 4, "--device", "cpu", "--json"]
    status, out, err = evergraph(*words, "--out", tmp_path / "whole")
    assert status == 0, err
    whole = json.loads(out)
    assert (whole["protocol"]["pieces"], whole["protocol"]["epochs"]) == (10, 1)
    log = (tmp_path / "whole" / "seed-0" / "log.csv").read_text().splitlines()
    assert [line[0] for line in log[1:]] == ["0", "0", "0", "1", "1"]  # an epoch of each piece
    assert [len([v for v in row if v is not None]) for row in whole["matrices"][0]] == [1, 2]

    # stopped between two pieces of the second task, the run goes on with the second
    from evergraph.training.driver import Driver

    learn, calls = Driver.learn, []

    def stop(self: Driver, learner: eg.Learner, task: eg.Task, **more: object) -> object:
        calls.append(task)
        if len(calls) == 5:
            self.commit(learner, more["notes"])  # type: ignore[arg-type]
            raise KeyboardInterrupt
        return learn(self, learner, task, **more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Driver, "learn", stop)
        status, _, _ = evergraph(*words, "--out", tmp_path / "half")
    assert status == 130
    status, out, err = evergraph(*words, "--out", tmp_path / "half", "--resume")
    assert status == 0, err
    assert json.loads(out)["matrices"] == whole["matrices"]
    assert (tmp_path / "half" / "seed-0" / "log.csv").read_text().splitlines() == log
