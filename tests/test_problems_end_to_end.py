"""Every problem from end to end: learn, forget, be protected, save, be killed, resume, predict, report."""

from __future__ import annotations

import functools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import problems, seven_graphs
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import evergraph as eg
from cases import slow
from evergraph.data.datasets.drift import drift, growing_links, growing_ratings
from evergraph.data.mapped import write_mapped
from evergraph.evaluation import METRICS
from evergraph.problems import PROBLEMS
from test_problems import make_data

pytestmark = [
    pytest.mark.usefixtures("without_pictures"),
    pytest.mark.filterwarnings("ignore:.*no effect; .* learns in one pass"),
    pytest.mark.filterwarnings("ignore:.*join the ends of validation and test links"),
    pytest.mark.filterwarnings("ignore:.*so that it is .* whatever is predicted"),
    pytest.mark.filterwarnings("ignore:.*all of its .* links are asked for"),
]

SMALL = {"epochs": 2, "lr": 0.02, "batch_size": 16, "label_scope": "seen", "device": "cpu"}
STREAMS = {
    "node-classification": lambda: eg.TaskStream(drift(nodes=120), scenario="time", bins=3),
    "node-labelling": lambda: eg.TaskStream(
        drift(nodes=120, targets="labels"), scenario="time", bins=3, problem="node-labelling"
    ),
    "node-regression": lambda: eg.TaskStream(
        drift(nodes=120, targets="numbers"), scenario="time", bins=3, problem="node-regression"
    ),
    "graph-classification": lambda: eg.TaskStream(
        make_data("graph-classification", 60), 1, problem="graph-classification"
    ),
    "graph-labelling": lambda: eg.TaskStream(make_data("graph-labelling", 40), by="domain", problem="graph-labelling"),
    "graph-regression": lambda: eg.TaskStream(
        make_data("graph-regression", 40), by="domain", problem="graph-regression"
    ),
    "link-classification": lambda: eg.TaskStream(
        growing_ratings(nodes=60, groups=3, links=150), 1, problem="link-classification"
    ),
    "link-labelling": lambda: eg.TaskStream(make_data("link-labelling", 40), by="domain", problem="link-labelling"),
    "link-regression": lambda: eg.TaskStream(make_data("link-regression", 40), by="domain", problem="link-regression"),
    "link-prediction": lambda: eg.TaskStream(
        growing_links(nodes=60, waves=2, groups=3, links=100), scenario="time", bins=2, problem="link-prediction"
    ),
}
METHODS = ("finetune", "joint", "curvature", "ewc", "online-ewc", "ewc++", "mas", "si", "lwf", "kfac", "ema")
each_problem = pytest.mark.parametrize("problem", PROBLEMS)


def learner(method: str, problem: str, model: str = "gcn", **more: object) -> eg.Learner:
    return eg.Learner(eg.make_model(model, hidden=8), method, problem=problem, **{**SMALL, **more})


def test_every_problem_has_a_stream_here() -> None:
    own = {name for name, kind in PROBLEMS.items() if kind.__module__.startswith("evergraph.")}
    assert own == set(STREAMS)


@functools.cache
def fine_tuned(problem: str) -> tuple[eg.TaskStream, eg.Learner]:
    """The stream of a problem and what every method is compared with; nobody learns with it."""
    stream = STREAMS[problem]()
    return stream, learner("finetune", problem).fit(stream)


@pytest.mark.parametrize(
    ("method", "problem"),  # every second pair: each method on problems of every level, each problem with every kind
    [
        slow(method, problem, when=(row + column) % 2 == 1)
        for row, method in enumerate(METHODS)
        for column, problem in enumerate(PROBLEMS)
    ],
)
def test_methods_on_every_problem(method: str, problem: str) -> None:
    """Each method learns each stream, ends in finite numbers, and its pull is there at the second task."""
    stream, plain = fine_tuned(problem)
    one = learner(method, problem).fit(stream)
    evaluation = one.evaluate(stream)
    assert len(evaluation.accuracies) == len(stream)
    assert all(torch.isfinite(value).all() for value in one.model.parameters())
    if method not in ("finetune",):
        pairs = zip(plain.model.parameters(), one.model.parameters())
        assert any(not torch.equal(a, b) for a, b in pairs)


