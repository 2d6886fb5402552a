"""The paper's method: the gradient of one backward pass against the regularizer written out, and its readings."""

import copy
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch_geometric import nn as pyg

import evergraph as eg
from brute_force import (
    Setting,
    brute_fisher,
    cases,
    close,
    flat,
    make,
    node_fisher_rows,
    pull,
    seeded,
    step_gradient,
    tiny_graph,
)
from evergraph.core.features import Features, as_dense
from evergraph.core.params import copy_params
from evergraph.core.shortcuts import fast_paths
from evergraph.core.sparse import SparseMatrix
from evergraph.curvature import forward, pick_labels
from evergraph.data.graph import Graph, make_graph
from evergraph.methods import (
    EMA,
    BatchCurvature,
    Compose,
    InterpolatedCurvature,
    OnlineCurvature,
    QueueCurvature,
    StandInCurvature,
)
from evergraph.methods.base import Context
from evergraph.methods.online_curvature.class_means import class_sums
from evergraph.methods.online_curvature.factored_gradients import SEEDS, factors_pay
from evergraph.methods.online_curvature.prototypes import cluster_sums, propagated
from evergraph.problems import NodeClassification
from evergraph.training.member import Progress

STRENGTH = 0.7


def after(setting: Setting, context: Context, method: eg.Method, seeds: tuple[int, ...] = (1, 2, 3)) -> None:
    """Let tasks end at random parameters, and come back to where the model was."""
    theta = setting.params
    for seed in seeds:
        setting.load(setting.direction(seed))
        method.end_task(context)
    setting.load(theta)


def displacement(setting: Setting, seeds: tuple[int, ...] = (1, 2, 3)) -> Tensor:
    """Σ_t (θ − θ_t)."""
    return sum(flat(setting.params) - flat(setting.direction(seed)) for seed in seeds)


def curvature(**settings: object) -> OnlineCurvature:
    return OnlineCurvature(**{"strength": STRENGTH, "ema": 0.0, **settings})


# the gradient


@cases
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (1, 3)], ids=["all", "two"])
def test_one_backward_pass_gives_loss_and_regularizer(case: str, reduction: str, classes: tuple[int, ...]) -> None:
    setting = make(case, classes)
    context, method = setting.context(reduction), curvature()
    after(setting, context, method)
    fisher, theta = brute_fisher(setting, "exact"), flat(setting.params)
    # the objective with the curvature held constant, differentiated by autograd
    point = theta.clone().requires_grad_()
    gaps = [point - flat(setting.direction(seed)) for seed in (1, 2, 3)]
    share = 1 if reduction == "sum" else 1 / setting.nodes.numel()
    objective = sum(STRENGTH / 2 * share * gap @ fisher @ gap for gap in gaps)
    (regularizer,) = torch.autograd.grad(objective, point)
    loss = torch.nn.functional.cross_entropy(
        setting.model(setting.batch)[:, setting.scope], setting.positions, reduction=reduction
    )
    grads = torch.autograd.grad(loss, list(setting.model.parameters()))
    want = regularizer + torch.cat([grad.flatten() for grad in grads])
    close(flat(step_gradient(method, context)), want)


@cases
def test_sampled_labels_give_their_own_fisher(case: str) -> None:
    setting = make(case)
    context, method = setting.context(), curvature(estimator="sampled")
    after(setting, context, method)
    picked = pick_labels(setting.problem, setting.function(setting.params), "sample", generator=seeded())
    context.generator = seeded()
    close(pull(method, context), STRENGTH * brute_fisher(setting, "sample", picked) @ displacement(setting))


def queue_by_hand(setting: Setting, steps: int, held: int) -> Tensor:
    """Algorithm 1 written out: one node, one label, one gradient g per step; Σ (g·D) g over the last `held` of them."""
    generator, D = seeded(), displacement(setting)
    queue: list[Tensor] = []
    for _ in range(steps):
        node = int(torch.randint(setting.nodes.numel(), (1,), generator=generator))
        logits = setting.function(setting.params)[node]
        unit = int(pick_labels(setting.problem, logits.unsqueeze(0), "sample", generator=generator))
        params = dict(setting.model.named_parameters())
        own = setting.model(setting.batcher.batch(setting.nodes[node : node + 1]))[0, setting.scope]
        grads = torch.autograd.grad(own.log_softmax(0)[setting.scope.index(unit)], list(params.values()))
        queue = [*queue, torch.cat([grad.flatten() for grad in grads])][-held:]
    return sum((g @ D) * g for g in queue)


@cases
@pytest.mark.parametrize(("rule", "most"), [("text", 3), ("algorithm", 4)])
@pytest.mark.parametrize("steps", [2, 7])
def test_the_queue_is_algorithm_1(case: str, rule: str, most: int, steps: int) -> None:
    setting = make(case)
    context, method = setting.context(), curvature(estimator="queue", queue_size=3, queue_rule=rule)
    after(setting, context, method)
    context.generator = seeded()
    for _ in range(steps):
        got = pull(method, context)
    batch, queue = setting.nodes.numel(), min(steps, most)
    close(got, STRENGTH * batch / queue * queue_by_hand(setting, steps, most))
    assert method.methods[1].queue_
    method.start_task(context)
    assert not method.methods[1].queue_  # a new task starts with an empty queue


def sparse_setting(case: str) -> Setting:
    """Sparse inputs: gradients of single nodes are kept as factors."""
    dense = tiny_graph()
    return make(case, graph=dataclasses.replace(dense, x=SparseMatrix.from_dense(dense.x)))


