"""Problems: what an example is and what its outputs mean, against deliberately naive versions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import evergraph as eg
from evergraph.core.params import copy_params, named_params
from evergraph.curvature import fisher_diagonal, forward
from evergraph.errors import EvergraphWarning
from evergraph.evaluation import METRICS
from evergraph.problems import PROBLEMS, Problem, problem_of
from evergraph.training.step import train_step

UNITS = 3
LEVELS = ("node", "graph", "link")
KINDS = {"classification": "classes", "labelling": "labels", "regression": "numbers"}
each_problem = pytest.mark.parametrize("name", [f"{level}-{kind}" for level in LEVELS for kind in KINDS])


def edges_of(count: int, random: np.random.Generator) -> np.ndarray:
    source = random.integers(0, count, 3 * count)
    return np.stack([source, (source + random.integers(1, 4, 3 * count)) % count])


def targets_of(kind: str, count: int, random: np.random.Generator) -> dict:
    if kind == "classification":
        return {"y": np.arange(count) % UNITS}
    values = random.random((count, UNITS))
    if kind == "labelling":
        values = (values > 0.5).astype(float)
    values[0, 0] = np.nan  # one target is not known
    return {"y": values, "columns": True}


def make_data(name: str, count: int = 20, seed: int = 0) -> eg.Graph:
    """A small graph with the examples and targets of a problem."""
    level, kind = name.split("-")
    random = np.random.default_rng(seed)
    domain = {"domain": np.arange(count) % 2}
    more = {**targets_of(kind, count, random), "attributes": domain}
    if level == "node":
        return eg.make_graph(random.random((count, 4)), edges_of(count, random), undirected=True, **more)
    if level == "graph":
        owner = np.repeat(np.arange(count), 1 + np.arange(count) % 4)
        inner = [(node, node + 1) for node in range(owner.size - 1) if owner[node] == owner[node + 1]]
        return eg.make_graphs(random.random((owner.size, 4)), np.array(inner).T, owner, undirected=True, **more)
    links = random.integers(0, 12, (2, count))
    return eg.make_links(random.random((12, 4)), links, edge_index=edges_of(12, random), **more)


def setting(name: str, scope: list[int] | None = None) -> tuple[eg.GraphModel, Problem, object]:
    """A model in float64, a problem and a batcher with targets."""
    torch.manual_seed(3)
    graph, problem = make_data(name), PROBLEMS[name]()
    model = problem.adapt(eg.GCN(hidden=3))
    model.setup(graph.num_features, UNITS)
    model.to(torch.float64)
    batcher = problem.batcher(model, graph, targets=problem.targets(graph, list(range(UNITS))))
    return model, problem.within(scope) if scope else problem, batcher


def brute_fisher(problem: Problem, outputs: Tensor, scope: list[int]) -> Tensor:
    """H of one example's outputs z from its definition, E[s sᵀ] over targets, unit by unit and target by target."""
    size = outputs.numel()
    if problem.kind == "classes":
        p = outputs[scope].softmax(0)
        total = torch.zeros(size, size, dtype=outputs.dtype)
        for share, unit in zip(p, scope):
            s = torch.zeros(size, dtype=outputs.dtype)
            s[scope] = -p
            s[unit] += 1
            total += share * torch.outer(s, s)
        return total
    total = torch.zeros(size, size, dtype=outputs.dtype)
    if problem.kind == "numbers":
        total[scope, scope] = 1  # E[(y − z)(y − z)ᵀ] of unit noise
        return total
    for pattern in range(2 ** len(scope)):  # all labellings
        s, share = torch.zeros(size, dtype=outputs.dtype), 1.0
        for bit, unit in enumerate(scope):
            p, y = outputs[unit].sigmoid(), (pattern >> bit) & 1
            share = share * (p if y else 1 - p)
            s[unit] = y - p
        total += share * torch.outer(s, s)
    return total


