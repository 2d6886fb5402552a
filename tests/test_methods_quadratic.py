"""EWC and its kin, MAS, SI, K-FAC: what they store and the pull they exert, each written out by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import evergraph as eg
from brute_force import (
    Setting,
    brute_fisher,
    cases,
    close,
    flat,
    make,
    node_gradient,
    own_cases,
    pull,
    seeded,
    step_gradient,
)
from evergraph.core.params import Params
from evergraph.curvature import pick_labels, regularizer
from evergraph.methods import EWC, KFAC, MAS, SI, EWCPlusPlus, Method, OnlineEWC
from evergraph.methods.base import Context
from evergraph.methods.quadratic import Quadratic
from evergraph.problems import NodeClassification
from test_curvature_nodes import brute_factors

STRENGTH = 30.0


def ended(method: Method, setting: Setting, context: Context, seed: int) -> None:
    """A task that ended at random parameters; the model comes back to where it was."""
    theta = setting.params
    setting.load(setting.direction(seed))
    method.end_task(context)
    setting.load(theta)


def fisher_at(setting: Setting, seed: int, labels: str = "empirical") -> Tensor:
    """The Fisher diagonal at those random parameters, mean over the nodes."""
    theta = setting.params
    setting.load(setting.direction(seed))
    picked = None
    if labels == "sample":
        picked = pick_labels(setting.problem, setting.function(setting.params), "sample", generator=seeded())
    diagonal = brute_fisher(setting, labels, picked).diagonal() / setting.nodes.numel()
    setting.load(theta)
    return diagonal


# EWC is the framework with four words filled in


@cases
@pytest.mark.parametrize("labels", ["empirical", "sample", "pred", "exact"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ewc_is_the_framework_at_the_old_point_with_a_diagonal(case: str, labels: str, reduction: str) -> None:
    setting = make(case)
    context, method = setting.context(), EWC(STRENGTH, labels=labels, reduction=reduction)
    ended(method, setting, context, 1)
    context.generator = seeded()
    value, gradient = regularizer(
        setting.function, setting.params, [setting.direction(1)], setting.problem,
        point=0.0, labels=labels, structure="diagonal", targets=setting.batch.y, generator=seeded(),
    )  # fmt: skip
    share = STRENGTH / (setting.nodes.numel() if reduction == "mean" else 1)
    close(pull(method, context), share * flat(gradient))
    close(torch.tensor(method.value(setting.params), dtype=torch.float64), share * value)


@own_cases
def test_ewc_stores_the_fisher_diagonal_of_its_label_scope(case: str) -> None:
    setting = make(case, (1, 3))
    context, method = setting.context(), EWC(STRENGTH)
    ended(method, setting, context, 1)
    close(flat(method.importance_), fisher_at(setting, 1))
    close(flat(method.anchor_), flat(setting.direction(1)))


def test_the_merged_quadratic_is_the_sum_over_tasks_constant_included() -> None:
    setting = make("gcn")
    method = EWC(STRENGTH)
    scopes = [(0, 1), (2, 3), (0, 3)]  # three tasks with nodes of their own
    value, gradient = 0.0, torch.zeros_like(flat(setting.params))
    for seed, scope in enumerate(scopes, start=1):
        nodes = torch.nonzero(torch.isin(setting.batcher.y, torch.tensor(scope))).reshape(-1)
        task = Setting(setting.graph, setting.model, setting.batcher, NodeClassification(scope), nodes)
        ended(method, task, task.context(), seed)
        gap, fisher = flat(setting.params) - flat(setting.direction(seed)), fisher_at(task, seed)
        value += float(STRENGTH / 2 * (fisher * gap.square()).sum())
        gradient += STRENGTH * fisher * gap
    assert method.value(setting.params) == pytest.approx(value, rel=1e-12)
    close(pull(method, setting.context()), gradient)
    assert len(method.state_dict()) == 3  # one importance, one anchor, one number


def test_parameters_without_importance_stay_free() -> None:
    merged = EWC(1.0)
    merged.merge({"a": torch.tensor([0.0, 2.0])}, {"a": torch.tensor([1.0, 1.0])})
    merged.merge({"a": torch.tensor([0.0, 0.0])}, {"a": torch.tensor([5.0, 5.0])})
    assert merged.importance_["a"].tolist() == [0.0, 2.0]
    assert merged.anchor_["a"][1] == 1.0
    assert merged.value({"a": torch.tensor([100.0, 1.0])}) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_anchor_of_a_parameter_that_matters_to_one_task_is_that_tasks_own(dtype: torch.dtype) -> None:
    first, second = (0.1 * torch.randn(2, 501, generator=seeded(seed), dtype=dtype) for seed in (1, 2))
    merged, matters = EWC(1.0), torch.tensor([[1.0], [0.0]], dtype=dtype).expand(2, 501)
    merged.merge({"a": matters}, {"a": first})
    merged.merge({"a": 1 - matters}, {"a": second})
    assert torch.equal(merged.anchor_["a"], torch.stack([first[0], second[1]]))


@pytest.mark.parametrize("decay", [1.0, 0.95])
def test_online_ewc_keeps_a_decaying_sum_of_ewcs_fishers(decay: float) -> None:
    setting = make("gcn")
    context, method = setting.context(), OnlineEWC(STRENGTH, decay=decay)
    for seed in (1, 2, 3):
        ended(method, setting, context, seed)
    fishers = [fisher_at(setting, seed) for seed in (1, 2, 3)]
    want = decay**2 * fishers[0] + decay * fishers[1] + fishers[2]
    close(flat(method.importance_), want)
    close(pull(method, context), STRENGTH * want * (flat(setting.params) - flat(setting.direction(3))))


# the shortcut of much public code


def test_the_squared_batch_shortcut_is_the_fisher_at_batch_size_1_alone() -> None:
    setting = make("gcn")
    stored = {}
    for size in (1, 4, None):
        context, method = setting.context(batch_size=size), EWC(STRENGTH, fisher="squared-batch")
        ended(method, setting, context, 1)
        stored[size] = flat(method.importance_)
    fisher = fisher_at(setting, 1)
    close(stored[1], fisher)
    assert (stored[4] - fisher).abs().max() > 0.05 * fisher.max()
    assert (stored[None] - stored[4]).abs().max() > 0.01 * fisher.max()


def test_the_shortcut_needs_one_label_per_node() -> None:
    with pytest.raises(eg.EvergraphError, match="use labels=empirical"):
        EWC(fisher="squared-batch", labels="exact")


# EWC++


@cases
def test_ewc_plus_plus_is_a_moving_average_of_squared_gradients(case: str) -> None:
    setting = make(case)
    context, method = setting.context(), EWCPlusPlus(STRENGTH, decay=0.8)
    average = None
    for node in setting.nodes[:3]:
        batch = setting.batcher.batch(node.reshape(1))  # for one node random signs do not matter
        step_gradient(method, context, batch)
        label = int(setting.batcher.y[node])
        fresh = flat(node_gradient(setting, node, lambda z, k=label: z.log_softmax(0)[k])).square()
        average = fresh if average is None else 0.8 * average + 0.2 * fresh
    assert not method.importance_  # during the first task nothing pulls
    method.end_task(context)
    close(flat(method.importance_), average)
    anchor = setting.params
    setting.load(setting.direction(4))
    want = STRENGTH * average * (flat(setting.params) - flat(anchor))
    close(pull(method, context), want)


@pytest.mark.parametrize("labels", ["empirical", "pred"])
def test_ewc_plus_plus_squares_batches_on_request(labels: str) -> None:
    setting = make("gcn")
    context, method = setting.context(), EWCPlusPlus(STRENGTH, fisher="squared-batch", labels=labels)
    step_gradient(method, context)
    logits = setting.model(setting.batch)
    picked = setting.batch.y if labels == "empirical" else logits.argmax(1)
    loss = nn.functional.cross_entropy(logits, picked)
    grads = torch.autograd.grad(loss, list(setting.model.parameters()))
    close(flat(method.average_), torch.cat([grad.flatten() for grad in grads]).square())


def test_ewc_plus_plus_is_unbiased_over_a_batch() -> None:
    setting = make("gcn")
    context, method = setting.context(), EWCPlusPlus(STRENGTH, decay=0.0)
    draws = []
    for _ in range(225):
        step_gradient(method, context)
        draws.append(flat(method.average_))
    stacked = torch.stack(draws)
    fisher = brute_fisher(setting, "empirical").diagonal() / setting.nodes.numel()
    assert ((stacked.mean(0) - fisher).abs() <= 5 * stacked.std(0) / 15 + 1e-12).all()


# MAS


@cases
def test_mas_is_the_mean_absolute_gradient_of_squared_outputs(case: str) -> None:
    setting = make(case, (1, 3))
    context, method = setting.context(), MAS(STRENGTH)
    wants = []
    for seed in (1, 2):
        ended(method, setting, context, seed)
        theta = setting.params
        setting.load(setting.direction(seed))
        single = [flat(node_gradient(setting, node, lambda z: z.square().sum())).abs() for node in setting.nodes]
        wants.append(torch.stack(single).mean(0))
        setting.load(theta)
    close(flat(method.importance_), wants[0] + wants[1])
    gap = flat(setting.params) - flat(setting.direction(2))  # the anchor is the latest task's
    close(pull(method, context), STRENGTH * (wants[0] + wants[1]) * gap)


def squared_batch_gradients_by_hand(setting: Setting, batch_size: int) -> Tensor:
    """The mean over batches of the squared gradient of their mean squared output, over all units."""
    params, squares = list(setting.model.parameters()), []
    for nodes in setting.nodes.split(batch_size):
        outputs = setting.model(setting.batcher.batch(nodes))
        value = sum(outputs[v, unit] ** 2 for v in range(len(nodes)) for unit in range(outputs.size(1)))
        grads = torch.autograd.grad(value / outputs.numel(), params)
        squares.append(torch.cat([grad.flatten() for grad in grads]) ** 2)
    return torch.stack(squares).mean(0)


@cases
@pytest.mark.parametrize("over_tasks", ["sum", "mean"])
def test_mas_squares_batches_and_averages_over_tasks_on_request(case: str, over_tasks: str) -> None:
    setting = make(case, (1, 3))  # the importance is over all units even so
    method = MAS(STRENGTH, importance="squared-batch", over_tasks=over_tasks)
    wants, sizes = [], [6, 4, 5]
    for seed, size in enumerate(sizes, start=1):  # tasks of their own sizes, with an uneven last batch
        task = Setting(setting.graph, setting.model, setting.batcher, setting.problem, setting.nodes[:size])
        context = task.context(batch_size=4)
        ended(method, task, context, seed)
        theta = setting.params
        setting.load(setting.direction(seed))
        wants.append(squared_batch_gradients_by_hand(task, 4))
        setting.load(theta)
    weights = [1.0] * 3 if over_tasks == "sum" else [size / sum(sizes) for size in sizes]
    want = sum(weight * importance for weight, importance in zip(weights, wants))
    close(flat(method.importance_), want)
    close(pull(method, context), STRENGTH * want * (flat(setting.params) - flat(setting.direction(3))))


def test_mas_averages_its_own_importance_too() -> None:
    setting = make("gcn")
    context = setting.context()
    single, mean = MAS(STRENGTH), MAS(STRENGTH, over_tasks="mean")
    for method in (single, mean):
        for seed in (1, 2):
            ended(method, setting, context, seed)
    close(flat(mean.importance_), flat(single.importance_) / 2)  # two tasks of one size


@pytest.mark.parametrize("settings", [{"importance": "batch"}, {"over_tasks": "max"}])
def test_mas_lists_its_readings(settings: dict[str, str]) -> None:
    with pytest.raises(eg.EvergraphError, match="must be one of"):
        MAS(**settings)


# SI


def path_integral(learning_rate: float, diagonal: bool) -> tuple[Params, float, Tensor]:
    """Gradient descent on ½ (θ−a)ᵀA(θ−a) under SI's hooks: ω, the loss's drop, and each coordinate's share of it."""
    generator = seeded()
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(4, dtype=torch.float64)
    matrix = matrix.diagonal().diag() if diagonal else matrix
    goal = torch.randn(4, generator=generator, dtype=torch.float64)
    model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(4, dtype=torch.float64))})
    value = model["a"]

    def loss() -> Tensor:
        return (value - goal) @ matrix @ (value - goal) / 2

    context = SimpleNamespace(model=model, params={"a": value})
    step = SimpleNamespace(model=model, context=context)
    method, before = SI(strength=0.0), loss().item()
    each = matrix.diagonal() * goal.square() / 2
    method.start_task(context)
    for _ in range(int(0.8 / learning_rate)):
        value.grad = torch.autograd.grad(loss(), value)[0]
        method.edit_grads(step)
        with torch.no_grad():
            value -= learning_rate * value.grad
        method.after_step(step)
    left = matrix.diagonal() * (value.detach() - goal).square() / 2
    return method.path_, before - loss().item(), each - left