@pytest.mark.parametrize("case", ["gcn", "gcn-unpropagated", "gcn-1-layer", "gcn-3-layers"])
@pytest.mark.parametrize("steps", [2, 7])
def test_gradients_kept_as_factors_are_the_queue_of_algorithm_1(case: str, steps: int) -> None:
    setting = sparse_setting(case)
    context, method = setting.context(), curvature(estimator="queue", queue_size=3)
    after(setting, context, method)
    context.generator = seeded()
    for _ in range(steps):
        got = pull(method, context)
    queue = method.methods[1].queue_
    assert queue[SEEDS].numel() == min(steps, 3)  # and not a ring of gradients written out
    close(got, STRENGTH * setting.nodes.numel() / min(steps, 3) * queue_by_hand(setting, steps, 3))


def test_a_queue_of_factors_goes_on_to_the_bit_after_a_stop(small_stream: eg.TaskStream, tmp_path: Path) -> None:
    graph = small_stream.graph
    sparse = make_graph(sp.csr_matrix(graph.x.clamp(min=0).numpy()), graph.edge_index, graph.y)
    stream = eg.TaskStream(sparse, small_stream.classes_per_task)
    learner = eg.Learner(eg.GCN(hidden=6), QueueCurvature(queue_size=3), epochs=3, batch_size=9, device="cpu")
    learner.learn(stream[0])
    learner.learn(stream[1], lambda progress, epochs: learner.save(tmp_path / str(progress.epoch)))
    again = eg.Learner.load(tmp_path / "2", device="cpu")
    assert again.method.queue_[SEEDS].numel() == 3
    again.learn(stream[1])
    for value, want in zip(again.model.parameters(), learner.model.parameters()):
        assert torch.equal(value, want)


def test_gradients_are_written_out_where_factors_do_not_pay() -> None:
    for case in ("sage", "gat"):  # which do not show their first layer
        assert not factors_pay(sparse_setting(case).context())
    assert not factors_pay(make("gcn").context())  # dense inputs
    setting = sparse_setting("gcn")
    assert factors_pay(setting.context())
    with fast_paths("bags", "anchors"):
        assert not factors_pay(setting.context())
    setting.batcher.fan_out = (2, 2)
    assert not factors_pay(setting.context())


@pytest.mark.parametrize(
    ("over_nodes", "reduction", "factor"),
    [
        ("loss", "sum", 12 / 5),  # |B|/|Q|: the queue's mean stands for the batch's, and the loss is a sum
        ("loss", "mean", 1 / 5),
        ("mean", "sum", 1 / 5),  # the paper's line taken literally
        ("mean", "mean", 1 / 5),
        ("sum", "sum", 1),
        ("sum", "mean", 1),
    ],
)
def test_the_readings_of_the_queues_scale(over_nodes: str, reduction: str, factor: float) -> None:
    setting = make("gcn")
    context, method = setting.context(reduction), curvature(estimator="queue", over_nodes=over_nodes)
    after(setting, context, method)
    context.generator = seeded()
    for _ in range(5):
        got = pull(method, context)
    close(got, STRENGTH * factor * queue_by_hand(setting, 5, 5))


def test_the_queue_stands_for_the_nodes_of_the_step_at_hand() -> None:
    setting = make("gcn")
    context, method = setting.context(), QueueCurvature(STRENGTH)
    after(setting, context, method)
    D = displacement(setting)
    for number, size in enumerate((5, 7), start=1):  # batches of an epoch need not be of one size
        got = pull(method, context, setting.batcher.batch(setting.nodes[:size]))
        held = torch.cat([rows[:number].flatten(1) for rows in method.queue_.values()], dim=1)
        close(got, STRENGTH * size / number * sum((g @ D) * g for g in held))


@pytest.mark.parametrize("reduction", ["sum", pytest.param("mean", marks=pytest.mark.slow)])
def test_the_length_of_the_queue_changes_its_noise_and_not_its_strength(reduction: str) -> None:
    """At fixed parameters the queue's pull has that of the batch as its mean; M is how many draws it averages."""
    setting, steps = make("gcn"), 256
    context, exact = setting.context(reduction), BatchCurvature(STRENGTH)
    after(setting, context, exact)
    loss, want = flat(step_gradient(eg.Method(), context)), pull(exact, context)
    means, errors, lengths = [], [], (1, 8, 64)
    for length in lengths:
        method = QueueCurvature(STRENGTH, queue_size=length)
        after(setting, context, method)
        context.generator = seeded()
        pulls = torch.stack([flat(step_gradient(method, context)) - loss for _ in range(steps)])
        blocks = pulls[length - 1 :: length]  # queues that have no gradient in common
        means.append(blocks.mean(0))
        errors.append(float((blocks - want).square().sum(1).mean().sqrt()))
        if length == 1:
            allowed = 5 * pulls.std(0) / steps**0.5 + 1e-12
    for mean in means:
        close(mean, means[0], 1e-9)
        assert ((mean - want).abs() <= allowed).all()
    x, y = torch.tensor(lengths).log(), torch.tensor(errors).log()
    rate = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert rate == pytest.approx(-0.5, abs=0.12)


