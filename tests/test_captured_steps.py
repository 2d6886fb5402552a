"""Steps that a GPU records and repeats, checked without one: what they may not do, and what happens if they cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evergraph as eg
from cases import slow
from evergraph.core.capabilities import capable
from evergraph.core.params import copy_params
from evergraph.core.sparse import SparseMatrix
from evergraph.data.datasets.sbm import sbm
from evergraph.data.fixed_sampling import sampled_rows
from evergraph.data.streams import TaskStream
from evergraph.methods import make_method
from evergraph.methods.base import Method
from evergraph.models.gcn import gcn_operator
from evergraph.models.sage import mean_operator
from evergraph.training.executors import CapturedExecutor, WholeBatchExecutor
from evergraph.training.executors.recording import RecordingExecutor
from evergraph.training.executors.watch import Watch
from test_problems_end_to_end import STREAMS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*join the ends of validation and test links"),
    pytest.mark.filterwarnings("ignore:.*so that it is .* whatever is predicted"),
]

CPU = torch.device("cpu")


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps on a CPU go the way of steps on a GPU: watched, «captured», random numbers of the device's own."""
    monkeypatch.setattr(RecordingExecutor, "can_record", classmethod(lambda kind, context: True))
    monkeypatch.setattr("evergraph.training.executors.cuda_graphs.cuda_graph_of", lambda step: step)
    monkeypatch.setattr("evergraph.core.randomness.DEVICES", frozenset({"cpu", "cuda"}))
    monkeypatch.setattr("evergraph.methods.lwf.DEVICES", frozenset())
    monkeypatch.setattr("evergraph.training.optimizers.compiled_adam_suits", lambda params: False)


def small_stream() -> TaskStream:
    return TaskStream(sbm(nodes=72, classes=4, degree=5, features=6, signal=2.0, seed=0), 2)


def learned(
    stream: TaskStream, model: Any, method: Method, batch_size: int, epochs: int = 4
) -> tuple[eg.Learner, list[str], list[float]]:
    """A learner in float64 after two tasks; how the steps of each were carried out; all losses."""
    torch.manual_seed(0)  # for foreign modules
    settings = {"epochs": epochs, "batch_size": batch_size, "lr": 0.01}
    learner = eg.Learner(model() if callable(model) else model, method, dtype=torch.float64, device="cpu", **settings)
    ways: list[str] = []
    losses: list[float] = []
    for task in stream:
        said: list[str] = []
        log = learner.learn(task, on_epoch=lambda progress, epochs, said=said: said.append(progress.steps))
        losses += [row["loss"] for row in log]
        ways.append(said[-1] if said else "")
    return learner, ways, losses


# watching


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda x: float(x.sum()), "reads a value back"),
        (lambda x: bool((x > 0).all()), "reads a value back"),
        (lambda x: torch.equal(x, x + 1), "reads a value back"),
        (lambda x: torch.nonzero(x > 0), "size depends on values"),
        (lambda x: x.long().unique(), "size depends on values"),
        (lambda x: torch.repeat_interleave(torch.arange(3), torch.tensor([1, 2, 1])), "size depends on values"),
        (lambda x: x[x > 0], "by a mask"),
        (lambda x: x.clone().index_put_((x > 0,), torch.ones(int(x.numel()))[: x.numel()]), "by a mask"),
    ],
)
def test_a_watch_finds_what_cannot_be_repeated(step: Callable[[Tensor], object], reason: str) -> None:
    x = torch.arange(1.0, 5.0)
    with Watch(CPU) as watch:
        step(x)
    assert reason in watch.reason
    assert "test_captured_steps.py, line" in watch.reason  # where


def test_a_watch_has_nothing_against_fixed_shapes() -> None:
    x = torch.arange(1.0, 5.0, requires_grad=True)
    with Watch(CPU) as watch:
        y = x * F.dropout(x, 0.5)
        filled = y.detach().clone()
        filled[filled > 1] = 0.0
        torch.repeat_interleave(torch.arange(3), torch.tensor([1, 2, 1]), output_size=4)
        (y[torch.tensor([0, 2])].sum() + y.where(y > 0, 0).sum()).backward()
    assert watch.reason == ""


