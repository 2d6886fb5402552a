"""The one loop: what a step computes, what a task leaves behind, and that it repeats."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric import nn as pyg

import evergraph as eg
from evergraph.core.params import copy_params
from evergraph.data import union
from evergraph.evaluation import average_forgetting, average_performance
from evergraph.methods.base import STEP_HOOKS, Context, Step
from evergraph.training.learning import make_context
from evergraph.training.member import Progress
from evergraph.training.optimizers import load_optimizer, make_optimizer, optimizer_state

pytestmark = pytest.mark.filterwarnings("ignore:.*was learned already")

FAST = {"epochs": 3, "lr": 0.01, "device": "cpu"}


def learner(method: eg.Method | None = None, **settings: object) -> eg.Learner:
    return eg.Learner(eg.GCN(hidden=16), method or eg.Finetune(), **{**FAST, **settings})


def matrix(learner: eg.Learner, stream: eg.TaskStream) -> list[list[float | None]]:
    rows = []
    for task in stream:
        learner.learn(task)
        measured = learner.evaluate(stream).accuracies
        rows.append([*measured, *[None] * (len(stream) - len(measured))])
    return rows


class Recorder(eg.Method):
    """Writes down what the loop does."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.steps: list[Step] = []
        self.grads: list[dict[str, Tensor]] = []
        self.params: list[dict[str, Tensor]] = []

    def prepare(self, context: Context) -> None:
        self.calls.append("prepare")

    def start_task(self, context: Context) -> None:
        self.calls.append("start_task")

    def training_data(self, context: Context) -> None:
        self.calls.append("training_data")

    def epochs(self, context: Context, planned: int) -> int:
        self.calls.append("epochs")
        return planned

    def directions(self, context: Context) -> list:
        self.calls.append("directions")
        self.params.append(copy_params(context.model))
        return []

    def loss_outputs(self, context: Context, outputs: Tensor) -> Tensor:
        self.calls.append("loss_outputs")
        return outputs

    def loss(self, step: Step) -> None:
        self.calls.append("loss")

    def penalty(self, step: Step) -> None:
        self.calls.append("penalty")

    def logit_cotangent(self, step: Step) -> None:
        self.calls.append("logit_cotangent")

    def replay(self, step: Step) -> list[eg.Replay]:
        self.calls.append("replay")
        return []

    def observe(self, step: Step) -> None:
        self.calls.append("observe")

    def edit_grads(self, step: Step) -> None:
        self.calls.append("edit_grads")
        self.steps.append(step)
        self.grads.append({name: p.grad.clone() for name, p in step.model.named_parameters()})

    def after_step(self, step: Step) -> None:
        self.calls.append("after_step")

    def end_task(self, context: Context) -> None:
        self.calls.append("end_task")

    def adapt_model(self, model: eg.GraphModel, task: eg.Task) -> None:
        self.calls.append("adapt_model")

    def predict(self, view: eg.View) -> None:
        self.calls.append("predict")


def test_hooks_run_in_the_order_of_the_contract(small_stream: eg.TaskStream) -> None:
    recorder = Recorder()
    learner(recorder, epochs=2, batch_size=0).learn(small_stream[0])
    entering = ["adapt_model", "start_task", "training_data", "prepare", "epochs"]
    step = [
        "directions", "loss_outputs", "loss", "penalty", "logit_cotangent",
        "replay", "observe", "edit_grads", "after_step",
    ]  # fmt: skip
    assert step == list(STEP_HOOKS)
    # validation nodes calibrate and say what is familiar; then the first accuracy: by the method's own prediction
    assert recorder.calls == [*entering, *step, *step, "end_task", *["predict"] * 2]