@pytest.mark.parametrize("case", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("point", [0.0, 0.5])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_fisher_may_be_taken_anywhere_between(case: str, point: float, reduction: str) -> None:
    setting = make(case, (0, 2))
    context, method = setting.context(reduction), curvature(point=point)
    after(setting, context, method, (1, 2))
    got, theta = pull(method, context), setting.params
    want = torch.zeros_like(got)
    for seed in (1, 2):
        anchor = setting.direction(seed)
        setting.load({name: anchor[name] + point * (theta[name] - anchor[name]) for name in theta})
        want += STRENGTH * brute_fisher(setting, "exact") @ (flat(theta) - flat(anchor))
    close(got, want / (1 if reduction == "sum" else setting.nodes.numel()))


def test_just_before_the_end_of_the_line_is_the_papers_point() -> None:
    setting, context = make("gcn"), make("gcn").context()
    context.model = setting.model
    near, there = curvature(point=1 - 1e-9), curvature(point=1.0)
    for method in (near, there):
        after(setting, context, method)
    close(pull(near, context), pull(there, context), 1e-6)


# the Fisher matrix at class means


StandIns = list[tuple[Tensor, int]]  # the features of each, and the number of nodes it stands for


def means_by_hand(setting: Setting) -> StandIns:
    """The mean features of each class, and its size."""
    found = []
    for unit in setting.scope:
        own = [node for node in setting.nodes.tolist() if int(setting.graph.y[node]) == unit]
        found.append((sum(as_dense(setting.graph.x)[node].double() for node in own) / len(own), len(own)))
    return found


def among_their_like(setting: Setting, stand_ins: StandIns) -> Setting:
    """The stand-ins as nodes, each with a twin as its only neighbour."""
    number, rows = len(stand_ins), [row for row, _ in stand_ins]
    pairs = [(c, c + number) for c in range(number)]
    edges = torch.tensor(pairs + [(b, a) for a, b in pairs]).T
    graph = make_graph(torch.stack(rows + rows), edges, torch.zeros(2 * number, dtype=torch.long))
    batcher = setting.problem.batcher(setting.model, graph)
    return Setting(graph, setting.model, batcher, setting.problem, torch.arange(number))


def fisher_at(setting: Setting, stand_ins: StandIns) -> Tensor:
    """Σ n F over nodes that stand among their like, one node after the other."""
    there = among_their_like(setting, stand_ins)
    return sum(
        count * sum(torch.outer(row, row) for row in rows)
        for (_, count), rows in zip(stand_ins, node_fisher_rows(there, "exact"))
    )


@cases
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (1, 3)], ids=["all", "two"])
def test_at_class_means_each_class_counts_as_often_as_it_has_nodes(
    case: str, reduction: str, classes: tuple[int, ...]
) -> None:
    setting = make(case, classes)
    context, method = setting.context(reduction), curvature(nodes="means")
    after(setting, context, method, (3,))
    fisher = fisher_at(setting, means_by_hand(setting))
    share = 1 if reduction == "sum" else 1 / setting.nodes.numel()
    close(pull(method, context), STRENGTH * share * fisher @ displacement(setting, (3,)), 1e-6)  # means in float32
    half = setting.batcher.batch(setting.nodes[::2])  # an epoch of two batches counts every old node once
    other = setting.batcher.batch(setting.nodes[1::2])
    if reduction == "sum":
        close(pull(method, context, half) + pull(method, context, other), pull(method, context))


@cases
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (1, 3)], ids=["all", "two"])
def test_integrated_is_the_mean_of_f_over_the_outputs_way_from_the_anchor(
    case: str, reduction: str, classes: tuple[int, ...]
) -> None:
    """Σ n Jᵀ H̄ J D at stand-ins, with H̄ an average over many points between z − J D and z."""
    setting = make(case, classes)
    context = setting.context(reduction)
    method = StandInCurvature(strength=STRENGTH, prototypes=0, estimator="integrated")
    after(setting, context, method, (3,))
    D, stand_ins = displacement(setting, (3,)), means_by_hand(setting)
    there = among_their_like(setting, stand_ins)
    outputs, want, points = there.function(there.params), 0.0, 2000
    for node, (_, count) in enumerate(stand_ins):
        rows = [torch.autograd.grad(value, list(there.model.parameters()), allow_unused=True, retain_graph=True)
                for value in there.model(there.batch)[node]]  # fmt: skip
        params = list(there.model.parameters())
        jacobian = torch.stack(
            [torch.cat([(p * 0 if g is None else g).flatten() for p, g in zip(params, row)]) for row in rows]
        ).detach()
        way = jacobian @ D
        shares = (torch.arange(points, dtype=outputs.dtype) + 0.5) / points
        between = outputs[node] - shares[:, None] * way
        p = torch.zeros_like(between)
        p[:, setting.scope] = between[:, setting.scope].softmax(1)
        mean = torch.diag(p.mean(0)) - p.T @ p / points
        want = want + count * jacobian.T @ (mean @ way)
    share = 1 if reduction == "sum" else 1 / setting.nodes.numel()
    close(pull(method, context), STRENGTH * share * want, 1e-5)


def test_integrated_agrees_with_exact_near_the_anchor_and_pulls_where_exact_has_let_go() -> None:
    problem = NodeClassification([0, 1])
    lost, way = torch.tensor([[-20.0, 20.0]]), torch.tensor([[-30.0, 30.0]])  # an old class, now taken for a new one
    assert problem.fisher_product(lost, way).abs().max() < 1e-6
    assert torch.allclose(problem.mean_fisher_product(lost, way), torch.tensor([[-1.0, 1.0]]))
    near = 1e-4 * way
    assert torch.allclose(problem.mean_fisher_product(0 * way, near), problem.fisher_product(0 * way, near), rtol=1e-2)