def test_sis_path_integral_is_the_loss_drop_in_the_limit_of_small_steps() -> None:
    errors = []
    for rate in (0.02, 0.01, 0.005):
        path, drop, _ = path_integral(rate, diagonal=False)
        errors.append(abs(float(path["a"].sum()) - drop) / drop)
    assert errors[-1] < 0.03
    # the error of the sum is of first order in the step
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)


def test_si_credits_each_parameter_with_its_own_share() -> None:
    path, _, shares = path_integral(0.0005, diagonal=True)
    close(path["a"], shares, 5e-3)


def test_si_divides_by_the_way_gone_and_takes_no_negative_importance() -> None:
    model = nn.ParameterDict({"a": nn.Parameter(torch.tensor([1.0, 2.0, 5.0]))})
    context = SimpleNamespace(model=model, params=dict(model.items()))
    method = SI(strength=1.0, damping=0.5)
    method.start_task(context)
    method.path_["a"] = torch.tensor([3.0, -3.0, 1.0])
    with torch.no_grad():
        model["a"].copy_(torch.tensor([2.0, 4.0, 5.0]))
    method.end_task(context)
    assert method.importance_["a"].tolist() == pytest.approx([3 / 1.5, 0.0, 1 / 0.5])
    method.start_task(context)
    method.path_["a"] = torch.tensor([-1.0, 1.0, -9.0])
    method.end_task(context)
    assert method.importance_["a"].tolist() == pytest.approx([3 / 1.5 - 2.0, 2.0, 0.0])
    assert method.anchor_["a"].tolist() == [2.0, 4.0, 5.0]


