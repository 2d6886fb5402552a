"""A closed form whose encoder goes on learning: what its sums become, against recomputing them from old nodes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import evergraph as eg
from cases import slow
from evergraph.core.features import as_dense
from evergraph.core.sparse import SparseMatrix
from evergraph.core.symmetric import unpack
from evergraph.data.batching import Batch
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph
from evergraph.methods.closed_form import drift
from evergraph.models.base import GraphModel, neighbourhoods

pytestmark = pytest.mark.filterwarnings("ignore:.*looks to .* unlike the nodes")

PROTECTED = ["ssm", "er-gnn", "reservoir", "stand-in-curvature"]
FEW = {"ssm": {"per_class": 8}, "er-gnn": {"per_class": 8}, "reservoir": {"per_class": 8}}
SHORT = {"epochs": 30, "lr": 0.02, "batch_size": 0, "label_scope": "seen", "reduction": "mean", "dtype": torch.float64}


@pytest.fixture
def stream() -> eg.TaskStream:
    return eg.TaskStream(sbm(nodes=150, classes=6, degree=4, features=7, signal=3.0, seed=2), 2)


def learner_of(method: str | eg.Method, model: GraphModel | None = None) -> eg.Learner:
    """A small GCN, in float64."""
    settings = {"encoder": "continual"} if "analytic" in str(method) else {}
    made = eg.make_method(method, settings) if isinstance(method, str) else method
    for part in made.parts():
        for key, value in FEW.get(part.name, {}).items():
            setattr(part, key, value)
    return eg.Learner(model or eg.GCN(hidden=10), made, seed=1, **SHORT)


def closed_form(learner: eg.Learner) -> eg.Analytic:
    return next(part for part in learner.method.parts() if isinstance(part, eg.Analytic))


def recomputed(model: GraphModel, task: eg.Task) -> Tensor:
    """G of one task's training nodes, node by node, where the encoder stands now."""
    batch = neighbourhoods(model, task.graph).batch(task.train)
    y, rows = task.graph.y[task.train], model.features(batch).detach()
    sizes = torch.bincount(y)
    return sum(float(sizes[unit]) ** -0.75 * torch.outer(row, row) for row, unit in zip(rows, y))


