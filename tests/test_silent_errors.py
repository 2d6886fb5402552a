"""Results that were wrong without a word in version 0.1, each with the test that would have told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import evergraph as eg
from evergraph.core import lapack

FAST = {"epochs": 3, "lr": 0.01, "device": "cpu", "label_scope": "seen", "reduction": "sum", "weight_decay": 5e-4}


class Sharpened(eg.GCN):
    """A GCN with outputs of its own."""

    def logits(self, batch: object) -> Tensor:
        return 3 * super().logits(batch) - 1


@pytest.mark.parametrize("settings", [{}, {"nodes": "means"}, {"estimator": "sampled"}, {"point": 0.5}])
def test_a_subclass_with_its_own_logits_trains_on_them(small_stream: eg.TaskStream, settings: dict) -> None:
    """With next to no strength the regularizer changes next to nothing: any pass but the model's own would show."""
    plain = eg.Learner(Sharpened(hidden=8), eg.Finetune(), **FAST).fit(small_stream)
    method = eg.OnlineCurvature(strength=1e-9, ema=0, **settings)
    curved = eg.Learner(Sharpened(hidden=8), method, **FAST).fit(small_stream)
    for one, other in zip(plain.model.parameters(), curved.model.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_the_fisher_of_a_subclass_is_its_own(small_stream: eg.TaskStream) -> None:
    """Outputs three times as steep: EWC's importances are those of the subclass, not its parent's."""
    importances = []
    for kind in (eg.GCN, Sharpened):
        method = eg.EWC(labels="exact")
        learner = eg.Learner(kind(hidden=8), method, **{**FAST, "epochs": 0})
        learner.learn(small_stream[0])
        importances.append(torch.cat([value.flatten() for value in method.importance_.values()]))
    assert not torch.allclose(importances[0], importances[1], rtol=0.5)


class Hops(eg.GraphModel):
    """Features propagated a number of times: a constructor argument, and no `hyperparameters()`."""

    def __init__(self, hops: int) -> None:
        super().__init__()
        self._number = hops

    def setup(self, in_channels: int, out_channels: int) -> None:
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.ones(in_channels, out_channels))

    def inputs(self, graph: eg.Graph, operator: object, propagate: bool | None = None) -> tuple[Tensor, int]:
        x = graph.x
        for _ in range(self._number):
            x = operator @ x
        return x, 0

    def logits(self, batch: object) -> Tensor:
        return batch.x @ self.weight


def test_two_configurations_of_a_model_do_not_share_what_they_propagate(small_graph: eg.Graph) -> None:
    task = eg.Task.of(small_graph)
    outputs = []
    for hops in (1, 2):
        learner = eg.Learner(Hops(hops), eg.Finetune(), **{**FAST, "epochs": 0})
        learner.learn(task)
        outputs.append(learner.logits(small_graph, torch.arange(small_graph.num_nodes)))
    x = small_graph.adjacency @ small_graph.x
    for output in outputs:
        expected = x.sum(1, keepdim=True).expand_as(output)
        torch.testing.assert_close(output, expected)
        x = small_graph.adjacency @ x


