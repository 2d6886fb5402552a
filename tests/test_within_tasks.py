"""The classes of one task told apart by other heads than the tasks: against loops over units, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.methods.closed_form.within_tasks import with_class_differences


def naive(head: Tensor, other: Tensor, tasks: list[int]) -> Tensor:
    """Column after column: the mean of the task's columns of `head`, plus what `other` has beyond its own mean."""
    found = head.clone()
    for unit, task in enumerate(tasks):
        if task >= 0:
            together = [each for each, its in enumerate(tasks) if its == task]
            beyond = other[:, unit] - sum(other[:, each] for each in together) / len(together)
            found[:, unit] = sum(head[:, each] for each in together) / len(together) + beyond
    return found


@pytest.mark.parametrize(
    "tasks", [[0, 0, 1, 1, 1], [0, 1, 2, 3, 4], [2, 0, 2, -1, 0], [3, 3, -1, -1, 5], [-1] * 5], ids=str
)
def test_tasks_are_told_by_one_head_and_their_classes_by_the_other(tasks: list[int]) -> None:
    generator = torch.Generator().manual_seed(3)
    head, other = (torch.randn(4, 5, dtype=torch.float64, generator=generator) for _ in range(2))
    before = head.clone()
    found = with_class_differences(head, other, torch.tensor(tasks))
    assert torch.equal(head, before)
    assert torch.allclose(found, naive(head, other, tasks), atol=1e-12)
    for one, its in enumerate(tasks):
        for two, of_two in enumerate(tasks):
            if its == of_two >= 0:
                assert torch.allclose(found[:, one] - found[:, two], other[:, one] - other[:, two], atol=1e-12)
    assert torch.allclose(with_class_differences(head, head, torch.tensor(tasks)), head, atol=1e-12)


@pytest.mark.parametrize("way", ["vote", "own", "smooth"])
@torch.no_grad()
def test_the_heads_that_decide_where_edges_join_tasks_have_half_a_say(way: str) -> None:
    """Own features where they or the vote decide, the vote where it does, each stretched to probabilities."""
    graph = sbm(nodes=120, classes=5, degree=3, features=6, signal=3.0, seed=2)
    learner = eg.Learner(eg.MixedFeatures(hidden=56), eg.Auto(), dtype=torch.float64, device="cpu")
    method, model = learner.fit(eg.TaskStream(graph, 2)).method, learner.model
    assert isinstance(method, eg.Auto)
    method.elsewhere = lambda: way  # type: ignore[method-assign]
    parts = ("train", "val")
    head = method._solved(model, parts)
    solved = {each: method._ways(model, each, head) for each in (parts, parts[:1])}
    voices, every = len(method.voices(model)), torch.arange(head.size(0))
    beside = []
    for name, count in {"vote": [("own", 1), ("vote", voices)], "own": [("own", 1)]}.get(way, []):
        stretch = method._stretch(solved[parts[:1]][name] / count, every)
        beside.append(stretch / method.stretch_ * solved[parts][name] / count)
    told = (head + sum(beside) / len(beside)) / 2 if beside else head
    expected = naive(head, told, method.task_of_unit_)
    assert torch.allclose(method._refined(model, head, parts), expected, atol=1e-8)
    assert (way == "smooth") == torch.allclose(expected, head, atol=1e-8)
    method.write(learner.problem, model)
    assert torch.allclose(model.output_weight(), method._prior_corrected(expected), atol=1e-8)  # type: ignore[operator]


@torch.no_grad()
def test_accuracy_on_a_tasks_own_graph_rises_with_it() -> None:
    """Half of the neighbours are of another class of the task: mixing tells the task and blurs the class."""
    gain = 0.0
    for seed in range(3):
        graph = sbm(nodes=600, classes=6, degree=8, homophily=0.5, features=16, signal=2.5, seed=seed)
        learner = eg.Learner("auto", seed=seed, device="cpu").fit(eg.TaskStream(graph, 2, seed=seed))
        method = learner.method
        assert isinstance(method, eg.Auto)
        assert method.elsewhere() == "vote"
        gain += learner.evaluate(eg.TaskStream(graph, 2, seed=seed), test_graph="task").ap
        method._refined = lambda model, head, parts: head  # type: ignore[method-assign]
        method.write(learner.problem, learner.model)
        gain -= learner.evaluate(eg.TaskStream(graph, 2, seed=seed), test_graph="task").ap
    assert gain > 1
