"""Frozen parameters: no method moves, measures or redraws what requires no gradient; and what «from scratch» means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch_geometric.nn import GCNConv

import evergraph as eg
from brute_force import close
from evergraph.core.params import all_trained, named_params, trained_params
from evergraph.core.sparse import SparseMatrix
from evergraph.curvature import dense_fisher, fisher_diagonal, forward, jacobian, kronecker_factors
from evergraph.data.datasets.sbm import sbm
from evergraph.methods import METHODS
from evergraph.methods.online_curvature.factored_gradients import SEEDS
from evergraph.problems import Classification
from evergraph.training.stacked import with_parameters

GRAPH = sbm(nodes=60, classes=6, degree=4, features=5, signal=3.0, seed=1)
STREAM = eg.TaskStream(GRAPH, 2)
SETTINGS = {"epochs": 2, "lr": 0.02, "weight_decay": 5e-4, "batch_size": 7, "device": "cpu"}
SHOWN_LAYERS = ("kfac", "twp", "gpm", "ncl", "pi-gnn")  # on models of ours alone
OWN_MODEL: dict[str, Callable[[], eg.GraphModel]] = {
    "tpp": lambda: eg.PromptedGCN(hidden=5, prompts=2),
    "hpn": lambda: eg.PrototypeNetwork(dim=3, node_extractors=2, structure_extractors=2, capacity=40),
    "fgn": lambda: eg.FeatureGraphNetwork(hidden=4, channels=2, out_hidden=3, vertices=4),
}
SOLVED = ("analytic", "auto")  # they train nothing by default: the head is solved for


class Pretrained(nn.Module):
    """A frozen encoder, with running statistics, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([GCNConv(5, 8), nn.BatchNorm1d(8).eval()])
        self.encoder.requires_grad_(False)
        self.head = GCNConv(8, 6)

    def train(self, mode: bool = True) -> Pretrained:
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x, edge_index):
        layer, norm = self.encoder
        return self.head(norm(layer(x, edge_index)).relu(), edge_index)


@dataclass(repr=False)
class Freezing(eg.Method):
    """Fine-tuning in which the first parameter is frozen during some tasks."""

    name = "freezing"
    frozen_in: tuple[int, ...] = (1,)

    def prepare(self, context):
        next(context.model.parameters()).requires_grad_(context.index not in self.frozen_in)


def bits(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def equal(left, right) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in (*SHOWN_LAYERS, *OWN_MODEL, *SOLVED)])
def test_a_pretrained_encoder_stays_bit_for_bit(name):
    torch.manual_seed(0)
    net = Pretrained()
    encoder, head = bits(net.encoder), bits(net.head)
    learner = eg.Learner(net, name, **SETTINGS)
    for task in STREAM:
        learner.learn(task)
    assert math.isfinite(learner.evaluate(STREAM).ap)
    assert equal(bits(net.encoder), encoder)
    assert not equal(bits(net.head), head)
    assert all(value.grad is None for value in net.encoder.parameters())


@pytest.mark.parametrize("name", [name for name in METHODS if name not in SOLVED])
def test_a_layer_that_is_frozen_during_a_task_stands_still_during_it(name):
    if name in ("joint", "gdumb", "puma"):
        pytest.skip("draws its parameters anew before the layer is frozen")
    own = OWN_MODEL.get(name, lambda: eg.GCN(hidden=5))
    method = eg.Compose(Freezing(), eg.make_method(name))
    learner = eg.Learner(own(), method, **SETTINGS)
    learner.learn(STREAM[0])
    rows, columns = next(learner.model.parameters()).shape[:2]
    before = next(learner.model.parameters()).detach().clone()
    learner.learn(STREAM[1])
    weight = next(learner.model.parameters())
    assert torch.equal(weight.detach()[:rows, :columns], before)
    learner.learn(STREAM[2])  # it moves again
    assert math.isfinite(learner.evaluate(STREAM).ap)


@pytest.mark.parametrize("reading", ["cglb", "cglb-full-batch"])
def test_readings_of_twp_that_see_frozen_parameters_alone(reading):
    learner = eg.Learner(eg.GCN(hidden=5), eg.Compose(Freezing((0, 1, 2)), eg.TWP(reading=reading)), **SETTINGS)
    for task in STREAM:
        learner.learn(task)
    assert learner.method.methods[1].importance_.keys() == {"weights.1"}


@pytest.mark.parametrize("frozen", [(), (1,)], ids=["all trained", "frozen"])
def test_sparse_inputs_of_the_queue(frozen):
    """Gradients are kept as factors; with a frozen layer those of the others are written out."""
    stream = eg.TaskStream(GRAPH.altered(x=SparseMatrix.from_dense(GRAPH.x)), 2)
    model, queue = eg.GCN(hidden=5, propagate_inputs=False), eg.QueueCurvature(queue_size=3)
    learner = eg.Learner(model, eg.Compose(Freezing(frozen), queue), **SETTINGS)
    learner.learn(stream[0])
    before, kept = eg.copy_params(model), []
    learner.learn(stream[1], lambda progress, epochs: kept.append(set(queue.queue_)))
    assert [SEEDS in names for names in kept] == [not frozen] * 2
    assert [names == {"weights.1"} for names in kept] == [bool(frozen)] * 2
    assert torch.equal(model.weights[0], before["weights.0"]) == bool(frozen)
    assert not torch.equal(model.weights[1][:, :2], before["weights.1"][:, :2])


def setting() -> tuple[eg.GCN, eg.Batch, Classification]:
    torch.manual_seed(0)
    model = eg.GCN(hidden=4).double()
    model.setup(5, 6)
    model.double()
    model.weights[0].requires_grad_(False)
    problem = Classification()
    batcher = problem.batcher(model, GRAPH)
    return model, batcher.batch(torch.arange(12)), problem