def test_the_map_is_damped_least_squares_and_says_what_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain solver on rows written below one another, and against fits without each example."""
    generator = torch.Generator().manual_seed(0)
    before, noise, weights = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((9, 4), (9, 4), (9,))
    )
    weights, after = weights.abs() + 0.1, before.flip(1) + noise
    scale = float((before.T @ (weights[:, None] * before)).diagonal().mean())

    def fitted(kept: list[int], damping: float) -> Tensor:
        """Rows of the examples, and below them rows that ask for the identity."""
        root, identity = weights[kept].sqrt()[:, None], (damping * scale) ** 0.5 * torch.eye(4, dtype=torch.float64)
        rows = torch.cat([root * before[kept], identity]), torch.cat([root * after[kept], identity])
        return torch.linalg.lstsq(*rows).solution

    def missed(damping: float) -> float:
        errors = moves = 0.0
        for i in range(9):
            predicted = before[i] @ fitted([other for other in range(9) if other != i], damping)
            errors += float(weights[i] * (after[i] - predicted).square().sum())
            moves += float(weights[i] * (after[i] - before[i]).square().sum())
        return errors / moves

    for dampings in ((0.3,), (0.3, 0.01, 5.0)):
        monkeypatch.setattr(drift, "DAMPINGS", dampings)
        best = min(dampings, key=missed)
        change, share = drift.linear_change(before, after, weights)
        assert torch.allclose(change, fitted(list(range(9)), best), atol=1e-12)
        assert share == pytest.approx(missed(best), rel=1e-9)
    assert drift.linear_change(before, before, weights)[1] == 0


class LinearFeatures(GraphModel):
    """φ = X M: features that drift by a linear map when M changes."""

    def setup(self, in_channels: int, out_channels: int) -> None:
        self.in_channels, self.out_channels = in_channels, out_channels
        self.mix = nn.Parameter(torch.eye(in_channels))
        self.head = nn.Parameter(torch.zeros(in_channels, out_channels))

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Tensor, int]:
        return as_dense(graph.x), 0

    @eg.capability(rests_on=("forward", "logits"))
    def features(self, batch: Batch) -> Tensor:
        return batch.x @ self.mix

    @eg.capability(rests_on=("forward", "logits"))
    def output_weight(self) -> Tensor:
        return self.head

    def logits(self, batch: Batch) -> Tensor:
        return self.features(batch) @ self.head


class Drift(eg.Method):
    """Moves the encoder by a known map at the end of the second task."""

    def end_task(self, context: object) -> None:
        if context.index == 1:
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                change = torch.randn(7, 7, generator=generator, dtype=torch.float64)
                context.model.mix.copy_(context.model.mix @ change)


def test_sums_follow_a_linear_drift(stream: eg.TaskStream) -> None:
    """A linear drift is followed where the kept examples show all directions, whoever comes first in the list."""
    closed = eg.Analytic(ridge=0.3, encoder="continual")
    learner = learner_of(eg.Compose(closed, eg.Reservoir(), Drift()), LinearFeatures())
    learner.training = eg.Training(epochs=0)
    learner.learn(stream[0])
    learner.learn(stream[1])
    expected = sum(recomputed(learner.model, task) for task in list(stream)[:2])
    assert torch.allclose(unpack(closed.gram_["train"]), expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))
    assert closed.drift_[0] < 1e-12


@pytest.mark.parametrize(
    ("protector", "model"),
    [
        *((protector, eg.GCN) for protector in PROTECTED),
        *(slow(protector, eg.GraphSAGE, when=protector != "ssm") for protector in PROTECTED),
    ],
)
def test_sums_follow_a_trained_encoder(stream: eg.TaskStream, protector: str, model: type[GraphModel]) -> None:
    """Nearer to sums recomputed from the old nodes than sums that stay."""
    learner, stayed = learner_of(f"{protector}+analytic", model(hidden=10)), torch.zeros(())
    for task in stream:
        learner.learn(task)
        stayed = stayed + recomputed(learner.model, task)
    expected, closed = sum(recomputed(learner.model, task) for task in stream), closed_form(learner)
    assert (unpack(closed.gram_["train"]) - expected).norm() < 0.5 * (stayed - expected).norm()
    assert len(closed.drift_) == 2
    assert max(closed.drift_) < 1
    assert learner.evaluate(stream).ap > 80


class OtherMeans(eg.GraphSAGE):
    """GraphSAGE that does not say how it reads neighbours, since it has an operator of its own."""

    def operator(self, graph: Graph) -> SparseMatrix:
        return super().operator(graph)


def test_sums_stay_where_kept_examples_are_unlike_the_nodes(stream: eg.TaskStream) -> None:
    """Nodes are kept without neighbours, and the model reads zeros in their place."""
    learner, stayed = learner_of("reservoir+analytic", OtherMeans(hidden=10)), torch.zeros(())
    for number, task in enumerate(stream):
        with pytest.warns(eg.EvergraphWarning, match="unlike the nodes") if number == 1 else nullcontext():
            learner.learn(task)
        stayed = stayed + recomputed(learner.model, task)
    assert torch.allclose(unpack(closed_form(learner).gram_["train"]), stayed)


@pytest.mark.parametrize(
    "protector",
    ["ssm", "ewc", *map(slow, (*PROTECTED[1:], "ema", "lwf"))],
)
def test_the_encoder_is_trained_as_without_a_closed_form(stream: eg.TaskStream, protector: str) -> None:
    """The solved head has no part in training: with and without it, and on either side, the same bits."""
    names = [protector, f"{protector}+analytic", f"analytic+{protector}"]
    with pytest.warns(eg.EvergraphWarning) if protector in ("ema", "ewc", "lwf") else nullcontext():
        learners = [learner_of(name).fit(stream) for name in names]
    alone, *composed = (dict(learner.model.named_parameters()) for learner in learners)
    for learner, params in zip(learners[1:], composed):
        trained = {**params, **closed_form(learner).trained_head_}
        assert all(torch.equal(trained[name], value) for name, value in alone.items())
    assert torch.equal(*(closed_form(learner).gram_["train"] for learner in learners[1:]))
    assert all(torch.equal(params[name], value) for params in composed for name, value in composed[0].items())


def test_a_task_left_in_the_middle_ends_as_if_it_had_not_been(stream: eg.TaskStream, tmp_path: Path) -> None:
    whole, stopped = learner_of("ssm+analytic").fit(stream), learner_of("ssm+analytic")
    stopped.learn(stream[0])

    class StopError(Exception): ...

    def stop(progress: object, epochs: int) -> None:
        if progress.epoch == 7:
            raise StopError

    with pytest.raises(StopError):
        stopped.learn(stream[1], on_epoch=stop)
    stopped.save(tmp_path / "kept")
    resumed = eg.Learner.load(tmp_path / "kept")
    for task in list(stream)[1:]:
        resumed.learn(task)
    assert closed_form(resumed).drift_ == closed_form(whole).drift_
    for a, b in zip(whole.model.parameters(), resumed.model.parameters()):
        assert torch.equal(a, b)


def test_without_anything_kept_sums_stay_and_that_is_said(stream: eg.TaskStream) -> None:
    learner = learner_of("analytic")
    learner.learn(stream[0])
    before = recomputed(learner.model, stream[0])
    with pytest.warns(eg.EvergraphWarning, match="nothing is kept of earlier tasks"):
        learner.learn(stream[1])
    closed = closed_form(learner)
    expected = before + recomputed(learner.model, stream[1])
    assert torch.allclose(unpack(closed.gram_["train"]), expected, rtol=1e-8, atol=1e-10)
    assert closed.drift_ == []


@pytest.mark.parametrize("encoder", ["first", "continual"])
def test_a_model_with_nothing_to_train_is_refused(stream: eg.TaskStream, encoder: str) -> None:
    learner = eg.Learner(eg.RandomFeatures(hidden=20), eg.Analytic(encoder=encoder), epochs=1)
    with pytest.raises(eg.EvergraphError, match="nothing to train below its head"):
        learner.learn(stream[0])


def test_one_command(evergraph, tmp_path: Path, without_pictures: None) -> None:
    status, _, err = evergraph(
        "run", "sbm:nodes=90,classes=4,degree=4,features=6", "--method", "ssm+analytic", "--set", "encoder=continual",
        "--set", "per_class=5", "--model", "sage", "--hidden", "8", "--epochs", "3", "--out", tmp_path / "run",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "continual" in (tmp_path / "run" / "result.json").read_text()


@pytest.mark.parametrize("kind", ["first", "continual"])
def test_trained_encoders_learn_all_tasks(kind: str) -> None:
    stream = eg.stream("digits")
    closed = eg.Analytic(encoder=kind)
    method = closed if kind == "first" else eg.Compose(eg.StandInCurvature(strength=1.0), closed)
    learner = eg.Learner(eg.GCN(hidden=64), method, epochs=3)
    assert learner.fit(stream).evaluate(stream).ap > 85