def test_integrated_goes_from_one_anchor() -> None:
    with pytest.raises(eg.EvergraphError, match="along the way from one anchor; use anchors=latest"):
        StandInCurvature(estimator="integrated", anchors="stored")


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_class_sums_are_sums_over_the_classes_nodes(kind: str) -> None:
    x = torch.randn(9, 3, dtype=torch.float64) * (torch.rand(9, 3) < 0.5)
    units, nodes = torch.tensor([2, 0, 5, 2, 2, 0, 5, 5, 3]), torch.tensor([8, 1, 0, 3, 6, 2])
    given = x if kind == "dense" else SparseMatrix.from_scipy(sp.csr_matrix(x.numpy()), torch.float64)
    found = class_sums(given, units, nodes)
    assert found.shape == (6, 4)
    for unit in range(6):
        own = [node for node in nodes.tolist() if units[node] == unit]
        assert found[unit, -1] == len(own)
        assert torch.allclose(found[unit, :-1], sum((x[node] for node in own), torch.zeros(3, dtype=torch.float64)))


def test_at_class_means_sampled_labels_are_unbiased() -> None:
    setting = make("gcn")
    exact, sampled = (curvature(nodes="means", estimator=name) for name in ("exact", "sampled"))
    context = setting.context()
    for method in (exact, sampled):
        after(setting, context, method, (3,))
    loss, want = flat(step_gradient(eg.Method(), context)), pull(exact, context)
    drawn = torch.stack([flat(step_gradient(sampled, context)) - loss for _ in range(400)])
    error = (drawn.mean(0) - want).norm() / want.norm()
    spread = drawn.std(0).norm() / want.norm() / len(drawn) ** 0.5
    assert error < 4 * spread
    assert spread < 0.1


def test_means_take_up_new_examples_of_old_classes_and_stay_one_row_per_class() -> None:
    setting = make("gcn")
    nodes = setting.nodes
    method, whole = curvature(nodes="means"), curvature(nodes="means")
    for part in (nodes[:5], nodes[5:]):
        setting.nodes = part
        method.end_task(setting.context())
    setting.nodes = nodes
    whole.end_task(setting.context())
    (in_parts, at_once) = (each.methods[1].stand_ins_["x"] for each in (method, whole))
    close(in_parts, at_once, 1e-6)
    assert at_once.shape == (4, setting.graph.num_features + 1)
    assert at_once[:, -1].tolist() == [3, 3, 3, 3]


def test_stand_ins_do_not_move_running_statistics(small_stream: eg.TaskStream) -> None:
    found = {}
    for nodes in ("batch", "means", "prototypes"):
        torch.manual_seed(0)
        module = pyg.GCN(small_stream.num_features, 8, 2, 12, norm="batch_norm")
        method = OnlineCurvature(strength=1e-12, nodes=nodes, ema=0.0)
        learner = eg.Learner(module, method, epochs=2, label_scope="seen", device="cpu")
        for task in list(small_stream)[:2]:
            learner.learn(task)
        found[nodes] = {name: value.double() for name, value in learner.model.named_buffers()}
    assert any("running" in name for name in found["batch"])
    for name, value in found["batch"].items():
        for nodes in ("means", "prototypes"):
            assert torch.allclose(found[nodes][name], value, atol=1e-5), name


@pytest.mark.parametrize(
    "method",
    [
        InterpolatedCurvature(strength=1e-30),
        Compose(BatchCurvature(strength=1e-30), BatchCurvature(strength=1e-30)),
    ],
    ids=["between the anchors", "two directions"],
)
def test_passes_for_the_curvature_do_not_move_running_statistics(
    small_stream: eg.TaskStream, method: eg.Method
) -> None:
    found = []
    for each in ("finetune", method):
        torch.manual_seed(0)
        module = pyg.GCN(small_stream.num_features, 8, 2, 12, norm="batch_norm")
        given = {"epochs": 2, "batch_size": 16, "reduction": "mean", "weight_decay": 0.0, "device": "cpu"}
        learner = eg.Learner(module, each, label_scope="current", **given)
        for task in list(small_stream)[:3]:
            learner.learn(task)
        found.append(dict(learner.model.named_buffers()))
    assert any("num_batches_tracked" in name for name in found[0])
    for name, value in found[0].items():
        assert torch.equal(found[1][name], value), name


class NoForwardMode(torch.autograd.Function):
    """The identity, without forward-mode AD."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def test_a_pass_that_falls_back_on_reverse_mode_counts_once() -> None:
    class Net(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[2](NoForwardMode.apply(self[1](self[0](x))))

    torch.manual_seed(0)
    model, x = Net(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.randn(8, 4)
    want = copy.deepcopy(model)
    for _ in range(2):
        want(x)
    earlier, _ = forward(model, x, [])
    _, tangents = forward(model, x, [copy_params(model)] * 2)
    assert torch.equal(*tangents)
    for (name, value), other in zip(want.named_buffers(), model.buffers()):
        assert torch.allclose(other, value), name
    earlier.sum().backward()  # what it saved is as it was, although the buffers have changed


# the Fisher matrix at prototypes


def propagated_by_hand(graph: Graph, steps: int) -> Tensor:
    """Ã^steps X, with Ã = D^(-1/2) (A + I) D^(-1/2) written out."""
    looped = graph.adjacency.dense().double() + torch.eye(graph.num_nodes, dtype=torch.float64)
    scale = looped.sum(1).rsqrt()
    x = as_dense(graph.x).double()
    for _ in range(steps):
        x = (scale.unsqueeze(1) * looped * scale) @ x
    return x


def prototypes_by_hand(setting: Setting, number: int, steps: int) -> StandIns:
    """The clusters of each class one after another, by their nodes' means."""
    x = propagated_by_hand(setting.graph, steps)
    seed = int(torch.randint(2**31 - 1, (1,), generator=seeded()))
    found = []
    for unit in setting.scope:
        own = [node for node in setting.nodes.tolist() if int(setting.graph.y[node]) == unit]
        cluster = KMeans(number, n_init=1, random_state=seed).fit_predict(x[own].float().numpy())
        for label in range(number):
            members = [node for node, its in zip(own, cluster) if its == label]
            found.append((sum(x[node] for node in members) / len(members), len(members)))
    return found