def brute_jacobian(model: eg.GraphModel, batch: eg.Batch) -> Tensor:
    """∂z/∂θ, one output at a time."""
    outputs, params = model(batch), list(named_params(model).values())
    rows = []
    for value in outputs.reshape(-1):
        grads = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(params, grads)]))
    return torch.stack(rows).view(*outputs.shape, -1)


@each_problem
@pytest.mark.parametrize("scope", [[0, 1, 2], [0, 2]], ids=["all", "two"])
def test_the_exact_regularizer_equals_brute_force(name: str, scope: list[int]) -> None:
    """strength · F D with F = Σ_e J_eᵀ H_e J_e, written out, is what one training step adds to the gradient."""
    model, problem, batcher = setting(name, scope)
    examples = torch.tensor([e for e in range(20) if problem.kind != "classes" or e % UNITS in scope])
    batch = batcher.batch(examples)
    anchor = {key: value + 0.1 * torch.randn_like(value) for key, value in copy_params(model).items()}
    params = named_params(model)
    direction = torch.cat([(params[key].detach() - anchor[key]).reshape(-1) for key in params])
    jacobian, outputs = brute_jacobian(model, batch), model(batch).detach()
    want = torch.zeros_like(direction)
    for row, z in zip(jacobian, outputs):
        want += row.T @ (brute_fisher(problem, z, scope) @ (row @ direction))
    got = {}
    for strength in (0.0, 0.7):
        method = eg.BatchCurvature(strength=strength, anchors="latest")
        none = examples[:0]
        task = eg.Task(1, scope, make_data(name), examples, none, none, UNITS)
        context = eg.Context(
            model=model, task=task, problem=problem, index=1, old=torch.tensor([0]), batcher=batcher, batch_size=None,
            generator=torch.Generator(), reduction="sum",
        )  # fmt: skip
        method.add_anchor(anchor)
        method.num_anchors_ = 1
        before = copy_params(model)
        train_step(context, method, batch, torch.optim.SGD(model.parameters(), lr=0.0))
        got[strength] = torch.cat([value.grad.reshape(-1).clone() for value in params.values()])
        assert all(torch.equal(before[key], params[key]) for key in params)
    assert torch.allclose(got[0.7] - got[0.0], 0.7 * want, rtol=1e-9, atol=1e-10)
    assert want.abs().max() > 1e-3