def test_si_integrates_the_loss_alone_not_its_own_pull() -> None:
    setting = make("gcn")
    context, method = setting.context(), SI(strength=STRENGTH)
    method.start_task(context)
    method.importance_ = {name: torch.ones_like(value) for name, value in setting.params.items()}
    method.anchor_ = setting.direction(1)
    want = flat(step_gradient(Method(), context))
    pulled = step_gradient(method, context)
    close(flat(method._gradient), want)
    close(flat(pulled) - want, STRENGTH * (flat(setting.params) - flat(setting.direction(1))))


# K-FAC


@own_cases
@pytest.mark.parametrize("labels", ["exact", "empirical"])
def test_kfac_pulls_with_the_kronecker_product_written_out(case: str, labels: str) -> None:
    setting = make(case)
    context, method = setting.context(), KFAC(STRENGTH, labels=labels)
    inputs: dict[str, list[Tensor]] = {}
    outputs: dict[str, list[Tensor]] = {}
    diagonal = torch.zeros_like(flat(setting.params))
    for seed in (1, 2):
        ended(method, setting, context, seed)
        theta = setting.params
        setting.load(setting.direction(seed))
        for name, (a, g) in brute_factors(setting, labels).items():
            inputs.setdefault(name, []).append(a)
            outputs.setdefault(name, []).append(g)
        diagonal += brute_fisher(setting, labels).diagonal() / setting.nodes.numel()
        setting.load(theta)
    got, start = pull(method, context), 0
    for name, value in setting.params.items():
        gap = (value - setting.direction(2)[name]).flatten()
        size = gap.numel()
        if name in inputs:  # A as a mean, G as a sum over tasks
            fisher = torch.kron((inputs[name][0] + inputs[name][1]) / 2, outputs[name][0] + outputs[name][1])
            want = STRENGTH * fisher @ gap
        else:  # attention vectors
            want = STRENGTH * diagonal[start : start + size] * gap
        close(got[start : start + size], want)
        start += size