STEPS = {
    "gcn-1-layer": 1,
    "gcn-3-layers": 3,
    "pyg": 3,
}  # a foreign module counts by its hops; all others have two layers


@cases
@pytest.mark.parametrize(
    ("reduction", "classes", "kind"),
    [
        ("sum", (0, 1, 2, 3), "dense"),
        ("mean", (1, 3), "sparse"),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in itertools.product(("sum", "mean"), ((0, 1, 2, 3), (1, 3)), ("dense", "sparse"))
            if values not in {("sum", (0, 1, 2, 3), "dense"), ("mean", (1, 3), "sparse")}
        ),
    ],
)
def test_at_prototypes_each_counts_as_often_as_it_has_nodes(
    case: str, reduction: str, classes: tuple[int, ...], kind: str
) -> None:
    setting = make(case, classes, with_features(tiny_graph(), kind))
    context, method = setting.context(reduction), curvature(nodes="prototypes", prototypes=2)
    after(setting, context, method, (3,))
    fisher = fisher_at(setting, prototypes_by_hand(setting, 2, STEPS.get(case, 2)))
    share = 1 if reduction == "sum" else 1 / setting.nodes.numel()
    close(pull(method, context), STRENGTH * share * fisher @ displacement(setting, (3,)))


def with_features(graph: Graph, kind: str) -> Graph:
    """The graph with its features stored in one way or the other."""
    return graph if kind == "dense" else dataclasses.replace(graph, x=SparseMatrix.from_dense(as_dense(graph.x)))


def clustered_rows(kind: str, dtype: torch.dtype, density: float = 0.5) -> tuple[Features, Tensor]:
    """Rows of three classes with 3, 20 and 60 nodes, among them rows that are alike."""
    generator = seeded(4)
    x = torch.randn(83, 40, dtype=dtype, generator=generator) * (torch.rand(83, 40, generator=generator) < density)
    x[30:40] = x[29]
    units = torch.tensor([5] * 20 + [0] * 60 + [2] * 3)[torch.randperm(83, generator=generator)]
    return (x if kind == "dense" else SparseMatrix.from_dense(x)), units


every_kind = pytest.mark.parametrize("kind", ["dense", "sparse"])
every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


@every_kind
@every_type
def test_one_prototype_without_propagation_is_the_class_mean(kind: str, dtype: torch.dtype) -> None:
    x, units = clustered_rows(kind, dtype)
    found = cluster_sums(x, units, 1, seeded())
    assert found["units"].tolist() == [0, 2, 5]
    assert found["x"].dtype == dtype
    assert torch.equal(found["x"], class_sums(x, units, torch.arange(83))[[0, 2, 5]])
    graph, nodes = with_features(tiny_graph(), kind), torch.tensor([7, 2, 4])
    assert torch.equal(as_dense(propagated(graph, nodes, 0, dtype)), as_dense(graph.x).to(dtype)[nodes])


@every_kind
@every_type
@pytest.mark.parametrize("density", [0.02, 0.5])
@pytest.mark.parametrize("number", [2, 5, 32])
def test_prototypes_share_out_the_nodes_of_their_class(
    kind: str, dtype: torch.dtype, density: float, number: int
) -> None:
    x, units = clustered_rows(kind, dtype, density)
    found = cluster_sums(x, units, number, seeded())
    rows, counts = found["x"][:, :-1], found["x"][:, -1]
    assert (counts > 0).all()
    for unit, size in ((0, 60), (2, 3), (5, 20)):
        own = found["units"] == unit
        assert counts[own].sum() == size
        assert 1 < own.sum() <= min(number, size)
        assert torch.allclose(rows[own].sum(0), as_dense(x)[units == unit].sum(0), atol=1e-4)


@every_kind
def test_clusters_that_are_there_are_found(kind: str) -> None:
    generator = seeded()
    centres = torch.tensor([[40.0, 0.0, 0.0], [0.0, 40.0, 0.0], [0.0, 0.0, 40.0]])
    group = torch.tensor([0] * 9 + [1] * 5 + [2] * 2)[torch.randperm(16, generator=generator)]
    x = (centres[group] + torch.randn(16, 3, generator=generator)).double()
    found = cluster_sums(x if kind == "dense" else SparseMatrix.from_dense(x), torch.ones_like(group), 3, generator)
    want = class_sums(x, group, torch.arange(16))
    close(found["x"][found["x"][:, -1].argsort(descending=True)], want)
    assert found["units"].tolist() == [1, 1, 1]


def test_the_form_in_which_features_are_stored_does_not_matter() -> None:
    for density in (0.02, 0.5):  # k-means on a sparse matrix, and on a dense one
        dense, sparse = (
            cluster_sums(*clustered_rows(kind, torch.float64, density), 5, seeded()) for kind in ("dense", "sparse")
        )
        assert torch.equal(dense["units"], sparse["units"])
        close(sparse["x"], dense["x"])