def test_a_watch_looks_into_the_backward_pass() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0] * float(grads[0].sum())

    x = torch.ones(3, requires_grad=True)
    with Watch(CPU) as watch:
        Reads.apply(x).sum().backward()
    assert "reads a value back" in watch.reason


# every method and every model that says so


METHODS = sorted(set(eg.registry.methods) - {"analytic", "auto"})  # whose models have no training steps


@pytest.mark.parametrize(("name", "batch_size"), [*((name, 8) for name in METHODS), ("twp", 0), ("lwf", 0), ("si", 0)])
@pytest.mark.usefixtures("recording")
def test_steps_of_methods_that_say_so_can_be_repeated(name: str, batch_size: int) -> None:
    """Two tasks; what a method's declaration does not keep, the watch finds."""
    short = {"tpp": {"pretrain_epochs": 2}, "pi-gnn": {"rectify_epochs": 2}, "delome": {"networks": 2}}
    short |= {"cat": {"networks": 2}, "puma": {"networks": 2, "updates": 2, "pseudo_label_epochs": 2}}
    method = make_method(name, short.get(name, {}))
    claim = capable(method, "steps_can_be_captured")
    assert claim is not None, "every method of the package says whether its steps can be captured"
    model = (lambda: eg.GCN(hidden=8)) if method.model == "gcn" else None
    _, ways, _ = learned(small_stream(), model, method, batch_size, epochs=3)
    expected = {"gem": "gem solves its quadratic programme on the CPU", "hpn": "hpn makes prototypes one by one"}
    if name in expected:
        assert ways[1].startswith(f"eager: {expected[name]}")
    else:
        assert ways == ["captured", "captured"]