@each_problem
def test_a_strong_pull_holds_the_parameters(problem: str) -> None:
    """The exact regularizer at a great strength leaves the outputs of the second task's examples as they were."""
    stream = STREAMS[problem]()
    moved = []
    for strength in (0.0, 1e4):
        torch.manual_seed(0)
        one = learner("batch-curvature", problem, dtype=torch.float64, lr=1e-3, weight_decay=0.0, epochs=5)
        one.method.strength = strength
        one.learn(stream[0])
        if one.classes_ != list(stream.graph.class_names):
            one.classes_ = list(stream.graph.class_names)  # all units there from the start, to compare outputs
        before = one.logits(stream[1].graph, stream[1].train)
        one.learn(stream[1])
        moved.append(float((one.logits(stream[1].graph, stream[1].train) - before).norm()))
    assert moved[1] < 0.5 * moved[0]


@each_problem
def test_killed_and_resumed_ends_in_the_same_bits(problem: str, tmp_path: Path) -> None:
    """Stopped in the middle of the second task, saved, loaded and gone on: the same as never stopped."""
    stream = STREAMS[problem]()
    whole = learner("ewc", problem)
    for task in stream:
        whole.learn(task)

    class KilledError(Exception):
        pass

    stopped = learner("ewc", problem)
    stopped.learn(stream[0])

    def stop(progress: eg.Progress, epochs: int) -> None:
        if progress.epoch == 1:
            stopped.save(tmp_path / "half")
            raise KilledError

    with pytest.raises(KilledError):
        stopped.learn(stream[1], stop)
    resumed = eg.Learner.load(tmp_path / "half", device="cpu")
    assert resumed.in_mid_task
    assert resumed.problem.name == problem
    for task in list(stream)[1:]:
        resumed.learn(task)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters()):
        assert torch.equal(a, b)
    assert whole.evaluate(stream).accuracies == resumed.evaluate(stream).accuracies


@each_problem
def test_predictions_speak_the_users_language(problem: str) -> None:
    stream = STREAMS[problem]()
    one = learner("lwf", problem).fit(stream)
    graph = stream[0].graph
    prediction = one.predict(graph, stream[0].test)
    assert len(prediction) == stream[0].test.numel()
    kind = one.problem.kind
    if kind == "classes":
        assert set(prediction.labels) <= set(one.classes_)
        assert prediction.columns is None
    elif kind == "labels":
        assert all(set(row) <= set(one.classes_) for row in prediction.labels)
        assert prediction.columns == one.classes_
        assert ((prediction.probabilities >= 0) & (prediction.probabilities <= 1)).all()
    else:
        values = torch.tensor(prediction.labels).reshape(len(prediction), -1)
        assert torch.allclose(values.double(), one.logits(graph, stream[0].test).double())
        with pytest.raises(eg.EvergraphError, match="predicts numbers, which have no probabilities"):
            one.predict_proba(graph)


COLUMNS = ("class", "task", "domain", "time")
COMBINATIONS = [
    (problem, scenario)
    for problem in STREAMS
    for scenario in COLUMNS
    if scenario in ("domain", "time") or problem != "link-prediction"
]


