"""Classes that no training example has: they were not learned, whatever validation and test examples say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.data.parts import read_parts, task_of_parts, write_parts

pytestmark = pytest.mark.filterwarnings("ignore:.*are in several masks")

LINE = "no training nodes of class 3: not learned"


def masked(*, validated: bool = True, **extra: torch.Tensor) -> Data:
    """Four classes, of which the last has no training nodes, and validation nodes or none."""
    random = torch.Generator().manual_seed(0)
    count = 200
    y = torch.arange(count) % 4
    x = torch.randn(count, 8, generator=random)
    x[torch.arange(count), y] += 4
    part = torch.tensor([0, 0, 0, 1, 2])[torch.arange(count) // 4 % 5]
    part[(y == 3) & (part == 0)] = 2
    if not validated:
        part[(y == 3) & (part == 1)] = 2
    masks = {f"{name}_mask": part == number for number, name in enumerate(("train", "val", "test"))}
    edge_index = torch.randint(count, (2, 300), generator=random)
    return Data(x=x, edge_index=torch.cat([edge_index, edge_index.flip(0)], 1), y=y, **masks, **extra)


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("method", ["auto", "analytic", "ewc"])
def test_a_class_without_training_nodes_is_not_learned(method: str, validated: bool) -> None:
    data = masked(validated=validated)
    learner = eg.Learner(method, epochs=3) if method == "ewc" else eg.Learner(eg.RandomFeatures(hidden=40), method)
    with pytest.warns(eg.EvergraphWarning, match=LINE):
        task = eg.Task.of(data)
    assert task.class_names == [0, 1, 2]
    assert not (task.graph.y[task.val] == 3).any()
    assert torch.equal(task.test, torch.nonzero(data.test_mask).reshape(-1))
    learner.learn(task)
    assert learner.classes_ == [0, 1, 2]
    assert learner.predict_proba(data).size(1) == 3
    prediction = learner.predict(data, task.test)
    right = 100 * sum(a == b for a, b in zip(prediction.labels, data.y[task.test].tolist())) / task.test.numel()
    assert learner.first_accuracies == [pytest.approx(right)]
    assert learner.evaluate([task]).accuracies == [pytest.approx(right)]
    alone = [node for node in task.test.tolist() if data.y[node] != 3]
    same = eg.Learner(method, epochs=3) if method == "ewc" else eg.Learner(eg.RandomFeatures(hidden=40), method)
    same.learn(eg.Task(0, [0, 1, 2], task.graph, task.train, task.val, torch.tensor(alone), 4))
    assert torch.equal(learner.logits(data), same.logits(data))


def test_it_is_learned_when_it_has_training_nodes() -> None:
    data, later = masked(), masked()
    later.train_mask = later.y == 3
    later.val_mask = later.test_mask = torch.zeros_like(later.train_mask)
    learner = eg.Learner(eg.RandomFeatures(hidden=40), "analytic")
    with pytest.warns(eg.EvergraphWarning, match=LINE):
        learner.learn(data)
    with pytest.warns(eg.EvergraphWarning, match="no training nodes of class 0, 1, 2: not learned"):
        learner.learn(later)
    assert learner.classes_ == [0, 1, 2, 3]


def test_of_a_stream_it_is_in_no_task() -> None:
    with pytest.warns(eg.EvergraphWarning, match=LINE):
        stream = eg.stream(masked(), classes_per_task=2)
    assert stream.tasks_classes == [[0, 1], [2]]
    assert set(stream[1].graph.y[stream[1].test].tolist()) == {2, 3}
    assert set(stream[1].graph.y[stream[1].val].tolist()) == {2}
    learner = eg.Learner(eg.RandomFeatures(hidden=40), "auto").fit(stream)
    assert learner.classes_ == [0, 1, 2]
    truth = stream[1].graph.y[stream[1].test].tolist()
    found = learner.predict(stream[1].graph, stream[1].test).labels
    right = 100 * sum(a == b for a, b in zip(found, truth)) / len(truth)
    assert learner.evaluate(stream).accuracies[1] == pytest.approx(right)


def test_over_years_it_is_known_from_the_first_that_trains_it() -> None:
    """In the year before nobody has trained it, in the year after it is known: there it is validated."""
    year = torch.arange(200) // 67
    data = masked(year=year)
    data.train_mask |= (data.y == 3) & (year == 1)
    data.val_mask &= ~data.train_mask
    stream = eg.stream(data, by="year", scenario="time", bins=0)
    assert stream.tasks_classes == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2]]
    validated = [3 in task.graph.y[task.val].tolist() for task in stream]
    assert validated == [False, False, True]
    assert all(3 in task.graph.y[task.test].tolist() for task in (stream[0], stream[2]))
    learner = eg.Learner(eg.RandomFeatures(hidden=40), "auto").fit(stream)
    assert learner.classes_ == [0, 1, 2, 3]
    assert len(learner.evaluate(stream).accuracies) == 3


def test_a_graph_in_parts(tmp_path: Path) -> None:
    graph = eg.from_pyg(masked())
    share, _ = read_parts(write_parts(graph, tmp_path / "parts", 1))
    with pytest.warns(eg.EvergraphWarning, match=LINE):
        task = task_of_parts(share)
    with pytest.warns(eg.EvergraphWarning, match=LINE):
        whole = eg.Task.of(graph)
    assert task.class_positions == whole.class_positions
    for found, wanted in ((task.train, whole.train), (task.val, whole.val), (task.test, whole.test)):
        assert torch.equal(found, wanted)
    twice = ["1", "0", "1"]
    assert task_of_parts(share, twice).class_positions == eg.Task.of(graph, twice).class_positions == [1, 0]
    learner = eg.Learner(eg.RandomFeatures(hidden=40), "analytic")
    learner.learn(task)
    assert learner.records[-1]["tested"] == {task.mark(): learner.first_accuracies[-1]}


@pytest.mark.parametrize("alone", [True, False])
def test_a_class_whose_training_nodes_are_forgotten_was_never_learned(alone: bool) -> None:
    """With all later data, and without: its validation nodes count no longer."""
    whole = masked()
    whole.train_mask |= (whole.y == 3) & ~whole.test_mask & ~whole.val_mask
    first = torch.nonzero((whole.y == 3) & (torch.arange(200) < 60) & whole.test_mask).reshape(-1)
    whole.train_mask[first], whole.test_mask[first] = True, False
    task = eg.Task.of(whole)
    other = eg.Task.of(eg.from_pyg(masked(validated=False)).altered(class_names=[4, 5, 6, 7], splits=None), [4, 5])
    fixed = {"ridge": 0.5, "smoothing": 0.0, "judge_edges": False, "balance": 0.0} if alone else {}

    def make() -> eg.Learner:
        return eg.Learner(eg.RandomFeatures(hidden=40), eg.Analytic(**fixed), dtype=torch.float64)

    found, wanted = make().fit([task, other]), make()
    left = task.without(first)
    assert left.class_names == [0, 1, 2]
    assert not (left.graph.y[left.val] == 3).any()
    found.forget(first, task if alone else [task, other])
    wanted.fit([left, other if alone else other.without(first)])  # the same graph: they leave both
    assert found.classes_ == wanted.classes_ == [0, 1, 2, 4, 5]
    assert found.method.validated_ == wanted.method.validated_
    assert float((found.logits(whole)[:, :5] - wanted.logits(whole)[:, :5]).abs().max()) <= 1e-8


def test_the_command_line_says_it(evergraph, tmp_path: Path) -> None:
    torch.save(masked(), tmp_path / "graph.pt")
    words = ("learn", tmp_path / "graph.pt", "--checkpoint", tmp_path / "kept", "--hidden", "20", "--json")
    status, out, error = evergraph(*words)
    assert status == 0
    assert json.loads(out)["classes"] == [0, 1, 2]
    assert LINE in error