@pytest.mark.parametrize("number", [3, 100])
def test_a_class_with_few_nodes_keeps_each_of_them(number: int) -> None:
    setting = make("gcn", (1, 3))
    method = StandInCurvature(prototypes=number)
    method.end_task(setting.context())
    found = method.stand_ins_
    assert found["units"].tolist() == [1, 1, 1, 3, 3, 3]
    assert found["x"][:, -1].tolist() == [1.0] * 6
    x = propagated_by_hand(setting.graph, 2)
    want = [x[node] for unit in (1, 3) for node in setting.nodes.tolist() if int(setting.graph.y[node]) == unit]
    close(found["x"][:, :-1], torch.stack(want))


def test_prototypes_repeat_and_draw_from_the_methods_own_numbers_alone() -> None:
    x, units = clustered_rows("dense", torch.float32)
    others = torch.get_rng_state(), np.random.get_state()[1].tolist()
    one, two = (cluster_sums(x, units, 5, seeded()) for _ in range(2))
    assert torch.equal(one["x"], two["x"])
    assert not torch.equal(one["x"], cluster_sums(x, units, 5, seeded(1))["x"])
    assert torch.equal(torch.get_rng_state(), others[0])
    assert np.random.get_state()[1].tolist() == others[1]


def test_rows_that_are_alike_make_fewer_prototypes_and_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.tensor([[0.0, 1.0]] * 6 + [[2.0, 0.0]] * 3)
    found = cluster_sums(x, torch.zeros(9, dtype=torch.long), 4, seeded())
    assert sorted(found["x"].tolist()) == [[0.0, 6.0, 6.0], [6.0, 0.0, 3.0]]
    assert found["units"].tolist() == [0, 0]
    assert not list(recwarn)


def test_new_examples_of_old_classes_bring_prototypes_of_their_own() -> None:
    setting = make("gcn")
    nodes, method = setting.nodes, StandInCurvature(prototypes=2)
    for part in (nodes[:8], nodes[8:]):  # two nodes of each class, then one
        before = method.stand_ins_
        setting.nodes = part
        method.end_task(setting.context())
    found = method.stand_ins_
    assert found["units"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 1, 2, 3]
    assert found["x"][:, -1].sum() == nodes.numel()
    for key, value in before.items():
        assert torch.equal(found[key][: value.size(0)], value)


def test_what_prototypes_keep_is_counted() -> None:
    setting = make("gcn")
    method = StandInCurvature(prototypes=2)
    method.end_task(setting.context())
    parameters = sum(value.numel() for value in setting.params.values())
    assert method.kept_bytes() == 8 * parameters + 8 * 8 * (setting.graph.num_features + 1) + 8 * 8
    assert "prototypes" in method.access.keeps
    assert "prototypes" in curvature(nodes="prototypes").access.keeps


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat", "pyg"])
def test_prototypes_serve_every_kind_of_model(kind: str, small_stream: eg.TaskStream) -> None:
    models = {
        "gcn": lambda: eg.GCN(hidden=8),
        "sage": lambda: eg.GraphSAGE(hidden=8),
        "gat": lambda: eg.GAT(hidden=8, heads=2),
        "pyg": lambda: pyg.GraphSAGE(small_stream.num_features, 8, 2, 12),
    }
    learner = eg.Learner(models[kind](), StandInCurvature(prototypes=3), epochs=2, device="cpu")
    for task in list(small_stream)[:2]:
        learner.learn(task)
    kept = learner.method.stand_ins_
    assert kept["x"].shape == (kept["units"].numel(), small_stream.num_features + 1)
    for unit, name in enumerate(learner.classes_):
        size = sum(
            int((task.graph.y[task.train] == task.graph.class_names.index(name)).sum())
            for task in list(small_stream)[:2]
            if name in task.class_names
        )
        assert kept["x"][kept["units"] == unit, -1].sum() == size


def test_the_latest_anchor_is_the_only_one() -> None:
    setting = make("gcn")
    context = setting.context()
    latest, one = curvature(anchors="latest"), curvature()
    after(setting, context, latest, (1, 2, 3))
    after(setting, context, one, (3,))
    assert torch.equal(pull(latest, context), pull(one, context))
    assert size_of(latest.state_dict()) == size_of(one.state_dict())


# the readings of the paper's inconsistencies


@pytest.mark.parametrize("estimator", ["exact", "sampled", "queue"])
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_square_of_sum_is_the_number_of_anchors_times_sum_of_squares(estimator: str, tasks: int) -> None:
    setting = make("gcn")
    found = {}
    for reading in ("sum-of-squares", "square-of-sum"):
        context, method = setting.context(), curvature(estimator=estimator, over_tasks=reading)
        after(setting, context, method, (1, 2, 3)[:tasks])
        context.generator = seeded()
        found[reading] = pull(method, context)
    close(found["square-of-sum"], tasks * found["sum-of-squares"])