@pytest.mark.parametrize(("problem", "scenario"), COMBINATIONS)
@pytest.mark.parametrize("between", [pytest.param(False, marks=pytest.mark.slow), True], ids=["apart", "joined"])
def test_every_scenario_with_every_problem(problem: str, scenario: str, between: bool, tmp_path: Path) -> None:
    """To the end of the stream, saved on the way, and predicted; with edges between tasks and without."""
    level, kind = problem.split("-")
    if problem == "link-prediction":
        data = growing_links(nodes=60, waves=2, groups=3, links=100)
        data = data.altered(attributes={"domain": data.attributes["time"]})
        data.attributes["domain"].values = (data.attributes["domain"].values > 0.5).long()
    else:  # labels arrive as classes of examples that have one each; `test_columns_arrive_in_turn` has the other way
        by_class = scenario in ("class", "task") and kind == "labelling"
        data = make_data(f"{level}-{'classification' if by_class else kind}", 40)
    options = {"bins": 2} if scenario == "time" else {}
    options |= {"by": "domain"} if scenario in ("domain", "time") else {}
    stream = eg.TaskStream(data, 2, scenario=scenario, problem=problem, edges_between_tasks=between, **options)
    one = learner("curvature", problem, epochs=1)
    for task in stream:
        one.learn(task)
        one.save(tmp_path / "saved")
        one = eg.Learner.load(tmp_path / "saved", device="cpu")
    evaluation = one.evaluate(stream)
    assert len(evaluation.accuracies) == len(stream) >= 2
    assert all(value == value for value in evaluation.accuracies)
    assert len(one.predict(stream[0].graph)) == stream[0].graph.num_examples
    if scenario == "task":
        assert stream.candidates(1, 0) == stream.tasks_classes[0]


def test_the_table_of_the_docs_ticks_what_is_tested() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "problems.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `") and "✓" in line]
    ticked = {(row[0].strip(" `"), column) for row in rows for column, cell in zip(COLUMNS, row[1:5]) if "✓" in cell}
    assert ticked == set(COMBINATIONS)


def test_the_page_says_what_every_method_does_without_boundaries() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "problems.md").read_text(encoding="utf-8")
    table = page.partition("| method | what it does at every piece |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])}
    own = {name for name, kind in eg.methods.METHODS.items() if kind.__module__.startswith("evergraph.")}
    assert named == own


def test_links_asked_for_as_pairs() -> None:
    stream = STREAMS["link-prediction"]()
    one = learner("finetune", "link-prediction").fit(stream)
    graph = stream[1].graph
    ends = graph.members.rows(stream[1].test).indices.view(-1, 2).T
    asked = one.predict(graph, ends)
    assert torch.allclose(asked.probabilities, one.predict(graph, stream[1].test).probabilities)
    with pytest.raises(eg.EvergraphError, match="the learner predicts links"):
        one.predict(drift(nodes=120, features=16))


def test_pairs_of_a_graph_s_own_links_are_read_along_the_links_that_are_not_asked_for() -> None:
    random = np.random.default_rng(0)
    ends = random.integers(0, 40, (2, 300))
    features = random.standard_normal((40, 5))
    links = eg.make_links(features, ends, np.arange(300) % 2)
    one = eg.Learner("analytic", device="cpu")
    one.learn(eg.Task.of(links))
    asked = torch.tensor([[0, 3], [7, 2]])
    known = [pair for pair in ends.T.tolist() if pair not in ([0, 7], [7, 0], [3, 2], [2, 3])]
    along = eg.make_links(features, asked, edge_index=np.array(known).T)
    assert torch.allclose(one.predict(links, asked).probabilities, one.predict(along).probabilities)
    bare = eg.make_links(features, asked)
    assert not torch.allclose(one.predict(links, asked).probabilities, one.predict(bare).probabilities)


def test_pyg_objects_as_graphs_and_links(tmp_path: Path) -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(x=torch.randn(2, 3), edge_index=edges, y=torch.tensor(number % 2)) for number in range(20)]
    one = eg.Learner(eg.GIN(hidden=4), "ewc", **SMALL)
    one.learn(eg.Task.of(graphs))
    assert one.problem.name == "graph-classification"
    assert len(one.predict([Data(x=torch.randn(5, 3), edge_index=edges)])) == 1
    torch.save(graphs, tmp_path / "graphs.pt")
    read = eg.stream(tmp_path / "graphs.pt", classes_per_task=1)
    assert (read.problem, len(read), read.name) == ("graph-classification", 2, "graphs")
    with pytest.raises(eg.EvergraphError, match="only graphs whose examples are nodes"):
        write_mapped(read.graph, tmp_path / "folder")
    numbers = [Data(x=torch.randn(2, 3), edge_index=edges, y=torch.tensor([[number / 7]])) for number in range(20)]
    other = eg.Learner("curvature", **SMALL)
    other.learn(eg.Task.of(numbers))
    assert other.problem.name == "graph-regression"
    rated = Data(x=torch.randn(6, 3), edge_index=edges)
    rated.edge_label_index, rated.edge_label = torch.randint(6, (2, 30)), torch.arange(30) % 3
    third = eg.Learner("lwf", **SMALL)
    third.learn(eg.Task.of(rated))
    assert third.problem.name == "link-classification"