@each_problem
@pytest.mark.parametrize("scope", [[0, 1, 2], [0, 2]], ids=["all", "two"])
@pytest.mark.parametrize("length", [0.1, 5.0])
def test_the_mean_of_the_output_fisher_along_the_way_equals_an_integral(
    name: str, scope: list[int], length: float
) -> None:
    problem = PROBLEMS[name]().within(scope)
    z, u = (torch.randn(4, UNITS, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    u *= length
    points, weights = np.polynomial.legendre.leggauss(40)
    want = torch.zeros_like(z)
    for row, (output, tangent) in enumerate(zip(z, u)):
        for point, weight in zip((points + 1) / 2, weights / 2):
            want[row] += weight * brute_fisher(problem, output - point * tangent, scope) @ tangent
    assert torch.allclose(problem.mean_fisher_product(z, u), want, rtol=0, atol=1e-9)
    assert want.abs().max() > 1e-3


def test_the_mean_of_the_output_fisher_is_exact_for_small_steps_in_float32() -> None:
    """The plain difference of two softmax rows has errors of 1e-7, whatever the step."""
    problem = PROBLEMS["node-classification"]().within([0, 1, 2])
    z = 3 * torch.randn(50, UNITS, generator=torch.Generator().manual_seed(0))
    u = torch.randn(50, UNITS, generator=torch.Generator().manual_seed(1))
    for length in (1e-7, 1e-3, 0.02, 0.3, 30.0):
        want = problem.mean_fisher_product(z.double(), length * u.double())
        got = problem.mean_fisher_product(z, length * u)
        assert (got - want).norm() <= 3e-5 * want.norm(), length
    plain = z.softmax(1) - (z - 1e-7 * u).softmax(1)
    want = problem.mean_fisher_product(z.double(), 1e-7 * u.double())
    assert (plain - want).norm() > 0.1 * want.norm()


@each_problem
def test_the_fisher_diagonal_equals_brute_force(name: str) -> None:
    model, problem, batcher = setting(name)
    examples = torch.arange(20)
    got = fisher_diagonal(model, lambda size: batcher.batches(examples, size), problem)
    want, scope = 0.0, [0, 1, 2]
    batch = batcher.batch(examples)
    for row, z in zip(brute_jacobian(model, batch), model(batch).detach()):
        want = want + torch.diagonal(row.T @ brute_fisher(problem, z, scope) @ row)
    assert torch.allclose(torch.cat([value.reshape(-1) for value in got.values()]), want, rtol=1e-9, atol=1e-12)


@each_problem
@pytest.mark.parametrize("scope", [[0, 1, 2], [0, 2]], ids=["all", "two"])
def test_score_and_divergence_follow_from_the_loss(name: str, scope: list[int]) -> None:
    problem = PROBLEMS[name](scope)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(5, UNITS, dtype=torch.float64, generator=generator, requires_grad=True)
    reference = torch.randn(5, UNITS, dtype=torch.float64, generator=generator)
    targets = problem.sample(reference, generator)
    (gradient,) = torch.autograd.grad(problem.loss(z, targets).sum(), z)
    assert torch.allclose(problem.score(z, targets), -gradient)
    outside = [unit for unit in range(UNITS) if unit not in scope]
    assert not problem.score(z, targets)[:, outside].any()
    # KL is zero at the reference, and its second derivative there is H
    assert torch.allclose(problem.divergence(reference, reference), torch.zeros(5, dtype=torch.float64), atol=1e-12)
    for row in reference:
        hessian = torch.autograd.functional.hessian(
            lambda moved, at=row: problem.divergence(moved.unsqueeze(0), at.unsqueeze(0)).sum(), row
        )
        assert torch.allclose(hessian, brute_fisher(problem, row, scope), atol=1e-9)


@each_problem
def test_tangents_of_a_model_of_examples(name: str) -> None:
    """J d by forward mode, against the Jacobian written out."""
    model, _, batcher = setting(name)
    batch = batcher.batch(torch.arange(20))
    direction = {key: torch.randn_like(value) for key, value in copy_params(model).items()}
    _, (tangent,) = forward(model, batch, [direction])
    flat = torch.cat([value.reshape(-1) for value in direction.values()])
    assert torch.allclose(tangent, brute_jacobian(model, batch) @ flat)


@pytest.mark.parametrize("encoder", [eg.GCN, eg.GraphSAGE, eg.GAT, eg.GIN])
def test_a_batch_of_graphs_is_each_graph_alone(encoder: Callable[..., eg.GraphModel]) -> None:
    torch.manual_seed(0)
    data = make_data("graph-classification")
    model = eg.Pooled(encoder(hidden=8))
    model.setup(4, UNITS)
    model.to(torch.float64)
    batcher = PROBLEMS["graph-classification"]().batcher(model, data)
    together = model(batcher.batch(torch.tensor([7, 2, 19])))
    for row, number in zip(together, (7, 2, 19)):
        assert torch.allclose(model(batcher.batch(torch.tensor([number])))[0], row)
        nodes = data.members.rows(torch.tensor([number])).indices
        alone = data.subgraph(nodes)
        outputs = model.encoder(alone.x.to(torch.float64), alone.edge_index)
        pooled = outputs.sum(0) if encoder is eg.GIN else outputs.mean(0)
        assert torch.allclose(pooled, row)


def test_gin_by_its_equations() -> None:
    torch.manual_seed(0)
    model = eg.GIN(hidden=5, num_layers=3)
    model.setup(4, 2)
    model.to(torch.float64)
    data = make_data("node-classification")
    dense = data.adjacency.dense().double() + torch.eye(20, dtype=torch.float64)
    hidden = data.x.double()
    ones = torch.ones(20, 1, dtype=torch.float64)
    weights = list(model.weights)
    for layer in range(3):
        inner = torch.relu(torch.cat([dense @ hidden, ones], 1) @ weights[2 * layer])
        hidden = torch.relu(torch.cat([inner, ones], 1) @ weights[2 * layer + 1])
    assert torch.allclose(model(data.x.double(), data.edge_index), torch.cat([hidden, ones], 1) @ weights[-1])


def test_metrics_by_their_definitions() -> None:
    outputs = torch.tensor([[0.1], [0.9], [0.4], [0.4], [0.8]], dtype=torch.float64)
    targets = torch.tensor([[0.0], [1.0], [1.0], [0.0], [float("nan")]])
    # positive over negative: 0.9 > 0.1, 0.9 > 0.4, 0.4 > 0.1, and a tie
    assert METRICS["roc-auc"](outputs, targets, [0]) == pytest.approx(100 * 3.5 / 4)
    assert METRICS["mae"](outputs, targets, [0]) == pytest.approx((0.1 + 0.1 + 0.6 + 0.4) / 4)
    assert METRICS["rmse"](outputs, targets, [0]) == pytest.approx(math.sqrt((0.01 + 0.01 + 0.36 + 0.16) / 4))
    negatives = torch.linspace(0, 1, 21, dtype=torch.float64)
    scores = torch.cat([torch.tensor([2.0, 0.53, 0.5]), negatives]).unsqueeze(1)
    linked = torch.cat([torch.ones(3), torch.zeros(21)]).unsqueeze(1)
    # ranks 1; behind 0.55 … 1.0 (10 of them): 11; behind and tied with 0.5 … 1.0 (11 of them): 12
    assert METRICS["mrr"](scores, linked, [0]) == pytest.approx(100 * (1 + 1 / 11 + 1 / 12) / 3)
    assert METRICS["hits@10"](scores, linked, [0]) == pytest.approx(100 / 3)
    assert METRICS["hits@20"](scores, linked, [0]) == pytest.approx(100)
    unknown = torch.cat([linked, torch.full_like(linked[:1], torch.nan)])
    higher = torch.cat([scores, scores.max(0, keepdim=True).values + 1])  # a pair that may or may not be a link
    for metric in ("hits@10", "mrr", "roc-auc"):
        assert METRICS[metric](higher, unknown, [0]) == METRICS[metric](scores, linked, [0])
    classes = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
    assert METRICS["roc-auc"](classes, torch.tensor([0, 1, 1]), [0, 1]) == pytest.approx(100)
    with pytest.warns(EvergraphWarning, match=r"hits@50: .* 21 pairs .*, fewer than 50, .*use --metric hits@20 or mrr"):
        assert METRICS["hits@50"](scores, linked, [0]) == 100
    with pytest.warns(EvergraphWarning, match=r"hits@10: .* 2 pairs .*use --metric mrr"):
        assert METRICS["hits@10"](outputs, targets, [0]) == 100
    with pytest.warns(EvergraphWarning, match="no label has both positive and negative examples"):
        assert METRICS["roc-auc"](classes, torch.zeros(3), [0, 1]) == 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_roc_auc_of_classes_tells_confident_outputs_apart(dtype: torch.dtype) -> None:
    random = np.random.default_rng(0)
    truth = torch.arange(40) % 4
    z = 15 * torch.as_tensor(random.standard_normal((40, 4)))
    z[torch.arange(40), truth] += 10
    z = z.to(dtype)  # many probabilities round to 1, and their logarithms to 0

    def higher(one: list[float], other: list[float], unit: int) -> bool:
        """p_unit(one) > p_unit(other): the odds against it are smaller."""
        against = [math.log(math.fsum(math.exp(v - row[unit]) for c, v in enumerate(row) if c != unit))
                   for row in (one, other)]  # fmt: skip
        return against[0] < against[1]

    areas = []
    for unit in range(4):
        positive, negative = (z[(truth == unit) == own].tolist() for own in (True, False))
        wins = [higher(one, other, unit) for one in positive for other in negative]
        areas.append(100 * sum(wins) / len(wins))
    assert METRICS["roc-auc"](z, truth, range(4)) == pytest.approx(np.mean(areas), abs=1e-9)


def test_roc_auc_of_classes_is_that_of_the_probabilities_predicted() -> None:
    stream = eg.stream("sbm:nodes=300,classes=6,features=8,signal=0.5", classes_per_task=3)
    learner = eg.Learner(eg.GCN(hidden=16), eg.EWC(10.0), epochs=60, lr=0.02, label_scope="seen").fit(stream)
    assert abs(learner.temperature - 1) > 0.1
    found = learner.evaluate(stream, metric="roc-auc").accuracies
    for task, value in zip(stream, found):
        p, truth = learner.predict_proba(task.graph, task.test).double(), task.graph.y[task.test]
        areas = []
        for unit in truth.unique():
            positive, negative = p[truth == unit, unit], p[truth != unit, unit]
            gaps = positive.unsqueeze(1) - negative.unsqueeze(0)
            areas.append(100 * float(((gaps > 0).double() + 0.5 * (gaps == 0)).mean()))
        assert value == pytest.approx(np.mean(areas), abs=1e-6)


def test_one_class_of_several_is_no_to_every_other_one_also_to_those_the_graph_does_not_know() -> None:
    x, edges = torch.rand(6, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])
    graphs = [
        eg.make_graph(x, edges, torch.tensor([0, 1, 0, 1, 0, -1]), class_names=names, undirected=True)
        for names in (["a", "b"], ["c", "b"], ["c", "d"])
    ]
    problem = PROBLEMS["node-labelling"]()
    for graph in graphs:
        rows = problem.targets(graph, ["a", "b", "c"])
        for node, row in enumerate(rows):
            name = graph.class_names[int(graph.y[node])] if graph.y[node] >= 0 else None
            expected = [math.nan if name is None else float(name == unit) for unit in "abc"]
            assert row.tolist() == pytest.approx(expected, nan_ok=True)
    closed = eg.Learner("analytic", problem="node-labelling")  # needs all targets: it refused the second graph
    for graph in graphs[:2]:
        closed.learn(eg.Task.of(graph, hold_out=False))
    assert closed.classes_ == ["a", "b", "c"]


def test_forgetting_of_an_error_is_negative_too() -> None:
    matrix = [[1.0, None], [3.0, 2.0]]
    found = eg.evaluation.summarize([matrix], higher_is_better=False)
    assert found["ap"]["mean"] == 2.5  # the mean error, as it stands
    assert found["af"]["mean"] == -2.0  # it has grown by 2
    assert eg.evaluation.summarize([matrix])["af"]["mean"] == 2.0


def test_what_a_graph_suggests() -> None:
    for level in LEVELS:
        for kind in KINDS:
            assert problem_of(make_data(f"{level}-{kind}")) == f"{level}-{kind}"
    links = eg.make_links(np.eye(4), [[0, 1, 2], [1, 2, 3]], negatives=True)
    assert problem_of(links) == "link-prediction"


@pytest.mark.parametrize(
    ("method", "problem", "message"),
    [
        ("stand-in-curvature", "graph-classification", "stand-in-curvature works on nodes with classes"),
        ("twp", "link-classification", "twp works on nodes"),
        ("auto", "node-regression", "auto works on nodes with classes, and node-regression has nodes with numbers"),
        ("ema+auto", "graph-classification", "auto works on nodes"),
    ],
)
def test_a_method_that_makes_no_sense_is_refused(method: str, problem: str, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        eg.Learner(method, problem=problem)


def test_data_that_does_not_fit_the_problem_is_refused() -> None:
    task = eg.Task.of(make_data("graph-classification"))
    with pytest.raises(eg.EvergraphError, match="has graphs as examples, and node-classification is about nodes"):
        eg.Learner("ewc", problem="node-classification").learn(task)
    with pytest.raises(eg.EvergraphError, match="needs one class for each"):
        eg.Learner("ewc", problem="node-classification").learn(eg.Task.of(make_data("node-regression")))
    with pytest.raises(eg.EvergraphError, match="predicts numbers"):
        eg.Learner("ewc", problem="node-regression").learn(eg.Task.of(make_data("node-classification")))
