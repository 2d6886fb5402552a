"""The paper's method: the gradient of one backward pass against the regularizer written out, and its readings."""

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric import nn as pyg

import evergraph as eg
from brute_force import Setting, brute_fisher, cases, close, flat, make, node_fisher_rows, pull, seeded, step_gradient
from evergraph.core.sparse import SparseMatrix
from evergraph.curvature import pick_labels
from evergraph.data.graph import make_graph
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


def queue_by_hand(setting: Setting, steps: int, held: int, divide: bool = True) -> Tensor:
    """Algorithm 1 written out: one node, one label, one gradient per step; the last `held` of them count."""
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
    return STRENGTH * sum((g @ D) * g for g in queue) / (len(queue) if divide else 1)


@cases
@pytest.mark.parametrize(("rule", "held"), [("text", 3), ("algorithm", 4)])
@pytest.mark.parametrize("steps", [2, 7])
def test_the_queue_is_algorithm_1(case: str, rule: str, held: int, steps: int) -> None:
    setting = make(case)
    context, method = setting.context(), curvature(estimator="queue", queue_size=3, queue_rule=rule)
    after(setting, context, method)
    context.generator = seeded()
    for _ in range(steps):
        got = pull(method, context)
    close(got, queue_by_hand(setting, steps, held))
    assert method.methods[1].queue_
    method.start_task(context)
    assert not method.methods[1].queue_  # a new task starts with an empty queue


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


def mean_setting(setting: Setting) -> tuple[Setting, Tensor]:
    """The mean features of each class among its like, one node after the other; and the classes' sizes."""
    rows, counts = [], []
    for unit in setting.scope:
        own = [node for node in setting.nodes.tolist() if int(setting.graph.y[node]) == unit]
        rows.append(sum(setting.graph.x[node].double() for node in own) / len(own))
        counts.append(float(len(own)))
    number = len(rows)
    pairs = [(c, c + number) for c in range(number)]
    edges = torch.tensor(pairs + [(b, a) for a, b in pairs]).T
    graph = make_graph(torch.stack(rows + rows), edges, torch.zeros(2 * number, dtype=torch.long))
    batcher = setting.problem.batcher(setting.model, graph)
    at_means = Setting(graph, setting.model, batcher, setting.problem, torch.arange(number))
    return at_means, torch.tensor(counts).double()


@cases
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (1, 3)], ids=["all", "two"])
def test_at_class_means_each_class_counts_as_often_as_it_has_nodes(
    case: str, reduction: str, classes: tuple[int, ...]
) -> None:
    setting = make(case, classes)
    context, method = setting.context(reduction), curvature(nodes="means")
    after(setting, context, method, (3,))
    at_means, counts = mean_setting(setting)
    fisher = sum(
        count * sum(torch.outer(row, row) for row in rows)
        for count, rows in zip(counts, node_fisher_rows(at_means, "exact"))
    )
    share = 1 if reduction == "sum" else 1 / setting.nodes.numel()
    close(pull(method, context), STRENGTH * share * fisher @ displacement(setting, (3,)), 1e-6)  # means in float32
    half = setting.batcher.batch(setting.nodes[::2])  # an epoch of two batches counts every old node once
    other = setting.batcher.batch(setting.nodes[1::2])
    if reduction == "sum":
        close(pull(method, context, half) + pull(method, context, other), pull(method, context))


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
    drawn = torch.stack([pull(sampled, context) for _ in range(4000)])
    want = pull(exact, context)
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
    (in_parts, at_once) = (each.methods[1].class_sums_["x"] for each in (method, whole))
    close(in_parts, at_once, 1e-6)
    assert at_once.shape == (4, setting.graph.num_features + 1)
    assert at_once[:, -1].tolist() == [3, 3, 3, 3]


def test_class_means_do_not_move_running_statistics(small_stream: eg.TaskStream) -> None:
    found = {}
    for nodes in ("batch", "means"):
        torch.manual_seed(0)
        module = pyg.GCN(small_stream.num_features, 8, 2, 12, norm="batch_norm")
        method = OnlineCurvature(strength=1e-12, nodes=nodes, ema=0.0)
        learner = eg.Learner(module, method, epochs=2, label_scope="seen", device="cpu")
        for task in list(small_stream)[:2]:
            learner.learn(task)
        found[nodes] = {name: value.double() for name, value in learner.model.named_buffers()}
    assert any("running" in name for name in found["batch"])
    for name, value in found["batch"].items():
        assert torch.allclose(found["means"][name], value, atol=1e-5), name


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


def test_the_queue_divides_by_its_length_unless_told() -> None:
    setting = make("gcn")
    found = {}
    for over_nodes in ("loss", "sum", "mean"):
        context, method = setting.context("sum"), curvature(estimator="queue", over_nodes=over_nodes)
        after(setting, context, method)
        context.generator = seeded()
        for _ in range(5):
            found[over_nodes] = pull(method, context)
    close(found["sum"], 5 * found["mean"])
    assert torch.equal(found["loss"], found["mean"])


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


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, BatchCurvature),
        ({"estimator": "sampled"}, BatchCurvature),
        ({"estimator": "queue", "queue_size": 3, "queue_rule": "algorithm"}, QueueCurvature),
        ({"nodes": "means"}, StandInCurvature),
        ({"nodes": "means", "anchors": "stored", "estimator": "sampled"}, StandInCurvature),
        ({"point": 0.5}, InterpolatedCurvature),
        ({"point": 0.5, "anchors": "previous", "over_nodes": "mean"}, InterpolatedCurvature),
        ({"over_tasks": "square-of-sum", "anchors": "latest"}, BatchCurvature),
    ],
)
def test_every_form_is_a_method_of_its_own(settings: dict[str, object], kind: type[eg.Method]) -> None:
    """The paper's method is an average composed with one of four forms, which can be had alone."""
    setting, whole = make("gcn"), curvature(**settings)
    own = {key: value for key, value in settings.items() if key in kind.__dataclass_fields__}
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
        ({"estimator": "best"}, "unknown estimator 'best'"),
        ({"queue_size": 0}, "queue_size=0 must be at least 1"),
        ({"ema": 1.0}, "ema=1.0 must be"),
        ({"point": 1.5}, "point=1.5 must lie between"),
        ({"point": 0.5, "estimator": "queue"}, "use estimator=exact or sampled"),
        ({"point": 0.5, "over_tasks": "square-of-sum"}, "use point=1"),
        ({"over_nodes": "median"}, "unknown over_nodes"),
        ({"anchors": "all"}, "unknown anchors"),
        ({"nodes": "old"}, "unknown nodes"),
        ({"nodes": "means", "estimator": "queue"}, "nodes=means needs estimator=exact or sampled"),
        ({"nodes": "means", "point": 0.5}, "nodes=means needs .* point=1"),
        ({"queue_rule": "none"}, "unknown queue_rule"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        OnlineCurvature(**settings)


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
