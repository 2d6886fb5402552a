"""Methods that choose a step's direction, against dense linear algebra in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric import nn as pyg

import evergraph as eg
from brute_force import make, own_cases, step_gradient
from evergraph.data.datasets.sbm import sbm
from evergraph.methods.base import Method
from evergraph.methods.projection.gpm import grown_basis

pytestmark = pytest.mark.filterwarnings("ignore:.*join the ends of validation and test links")

STREAM = eg.TaskStream(sbm(nodes=48, classes=6, degree=4, features=5, signal=3.0, seed=1), 2)
SETTINGS = {"epochs": 3, "lr": 0.05, "batch_size": 7, "device": "cpu", "dtype": torch.float64}


def after_a_task(method: Method, case: str) -> tuple[Method, eg.Context]:
    """The method at the start of its second task, at other parameters than those of the first."""
    setting = make(case)
    context = setting.context(old=(0, 1))
    method.start_task(context)
    method.prepare(context)
    method.end_task(context)
    setting.load(
        {name: value + 0.1 * move for (name, value), move in zip(setting.params.items(), setting.direction(3).values())}
    )
    context = setting.context(old=(0, 1))
    method.start_task(context)
    method.prepare(context)
    return method, context


# gpm


@own_cases
def test_gpm_projects_gradients_out_of_an_orthonormal_basis(case: str) -> None:
    method, context = after_a_task(eg.GPM(threshold=0.8, samples=9), case)
    projected, plain = (step_gradient(one, context) for one in (method, Method()))
    assert set(method.basis_) == {name for name in context.params if name.startswith("weights")}
    for name, basis in method.basis_.items():
        number = basis.size(1)
        assert 0 < number < basis.size(0)
        assert torch.allclose(basis.T @ basis, torch.eye(number).double(), atol=1e-12)
        assert float((basis.T @ plain[name]).abs().max()) > 1e-6
        assert torch.allclose(basis.T @ projected[name], torch.zeros(1).double(), atol=1e-12)
        rest = torch.eye(basis.size(0)).double() - basis @ basis.T
        assert torch.allclose(projected[name], rest @ plain[name], atol=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("other", ["", "+ewc"])
def test_gpm_keeps_the_step_out_of_the_basis_whatever_moves_it(optimizer: str, other: str) -> None:
    """Adam's scaling, weight decay, momentum and another method's gradient included."""
    learner = eg.Learner(eg.GCN(hidden=8), eg.make_method("gpm" + other), optimizer=optimizer, **SETTINGS)
    learner.learn(STREAM[0])
    gpm = learner.method.methods[0] if other else learner.method
    before, basis = eg.copy_params(learner.model), copy.deepcopy(gpm.basis_)
    learner.learn(STREAM[1])
    for name, value in learner.model.named_parameters():
        moved = value.detach() - before[name]
        assert float(moved.abs().max()) > 1e-3
        assert float((basis[name].T @ moved).abs().max()) < 1e-12 * (1 + float(moved.abs().max()))


def test_gpm_with_all_of_the_inputs_held_never_changes_an_old_output() -> None:
    learner = eg.Learner(eg.GCN(hidden=30), eg.GPM(threshold=1.0, samples=1000), **SETTINGS)
    learner.learn(STREAM[0])
    nodes = STREAM[0].train
    before = learner.logits(STREAM[0].graph, nodes)
    learner.learn(STREAM[1])
    assert float(learner.method.basis_["weights.1"].size(1)) < 31  # there was room to learn in
    assert torch.allclose(learner.logits(STREAM[0].graph, nodes), before, atol=1e-9)


def some_examples(level: str, seed: int) -> eg.Task:
    """Twelve paths of three nodes, or twelve links in a random graph, of two classes."""
    random, y = np.random.default_rng(seed), np.arange(12) % 2
    if level == "graph":
        paths = np.array([[3 * number, 3 * number + 1] for number in range(12)] * 2).T + np.repeat([0, 1], 12)
        data = eg.make_graphs(random.random((36, 50)), paths, np.repeat(np.arange(12), 3), y, undirected=True)
    else:
        data = eg.make_links(
            random.random((9, 50)), random.integers(0, 9, (2, 12)), y, edge_index=random.integers(0, 9, (2, 15))
        )
    return eg.Task.of(data, index=seed)


@pytest.mark.parametrize("level", ["graph", "link"])
def test_gpm_holds_the_outputs_of_graphs_and_links_as_it_does_those_of_nodes(level: str) -> None:
    method = eg.GPM(threshold=1.0, samples=1000)
    learner = eg.Learner(eg.GCN(hidden=60), method, problem=f"{level}-classification", **SETTINGS)
    first = some_examples(level, 0)
    learner.learn(first)
    before, weights = learner.logits(first.graph)[first.train], eg.copy_params(learner.model)
    learner.learn(some_examples(level, 1))
    assert all(not torch.equal(value, weights[name]) for name, value in learner.model.named_parameters())
    assert torch.allclose(learner.logits(first.graph)[first.train], before, atol=1e-9)


def test_gpm_with_task_heads_keeps_the_old_units_and_frees_the_new() -> None:
    learner = eg.Learner(eg.GCN(hidden=8), eg.GPM(head="tasks"), **SETTINGS)
    learner.learn(STREAM[0])
    before = learner.model.weights[-1].detach().clone()
    learner.learn(STREAM[1])
    after = learner.model.weights[-1].detach()
    assert torch.equal(after[:, :2], before[:, :2])
    assert float((after[:, 2:4] - before[:, 2:4]).abs().min(0).values.max()) > 0


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999, 1.0])
def test_the_basis_grows_by_as_little_as_the_threshold_needs(share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(6, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    old = grown_basis(None, first[:2], 1.0)
    assert old.size(1) == 2
    new = grown_basis(old, second, share)

    def held(basis: Tensor) -> float:
        return float((second @ basis).square().sum() / second.square().sum())

    assert torch.allclose(new.T @ new, torch.eye(new.size(1)).double(), atol=1e-12)
    assert torch.allclose(new @ (new.T @ old), old, atol=1e-12)  # what was held is held
    assert held(new) >= share - 1e-9
    # the best basis with a column less, by the eigenvectors of the rest's Gram matrix
    rest = second - second @ old @ old.T
    fewer = torch.linalg.eigh(rest.T @ rest).eigenvectors.flip(1)[:, : new.size(1) - 3]
    assert held(torch.cat([old, fewer], dim=1)) < share


# ncl


@own_cases
def test_ncl_preconditions_with_the_inverse_of_the_dense_precision(case: str) -> None:
    method, context = after_a_task(eg.NCL(prior=0.05), case)
    for reduction, scale in (("mean", 1), ("sum", context.num_train)):
        context.reduction = reduction
        got, plain = (step_gradient(one, context) for one in (method, Method()))
        for name, value in context.params.items():
            gap = (value.detach() - method.anchor_[name]).flatten()
            assert float(gap.abs().max()) > 0
            if name in method.factors_:
                fisher = torch.kron(method.factors_[name]["inputs"], method.factors_[name]["outputs"])
            else:
                fisher = torch.diag(method.diagonal_[name].flatten())
            precision = method.prior * torch.eye(gap.numel()).double() + fisher
            # Λ⁻¹ of the gradient of loss + ½ (θ − μ)ᵀ Λ (θ − μ), in units of the prior
            total = plain[name].flatten() + scale * precision @ gap
            want = method.prior * torch.linalg.solve(precision, total)
            assert torch.allclose(got[name].flatten(), want, rtol=1e-8, atol=1e-10), name


def test_ncl_leaves_gradients_alone_where_the_prior_is_all_there_is() -> None:
    method, context = after_a_task(eg.NCL(prior=1e9), "gcn")
    method.anchor_ = eg.copy_params(context.model)
    got, plain = (step_gradient(one, context) for one in (method, Method()))
    assert all(torch.allclose(got[name], plain[name], rtol=1e-6) for name in got)


def test_ncl_and_gpm_refuse_a_module_that_hides_its_layers() -> None:
    module = pyg.GCN(5, 4, 2, 6)
    for name in ("ncl", "gpm"):
        with pytest.raises(eg.EvergraphError, match=f"^{name} needs gcn, sage or gat"):
            eg.Learner(module, name, epochs=1, device="cpu").learn(STREAM[0])


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: eg.GPM(threshold=0.0), "GPM: threshold=0.0 must be a finite number above 0 and at most 1"),
        (lambda: eg.GPM(head="none"), "GPM: head='none' must be one of: project, tasks"),
        (lambda: eg.NCL(prior=0.0), "NCL: prior=0.0 must be a finite number above 0"),
    ],
)
def test_bad_settings_are_refused(make_one: object, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        make_one()  # type: ignore[operator]


# the optimizer that ncl asks for


def test_plain_gradient_descent_has_momentum_and_goes_on_after_a_stop(tmp_path) -> None:
    settings = {"epochs": 3, "lr": 0.01, "batch_size": 0, "weight_decay": 0.1, "reduction": "mean", "device": "cpu"}
    learner = eg.Learner(eg.GCN(hidden=4), "finetune", optimizer="sgd", dtype=torch.float64, **settings)
    learner.learn(STREAM[0], lambda progress, epochs: learner.save(tmp_path / str(progress.epoch)))
    model = eg.Learner.load(tmp_path / "1", device="cpu").model  # after the first step; then two steps by hand
    again = eg.Learner.load(tmp_path / "1", device="cpu")
    velocity = {name: state["momentum_buffer"].clone() for name, state in again.progress.optimizer.items()}
    again.learn(STREAM[0])
    problem = eg.NodeClassification([0, 1])
    batch = problem.batcher(model, STREAM[0].graph, targets=STREAM[0].graph.y).batch(STREAM[0].train)
    for _ in range(2):
        loss = problem.loss(model(batch), batch.y).mean()
        for (name, value), grad in zip(model.named_parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            velocity[name] = 0.9 * velocity[name] + grad + 0.1 * value.detach()
            value.data -= 0.01 * velocity[name]
    for one, other, whole in zip(model.parameters(), again.model.parameters(), learner.model.parameters()):
        assert torch.allclose(one, other, atol=1e-12)
        assert torch.equal(other, whole)
    with pytest.raises(eg.EvergraphError, match="optimizer"):
        eg.Training(optimizer="lbfgs")