def by_hand(recorder: Recorder, loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The gradient of a loss of (logits, labels) at the first recorded step, by autograd on a fresh model."""
    step, params = recorder.steps[0], recorder.params[0]
    params = {name: value.to(dtype).requires_grad_() for name, value in params.items()}
    logits = torch.func.functional_call(step.model, params, (step.batch,))
    grads = torch.autograd.grad(loss(logits, step.batch.y), list(params.values()))
    return dict(zip(params, grads))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("scope", ["seen", "current", "all"])
def test_a_steps_gradient_is_that_of_the_scoped_cross_entropy(
    small_stream: eg.TaskStream, scope: str, reduction: str
) -> None:
    recorder = Recorder()
    made = learner(recorder, label_scope=scope, reduction=reduction, epochs=1, batch_size=4)
    made.learn(small_stream[0])
    recorder.__init__()
    made.learn(small_stream[1])
    units = {"current": [2, 3], "seen": [0, 1, 2, 3], "all": [0, 1, 2, 3, 4, 5]}[scope]

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        scoped = logits[:, units]
        nodes = -torch.stack([scoped[v].log_softmax(0)[units.index(int(y[v]))] for v in range(len(y))])
        return nodes.sum() if reduction == "sum" else nodes.mean()

    expected = by_hand(recorder, loss, torch.float32)
    for name, grad in recorder.grads[0].items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)


def test_the_class_balanced_loss_follows_its_formula(small_graph: eg.Graph) -> None:
    """Each node weighs n / (C n_y): classes count alike, and the weights have mean one over the nodes."""
    keep = torch.cat([(small_graph.y == 0).nonzero()[:6], (small_graph.y == 1).nonzero()]).reshape(-1)
    task = eg.Task.of(small_graph.subgraph(keep))
    recorder = Recorder()
    made = learner(recorder, class_balanced=True, reduction="mean", epochs=1, batch_size=0)
    made.learn(task)
    labels = task.graph.y[task.train]
    counts = torch.bincount(labels)
    assert counts[0] != counts[1]
    weights = len(labels) / (2 * counts.float())
    torch.testing.assert_close(weights[labels].mean(), torch.tensor(1.0))

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return (weights[y] * F.cross_entropy(logits[:, :2], y, reduction="none")).sum() / len(y)

    expected = by_hand(recorder, loss, torch.float32)
    for name, grad in recorder.grads[0].items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("scope", "moved"), [("current", [2, 3]), ("seen", [0, 1, 2, 3]), ("all", [0, 1, 2, 3, 4, 5])])
def test_outputs_outside_the_label_scope_stay_where_they_are(
    small_stream: eg.TaskStream, scope: str, moved: list[int]
) -> None:
    made = learner(label_scope=scope, weight_decay=0.0)
    made.learn(small_stream[0])
    before = made.model.weights[-1].detach().clone()
    made.learn(small_stream[1])
    changed = (made.model.weights[-1].detach() != before).any(0).nonzero().reshape(-1).tolist()
    assert changed == moved


def test_batches_of_an_epoch_are_a_random_cover_of_the_training_nodes(small_stream: eg.TaskStream) -> None:
    task = small_stream[0]
    for size, steps in ((5, -(-task.train.numel() // 5)), (0, 1), (10_000, 1)):
        recorder = Recorder()
        learner(recorder, epochs=2, batch_size=size).learn(task)
        assert len(recorder.steps) == 2 * steps
        epochs = [
            torch.cat([s.batch.nodes[: s.batch.num_seeds] for s in recorder.steps[i * steps :][:steps]]) for i in (0, 1)
        ]
        for seeds in epochs:
            assert sorted(seeds.tolist()) == task.train.tolist()
        assert epochs[0].tolist() != epochs[1].tolist()


def test_the_log_has_one_row_an_epoch_and_the_loss_falls(small_stream: eg.TaskStream) -> None:
    log = learner(epochs=12).learn(small_stream[0])
    assert [row["epoch"] for row in log] == list(range(1, 13))
    assert log[-1]["loss"] < log[0]["loss"] / 2


def test_early_stopping_goes_back_to_the_best_epoch(small_stream: eg.TaskStream) -> None:
    task = small_stream[0]
    made = learner(epochs=400, lr=0.05, patience=4, weight_decay=0.0)
    log = made.learn(task)
    losses = [row["validation_loss"] for row in log]
    best = min(losses)
    assert len(log) < 400
    assert len(log) == losses.index(best) + 1 + 4
    logits = made.logits(task.graph, task.val)[:, :2]
    assert float(F.cross_entropy(logits, task.graph.y[task.val])) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("name", ["si", "ewc++", "si+lwf", "ewc", "reservoir"])
def test_early_stopping_goes_back_to_what_was_measured_by_then(
    small_stream: eg.TaskStream, tmp_path: Path, name: str
) -> None:
    """A task that is stopped early ends in the state that one of so many epochs ends in, and resumes into it."""
    settings = {"lr": 0.05, "weight_decay": 0.0, "batch_size": 16, "device": "cpu"}
    made = eg.Learner(eg.GCN(hidden=16), name, epochs=400, patience=4, **settings)

    def save(progress: Progress, planned: int) -> None:
        if progress.waited == 2:
            made.save(tmp_path / "waiting")

    losses = [row["validation_loss"] for row in made.learn(small_stream[0], save)]
    want = eg.Learner(eg.GCN(hidden=16), name, epochs=losses.index(min(losses)) + 1, **settings)
    want.learn(small_stream[0])
    again = eg.Learner.load(tmp_path / "waiting", device="cpu")
    again.learn(small_stream[0])
    assert len(losses) == want.history[0]["epochs"] + 4
    for found in (made, again):
        assert alike(found.method.state_dict(), want.method.state_dict()) or name == "reservoir"  # draws come later
        assert all(torch.equal(*pair) for pair in zip(found.model.parameters(), want.model.parameters()))
    assert alike(made.method.state_dict(), again.method.state_dict())


def alike(one: object, other: object) -> bool:
    """Whether two trees of state hold the same bits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other


class Normalized(torch.nn.Module):
    """A network with running statistics."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.norm = pyg.GCNConv(features, 8), torch.nn.BatchNorm1d(8)
        self.second = pyg.GCNConv(8, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


def normalized(stream: eg.TaskStream, method: str = "finetune", **settings: object) -> eg.Learner:
    torch.manual_seed(0)
    module = Normalized(stream.num_features, stream.num_classes).double()
    given = {"lr": 0.05, "weight_decay": 0.0, "batch_size": 16, "device": "cpu", "dtype": torch.float64, **settings}
    return eg.Learner(module, method, **given)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_early_stopping_goes_back_to_the_averages_that_the_next_task_goes_on_with(
    small_stream: eg.TaskStream, optimizer: str
) -> None:
    settings = {"lr": 0.05 if optimizer == "adam" else 0.01, "optimizer": optimizer, "keep_optimizer": True}
    made = learner(epochs=200, patience=4, **settings)
    losses = [row["validation_loss"] for row in made.learn(small_stream[0])]
    want = learner(epochs=losses.index(min(losses)) + 1, **settings)
    want.learn(small_stream[0])
    assert len(losses) == want.history[0]["epochs"] + 4
    assert alike(made.optimizer_state, want.optimizer_state)


def test_early_stopping_goes_back_to_the_running_statistics_too(small_stream: eg.TaskStream) -> None:
    made = normalized(small_stream, epochs=200, patience=5)
    losses = [row["validation_loss"] for row in made.learn(small_stream[0])]
    want = normalized(small_stream, epochs=losses.index(min(losses)) + 1)
    want.learn(small_stream[0])
    assert len(losses) == want.history[0]["epochs"] + 5
    assert alike(dict(made.model.state_dict()), dict(want.model.state_dict()))


def test_running_statistics_are_averaged_with_the_parameters(small_stream: eg.TaskStream) -> None:
    """Over epochs (`average_last`) and over tasks (`ema`), written out; a count is the last."""
    seen: list[dict[str, Tensor]] = []
    made = normalized(small_stream, "ema", epochs=4, average_last=0.5)

    def note(progress: Progress, planned: int) -> None:
        seen.append({name: value.clone() for name, value in made.model.state_dict().items()})

    made.learn(small_stream[0], note)
    first = {name: value.clone() for name, value in made.model.state_dict().items()}
    made.learn(small_stream[1], note)
    counts = [name for name, value in first.items() if not value.is_floating_point()]
    assert counts == ["module.norm.num_batches_tracked"]
    for name, value in made.model.state_dict().items():
        if name in counts:
            assert value == seen[7][name]
            continue
        assert torch.allclose(first[name], (seen[2][name] + seen[3][name]) / 2, rtol=0, atol=1e-12), name
        assert torch.allclose(value, (first[name] + (seen[6][name] + seen[7][name]) / 2) / 2, rtol=0, atol=1e-12), name


def test_early_stopping_without_validation_nodes_is_refused(small_graph: eg.Graph) -> None:
    task = eg.Task.of(small_graph)
    task.val = task.val[:0]
    with pytest.raises(eg.EvergraphError, match="patience=2 needs validation examples, and the task has none"):
        learner(patience=2).learn(task)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("gdumb", "gdumb trains on its memory alone"),
        ("cat", "cat trains on its memory alone"),
        ("puma+logit-adjustment", "puma trains on its memory alone"),
        (eg.Joint(learn_validation=True), "joint trains on them too"),
    ],
)
def test_early_stopping_is_refused_where_validation_nodes_are_not_kept_apart(
    method: str | eg.Method, reason: str
) -> None:
    with pytest.raises(eg.EvergraphError, match=f"patience=3 needs validation examples, and {reason}.*set patience"):
        eg.Learner(method=method, patience=3)
    eg.Learner(method=method)


class Elsewhere(eg.Method):
    """Adds something infinite to the loss, whose gradient is finite."""

    def penalty(self, step: Step) -> Tensor:
        return step.logits.new_tensor(torch.inf)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_all_that_a_step_goes_down_on_has_to_be_finite(small_stream: eg.TaskStream, reduction: str) -> None:
    with pytest.raises(eg.EvergraphError, match=r"task 1, epoch 1: .* what the method adds to it"):
        learner(Elsewhere(), reduction=reduction).learn(small_stream[0])


def test_descent_moves_a_parameter_whose_first_gradient_comes_later() -> None:
    """As the same rule without fused kernels does; and where the kept velocity of one alone is taken up."""
    model, plain = (torch.nn.ParameterDict({"a": torch.ones(3), "b": torch.ones(2)}).double() for _ in range(2))
    settings = eg.Training(optimizer="sgd", lr=0.1, weight_decay=0.01)
    optimizer = make_optimizer(model, settings)
    expected = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False)
    for step in range(5):
        if step == 3:
            kept = optimizer_state(model, optimizer)
            optimizer = make_optimizer(model, settings)
            load_optimizer(model, optimizer, {"a": kept["a"]})
            del expected.state[plain["b"]]
        for params, moved in ((model, optimizer), (plain, expected)):
            moved.zero_grad(set_to_none=True)
            loss = params["a"].pow(3).sum() + (params["b"].square().sum() if step else 0.0)
            loss.backward()
            moved.step()
    for name in ("a", "b"):
        assert torch.allclose(model[name], plain[name], rtol=0, atol=1e-14)


def test_one_seed_one_matrix_bit_for_bit(small_stream: eg.TaskStream) -> None:
    def run(seed: int) -> tuple[list[list[float | None]], dict[str, Tensor]]:
        made = learner(seed=seed, batch_size=8, fan_out=(2, 2))
        return matrix(made, small_stream), copy_params(made.model)

    torch.manual_seed(123)
    first, params = run(0)
    torch.manual_seed(456)
    torch.rand(7)
    again, same = run(0)
    other, different = run(1)
    assert first == again
    assert all(torch.equal(params[name], same[name]) for name in params)
    assert not any(torch.equal(params[name], different[name]) for name in params)
    assert first != other


def test_a_learner_leaves_everybody_elses_random_numbers_alone(small_stream: eg.TaskStream) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    made = eg.Learner(eg.GCN(hidden=16, dropout=0.3), eg.Finetune(), fan_out=(3, 3), **FAST)
    for task in small_stream:
        made.learn(task)
    made.evaluate(small_stream)
    made.grow(9)
    assert torch.equal(torch.get_rng_state(), state)


def test_learning_does_not_depend_on_being_watched(small_stream: eg.TaskStream) -> None:
    """Evaluating in between, or passing a hook, changes nothing in what is learned."""
    alone, watched = learner(batch_size=8), learner(batch_size=8)
    for task in small_stream:
        alone.learn(task)
        watched.learn(task, on_epoch=lambda progress, epochs: torch.rand(3))
        watched.evaluate(small_stream)
        torch.rand(11)
    assert all(torch.equal(a, b) for a, b in zip(alone.model.parameters(), watched.model.parameters()))


def test_dropout_is_on_while_training_and_off_while_testing(small_stream: eg.TaskStream) -> None:
    made = eg.Learner(eg.GCN(hidden=16, dropout=0.5), eg.Finetune(), epochs=30, lr=0.02, device="cpu")
    made.learn(small_stream[0])
    plain = eg.Learner(eg.GCN(hidden=16), eg.Finetune(), epochs=30, lr=0.02, device="cpu")
    plain.learn(small_stream[0])
    assert not torch.equal(made.model.weights[0], plain.model.weights[0])
    task = small_stream[0]
    assert torch.equal(made.logits(task.graph, task.test), made.logits(task.graph, task.test))
    assert made.evaluate(small_stream).ap > 70


def test_training_on_sampled_neighbours(small_stream: eg.TaskStream) -> None:
    exact, sampled, of_all = (learner(fan_out=fan_out, epochs=15, lr=0.02) for fan_out in (None, (2, 2), (1000, 1000)))
    for one in (exact, sampled, of_all):
        one.learn(small_stream[0])
        assert one.evaluate(small_stream).ap > 70

    def same(one: eg.Learner) -> bool:
        return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one.model.parameters(), exact.model.parameters()))

    assert same(of_all)
    assert not same(sampled)


def test_full_batch_training_learns(small_stream: eg.TaskStream) -> None:
    made = learner(batch_size=0, epochs=60)
    made.learn(small_stream[0])
    assert made.evaluate(small_stream).ap > 70


@pytest.mark.parametrize(
    "make", [lambda: eg.GraphSAGE(hidden=16), lambda: eg.GAT(hidden=16), lambda: pyg.GIN(8, 16, 2, 6)]
)
def test_other_models_learn(small_stream: eg.TaskStream, make: Callable[[], torch.nn.Module]) -> None:
    made = eg.Learner(make(), eg.Finetune(), epochs=40, lr=0.01, device="cpu")
    made.learn(small_stream[0])
    assert made.evaluate(small_stream).ap > 70


def test_float64_all_the_way(small_stream: eg.TaskStream) -> None:
    made = eg.Learner(eg.GCN(hidden=16), eg.Finetune(), dtype=torch.float64, **FAST)
    assert made.fit(small_stream) is made
    assert {parameter.dtype for parameter in made.model.parameters()} == {torch.float64}
    assert made.logits(small_stream[0].graph, small_stream[0].test).dtype == torch.float64


def test_fine_tuning_forgets_and_joint_training_does_not() -> None:
    stream = eg.stream("digits")

    def run(method: eg.Method, **settings: object) -> list[list[float | None]]:
        settings = {"epochs": 10, "lr": 3e-3, "batch_size": 64, "device": "cpu", **settings}
        return matrix(eg.Learner(eg.GCN(hidden=32), method, **settings), stream)

    tuned, seen, joint = run(eg.Finetune()), run(eg.Finetune(), label_scope="seen"), run(eg.Joint())
    assert average_forgetting(tuned) < -40
    assert average_forgetting(seen) < -90
    assert min(row[index] for index, row in enumerate(seen)) > 90  # every task is learned well, then lost
    assert average_forgetting(joint) > -5
    assert average_performance(joint) > 90


def test_joint_training_starts_anew_with_each_task(small_stream: eg.TaskStream) -> None:
    """After the last task it is the model trained on all data at once, whatever came before."""
    made = learner(eg.Joint(), epochs=0)
    made.fit(small_stream)
    first = copy_params(made.model)
    made.learn(small_stream[2])
    assert not any(torch.equal(first[name], value) for name, value in copy_params(made.model).items())


def plain_tasks(graph: eg.Graph, sparse: bool) -> list[eg.Task]:
    """Three tasks that come on their own, each with a graph and class names of its own."""
    names, tasks = [f"class {position}" for position in range(graph.num_classes)], []
    for first in (0, 2, 4):
        part = graph.subgraph(torch.isin(graph.y, torch.tensor([first, first + 1])).nonzero().reshape(-1))
        x = sp.csr_matrix(part.x.numpy()) if sparse else part.x
        made = eg.make_graph(x, part.edge_index, part.y - first, class_names=names[first : first + 2])
        tasks.append(eg.Task.of(made))
    return tasks


@pytest.mark.parametrize("sparse", [False, True], ids=["dense features", "sparse features"])
def test_joint_training_keeps_tasks_that_come_on_their_own(small_graph: eg.Graph, sparse: bool, tmp_path: Path) -> None:
    """After each task it is training anew on the union of all so far, bit for bit, and a saved learner goes on so."""
    tasks = plain_tasks(small_graph, sparse)

    def fresh() -> eg.Learner:
        model = eg.GCN(hidden=16)
        model.setup(8, 6)  # each task draws the parameters anew, so it does not matter what they are here
        return eg.Learner(model, eg.Joint(), **{**FAST, "batch_size": 16, "epochs": 5})

    made = fresh()
    for index, task in enumerate(tasks):
        assert task.so_far is None
        alone = fresh()
        alone.random_state = made.random_state
        made.save(tmp_path / f"before-{index}")
        log = made.learn(task, lambda progress, epochs: made.save(tmp_path / "within") if progress.epoch == 2 else None)
        assert log == alone.learn(union(tasks[: index + 1]))
        assert made.classes_ == alone.classes_ == [f"class {position}" for position in range(2 * index + 2)]
        for name, value in copy_params(alone.model).items():
            assert torch.equal(value, copy_params(made.model)[name]), (index, name)
        for folder in (f"before-{index}", "within"):
            loaded = eg.Learner.load(tmp_path / folder, device="cpu")
            assert loaded.in_mid_task == (folder == "within")
            loaded.learn(task)
            for name, value in copy_params(made.model).items():
                assert torch.equal(value, copy_params(loaded.model)[name]), (folder, name)
        assert len(made.method.kept_) == index + 1
    everything = union(tasks)
    predicted = made.predict(everything.graph, everything.test)
    truth = [everything.graph.class_names[position] for position in everything.graph.y[everything.test].tolist()]
    assert sum(a == b for a, b in zip(predicted, truth)) > 0.6 * len(truth)
    assert made.method.access.keeps == ("graphs",)


def test_joint_training_on_a_stream_keeps_nothing_of_its_own(small_stream: eg.TaskStream) -> None:
    made = learner(eg.Joint())
    seen: list[int] = []
    for index, task in enumerate(small_stream):
        made.learn(task, lambda progress, epochs: seen.append(progress.epoch))
        assert made.method.kept_ == []
        assert made.history[index]["classes"] == task.class_names
    assert seen == 3 * [1, 2, 3]


@pytest.mark.parametrize("test_graph", ["task", "seen"])
def test_evaluation_is_the_argmax_over_the_classes_seen(small_graph: eg.Graph, test_graph: str) -> None:
    stream = eg.TaskStream(small_graph, 2, test_graph=test_graph)
    made = learner(label_scope="seen", epochs=10)
    for after, task in enumerate(stream):
        made.learn(task)
        found = made.evaluate(stream).accuracies
        assert len(found) == after + 1
        for index in range(after + 1):
            graph, nodes = stream.tests(after, index)
            logits = made.logits(graph, nodes)[:, : 2 * after + 2]
            right = [int(row.argmax()) == int(graph.y[node]) for row, node in zip(logits, nodes)]
            assert found[index] == pytest.approx(100 * sum(right) / len(right))


def test_task_incremental_evaluation_chooses_among_the_tasks_own_classes(small_graph: eg.Graph) -> None:
    by_class, by_task = eg.TaskStream(small_graph, 2), eg.TaskStream(small_graph, 2, task_incremental=True)
    made = learner(label_scope="seen", epochs=20)
    for task in by_class:
        made.learn(task)
    task = by_class[0]
    logits = made.logits(task.graph, task.test)
    right = (logits[:, :2].argmax(1) == task.graph.y[task.test]).double().mean()
    assert made.evaluate(by_task).accuracies[0] == pytest.approx(100 * float(right))
    assert made.evaluate(by_task).accuracies[0] > made.evaluate(by_class).accuracies[0] + 20


def test_class_balanced_accuracy(small_graph: eg.Graph) -> None:
    keep = torch.cat([(small_graph.y == 0).nonzero()[:5], (small_graph.y > 0).nonzero()]).reshape(-1)
    stream = eg.TaskStream(small_graph.subgraph(keep), 6)
    made = learner(epochs=4)
    made.learn(stream[0])
    task = stream[0]
    predicted, truth = made.logits(task.graph, task.test).argmax(1), task.graph.y[task.test]
    means = [float((predicted[truth == c] == c).double().mean()) for c in truth.unique().tolist()]
    assert made.evaluate(stream, balanced=True).ap == pytest.approx(100 * sum(means) / len(means))
    assert made.evaluate(stream, balanced=True).ap != pytest.approx(made.evaluate(stream).ap)
    named = made.evaluate(stream, balanced=True, metric="balanced-accuracy")
    assert named.ap == made.evaluate(stream, balanced=True).ap
    with pytest.raises(eg.EvergraphError, match="balanced=True is short for balanced-accuracy, not accuracy"):
        made.evaluate(stream, balanced=True, metric="accuracy")


def test_streams_in_another_class_order_are_matched_by_name(small_graph: eg.Graph) -> None:
    """Output units follow the order of learning; a stream that names its classes in another order still fits."""
    stream = eg.TaskStream(small_graph, 6)
    turned = eg.TaskStream(small_graph, 6, order=[5, 4, 3, 2, 1, 0])
    made = learner(epochs=20)
    made.learn(turned[0])
    assert made.classes_ == [5, 4, 3, 2, 1, 0]
    assert made.evaluate(stream).accuracies == made.evaluate(turned).accuracies


def test_tasks_that_do_not_fit_are_named(small_stream: eg.TaskStream, small_graph: eg.Graph) -> None:
    made = learner()
    with pytest.raises(eg.EvergraphError, match="has not learned anything yet"):
        made.evaluate(small_stream)
    made.learn(small_stream[0])
    wider = eg.make_graph(torch.randn(60, 9), small_graph.edge_index, small_graph.y)
    with pytest.raises(eg.EvergraphError, match="graph has 9 features per node, but the learner was built for 8"):
        made.learn(eg.TaskStream(wider, 2)[1])
    with pytest.raises(eg.EvergraphError, match="classes the learner does not know"):
        made.evaluate(eg.TaskStream(small_graph, 3))
    empty = eg.Task.of(small_graph)
    empty.train = empty.train[:0]
    with pytest.raises(eg.EvergraphError, match="no training nodes"):
        made.learn(empty)


def test_prediction_at_a_mask_and_at_numbers(small_stream: eg.TaskStream, small_graph: eg.Graph) -> None:
    made = learner(label_scope="seen").fit(small_stream)
    mask = small_graph.y == 3
    numbers = mask.nonzero().reshape(-1)
    expected = made.predict(small_graph, numbers)
    assert 0 < len(expected) < small_graph.num_nodes
    for nodes in (mask, mask.numpy(), mask.tolist(), numbers.numpy(), numbers.tolist()):
        found = made.predict(small_graph, nodes)
        assert found.nodes.tolist() == numbers.tolist()
        assert found.labels == expected.labels
        assert torch.equal(found.probabilities, expected.probabilities)
        assert torch.equal(made.logits(small_graph, nodes), made.logits(small_graph, numbers))
    assert len(made.predict(small_graph, torch.zeros_like(mask))) == 0
    for wrong in (mask[:-1], mask.reshape(-1, 1)):
        with pytest.raises(eg.EvergraphError, match=r"a mask of shape \(.*\) does not fit 60 nodes|nodes have shape"):
            made.predict(small_graph, wrong)
    with pytest.raises(eg.EvergraphError, match="one asked for is outside"):
        made.predict(small_graph, [-1])


def test_probabilities_of_all_classes(small_graph: eg.Graph) -> None:
    """One column a class, in the order in which they were met; the largest is what is predicted."""
    stream = eg.TaskStream(small_graph, 2, order=[5, 0, 3, 1, 4, 2])
    made = learner(label_scope="seen", epochs=10)
    for after, task in enumerate(stream):
        made.learn(task)
        found = made.predict_proba(small_graph)
        assert found.shape == (60, 2 * after + 2)
        torch.testing.assert_close(found.sum(1), torch.ones(60))
        expected = made.logits(small_graph)[:, : 2 * after + 2]
        torch.testing.assert_close(found, (expected / made.temperature).softmax(1))
        torch.testing.assert_close(made.predict_proba(small_graph, calibrated=False), expected.softmax(1))
        predicted = made.predict(small_graph)
        assert [made.classes_[unit] for unit in found.argmax(1).tolist()] == predicted.labels
        torch.testing.assert_close(found.max(1).values, predicted.probabilities)
    assert made.classes_ == [5, 0, 3, 1, 4, 2]
    some = made.predict_proba(small_graph, [7, 2])
    torch.testing.assert_close(some, found[[7, 2]])
    with pytest.raises(eg.EvergraphError, match="has not learned anything yet"):
        learner().predict_proba(small_graph)


def test_a_prediction_is_a_sequence_of_the_users_names(small_graph: eg.Graph) -> None:
    named = eg.Graph(small_graph.x, small_graph.adjacency, small_graph.y, list("uvwxyz"))
    predicted = learner(epochs=10).fit(eg.TaskStream(named, 6)).predict(named)
    assert len(predicted) == len(predicted.labels) == 60
    assert list(predicted) == predicted.labels
    assert set(predicted) <= set("uvwxyz")
    assert predicted[0] == predicted.labels[0]
    assert predicted[-1] == predicted.labels[-1]
    assert predicted[3:7] == predicted.labels[3:7]
    assert predicted[0] in predicted
    assert "a" not in predicted
    assert list(reversed(predicted)) == predicted.labels[::-1]
    assert list(zip(predicted, predicted.nodes.tolist()))[2] == (predicted.labels[2], 2)
    assert np.array(predicted).tolist() == predicted.labels
    with pytest.raises(IndexError):
        predicted[60]


@pytest.mark.parametrize("when", [0, 1], ids=["first task", "second task"])
def test_a_model_that_diverges_is_named_and_leaves_the_learner_as_it_was(
    small_stream: eg.TaskStream, when: int
) -> None:
    made, unbroken = learner(eg.EWC()), learner(eg.EWC())
    for one in (made, unbroken):
        for task in list(small_stream)[:when]:
            one.learn(task)
    made.training = replace(made.training, lr=1e30)
    with pytest.raises(
        eg.EvergraphError, match=rf"task {when + 1}, epoch \d: the model diverged .*lower lr \(now 1e\+30\)"
    ):
        made.learn(small_stream[when])
    assert not made.in_mid_task
    assert made.classes_ == unbroken.classes_
    made.training = replace(made.training, lr=0.01)
    for one in (made, unbroken):
        one.learn(small_stream[when])
    for name, value in copy_params(unbroken.model).items():
        assert torch.equal(value, copy_params(made.model)[name])


def test_parameters_that_are_no_numbers_are_noticed_though_the_loss_was_one(small_stream: eg.TaskStream) -> None:
    class Poison(eg.Method):
        def after_step(self, step: Step) -> None:
            with torch.no_grad():
                next(step.model.parameters())[0, 0] = float("nan")

    made = learner(Poison(), epochs=1, batch_size=0)
    with pytest.raises(eg.EvergraphError, match="task 1, epoch 1: the model diverged"):
        made.learn(small_stream[0])
    assert made.classes_ == []


@pytest.mark.parametrize(
    ("given", "model", "method"),
    [
        ((), eg.RandomFeatures, "auto"),
        ((None, "auto"), eg.RandomFeatures, "auto"),
        (("ewc",), eg.GCN, "ewc"),
        (("ema+ewc",), eg.GCN, "ema+ewc"),
        (("gat",), eg.GAT, "stand-in-curvature"),
        (("sage", "ema+ewc"), eg.GraphSAGE, "ema+ewc"),
    ],
)
def test_what_is_not_named_is_chosen(given: tuple, model: type, method: str) -> None:
    made = eg.Learner(*given)
    assert isinstance(made.model, model)
    assert made.method.title == method
    assert made.training == eg.Training(**made.method.training)
    assert eg.Learner(*given, epochs=7).training == replace(made.training, epochs=7)


def test_a_model_of_ones_own_is_protected_without_a_method_named(small_stream: eg.TaskStream) -> None:
    made = eg.Learner(eg.GCN(hidden=16), **FAST)
    assert isinstance(made.method, eg.StandInCurvature)
    made.fit(small_stream)
    assert made.num_tasks == 3
    with pytest.raises(eg.EvergraphError, match="unknown method 'ewcc'"):
        eg.Learner("ewcc")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs=-1 must be a whole number of at least 0"),
        ({"lr": 0.0}, "lr=0.0 must be a finite number above 0"),
        ({"lr": float("nan")}, "lr=nan must be"),
        ({"lr": float("inf")}, "lr=inf must be"),
        ({"weight_decay": float("nan")}, "weight_decay=nan must be"),
        ({"batch_size": -5}, "batch_size=-5"),
        ({"patience": -1}, "patience=-1"),
        ({"label_scope": "old"}, "label_scope='old' must be one of: seen, current, all"),
        ({"reduction": "max"}, "reduction='max' must be one of: sum, mean"),
        ({"fan_out": (3, 0)}, r"fan_out=\(3, 0\) must be None or a list"),
        ({"fan_out": ()}, r"fan_out=\(\) must be None or a list"),
        ({"momentum": 0.9}, "unknown setting 'momentum'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        eg.Learner(eg.GCN(), **settings)


@pytest.mark.parametrize(
    ("parts", "settings", "call"),
    [
        (("auto",), {"memory": "2MB"}, "method; give it there: eg.Learner(eg.Auto(memory='2MB'))"),
        ((), {"memory": "2MB"}, "method; give it there: eg.Learner(eg.Auto(memory='2MB'))"),
        (("gcn", "ewc"), {"epochs": 2, "strength": 5}, "method; give it there: eg.Learner('gcn', eg.EWC(strength=5))"),
        ((eg.GCN(), eg.EWC()), {"strength": 5}, "method; give it there: eg.Learner(…, eg.EWC(strength=5))"),
        (
            ("ema+ewc",),
            {"strength": 5},
            "method; give it there: eg.Learner(eg.Compose(eg.EMA(), eg.EWC(strength=5)))",
        ),
        (("ewc",), {"hidden": 8}, "model; give it there: eg.Learner(eg.GCN(hidden=8), 'ewc')"),
    ],
)
def test_settings_of_the_method_and_the_model_are_pointed_to(parts: tuple, settings: dict, call: str) -> None:
    with pytest.raises(eg.EvergraphError) as raised:
        eg.Learner(*parts, **settings)
    assert str(raised.value).endswith(f"is a setting of the {call}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(eg.EvergraphError, match="no usable GPU; use --device cpu or auto"):
        eg.Learner(eg.GCN(), device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_what_a_cpu_learns(small_stream: eg.TaskStream) -> None:
    on = {device: learner(epochs=20, device=device) for device in ("cpu", "cuda")}
    found = {device: made.fit(small_stream).evaluate(small_stream).ap for device, made in on.items()}
    assert found["cuda"] == pytest.approx(found["cpu"], abs=10)


# Adam's averages between tasks


def by_plain_training(of: eg.Learner, stream: eg.TaskStream, fresh: bool) -> dict[str, Tensor]:
    """Full-batch training over all tasks, with one optimizer for all or a fresh one for each."""
    model, optimizer = eg.GCN(hidden=16), None
    kind = {"adam": torch.optim.Adam, "sgd": partial(torch.optim.SGD, momentum=0.9)}[of.training.optimizer]
    torch.manual_seed(0)
    model.setup(stream.graph.num_features, stream.num_classes)
    model.to(torch.float64)
    for task in stream:
        if optimizer is None or fresh:
            optimizer = kind(model.parameters(), lr=of.training.lr, weight_decay=of.training.weight_decay)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=of.training.epochs)
        rising = None
        if of.training.warm_up:  # a lambda sees epochs from 0
            over = of.training.warm_up * of.training.epochs
            rising = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch, over=over: min(1.0, (epoch + 1) / over))
        units = [of.classes_.index(name) for name in task.class_names]
        batch = of.problem.batcher(model, task.graph, targets=of.problem.targets(task.graph, of.classes_)).batch(
            task.train
        )
        positions = torch.tensor([units.index(int(unit)) for unit in batch.y])
        for _ in range(of.training.epochs):
            optimizer.zero_grad()
            F.cross_entropy(model(batch)[:, units], positions, reduction="sum").backward()
            optimizer.step()
            if of.training.schedule == "cosine":
                falling.step()
            if rising is not None:
                rising.step()
    return copy_params(model)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_cosine_schedule_is_torchs_own(small_stream: eg.TaskStream, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "schedule": "cosine", "lr": 1e-2 if optimizer == "adam" else 1e-3}
    made = learner(**settings, epochs=5, batch_size=0, dtype=torch.float64).fit(small_stream)
    want = by_plain_training(made, small_stream, fresh=True)
    for name, value in made.model.named_parameters():
        assert torch.allclose(value, want[name], rtol=0, atol=1e-8), name
    made.training = replace(made.training, schedule="constant")
    other = by_plain_training(made, small_stream, fresh=True)
    assert not all(torch.allclose(want[name], other[name], atol=1e-4) for name in want)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_warm_up_is_torchs_own(small_stream: eg.TaskStream, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "warm_up": 0.7, "lr": 1e-2 if optimizer == "adam" else 1e-3}
    made = learner(**settings, epochs=5, batch_size=0, dtype=torch.float64).fit(small_stream)
    want = by_plain_training(made, small_stream, fresh=True)
    for name, value in made.model.named_parameters():
        assert torch.allclose(value, want[name], rtol=0, atol=1e-7), name
    made.training = replace(made.training, warm_up=0.0)
    other = by_plain_training(made, small_stream, fresh=True)
    assert not all(torch.allclose(want[name], other[name], atol=1e-4) for name in want)


@pytest.mark.parametrize(("share", "epochs"), [(0.5, [4, 5, 6]), (0.3, [5, 6]), (1.0, [1, 2, 3, 4, 5, 6])])
def test_a_task_ends_in_the_mean_over_its_last_epochs(
    small_stream: eg.TaskStream, tmp_path: Path, share: float, epochs: list[int]
) -> None:
    seen: list[dict[str, Tensor]] = []
    made = learner(average_last=share, epochs=6, dtype=torch.float64)

    def note(progress: Progress, planned: int) -> None:
        seen.append(copy_params(made.model))
        if progress.epoch == planned - 1:
            made.save(tmp_path / "saved")

    made.learn(small_stream[0], note)
    for name, value in made.model.named_parameters():
        want = sum(seen[epoch - 1][name] for epoch in epochs) / len(epochs)
        assert torch.allclose(value, want, rtol=0, atol=1e-12), name
        assert not torch.allclose(value, seen[-1][name], rtol=0, atol=1e-6), name
    again = eg.Learner.load(tmp_path / "saved", device="cpu")
    again.learn(small_stream[0])
    assert all(torch.equal(*pair) for pair in zip(made.model.parameters(), again.model.parameters()))
    # the next task begins there
    after = copy_params(made.model)
    made.training = replace(made.training, epochs=0)
    made.learn(small_stream[1])
    assert all(torch.equal(after[name], value) for name, value in made.model.named_parameters())


def test_patience_and_a_mean_do_not_go_together() -> None:
    with pytest.raises(eg.EvergraphError, match="patience and average_last both say where a task ends"):
        eg.Training(patience=3, average_last=0.2)


def test_a_warm_up_goes_with_a_cosine() -> None:
    both = eg.Training(lr=0.5, schedule="cosine", warm_up=0.2)
    rates = [both.rate(epoch, 10) for epoch in range(10)]
    plain = [eg.Training(lr=0.5, schedule="cosine").rate(epoch, 10) for epoch in range(10)]
    assert rates == [plain[0] / 2, *plain[1:]]
    assert eg.Training(warm_up=1).rate(4, 5) == eg.Training().lr
    assert eg.Training(warm_up=0.01).rate(0, 5) == eg.Training().lr


@pytest.mark.parametrize("keep", [True, False])
def test_adams_averages_are_kept_between_tasks_on_request(small_stream: eg.TaskStream, keep: bool) -> None:
    made = learner(keep_optimizer=keep, batch_size=0, dtype=torch.float64).fit(small_stream)
    want, other = (by_plain_training(made, small_stream, fresh=fresh) for fresh in (not keep, keep))
    for name, value in made.model.named_parameters():
        assert torch.allclose(value, want[name], rtol=0, atol=1e-9), name
        assert not torch.allclose(value, other[name], rtol=0, atol=1e-4), name
    assert (made.optimizer_state is None) == (not keep)


def test_kept_averages_are_saved_between_tasks_and_within_one(small_stream: eg.TaskStream, tmp_path: Path) -> None:
    whole = learner(eg.EWC(), keep_optimizer=True)
    for number, task in enumerate(small_stream):
        whole.learn(task, lambda progress, epochs, at=number: whole.save(tmp_path / f"{at}-{progress.epoch}"))
        whole.save(tmp_path / f"{number}-end")
    assert len(list(tmp_path.iterdir())) == 3 * (3 + 1)
    for folder in tmp_path.iterdir():
        again = eg.Learner.load(folder, device="cpu")
        for number in range(again.num_tasks, len(small_stream)):
            again.learn(small_stream[number])
        for (name, a), b in zip(whole.model.named_parameters(), again.model.parameters()):
            assert torch.equal(a, b), f"{folder.name}: {name}"
        for name, kept in whole.optimizer_state.items():
            for key, value in kept.items():
                assert torch.equal(value, again.optimizer_state[name][key]), f"{folder.name}: {name}.{key}"


def test_a_learn_that_fails_leaves_the_kept_averages_as_they_were(
    small_stream: eg.TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, unbroken = (learner(keep_optimizer=True) for _ in range(2))
    for made in (broken, unbroken):
        made.learn(small_stream[0])
    with monkeypatch.context() as patch:
        patch.setattr(broken.method, "end_task", lambda context: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            broken.learn(small_stream[1])
    for name, kept in unbroken.optimizer_state.items():
        for key, value in kept.items():
            assert torch.equal(value, broken.optimizer_state[name][key])
    for made in (broken, unbroken):
        made.learn(small_stream[1])
    assert all(torch.equal(a, b) for a, b in zip(broken.model.parameters(), unbroken.model.parameters()))


def test_the_averages_of_a_parameter_that_has_grown_start_afresh(small_stream: eg.TaskStream) -> None:
    made = learner(keep_optimizer=True, num_classes=4, batch_size=0)
    for task in (small_stream[0], small_stream[1]):
        made.learn(task)
    made.grow(6)
    made.learn(small_stream[2])
    steps = {name: int(kept["step"]) for name, kept in made.optimizer_state.items()}
    assert steps == {"weights.0": 3 * 3, "weights.1": 3}


def test_a_change_of_mind_about_the_averages(small_stream: eg.TaskStream) -> None:
    """Whether they are kept is the training's to say, at each task; so is the learning rate they go on with."""
    made, fresh = learner(keep_optimizer=True), learner()
    for one in (made, fresh):
        one.learn(small_stream[0])
        one.training = replace(one.training, keep_optimizer=False, lr=0.05)
        one.learn(small_stream[1])
    assert all(torch.equal(a, b) for a, b in zip(made.model.parameters(), fresh.model.parameters()))
    assert made.optimizer_state is None


def test_the_readmes_api(small_stream: eg.TaskStream) -> None:
    learner = eg.Learner(eg.GCN(hidden=16), eg.OnlineCurvature(strength=0.1), epochs=2)
    for task in small_stream:
        learner.learn(task)
    printed = str(learner.evaluate(small_stream))
    assert "AP" in printed
    assert "AF" in printed


def test_joint_training_can_have_the_validation_labels_too(small_stream: eg.TaskStream) -> None:
    plain, more = learner(eg.Joint()), learner(eg.Joint(learn_validation=True))
    for one in (plain, more):
        one.fit(small_stream)
    tasks = list(small_stream)
    assert plain.history[-1]["nodes"] == tasks[-1].train.numel()
    assert not all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), more.model.parameters()))
    context_task = more.method.training_data(make_context(more, tasks[-1], tasks[-1]))
    everything = tasks[-1].so_far()
    assert context_task.train.tolist() == [*everything.train.tolist(), *everything.val.tolist()]
    assert not context_task.val.numel()


def test_a_loss_of_one_entry_is_a_loss(small_stream: eg.TaskStream) -> None:
    class Flat(eg.Finetune):
        name = "flat"

        def loss(self, step: eg.Step) -> torch.Tensor:
            return step.loss.reshape(1)

    ends = []
    for method in (Flat(), eg.Finetune()):
        learner = eg.Learner(eg.GCN(hidden=4), method, epochs=2, device="cpu")
        ends.append(learner.learn(small_stream[0]))
    assert ends[0] == ends[1]