@pytest.mark.parametrize("problem", ["graph-classification", "link-classification"])
def test_a_module_of_ones_own(problem: str, tmp_path: Path) -> None:
    class Mine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(-1, 6), GCNConv(6, 7)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    stream = STREAMS[problem]()
    one = eg.Learner(Mine(), "ewc", problem=problem, **SMALL).fit(stream)
    one.save(tmp_path / "saved")
    again = eg.Learner.load(tmp_path / "saved", model=Mine(), device="cpu")
    assert again.evaluate(stream).accuracies == one.evaluate(stream).accuracies


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin"])
@pytest.mark.parametrize("problem", ["graph-classification", "link-prediction"])
def test_models_on_graphs_and_links_grow(model: str, problem: str) -> None:
    stream = STREAMS[problem]()
    one = learner("kfac", problem, model)
    one.learn(stream[0])
    before = one.logits(stream[0].graph)
    one.grow(5)
    assert torch.allclose(one.logits(stream[0].graph)[:, : before.size(1)], before, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("drift-numbers:nodes=150", "mae"),
        ("drift-labels:nodes=150", "roc-auc"),
        ("growing-links:nodes=120,waves=2,groups=4,links=150", "hits@50"),
        ("growing-ratings:nodes=60,groups=3,links=150", "accuracy"),
    ],
)
def test_runs_and_reports(evergraph, tmp_path: Path, without_pictures: None, name: str, metric: str) -> None:
    """The command line: run, resume after a seed is lost, report."""
    options = ["--bins", "2", "--scenario", "time"]
    words = ["run", name, "--epochs", 1, "--hidden", 4, "--seeds", 2, "--method", "ewc", "--device", "cpu", *options]
    status, out, err = evergraph(*words, "--out", tmp_path / "run", "--json")
    assert status == 0, err
    result = json.loads(out)
    assert result["protocol"]["metric"] == metric
    worse = [after - before for before, after in zip(*(result["matrices"][0][t][:1] for t in (0, 1)))]
    if len(result["matrices"][0]) == 2:
        sign = 1 if METRICS[metric].higher_is_better else -1
        assert result["metrics"]["af"]["values"][0] == pytest.approx(sign * worse[0])
    shutil.rmtree(tmp_path / "run" / "seed-1")
    (tmp_path / "run" / "result.json").unlink()
    status, out, err = evergraph(*words, "--out", tmp_path / "run", "--resume", "--json")
    assert json.loads(out)["matrices"] == result["matrices"]
    status, _, err = evergraph("report", tmp_path / "run", "--out", tmp_path / "report.html")
    assert status == 0, err


def test_learn_and_predict_on_the_command_line(evergraph, tmp_path: Path) -> None:
    name = "growing-ratings:nodes=60,groups=3,links=150"
    words = ["--checkpoint", tmp_path / "learner", "--device", "cpu"]
    status, out, err = evergraph("learn", name, *words, "--method", "lwf", "--epochs", 1, "--hidden", 4)
    assert status == 0, err
    assert "links in 1 epoch; accuracy on held-out links" in out
    status, out, err = evergraph("predict", name, *words)
    assert status == 0, err
    assert out.splitlines()[0] == "link,source,target,class,probability"
    links = [line.split(",")[:3] for line in out.splitlines()[1:]]
    ends = eg.stream(name).graph.members.indices.view(-1, 2).tolist()
    assert links == [[str(number), *map(str, pair)] for number, pair in enumerate(ends)]
    status, out, err = evergraph("learn", "drift-numbers:nodes=60", "--checkpoint", tmp_path / "other",
                                 "--hidden", 40, "--device", "cpu")  # fmt: skip
    assert status == 0, err
    assert "mean absolute error on held-out nodes" in out
    assert "knows 1 number now (task 1)" in out
    assert "softmax" not in err
    status, out, err = evergraph("predict", "drift-numbers:nodes=60", "--checkpoint", tmp_path / "other")
    assert out.splitlines()[0] == "node,height"
    assert len(out.splitlines()) == 61