@pytest.mark.parametrize("tasks", [2, 3])
def test_the_two_readings_are_gradients_of_their_own_formulas(tasks: int) -> None:
    """½ Σ_v Σ_t (g_v·(θ−θ_t))² and ½ Σ_v (Σ_t g_v·(θ−θ_t))², differentiated with g_v held constant."""
    setting = make("gcn")
    picked = pick_labels(setting.problem, setting.function(setting.params), "sample", generator=seeded())
    rows = torch.stack([row for (row,) in node_fisher_rows(setting, "sample", picked)])
    seeds = (1, 2, 3)[:tasks]
    formulas = {
        "sum-of-squares": lambda gaps: sum((rows @ gap).square().sum() for gap in gaps),
        "square-of-sum": lambda gaps: (rows @ sum(gaps)).square().sum(),
    }
    for reading, formula in formulas.items():
        point = flat(setting.params).requires_grad_()
        value = STRENGTH / 2 * formula([point - flat(setting.direction(seed)) for seed in seeds])
        (want,) = torch.autograd.grad(value, point)
        context, method = setting.context(), curvature(estimator="sampled", over_tasks=reading)
        after(setting, context, method, seeds)
        context.generator = seeded()
        close(pull(method, context), want)


@pytest.mark.parametrize("estimator", ["exact", "sampled"])
def test_over_nodes_follows_the_loss_unless_told(estimator: str) -> None:
    setting = make("gcn")
    found = {}
    for over_nodes in ("loss", "sum", "mean"):
        for reduction in ("sum", "mean"):
            context, method = setting.context(reduction), curvature(estimator=estimator, over_nodes=over_nodes)
            after(setting, context, method)
            context.generator = seeded()
            found[over_nodes, reduction] = pull(method, context)
    for reduction in ("sum", "mean"):
        close(found["loss", reduction], found[reduction, reduction])
        close(found["sum", reduction], setting.nodes.numel() * found["mean", reduction])


@pytest.mark.parametrize("point", [0.5, 1.0])
def test_previous_anchors_lag_one_task_behind(point: float) -> None:
    setting = make("gcn", (0, 2))
    context, start = setting.context(), setting.params
    lagging, stored = curvature(anchors="previous", point=point), curvature(point=point)
    lagging.start_task(context)  # θ_0 is where the first task starts
    after(setting, context, lagging, (1, 2, 3))
    theta = setting.params
    for anchor in (start, setting.direction(1), setting.direction(2)):
        setting.load(anchor)
        stored.end_task(context)
    setting.load({name: value + 0.1 for name, value in theta.items()})
    close(pull(lagging, context), pull(stored, context))


# state


def size_of(state: object) -> int:
    if isinstance(state, dict):
        return sum(map(size_of, state.values()))
    if isinstance(state, list):
        return sum(map(size_of, state))
    return state.numel() if isinstance(state, Tensor) else 0


@pytest.mark.parametrize(("settings", "copies"), [({}, 1), ({"ema": 0.5}, 2), ({"anchors": "previous"}, 2)])
@pytest.mark.parametrize("estimator", ["exact", "sampled", "queue"])
def test_the_state_does_not_grow_with_the_number_of_tasks(
    settings: dict[str, object], copies: int, estimator: str
) -> None:
    setting = make("gcn")
    context, method = setting.context(), curvature(estimator=estimator, **settings)
    method.start_task(context)
    for tasks in (1, 4):
        after(setting, context, method, tuple(range(1, tasks + 1)))
        assert size_of(method.state_dict()) == copies * flat(setting.params).numel()


def test_other_points_keep_every_anchor() -> None:
    setting = make("gcn")
    context, method = setting.context(), curvature(point=0.5)
    after(setting, context, method)
    assert size_of(method.state_dict()) == 3 * flat(setting.params).numel()


def test_averaging_inside_equals_averaging_before() -> None:
    inside, before = OnlineCurvature(strength=0.5, ema=0.3), Compose(EMA(0.3), OnlineCurvature(strength=0.5, ema=0.0))
    found = []
    for method in (inside, before):
        setting = make("gcn")
        context = setting.context()
        for seed in (1, 2, 3):
            setting.load(setting.direction(seed))
            method.end_task(context)
        found.append((flat(setting.params), pull(method, context)))
        one, two, three = (flat(setting.direction(seed)) for seed in (1, 2, 3))
        close(found[-1][0], 0.3 * (0.3 * one + 0.7 * two) + 0.7 * three)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_averaging_from_the_first_task_on_begins_with_the_initial_parameters() -> None:
    for method in (EMA(0.3, from_first_task=True), curvature(ema=0.3, ema_from_first_task=True)):
        setting = make("gcn")
        context, want = setting.context(), flat(setting.params)
        for seed in (1, 2, 3):
            method.start_task(context)
            setting.load(setting.direction(seed))
            method.end_task(context)
            want = 0.3 * want + 0.7 * flat(setting.direction(seed))
            close(flat(setting.params), want)
    close(flat(method.methods[1].anchor_sum_), want + sum(averages(0.3, (1, 2))))


def averages(decay: float, seeds: tuple[int, ...]) -> list[Tensor]:
    """θ_1, θ_2, … of Algorithm 1's last line."""
    setting = make("gcn")
    found = [flat(setting.params)]
    for seed in seeds:
        found.append(decay * found[-1] + (1 - decay) * flat(setting.direction(seed)))
    return found[1:]


def test_without_averaging_no_initial_parameters_are_kept() -> None:
    setting, method = make("gcn"), EMA(0.0, from_first_task=True)
    method.start_task(setting.context())
    assert not method.previous_
    assert EMA() == EMA(0.5, from_first_task=False)