def test_a_learn_that_breaks_at_the_end_of_a_task_can_be_repeated(
    small_stream: eg.TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Cholesky factorization that breaks: the task is not half counted, and counts once when it is repeated."""
    broken, whole = (eg.Learner(eg.RandomFeatures(hidden=40), eg.Analytic(), device="cpu") for _ in range(2))
    for learner in (broken, whole):
        learner.learn(small_stream[0])
    with monkeypatch.context() as patched:

        def fail(*_: object, **__: object) -> None:
            raise torch.linalg.LinAlgError("not positive-definite")

        for place, name in ((torch.linalg, "cholesky"), (torch.linalg, "cholesky_ex"), (lapack, "factorize")):
            patched.setattr(place, name, fail)
        with pytest.raises(torch.linalg.LinAlgError):
            broken.learn(small_stream[1])
    assert broken.num_tasks == 1
    assert not broken.in_mid_task
    for learner in (broken, whole):
        learner.learn(small_stream[1])
    nodes = torch.arange(small_stream.graph.num_nodes)
    assert torch.equal(broken.logits(small_stream.graph, nodes), whole.logits(small_stream.graph, nodes))


@pytest.mark.parametrize("settings", [{"lr": 1e30}, {"lr": 1e30, "epochs": 1}])
def test_a_model_that_diverges_stops_with_one_line(small_stream: eg.TaskStream, settings: dict) -> None:
    learner = eg.Learner(eg.GCN(hidden=8), eg.Finetune(), **{**FAST, "batch_size": 8, "epochs": 5, **settings})
    with pytest.raises(eg.EvergraphError, match=r"^task 1, epoch \d+: the model diverged .*; lower lr \(now 1e\+30\)"):
        learner.learn(small_stream[0])
    assert learner.num_tasks == 0
    assert learner.classes_ == []


def test_a_penalty_that_blows_up_stops_too(small_stream: eg.TaskStream) -> None:
    learner = eg.Learner(eg.GCN(hidden=8), eg.EWC(strength=1e38), **{**FAST, "epochs": 20, "lr": 0.1, "batch_size": 0})
    learner.learn(small_stream[0])
    learner.method.importance_ = {name: value + 1000 for name, value in learner.method.importance_.items()}
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    with pytest.raises(eg.EvergraphError, match=r"^task 2, epoch \d+: the model diverged"):
        learner.learn(small_stream[1])
    assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())


def test_a_ridge_too_small_for_the_features_is_named() -> None:
    learner = eg.Learner(eg.RandomFeatures(hidden=400), eg.Analytic(ridge=1e-20), device="cpu")
    with pytest.raises(eg.EvergraphError, match="ridge=1e-20 is too small"):
        learner.fit(eg.stream("sbm:nodes=400,classes=4,degree=6,features=16", classes_per_task=2))


def in_two_parts(graph: eg.Graph, method: eg.Method) -> tuple[eg.Learner, eg.Learner, eg.Task]:
    """A learner of all examples at once, and one that met them in two unequal parts."""
    task = eg.Task.of(graph, hold_out=False)
    first = task.train % 3 == 0
    parts = [eg.Task.of(graph, hold_out=False) for _ in range(2)]
    parts[0].train, parts[1].train = task.train[first], task.train[~first]
    methods = (method, eg.Analytic(**method.hyperparameters()))
    learners = [eg.Learner(eg.RandomFeatures(hidden=20), one, device="cpu") for one in methods]
    learners[0].learn(task)
    for part in parts:
        learners[1].learn(part)
    return learners[0], learners[1], task


def test_new_examples_of_old_classes_are_as_if_learned_at_once_where_nodes_count_alike(small_graph: eg.Graph) -> None:
    once, twice, _ = in_two_parts(small_graph, eg.Analytic(ridge=0.2, balance=0.0))
    torch.testing.assert_close(twice.model.head, once.model.head, rtol=1e-4, atol=1e-6)


def test_elsewhere_new_examples_weigh_by_the_size_their_class_has_reached(small_graph: eg.Graph) -> None:
    """w = (nodes of the class learned so far)^−balance, by a loop over the nodes."""
    _, twice, task = in_two_parts(small_graph, eg.Analytic(ridge=0.2, balance=0.75))
    model, y = twice.model, small_graph.y
    features = model.graph_features(small_graph.x, model.operator(small_graph)).double()
    width = features.size(1)
    gram, cross = torch.zeros(width, width).double(), torch.zeros(width, 6).double()
    reached = torch.zeros(6)
    first = task.train % 3 == 0
    for part in (task.train[first], task.train[~first]):
        reached += torch.bincount(y[part], minlength=6)
        for node in part.tolist():
            weight = float(reached[y[node]]) ** -0.75
            gram += weight * torch.outer(features[node], features[node])
            cross[:, y[node]] += weight * features[node]
    rows = torch.cat(
        [(torch.tensor([block.depth > 0 for block in model.blocks])).repeat_interleave(4), torch.ones(1) > 0]
    )
    rows = rows.nonzero().reshape(-1)
    gram, cross = gram[rows][:, rows], cross[rows]
    ridge = 0.2 * float(gram.diagonal()[gram.diagonal() > 0].mean()) / 6
    expected = torch.linalg.solve(gram + ridge * torch.eye(len(rows)).double(), cross)
    torch.testing.assert_close(model.head[rows].double(), expected, rtol=1e-3, atol=1e-4)