@pytest.mark.parametrize("when", ["before", "while", "in a stream"])
def test_a_learn_that_fails_leaves_the_problem_open(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """A learner that could not learn graphs goes on to learn nodes."""
    made, stream = eg.Learner(), STREAMS["graph-classification"]()
    before = {name: getattr(made, name) for name in ("problem", "method", "model", "training", "problem_is_open")}
    with monkeypatch.context() as patch:
        if when == "before":
            with pytest.raises(eg.EvergraphError, match="no training graphs"):
                made.learn(replace(stream[0], train=stream[0].train[:0]))
        else:
            patch.setattr(eg.Analytic, "end_task", lambda self, context: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                made.learn(stream[0]) if when == "while" else made.fit(stream)
    assert all(getattr(made, name) is value for name, value in before.items())
    made.learn(STREAMS["node-classification"]()[0])
    assert made.problem.level == "node"


def test_the_closed_form_on_graphs_is_the_joint_solution() -> None:
    """Task after task, and all graphs at once: one head. With `balance=0` and a fixed ridge, to float64's precision."""
    data = make_data("graph-classification", 60)
    heads = []
    for per_task in (1, 3):
        stream = eg.TaskStream(data, per_task)
        method = eg.Analytic(balance=0.0, ridge=0.2)
        one = eg.Learner(
            eg.RandomFeatures(hidden=20, scales=False), method, dtype=torch.float64, num_classes=3, **SMALL
        ).fit(stream)
        heads.append(one.model.encoder.head.detach())
    assert torch.allclose(heads[0], heads[1], rtol=1e-8, atol=1e-10)
    assert eg.Learner(problem="graph-classification").method.name == "analytic"
    assert eg.Learner(eg.GIN(), problem="graph-classification").method.name == "curvature"
    assert eg.Learner(problem="link-prediction").method.name == "analytic"
    assert eg.Learner(problem="link-labelling").method.name == "curvature"
    assert eg.Learner(problem="node-regression").method.name == "curvature"  # until numbers are seen to be known
    assert eg.Learner().method.name == "auto"


def numbers_at_nodes(*, missing: bool = False) -> eg.Graph:
    """A number far from 0 for each node, which its features say."""
    random = np.random.default_rng(0)
    x = random.standard_normal((200, 6)).astype(np.float32)
    y = 500 + 100 * x[:, :1]
    y = np.concatenate([y, x[:, 1:2]], axis=1)
    y[:4, 1] = np.nan if missing else 0.0
    return eg.make_graph(x, random.integers(0, 200, (2, 300)), y, columns=True, undirected=True)


def test_numbers_that_are_known_have_the_closed_form_by_default() -> None:
    for one in (eg.Learner(device="cpu"), eg.Learner(problem="node-regression", device="cpu")):
        task = eg.Task.of(numbers_at_nodes())
        one.learn(task)
        assert (one.method.name, one.problem.name) == ("analytic", "node-regression")
        truth = task.graph.y[task.test, 0]
        error = (one.predict(task.graph, task.test).probabilities[:, 0] - truth).abs().mean()
        assert error < 0.4 * (truth - truth.mean()).abs().mean()
        with pytest.raises(eg.EvergraphError, match="puts unknown classes aside, and node-regression has none"):
            one.predict(task.graph, unknown=0.05)


def test_numbers_of_few_nodes_are_kept_as_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """No matrix over all features; what is learned in two tasks is what the sums G and B say."""
    graph = numbers_at_nodes()
    halves = [eg.Task.of(graph.subgraph(torch.arange(first, 200, 2))) for first in (0, 1)]
    learners = []
    for forms in ("factors", "sums"):
        if forms == "sums":
            monkeypatch.setattr("evergraph.methods.closed_form.two_forms.TwoForms._dense", lambda *_: True)
        one = eg.Learner(eg.RandomFeatures(hidden=800), "analytic", problem="node-regression", dtype=torch.float64)
        learners.append(one.fit(halves))
    factors, sums = (one.method for one in learners)
    assert not factors.gram_
    assert not sums.factor_
    assert factors.kept_bytes() < sums.kept_bytes()
    found, expected = (one.predict(graph).probabilities for one in learners)
    assert torch.allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("dense", [False, True], ids=["factors", "sums"])
def test_a_ridge_pulls_numbers_to_their_mean_not_to_zero(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ridge regression of y less its mean over both tasks, written out; the mean is the weight of the constant."""
    if dense:
        monkeypatch.setattr("evergraph.methods.closed_form.two_forms.TwoForms._dense", lambda *_: True)
    graph = numbers_at_nodes()
    halves = [eg.Task.of(graph.subgraph(torch.arange(first, 200, 2))) for first in (0, 1)]
    model = eg.RandomFeatures(hidden=400, scales=False)
    one = eg.Learner(model, eg.Analytic(ridge=0.2), problem="node-regression", dtype=torch.float64).fit(halves)
    assert bool(one.method.gram_) == dense
    rows, targets = [], []
    for task in halves:
        batcher = one.problem.batcher(one.model, task.graph)
        for node in torch.cat([task.train, task.val]):
            rows.append(one.model.features(batcher.batch(node.reshape(1)))[0].detach())
            targets.append(task.graph.y[node].double())
    phi, y = torch.stack(rows), torch.stack(targets)
    gram, mean = phi.T @ phi, y.mean(0)
    square = gram.diagonal()
    shift = 0.2 * square[square > 0].mean() / y.size(1)
    expected = torch.linalg.solve(gram + shift * torch.eye(len(gram), dtype=torch.float64), phi.T @ (y - mean))
    expected[-1] += mean
    assert torch.allclose(one.model.output_weight().detach(), expected, rtol=1e-6, atol=1e-8 * float(y.abs().max()))


@pytest.mark.parametrize(("zero", "unit"), [(1e3, 1.0), (-3e4, 10.0), (1e5, 100.0)])
def test_numbers_far_from_zero_are_predicted_as_well_as_those_near_it(zero: float, unit: float) -> None:
    """The closed form is recommended where numbers need scaling otherwise, so it must need none."""
    near = numbers_at_nodes()
    y = torch.from_numpy(np.stack([near.x[:, 0].numpy(), near.x[:, 1].numpy()], axis=1))
    errors = []
    for graph in (near.altered(y=y), near.altered(y=zero + unit * y)):
        task = eg.Task.of(graph)
        one = eg.Learner("analytic", problem="node-regression")
        one.learn(task)
        gaps = one.predict(graph, task.test).probabilities - graph.y[task.test]
        errors.append(float(gaps.abs().mean()))
    assert errors[1] == pytest.approx(unit * errors[0], rel=0.05)


@pytest.mark.parametrize(("model", "any_zero"), [(eg.GraphSAGE, True), (eg.GCN, False)])
def test_numbers_may_have_any_zero_below_a_layer_with_a_constant(model: type, any_zero: bool) -> None:
    """A GCN weighs its constant by the degree, so numbers far from zero are predicted badly, as the page says."""
    near = numbers_at_nodes()
    y, errors = torch.from_numpy(near.x[:, :2].numpy()), []
    for zero in (0.0, 1e3):
        graph = near.altered(y=y + zero)
        task = eg.Task.of(graph)
        one = eg.Learner(model(hidden=32), eg.Analytic(), problem="node-regression", device="cpu")
        one.learn(task)
        errors.append(float((one.predict(graph, task.test).probabilities - graph.y[task.test]).abs().mean()))
    assert (errors[1] < 1.05 * errors[0]) == any_zero
    assert any_zero or errors[1] > 10 * errors[0]


def test_large_numbers_are_told_of_where_a_network_learns_them() -> None:
    one = eg.Learner(device="cpu", epochs=1)
    with pytest.warns(eg.EvergraphWarning, match="0.? is about 493 ± 85.*use the closed form"):
        one.learn(eg.Task.of(numbers_at_nodes(missing=True)))
    assert one.method.name == "curvature"


def shops(domains: int = 3, nodes: int = 40, links: int = 300) -> eg.Graph:
    """Links between people of one shop; what a link's number is made of differs from shop to shop."""
    random = np.random.default_rng(0)
    shop = np.repeat(np.arange(domains), nodes)
    x = np.concatenate([random.standard_normal((domains * nodes, 8)), 3 * np.eye(domains)[shop]], axis=1)
    weights = random.standard_normal((domains, 8))
    ends = np.concatenate([random.integers(0, nodes, (2, links)) + nodes * number for number in range(domains)], axis=1)
    owner = np.repeat(np.arange(domains), links)
    y = ((x[ends[0], :8] + x[ends[1], :8]) * weights[owner]).sum(1, keepdims=True) / 4
    return eg.make_links(x, ends, y, columns=True, attributes={"domain": owner})


FORGETTING = {
    "node-classification": lambda: eg.stream("drift"),
    "node-labelling": lambda: eg.stream("drift-labels"),
    "node-regression": lambda: eg.stream("drift-numbers"),
    "graph-classification": lambda: eg.stream("digit-graphs"),
    "graph-labelling": lambda: eg.stream("digit-graphs", problem="graph-labelling"),
    "graph-regression": lambda: eg.stream("digit-slants"),
    "link-classification": lambda: eg.stream("growing-ratings"),
    "link-labelling": lambda: eg.stream("growing-ratings", problem="link-labelling"),
    "link-regression": lambda: eg.stream(shops(), by="domain"),
    "link-prediction": lambda: eg.stream("growing-links"),
}


@pytest.mark.slow
@each_problem
def test_fine_tuning_forgets_and_joint_training_does_not(problem: str) -> None:
    stream = FORGETTING[problem]()
    forgotten = {}
    for method in ("finetune", "joint"):
        one = eg.Learner(eg.GCN(hidden=32), method, epochs=10, lr=0.01, label_scope="seen", device="cpu").fit(stream)
        assert one.problem.name == problem
        forgotten[method] = one.evaluate(stream).af
    assert forgotten["finetune"] < 0
    assert forgotten["joint"] > 0.4 * forgotten["finetune"]  # more classes or domains to tell apart cost something


def test_the_tables_of_the_page_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[1]
    monkeypatch.chdir(root)
    page = (root / "docs" / "problems.md").read_text(encoding="utf-8")
    assert problems.page_with_tables(page) == page
    commands = page.replace("\\\n", " ").split()
    for name in problems.TABLES:
        words = problems.words(name)
        assert any(commands[start : start + len(words)] == words for start in range(len(commands))), name


def test_one_methods_rows_are_measured_anew_and_the_others_stay(tmp_path: Path, monkeypatch) -> None:
    before = Path(__file__).resolve().parents[1] / "results/problems/enzymes"
    folder = Path(shutil.copytree(before, tmp_path / "enzymes"))
    lines = (folder / "results.jsonl").read_text().splitlines()

    def measured(names, data_root, results, more, at_once, seconds, methods) -> list[str]:
        assert (list(names), list(methods)) == (["enzymes"], ["analytic"])
        entry = next(json.loads(line) for line in lines if json.loads(line)["key"] == "analytic")
        entry["result"]["ap"] = {**entry["result"]["ap"], "mean": 12.34}
        (results / "enzymes").mkdir()
        (results / "enzymes/results.jsonl").write_text(json.dumps(entry) + "\n")
        return []

    monkeypatch.setattr(problems, "run", measured)
    assert problems.again("analytic", ["enzymes", "actor"], "", tmp_path, [], 1) == []
    after = (folder / "results.jsonl").read_text().splitlines()
    keys = [json.loads(line)["key"] for line in lines]
    assert [json.loads(line)["key"] for line in after] == keys
    changed = [key for key, old, new in zip(keys, lines, after) if json.loads(old) != json.loads(new)]
    assert changed == ["analytic"]
    rows = (folder / "table.md").read_text().splitlines()
    assert [row for row in rows if row not in (before / "table.md").read_text()] == [
        row for row in rows if "| analytic | 12.34 ±" in row
    ]


def test_constants_are_settled_without_a_test_node() -> None:
    cell = ("digits", "random:1", 2)
    plain, held_out = (seven_graphs.stream_of(cell, "", seven_graphs.Nodes(wanted)) for wanted in (False, True))
    assert torch.equal(plain.graph.y, held_out.graph.y)
    for real, inner in zip(plain, held_out):
        assert torch.equal(inner.test, real.val)
        assert torch.equal(torch.cat([inner.train, inner.val]).sort().values, real.train)
        for label in real.graph.y[real.train].unique():
            quarter = int((real.graph.y[real.train] == label).sum()) // 4
            assert int((real.graph.y[inner.val] == label).sum()) == quarter


def test_a_share_of_a_graph_has_the_same_nodes_in_every_run() -> None:
    cells = [("digits", f"random:{order}", order) for order in (0, 1)]
    parts = [seven_graphs.stream_of(cell, "", seven_graphs.Nodes(share=0.25)) for cell in cells]
    assert [part.graph.num_nodes for part in parts] == [449, 449]
    assert torch.equal(parts[0].graph.x, parts[1].graph.x)


def test_graphs_take_fewer_random_features_than_nodes_unless_told(tmp_path: Path) -> None:
    data = make_data("graph-classification", 30)
    widths = {}
    for given in (None, 40):
        model = eg.RandomFeatures() if given is None else eg.RandomFeatures(hidden=given)
        one = eg.Learner(model, "analytic", problem="graph-classification", **SMALL).fit(eg.TaskStream(data, 3))
        widths[given] = one.model.output_weight().shape[0] - 1
        one.save(tmp_path / str(given))
        loaded = eg.Learner.load(tmp_path / str(given), device="cpu")
        assert torch.equal(one.logits(data), loaded.logits(data))
    assert widths == {None: 1280, 40: 40}


@pytest.mark.parametrize("kind", [eg.RandomFeatures, eg.MixedFeatures])
def test_a_number_of_random_features_that_is_the_default_of_nodes_counts_as_given(kind: type, tmp_path: Path) -> None:
    own = kind().default_hidden
    for given, width in ((None, 1280), (own, own)):
        eg.Learner(kind(hidden=given), "analytic").save(tmp_path / str(given))
        model = eg.Pooled(eg.Learner.load(tmp_path / str(given)).model)  # not set up yet
        model.setup(3, 2)
        assert model.hyperparameters()["hidden"] == width
    plain = kind()
    plain.setup(3, 2)
    assert plain.hyperparameters()["hidden"] == own


def test_tables_name_metric_and_attribute_and_nothing_given_is_ignored(evergraph, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    few = ("--method", "finetune", "--hidden", 4, "--epochs", 1, "--device", "cpu")
    status, out, _ = evergraph("run", "drift-labels:nodes=80", *few, "--out", tmp_path / "a")
    assert status == 0
    assert "time-incremental by time, ROC-AUC, test graph task" in " ".join(out.split())
    status, _, err = evergraph("run", "digits", "--bins", 3, *few, "--out", tmp_path / "b")
    assert status == 2
    assert err.splitlines()[-1].startswith(
        "error: bins=3 cuts an attribute, and scenario class has none; name one with"
    )
    status, _, err = evergraph("run", "growing-links:links=100", *few, "--metric", "accuracy", "--out", tmp_path / "c")
    assert status == 2
    assert "choose one of: roc-auc, hits@10, hits@20, hits@50, hits@100, mrr" in err


@pytest.mark.parametrize("hidden", [15, 16, 19])
def test_links_are_learned_whatever_the_number_of_random_features(hidden: int) -> None:
    """Five blocks of one width have fewer features than asked for if it is not a multiple of five."""
    stream = eg.stream("growing-links:nodes=80,waves=2,groups=4,links=100")
    learner = eg.Learner(eg.RandomFeatures(hidden=hidden), "analytic", device="cpu").fit(stream)
    assert learner.evaluate(stream).ap > 60