def test_a_layer_that_stands_still_for_a_task_has_the_mean_of_the_others() -> None:
    setting = make("gcn")
    context, method, inputs = setting.context(), KFAC(STRENGTH), list[Tensor]()
    first = next(iter(setting.model.parameters()))
    for seed in (1, 2, 3):
        first.requires_grad_(seed != 2)
        ended(method, setting, context, seed)
        theta = setting.params
        setting.load(setting.direction(seed))
        inputs += [next(iter(brute_factors(setting, "exact").values()))[0]] if seed != 2 else []
        setting.load(theta)
    close(next(iter(method.factors_.values()))["inputs"], (inputs[0] + inputs[1]) / 2)


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_kfac_takes_leading_eigenvectors_and_the_diagonal_of_the_rest(rank: int) -> None:
    setting = make("gcn")
    context, method = setting.context(), KFAC(STRENGTH, rank=rank)
    ended(method, setting, context, 1)
    decay = torch.diag(1e-3 ** torch.arange(6, dtype=torch.float64))  # so that few iterations find eigenvectors
    turned = torch.linalg.qr(torch.randn(6, 6, generator=seeded(), dtype=torch.float64)).Q
    for factor in method.factors_.values():
        size = factor["inputs"].size(0)
        factor["inputs"] = (turned @ decay @ turned.T)[:size, :size]
    method.prepare(context)
    got, start = pull(method, context), 0
    for name, value in setting.params.items():
        gap, factor = value - method.anchor_[name], method.factor(name)
        inputs, outputs = factor.inputs, factor.outputs
        values, vectors = torch.linalg.eigh(inputs)
        kept = rank if inputs.size(0) > rank else inputs.size(0)
        leading = vectors[:, -kept:] @ torch.diag(values[-kept:]) @ vectors[:, -kept:].T
        fisher = torch.kron(leading, outputs)
        if kept < inputs.size(0):
            fisher += torch.kron(torch.diag((inputs - leading).diagonal()), torch.diag(outputs.diagonal()))
        exact = torch.kron(inputs, outputs)
        close(fisher.diagonal(), exact.diagonal())
        close(got[start : start + gap.numel()], STRENGTH * fisher @ gap.flatten(), 1e-6)
        start += gap.numel()


def test_kfac_refuses_a_module_that_shows_no_layers(small_stream: eg.TaskStream) -> None:
    from torch_geometric.nn import GraphSAGE

    learner = eg.Learner(GraphSAGE(8, 4, 2, 6), KFAC(), epochs=1, device="cpu")
    with pytest.raises(eg.EvergraphError, match="kfac needs gcn, sage or gat"):
        learner.learn(small_stream[0])


def test_a_quadratic_must_say_how_it_measures() -> None:
    with pytest.raises(NotImplementedError):
        Quadratic().measure(make("gcn").context())
