"""LwF and TWP: outputs and topology, each written out by hand."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import evergraph as eg
from brute_force import Setting, close, flat, make, pull, step_gradient
from evergraph.methods import TWP, LwF, Method
from evergraph.methods.twp import topology

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