def test_averaging_from_the_first_task_on_survives_saving_and_growth(
    small_stream: eg.TaskStream, tmp_path: Path
) -> None:
    def learner(method: eg.Method) -> eg.Learner:
        return eg.Learner(eg.GCN(hidden=6), method, num_classes=8, epochs=2, label_scope="seen", device="cpu")

    tuned, whole = learner(eg.Finetune()), learner(EMA(0.25, from_first_task=True))
    initial = {}

    def save(progress: Progress, epochs: int) -> None:
        if progress.epoch == 1:
            initial.update(whole.method.previous_)
            whole.save(tmp_path / "middle")

    tuned.learn(small_stream[0])
    whole.learn(small_stream[0], save)
    again = eg.Learner.load(tmp_path / "middle", device="cpu")
    assert again.method.from_first_task
    again.learn(small_stream[0])
    for name, value in whole.model.named_parameters():
        assert torch.equal(dict(again.model.named_parameters())[name], value)
        assert torch.allclose(value, 0.25 * initial[name] + 0.75 * dict(tuned.model.named_parameters())[name])
    for of in (whole, again):
        of.grow(12)
        assert all(torch.equal(of.method.previous_[name], value) for name, value in of.model.named_parameters())
        of.learn(small_stream[1])
        assert all(torch.equal(of.method.previous_[name], value) for name, value in of.model.named_parameters())
    assert all(torch.equal(*pair) for pair in zip(whole.model.parameters(), again.model.parameters()))


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, BatchCurvature),
        ({"estimator": "sampled"}, BatchCurvature),
        ({"estimator": "queue", "queue_size": 3, "queue_rule": "algorithm"}, QueueCurvature),
        ({"nodes": "means"}, StandInCurvature),
        ({"nodes": "means", "anchors": "stored", "estimator": "sampled"}, StandInCurvature),
        ({"nodes": "prototypes", "prototypes": 2}, StandInCurvature),
        ({"nodes": "prototypes", "prototypes": 9, "estimator": "sampled"}, StandInCurvature),
        ({"point": 0.5}, InterpolatedCurvature),
        ({"point": 0.5, "anchors": "previous", "over_nodes": "mean"}, InterpolatedCurvature),
        ({"over_tasks": "square-of-sum", "anchors": "latest"}, BatchCurvature),
    ],
)
def test_every_form_is_a_method_of_its_own(settings: dict[str, object], kind: type[eg.Method]) -> None:
    """The paper's method is an average composed with one of four forms, which can be had alone."""
    setting, whole = make("gcn"), curvature(**settings)
    own = {key: value for key, value in settings.items() if key in kind.__dataclass_fields__}
    if settings.get("nodes") == "means":
        own["prototypes"] = 0  # one mean per class
    average, form = whole.methods
    assert type(average) is EMA
    assert form == kind(strength=STRENGTH, **own)
    found = []
    for method in (whole, kind(strength=STRENGTH, **own)):
        context = setting.context()
        method.start_task(context)
        after(setting, context, method)
        context.generator = seeded()
        found.append(torch.stack([pull(method, context) for _ in range(2)]))
    close(found[0], found[1], 0.0)


# wrong use


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "best"}, "estimator='best' must be one of: exact, sampled, queue"),
        ({"queue_size": 0}, "queue_size=0 must be a whole number of at least 1"),
        ({"ema": 1.0}, "ema=1.0 must be"),
        ({"point": 1.5}, "point=1.5 must be a finite number"),
        ({"point": 0.5, "estimator": "queue"}, "use estimator=exact or sampled"),
        ({"point": 0.5, "over_tasks": "square-of-sum"}, "use point=1"),
        ({"over_nodes": "median"}, "over_nodes='median' must be one of"),
        ({"anchors": "all"}, "anchors='all' must be one of"),
        ({"nodes": "old"}, "nodes='old' must be one of"),
        ({"nodes": "means", "estimator": "queue"}, "nodes=means needs estimator=exact or sampled"),
        ({"nodes": "means", "point": 0.5}, "nodes=means needs .* point=1"),
        ({"nodes": "prototypes", "estimator": "queue"}, "nodes=prototypes needs estimator=exact or sampled"),
        ({"prototypes": 0}, "prototypes=0 must be a whole number of at least 1"),
        ({"queue_rule": "none"}, "queue_rule='none' must be one of"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        OnlineCurvature(**settings)


def test_a_negative_number_of_prototypes_is_refused() -> None:
    with pytest.raises(eg.EvergraphError, match="prototypes=-1 must be a whole number of at least 0"):
        StandInCurvature(prototypes=-1)


@pytest.mark.parametrize(
    "method",
    [
        OnlineCurvature(),
        OnlineCurvature(estimator="queue"),
        BatchCurvature(),
        QueueCurvature(),
        InterpolatedCurvature(),
        eg.EWCPlusPlus(),
    ],
    ids=repr,
)
def test_dropout_is_refused_before_the_first_step(method: eg.Method, small_stream: eg.TaskStream) -> None:
    learner = eg.Learner(eg.GCN(hidden=4, dropout=0.5), method, epochs=1, device="cpu")
    with pytest.raises(eg.EvergraphError, match=r"draws random numbers .* set dropout=0"):
        learner.learn(small_stream[0])
    assert learner.num_tasks == 0


@pytest.mark.parametrize("name", ["ewc", "online-ewc", "mas", "kfac", "si", "lwf", "twp", "stand-in-curvature"])
def test_methods_that_measure_in_evaluation_mode_accept_dropout(name: str, small_stream: eg.TaskStream) -> None:
    learner = eg.Learner(eg.GCN(hidden=4, dropout=0.5), eg.METHODS[name](), epochs=1, device="cpu")
    for task in list(small_stream)[:2]:
        learner.learn(task)
    assert learner.num_tasks == 2
