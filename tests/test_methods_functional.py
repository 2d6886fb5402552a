"""LwF and TWP: outputs and topology, each written out by hand."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import evergraph as eg
from brute_force import Setting, close, flat, make, pull, step_gradient
from evergraph.core.shortcuts import FAST_PATHS, fast_paths
from evergraph.data.batching import Batch
from evergraph.methods import TWP, LwF, Method
from evergraph.methods.twp import coefficient_norm, topology

pytestmark = pytest.mark.filterwarnings("ignore:.*was learned already")

# LwF


@pytest.mark.parametrize("case", ["gcn", "sage", "gat", "pyg"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_lwf_pulls_the_old_outputs_back(case: str, reduction: str) -> None:
    setting = make(case)
    context = setting.context(reduction, old=(0, 2))
    method, theta = LwF(strength=3.0, temperature=4.0), setting.params
    setting.load(setting.direction(1))
    method.end_task(context)
    # at the old parameters the pull is zero
    assert float(pull(method, context).abs().max()) < 1e-12
    teacher = setting.model(setting.batch)[:, [0, 2]].detach()
    setting.load(theta)
    logits = setting.model(setting.batch)
    # elsewhere the cotangent on the old outputs is strength / T · (student − teacher)
    cotangent = torch.zeros_like(logits)
    student = (logits.detach()[:, [0, 2]] / 4.0).softmax(1)
    cotangent[:, [0, 2]] = 3.0 / 4.0 * (student - (teacher / 4.0).softmax(1))
    grads = torch.autograd.grad(logits, list(setting.model.parameters()), cotangent)
    want = torch.cat([grad.flatten() for grad in grads]) / (1 if reduction == "sum" else setting.nodes.numel())
    close(pull(method, context), want)


def test_lwfs_penalty_is_the_cross_entropy_of_the_paper_up_to_a_constant() -> None:
    setting = make("gcn")
    context, method, theta = setting.context(old=(0, 2)), LwF(strength=1.0, temperature=2.0), setting.params
    method.end_task(context)
    teacher = (setting.model(setting.batch)[:, [0, 2]] / 2).softmax(1).detach()
    values = []
    for seed in (1, 2):
        setting.load(setting.direction(seed))
        logits = setting.model(setting.batch)
        step = eg.methods.Step(context, setting.batch, logits, logits.sum())
        student = (logits[:, [0, 2]] / 2).log_softmax(1)
        values.append((float(method.penalty(step).detach()), float(-(teacher * student).sum().detach())))
    setting.load(theta)
    entropy = float(-(teacher * teacher.log()).sum())
    for penalty, cross_entropy in values:
        assert penalty == pytest.approx(cross_entropy - entropy, rel=1e-10)


@pytest.mark.parametrize(("model", "level"), [("gcn", "node"), ("sage", "node"), ("gcn", "graph")])
def test_the_old_network_s_outputs_stand_still_during_a_task(
    model: str, level: str, small_stream: eg.TaskStream
) -> None:
    passes: list[int] = []

    class Counting(LwF):
        def _outputs(self, model: eg.GraphModel, batch: Batch) -> Tensor:
            passes.append(batch.num_examples)
            return super()._outputs(model, batch)

    def learned() -> list[Tensor]:
        stream = small_stream if level == "node" else eg.stream("digit-graphs", classes_per_task=5)
        made = eg.registry.models[model](hidden=6)
        learner = eg.Learner(made, Counting(), epochs=2, lr=0.01, batch_size=64, dtype=torch.float64)
        for task in list(stream)[:2]:
            learner.learn(task)
        return [value.detach().clone() for value in learner.model.parameters()]

    found, once = learned(), len(passes)
    with fast_paths(*(path for path in FAST_PATHS if path != "structure")):
        expected = learned()
    assert once == 1 < len(passes) - once
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(found, expected))


def test_lwfs_teacher_has_no_dropout(small_stream: eg.TaskStream) -> None:
    """With dropout on, the old network still gives one answer."""
    seen: list[Tensor] = []

    class Watched(LwF):
        def teach(self, step: eg.methods.Step) -> Tensor:
            first, second = super().teach(step), super().teach(step)
            assert torch.equal(first, second)
            assert step.model.training
            seen.append(first)
            return first

    learner = eg.Learner(eg.GCN(hidden=4, dropout=0.5), Watched(), epochs=2, device="cpu")
    learner.learn(small_stream[0])
    learner.learn(small_stream[1])
    assert seen


@pytest.mark.parametrize("case", ["gcn", "gat"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_lwf_distils_each_old_task_on_request(case: str, reduction: str) -> None:
    """Third task: units 0 for the first task, 0 to 2 for the first two; its own unit is 3."""
    setting = make(case)
    context = setting.context(reduction, old=(0, 1, 2))
    method, theta = LwF(strength=3.0, temperature=4.0, distillation="per-task"), setting.params
    method.seen_ = [1]  # as if the first task had brought one class
    setting.load(setting.direction(1))
    context.task.class_positions = [1, 2]
    context.old, context.class_names = torch.tensor([0]), [0, 1, 2]
    method.end_task(context)
    assert method.seen_ == [1, 3]
    context.task.class_positions, context.old = [3], torch.tensor([0, 1, 2])
    teacher = setting.model(setting.batch).detach() / 4.0
    setting.load(theta)
    logits = setting.model(setting.batch)
    total = torch.zeros((), dtype=torch.float64)
    for units in ([0], [0, 1, 2]):
        for v in range(logits.size(0)):
            old, new = teacher[v, units].softmax(0), (logits[v, units] / 4.0).softmax(0)
            total = total + 3.0 * sum(old[i] * (old[i] / new[i]).log() for i in range(len(units)))
    total = total / (1 if reduction == "sum" else setting.nodes.numel())
    grads = torch.autograd.grad(total, list(setting.model.parameters()))
    close(pull(method, context), torch.cat([grad.flatten() for grad in grads]))


def test_lwf_remembers_how_many_classes_were_seen(small_stream: eg.TaskStream) -> None:
    """By number of output units, whatever the label scope; a class that comes again is not counted twice."""
    learner = eg.Learner(eg.GCN(hidden=4), LwF(distillation="per-task"), epochs=1, device="cpu", label_scope="current")
    for number in (0, 1, 0, 2):
        learner.learn(small_stream[number])
    assert learner.method.seen_ == [2, 4, 4, 6]
    assert [units.tolist() for units in learner.method.distilled(torch.arange(2, 6))] == [[2, 3], [2, 3], [2, 3, 4, 5]]


def test_lwf_lists_its_distillations() -> None:
    with pytest.raises(eg.EvergraphError, match="must be one of: seen, per-task"):
        LwF(distillation="all")


# TWP


def gcn_topology(setting: Setting) -> Tensor:
    """Mean over nodes of Σ_layers Σ_u e_vu², e_vu = z_uᵀ tanh(z_v), from dense matrices and a loop over edges."""
    operator = setting.model.operator(setting.graph).dense().double()
    ones = torch.ones(operator.size(0), 1, dtype=torch.float64)
    hidden, total = setting.graph.x.double(), torch.zeros((), dtype=torch.float64)
    for number, weight in enumerate(setting.model.weights):
        z = torch.cat([hidden if number == 0 else hidden.relu(), ones], dim=1) @ weight
        for v in setting.nodes.tolist():
            for u in torch.nonzero(operator[v]).reshape(-1).tolist():
                total = total + (z[u] @ z[v].tanh()) ** 2
        hidden = operator @ z
    return total / setting.nodes.numel()


def gat_topology(setting: Setting) -> Tensor:
    """The same with e_vu = LeakyReLU(a·z_u + b·z_v), a mean over heads."""
    model = setting.model
    linked = model.operator(setting.graph).dense() != 0
    count = linked.size(0)
    hidden, total = setting.graph.x.double(), torch.zeros((), dtype=torch.float64)
    for number in range(model.num_layers):
        a, b = model.sources[number], model.targets[number]
        x = torch.cat([hidden if number == 0 else F.elu(hidden), torch.ones(count, 1, dtype=torch.float64)], dim=1)
        z = (x @ model.weights[number]).unflatten(1, a.shape)
        rows = []
        for v in range(count):
            near = torch.nonzero(linked[v]).reshape(-1)
            scores = torch.stack([F.leaky_relu((a * z[u] + b * z[v]).sum(1), 0.2) for u in near.tolist()])
            if v in setting.nodes.tolist():
                total = total + scores.square().mean(1).sum()
            rows.append((scores.softmax(0).unsqueeze(2) * z[near]).sum(0).flatten())
        hidden = torch.stack(rows)
    return total / setting.nodes.numel()


@pytest.mark.parametrize(
    ("case", "by_hand"),
    [("gcn", gcn_topology), ("gcn-unpropagated", gcn_topology), ("gcn-3-layers", gcn_topology), ("gat", gat_topology)],
)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_twps_importance_by_hand(case: str, by_hand: object, batch_size: int | None) -> None:
    setting = make(case, (1, 3))
    context, method = setting.context(batch_size=batch_size), TWP(task_weight=20.0, topology_weight=3.0, sparsity=0.0)
    method.end_task(context)
    params = list(setting.model.parameters())
    shape = torch.autograd.grad(by_hand(setting), params)  # type: ignore[operator]
    loss = F.cross_entropy(setting.model(setting.batch)[:, setting.scope], setting.positions)
    task = torch.autograd.grad(loss, params)
    parts = [20.0 * t.square().flatten() + 3.0 * s.square().flatten() for t, s in zip(task, shape)]
    close(flat(method.importance_), torch.cat(parts))
    setting.load(setting.direction(1))
    anchor = flat(method.anchor_)
    close(pull(method, context, setting.batch), torch.cat(parts) * (flat(setting.params) - anchor))


@pytest.mark.parametrize("case", ["gcn", "gat"])
def test_the_topology_of_a_batch_is_the_sum_over_its_nodes(case: str) -> None:
    setting = make(case)
    context = setting.context()
    shown = setting.problem.batcher(setting.model, setting.graph, show_edges=True)
    together = topology(context, shown.batch(setting.nodes))
    single = sum(topology(context, shown.batch(node.reshape(1))) for node in setting.nodes)
    close(together, single)


@pytest.mark.parametrize("case", ["gcn", "gat"])
def test_twps_sparsity_has_a_real_gradient(case: str) -> None:
    """Finite differences of sparsity · ‖∂L/∂θ‖₁."""
    setting = make(case)
    context = setting.context()
    method = TWP(strength=2.0, task_weight=0.0, topology_weight=0.0, sparsity=0.3)
    assert float(pull(method, context).abs().max()) == 0  # nothing before the second task
    method.end_task(context)
    got, theta, d = pull(method, context), setting.params, setting.direction(9)

    def norm(shift: float) -> float:
        setting.load({name: theta[name] + shift * d[name] for name in theta})
        value = float(flat(step_gradient(Method(), context)).abs().sum())
        setting.load(theta)
        return 2.0 * 0.3 * value

    step = 1e-6
    slope = (norm(step) - norm(-step)) / (2 * step)
    assert abs(slope) > 0.1
    assert float(got @ flat(d)) == pytest.approx(slope, rel=1e-5)


def test_twp_says_at_once_which_models_it_needs(small_stream: eg.TaskStream) -> None:
    learner = eg.Learner(eg.GraphSAGE(hidden=4), TWP(), epochs=1, device="cpu")
    with pytest.raises(eg.EvergraphError, match="use GCN or GAT"):
        learner.learn(small_stream[0])


# TWP as CGLB's code has it


@pytest.mark.parametrize("case", ["gcn", "sage", "gat"])  # it looks at no coefficient, so any model will do
@pytest.mark.parametrize("batch_size", [None, 4])
def test_cglbs_mini_batch_twp_squares_batch_gradients_twice(case: str, batch_size: int | None) -> None:
    setting = make(case, (1, 3))
    context = setting.context(batch_size=batch_size)
    method = TWP(task_weight=20.0, topology_weight=3.0, sparsity=0.3, reading="cglb")
    method.start_task(context)
    method.end_task(context)
    params, squares = list(setting.model.parameters()), []
    for rows in torch.arange(setting.nodes.numel()).split(batch_size or setting.nodes.numel()):
        logits = setting.model(setting.batcher.batch(setting.nodes[rows]))[:, setting.scope]
        grads = torch.autograd.grad(F.cross_entropy(logits, setting.positions[rows]), params)
        squares.append(torch.cat([grad.flatten() for grad in grads]).square())
    want = (20.0 + 3.0) * torch.stack(squares).mean(0)
    close(flat(method.importance_), want)
    anchor = flat(setting.params)
    setting.load(setting.direction(1))
    close(pull(method, context, setting.batch), want * (flat(setting.params) - anchor))  # and nothing for sparsity


def gcn_coefficients(setting: Setting) -> Tensor:
    """The first layer's z_uᵀ tanh(z_v) after a softmax over v's neighbours, one edge after another."""
    linked = setting.model.operator(setting.graph).dense() != 0
    x = torch.cat([setting.graph.x.double(), torch.ones(linked.size(0), 1, dtype=torch.float64)], dim=1)
    z = x @ setting.model.weights[0]
    rows = [torch.stack([z[u] @ z[v].tanh() for u in torch.nonzero(linked[v])[:, 0]]) for v in range(len(linked))]
    return torch.cat([row.softmax(0) for row in rows])


def gat_coefficients(setting: Setting) -> Tensor:
    """The same with LeakyReLU(a·z_u + b·z_v), all heads."""
    model, linked = setting.model, setting.model.operator(setting.graph).dense() != 0
    a, b = model.sources[0], model.targets[0]
    x = torch.cat([setting.graph.x.double(), torch.ones(linked.size(0), 1, dtype=torch.float64)], dim=1)
    z = (x @ model.weights[0]).unflatten(1, a.shape)
    rows = [
        torch.stack([F.leaky_relu((a * z[u] + b * z[v]).sum(1), 0.2) for u in torch.nonzero(linked[v])[:, 0]])
        for v in range(len(linked))
    ]
    return torch.cat([row.softmax(0) for row in rows])


@pytest.mark.parametrize(("case", "by_hand"), [("gcn", gcn_coefficients), ("gat", gat_coefficients)])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_cglbs_full_batch_twp_adds_gradients_before_it_squares(
    case: str, by_hand: object, batch_size: int | None
) -> None:
    setting = make(case, (1, 3))
    context = setting.context(batch_size=batch_size)
    method = TWP(task_weight=20.0, topology_weight=3.0, sparsity=0.3, reading="cglb-full-batch")
    method.end_task(context)
    params, norm = list(setting.model.parameters()), by_hand(setting).square().sum().sqrt()  # type: ignore[operator]
    close(coefficient_norm(context), norm)
    shape = torch.autograd.grad(norm, params, allow_unused=True)
    loss = F.cross_entropy(setting.model(setting.batch)[:, setting.scope], setting.positions)
    task = torch.autograd.grad(loss, params)
    parts = [(20.0 * t.square() + 3.0 * (t if s is None else t + s).square()).flatten() for t, s in zip(task, shape)]
    want = torch.cat(parts)
    close(flat(method.importance_), want)
    anchor = flat(setting.params)
    setting.load(setting.direction(1))
    close(pull(method, context, setting.batch), want * (flat(setting.params) - anchor))


def test_twp_lists_its_readings() -> None:
    with pytest.raises(eg.EvergraphError, match="must be one of: liu, cglb, cglb-full-batch"):
        TWP(reading="paper")
