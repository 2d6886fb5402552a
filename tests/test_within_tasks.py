"""The classes of one task told apart by other heads than the tasks: against loops over units, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.methods.base import Context
from evergraph.methods.closed_form.analytic import HELD_OUT
from evergraph.methods.closed_form.smoothing import shares_up_to, with_changes
from evergraph.methods.closed_form.two_forms import TRAIN_ONLY
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


def test_smoothing_elsewhere_is_counted_among_the_task_s_own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a loop over validation nodes: right and wrong among the classes that the task brought."""
    graph = sbm(nodes=150, classes=6, degree=6, homophily=0.7, features=5, signal=0.6, seed=4)
    seen = list[tuple[Context, torch.Tensor, list[int]]]()
    whole = eg.Auto._count_smoothing

    def record(
        self: eg.Auto, context: Context, head: Tensor, counts: list[int], units: Tensor | None = None
    ) -> list[int]:
        if units is not None:
            scores = context.batcher.x.double() @ head  # type: ignore[union-attr,operator]
            prediction, expected = self._prediction(context.model), list[int]()
            assert set(units.tolist()) == set(context.batcher.y[context.task.train].tolist())
            adjacency = context.task.graph.adjacency.to(torch.float64)
            for share in shares_up_to(self.smoothing):
                mixed, changes = prediction.smooth(adjacency, scores, share), [0, 0]
                for node in context.task.val.tolist():
                    best = [max(units.tolist(), key=lambda unit, z=z: z[node, unit]) for z in (scores, mixed)]
                    before, after = (unit == int(context.batcher.y[node]) for unit in best)
                    changes[0] += after and not before
                    changes[1] += before and not after
                expected += changes
            found = whole(self, context, head, [], units)
            assert found == expected
            seen.append((context, units, found))
        return whole(self, context, head, counts, units)

    monkeypatch.setattr(eg.Auto, "_count_smoothing", record)
    learner = eg.Learner(eg.MixedFeatures(hidden=70), eg.Auto(), dtype=torch.float64, device="cpu")
    method = learner.fit(eg.TaskStream(graph, 2)).method
    assert isinstance(method, eg.Auto)
    assert len(seen) == 3
    assert method.smoothing_elsewhere_ == [sum(each) for each in zip(*(found for _, _, found in seen))]
    assert sum(method.smoothing_elsewhere_) > 0
    context, _, _ = seen[-1]
    arguments = (context, torch.zeros(method.cross_["train"].shape), 0.75, lambda edges, scores, share: scores)
    assert with_changes([], *arguments, torch.tensor([0, 1])) == [0] * 6


def test_what_is_measured_on_validation_nodes_are_the_decisions_of_heads_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calibration sees the head as it decides, the say of other heads included, and no edge that is judged."""
    graph = sbm(nodes=300, classes=6, degree=5, homophily=0.3, features=16, signal=2.0, seed=2)
    leave, differ = eg.Auto._leave_nodes, list[bool]()

    def check(self: eg.Auto, context: Context) -> None:
        model, head = context.model, context.cache[HELD_OUT]
        expected = self._refined(model, self._solved(model, TRAIN_ONLY), TRAIN_ONLY)
        assert torch.allclose(head, self._prior_corrected(expected), atol=1e-9)
        differ.append(not torch.allclose(expected, self._solved(model, TRAIN_ONLY)))
        doubt = self.doubt_
        with self.held_out(context):
            assert self.judge_edges  # a setting, which may be read or saved meanwhile
            self.doubt_ += 1e-9 - self._prediction(model).tolerated  # any edge between tasks is one too many
            graph = context.task.graph
            reading = self._prediction(model).reading(
                graph.x.double(),
                graph.adjacency.to(torch.float64),
                context.batcher.x,  # type: ignore[arg-type]
            )
            assert torch.equal(reading.head, head)
            assert not reading.between_tasks
        self.doubt_ = doubt
        assert doubt < 1
        leave(self, context)

    monkeypatch.setattr(eg.Auto, "_leave_nodes", check)
    learner = eg.Learner(eg.MixedFeatures(hidden=70), eg.Auto(), dtype=torch.float64, device="cpu")
    method = learner.fit(eg.TaskStream(graph, 2)).method
    assert any(differ)
    assert isinstance(method, eg.Auto)
    assert method.doubt_ > 1e-3  # some edges within a task would have been judged