def test_curvature_is_that_of_the_trained_parameters():
    model, batch, problem = setting()
    assert list(trained_params(model)) == ["weights.1"]
    function = lambda params: functional_call(model, params, (batch,))  # noqa: E731
    full = dense_fisher(function, named_params(model), problem)
    trained = full[model.weights[0].numel() :, model.weights[0].numel() :]
    source = batch.source.exact()
    batches = lambda size: source.batches(torch.arange(12), size)  # noqa: E731
    diagonal = fisher_diagonal(model, batches, problem)
    assert diagonal.keys() == {"weights.1"}
    close(diagonal["weights.1"].flatten(), trained.diagonal())
    assert kronecker_factors(model, batches, problem).keys() == {"weights.1"}


def test_a_direction_may_leave_out_what_is_frozen():
    model, batch, _ = setting()
    direction = {"weights.1": torch.randn_like(model.weights[1])}
    outputs, (tangent,) = forward(model, batch, [direction])
    rows = jacobian(lambda params: functional_call(model, params, (batch,)), trained_params(model))
    close(tangent, rows @ direction["weights.1"].flatten())
    close(outputs, model(batch))
    whole = {"weights.0": torch.zeros_like(model.weights[0]), **direction}
    close(tangent, forward(model, batch, [whole])[1][0])


def test_nothing_is_kept_of_what_is_always_frozen():
    for name in ("ewc", "online-ewc", "ewc++", "mas", "si"):
        learner = eg.Learner(Pretrained(), name, **SETTINGS)
        for task in STREAM:
            learner.learn(task)
        assert all("head" in key for key in (*learner.method.importance_, *learner.method.anchor_))


def test_a_checkpoint_holds_all_and_which_are_frozen(tmp_path):
    through, stopped = (eg.Learner(eg.GCN(hidden=5), "ewc", **SETTINGS) for _ in range(2))
    for learner in (through, stopped):
        learner.learn(STREAM[0])
        learner.model.weights[0].requires_grad_(False)
        learner.learn(STREAM[1])
    stopped.save(tmp_path / "c")
    again = eg.Learner.load(tmp_path / "c")
    assert [value.requires_grad for value in again.model.parameters()] == [False, True]
    for learner in (through, again):
        learner.learn(STREAM[2])
    assert equal(bits(through.model), bits(again.model))


class StoppedError(Exception):
    """In the middle of a task."""


def stop(progress, epochs):
    raise StoppedError


@pytest.mark.parametrize("name", ["joint", "ewc", "si", "queue-curvature", "interpolated-curvature", "a-gem", "ema"])
def test_going_on_in_the_middle_of_a_task_with_a_frozen_encoder(name, tmp_path):
    torch.manual_seed(0)
    nets = [Pretrained(), Pretrained(), Pretrained()]
    nets[1].load_state_dict(nets[0].state_dict())
    through, stopped = (eg.Learner(net, name, **SETTINGS) for net in nets[:2])
    for learner in (through, stopped):
        learner.learn(STREAM[0])
    through.learn(STREAM[1])
    with pytest.raises(StoppedError):
        stopped.learn(STREAM[1], on_epoch=stop)
    stopped.save(tmp_path / "c")
    again = eg.Learner.load(tmp_path / "c", model=nets[2])
    again.learn(STREAM[1])
    assert equal(bits(through.model), bits(again.model))


def test_a_model_without_a_trained_parameter_is_refused():
    net = Pretrained()
    net.requires_grad_(False)
    with pytest.raises(eg.EvergraphError, match="all parameters of the model are frozen"):
        eg.Learner(net, "finetune", **SETTINGS).learn(STREAM[0])


# from scratch


class Prompted(nn.Module):
    """A bare parameter, a running mean, and layers that can be drawn anew."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(5))
        self.register_buffer("steps", torch.zeros(()))
        self.first, self.second = GCNConv(5, 8), GCNConv(8, 6)

    def forward(self, x, edge_index):
        if self.training:
            self.steps += 1
        return self.second(self.first(x + self.prompt, edge_index).relu(), edge_index)


@pytest.mark.parametrize("name", ["joint", "gdumb", "puma"])
def test_from_scratch_returns_what_cannot_be_drawn_to_its_start(name, tmp_path):
    torch.manual_seed(0)
    net = Prompted()
    start = net.prompt.detach().clone()
    learner = eg.Learner(net, name, **SETTINGS)
    learner.learn(STREAM[0])
    assert not torch.equal(net.prompt, start)
    learner.save(tmp_path / "c")
    again = eg.Learner.load(tmp_path / "c", model=Prompted())  # another start, which a checkpoint replaces
    for one in (learner, again):
        one.learn(STREAM[1])
    assert equal(bits(learner.model), bits(again.model))
    first = learner.model.module.first.lin.weight.detach().clone()
    learner.model.start_over()
    assert torch.equal(net.prompt, start)
    assert float(net.steps) == 0
    assert not torch.equal(learner.model.module.first.lin.weight, first)


def test_within_vmap_parameters_side_by_side_are_trained():
    """Where nothing requires a gradient as far as torch says; a model of which a part is frozen steps alone."""
    model, _, _ = setting()
    assert not all_trained(model)
    model.weights[0].requires_grad_(True)
    assert all_trained(model)
    values = {
        name: torch.stack([value.detach(), value.detach()]).requires_grad_()
        for name, value in named_params(model).items()
    }
    names = []

    def of_one(own):
        with with_parameters(model, own):
            names.append(list(trained_params(model)))
            return sum(value.sum() for value in trained_params(model).values())

    torch.vmap(of_one)(values).sum().backward()
    assert names == [["weights.0", "weights.1"]]
    assert all((value.grad == 1).all() for value in values.values())