@pytest.mark.parametrize("batch_size", [0, 8])
@pytest.mark.usefixtures("recording")
def test_a_queue_of_rows_of_the_first_layer_can_be_repeated(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU takes sparse inputs."""
    monkeypatch.setattr("evergraph.methods.online_curvature.queue.factors_pay", lambda context: False)
    graph = sbm(nodes=72, classes=4, degree=5, features=6, signal=2.0, seed=0)
    words = SparseMatrix.from_dense(graph.x * (graph.x > 0.5)).to_scipy()
    stream = TaskStream(eg.make_graph(words, graph.edge_index, graph.y), 2)
    _, ways, _ = learned(stream, lambda: eg.GCN(hidden=5), make_method("queue-curvature"), batch_size)
    assert ways == ["captured", "captured"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("reservoir", {"replay_size": 3}),
        ("a-gem", {"replay_size": 3}),
        ("delome", {"replay_size": 3, "networks": 2}),
        ("fgn", {"per_class": 3}),
        ("pi-gnn", {"per_class": 3, "rectify_epochs": 3}),
        ("tpp", {"pretrain_epochs": 3}),
        ("curvature", {"estimator": "sampled"}),
        ("curvature", {"estimator": "queue"}),
        ("interpolated-curvature", {"estimator": "sampled"}),
        ("ewc++", {"labels": "sample"}),
        ("ema+ewc", {}),
        ("ssm+curvature", {"nodes": "memory"}),
    ],
)
@pytest.mark.usefixtures("recording")
def test_draws_within_a_step_can_be_repeated(name: str, settings: dict[str, Any]) -> None:
    _, ways, losses = learned(small_stream(), None, make_method(name, settings), 8, epochs=4)
    assert ways == ["captured", "captured"]
    assert all(loss < 100 for loss in losses)


def foreign(kind: str) -> Callable[[], nn.Module]:
    """PyG modules, as a user brings them."""

    class Network(nn.Module):
        def __init__(self) -> None:
            from torch_geometric import nn as pyg

            super().__init__()
            self.first, self.second = pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 4)
            self.norm = nn.BatchNorm1d(8) if kind == "batch norm" else nn.LayerNorm(8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            hidden = self.norm(self.first(x, edge_index)).relu()
            if kind == "waits":
                hidden = hidden / (1 + float(self.norm.weight.detach().abs().max()))
            if kind == "dropout":
                hidden = F.dropout(hidden, 0.5, self.training)
            out: Tensor = self.second(hidden, edge_index)
            return out

    return Network


MODELS: dict[str, Any] = {
    "gcn": lambda: eg.GCN(hidden=8),
    "gcn, three layers": lambda: eg.GCN(hidden=8, num_layers=3),
    "gcn, dropout": lambda: eg.GCN(hidden=8, dropout=0.5),
    "sage": lambda: eg.GraphSAGE(hidden=8),
    "gat": lambda: eg.GAT(hidden=8, heads=2),
    "gin": lambda: eg.GIN(hidden=8),
    "pdgnn": lambda: eg.PDGNN(hidden=8),
    "gcn-layer-norm": lambda: eg.registry.models["gcn-layer-norm"](hidden=8),
    "PyG": foreign("plain"),
    "PyG, dropout": foreign("dropout"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch_size", [slow(0), 8])
@pytest.mark.usefixtures("recording")
def test_steps_of_models_can_be_repeated(name: str, batch_size: int) -> None:
    _, ways, _ = learned(small_stream(), MODELS[name], make_method("ewc"), batch_size)
    assert ways == ["captured", "captured"]


PAIRS = [(name, "curvature") for name in MODELS if "dropout" not in name]


@pytest.mark.parametrize(("name", "method"), [*PAIRS, ("gcn", "finetune"), ("gat", "lwf"), ("sage", "reservoir")])
def test_rows_of_one_pass_are_the_batches(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mini-batches as rows of a pass over the whole task: the training is the plain one to float tolerance."""
    plain, _, plain_losses = learned(small_stream(), MODELS[name], make_method(method), 8)
    monkeypatch.setattr(CapturedExecutor, "suits", classmethod(lambda kind, context, method: False))
    monkeypatch.setattr(WholeBatchExecutor, "suits", classmethod(lambda kind, context, method: True))
    found, _, losses = learned(small_stream(), MODELS[name], make_method(method), 8)
    assert losses == pytest.approx(plain_losses, rel=1e-8)
    for key, value in copy_params(plain.model).items():
        torch.testing.assert_close(found.model.get_parameter(key).detach(), value, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("problem", STREAMS)
@pytest.mark.parametrize("batch_size", [slow(0), 8])
@pytest.mark.usefixtures("recording")
def test_steps_of_every_problem_can_be_repeated(problem: str, batch_size: int) -> None:
    learner = eg.Learner(
        eg.GCN(hidden=8), "lwf+curvature", problem=problem, epochs=3, batch_size=batch_size, device="cpu"
    )
    for task in list(STREAMS[problem]())[:2]:
        said: list[str] = []
        learner.learn(task, on_epoch=lambda progress, epochs, said=said: said.append(progress.steps))
        assert said[-1] == "captured"


@pytest.mark.parametrize(
    ("kind", "batch_size", "reason"),
    [
        ("waits", 0, "it reads a value back (_local_scalar_dense in test_captured_steps.py, line"),
        ("waits", 8, "it reads a value back (_local_scalar_dense in test_captured_steps.py, line"),
        ("batch norm", 8, "its outputs while training depend on the other examples of a batch"),
    ],
)
@pytest.mark.usefixtures("recording")
def test_a_module_that_cannot_be_captured_says_why(kind: str, batch_size: int, reason: str) -> None:
    _, ways, _ = learned(small_stream(), foreign(kind), Method(), batch_size)
    assert all(way.startswith("eager: ") and reason in way for way in ways)


@pytest.mark.parametrize("batch_size", [0, 8])
@pytest.mark.parametrize(
    ("model", "way"),
    [
        (lambda: eg.GCN(hidden=8, propagate_inputs=False), "captured"),
        (lambda: eg.GraphSAGE(hidden=8, num_layers=3), "captured"),
        (lambda: eg.GAT(hidden=8, heads=2), "eager: its batches are not padded; sampled neighbourhoods have no fixed"),
    ],
)
@pytest.mark.usefixtures("recording")
def test_steps_that_sample_neighbours_can_be_repeated(model: Callable[[], Any], way: str, batch_size: int) -> None:
    """Where a model goes by weights; elsewhere it says why not."""
    stream, said = small_stream(), list[str]()
    learner = eg.Learner(model(), "lwf+curvature", epochs=10, batch_size=batch_size, fan_out=(2, 2), lr=0.04)
    for task in stream:
        losses = learner.learn(task, on_epoch=lambda progress, epochs: said.append(progress.steps))
        assert losses[-1]["loss"] < 0.7 * losses[0]["loss"]
    assert said[-1].startswith(way if batch_size else way.replace("its batches are not padded; ", ""))


def test_rows_of_a_fixed_size_are_an_unbiased_draw() -> None:
    graph = sbm(nodes=40, classes=2, degree=6, features=1, seed=0)
    for operator in (gcn_operator(graph), mean_operator(graph)):  # with self-loops and without
        exact, generator = operator.dense(), torch.Generator().manual_seed(0)
        drawn = torch.stack([sampled_rows(operator, 3, generator).dense() for _ in range(1000)])
        loops = int(bool(exact.diagonal().any()))
        assert int((drawn != 0).sum(2).max()) == 3 + loops
        few = operator.counts() - loops <= 3
        assert torch.allclose(drawn[:, few], exact[few])  # short rows are whole, at every draw
        error = (drawn.mean(0) - exact).abs()
        assert bool((error <= 5 * drawn.std(0) / 1000**0.5 + 1e-12).all())


@pytest.mark.usefixtures("recording")
def test_methods_that_do_not_say_are_not_captured() -> None:
    stream = small_stream()

    class Curious(Method):
        name = "curious"

        def after_step(self, step: object) -> None:
            """Looks at every step."""

    _, ways, _ = learned(stream, MODELS["gcn"], Curious(), 0, epochs=1)
    assert ways[0] == "eager: curious does not say that its steps are the same kernels every time"


def test_on_a_cpu_nothing_is_captured() -> None:
    _, ways, _ = learned(small_stream(), MODELS["gcn"], Method(), 8, epochs=1)
    assert ways == ["eager: on a CPU"] * 2


# captures that fail


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        pytest.param(name, size, marks=[] if (name, size) in {("curvature", 0), ("reservoir", 8)} else pytest.mark.slow)
        for name in ("curvature", "si", "reservoir", "ewc++")
        for size in (0, 8)
    ],
)
@pytest.mark.usefixtures("recording")
def test_a_capture_that_fails_leaves_the_training_as_it_was(
    name: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that fails half-way, after Python's part of the step was done: the run goes on, with equal results."""
    settings = {"replay_size": 3} if name == "reservoir" else {"labels": "sample"} if name == "ewc++" else {}
    expected, ways, losses = learned(small_stream(), MODELS["gcn"], make_method(name, settings), batch_size)
    assert ways == ["captured"] * 2

    def fails(step: Any) -> Callable[[], Tensor]:
        """All that a capture does but to numbers on a device, then an error."""
        optimizer = (step.keywords or step.func.__self__.train_step.keywords)["optimizer"]
        params = [value for group in optimizer.param_groups for value in group["params"]]
        before = [value.detach().clone() for value in params], copy.deepcopy(optimizer.state_dict())
        step()
        with torch.no_grad():
            for value, old in zip(params, before[0]):
                value.copy_(old)
        optimizer.load_state_dict(before[1])
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr("evergraph.training.executors.cuda_graphs.cuda_graph_of", fails)
    found, ways, failed_losses = learned(small_stream(), MODELS["gcn"], make_method(name, settings), batch_size)
    assert ways == ["eager: its capture failed (operation not permitted when stream is capturing)"] * 2
    assert failed_losses == losses
    assert all(torch.equal(value, found.model.get_parameter(key)) for key, value in copy_params(expected.model).items())


def test_one_layer_on_propagated_inputs_has_no_rows_to_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WholeBatchExecutor, "suits", classmethod(lambda *_: True))
    learner = eg.Learner(eg.GCN(num_layers=1), "ewc", epochs=2, batch_size=8, device="cpu")
    learner.learn(eg.stream("sbm:nodes=100,classes=4")[0])
    assert learner.history[-1]["steps"]
