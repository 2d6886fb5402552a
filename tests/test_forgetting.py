"""Forgetting on request: everything that is kept equals never having learned, in float64."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import evergraph as eg
from cases import slow
from evergraph.core.symmetric import diagonal
from evergraph.data.datasets.sbm import sbm
from evergraph.training.calibration import best_temperature, losses_at_temperatures
from evergraph.training.description import describe

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*join the ends of validation and test links"),
    pytest.mark.filterwarnings("ignore:.*all of its .* links are asked for"),
    pytest.mark.filterwarnings("ignore:heads are as if these"),
    pytest.mark.filterwarnings("ignore:no .* asked for was left to forget"),
]

# entries of a record which say that something was forgotten since
SINCE = ("learned", "given", "given_outline", "given_classes", "forgotten", "forgotten_examples")


FORMS = ("gram_", "factor_", "factor_targets_", "task_rows_")  # of sums: one matrix, or the rows that make it


def sums(learner: eg.Learner) -> dict[str, Tensor]:
    """G by part, whichever form it is kept in."""
    every = torch.arange(learner.model.head.size(0))
    return {part: learner.method.gram_among(part, every) for part in ("train", "val")}


def make(model: str = "random-features", hidden: int = 160, **settings: Any) -> eg.Learner:
    method = eg.registry.methods[settings.pop("method", "auto")](**settings)
    return eg.Learner(eg.make_model(model, hidden=hidden), method, dtype=torch.float64)


@pytest.fixture(scope="module")
def stream() -> eg.TaskStream:
    return eg.TaskStream(sbm(nodes=150, classes=6, degree=4, features=8, signal=1.5, seed=1), 2)


FITTED: dict[tuple[Any, ...], tuple[eg.TaskStream, eg.Learner]] = {}


def fitted(stream: eg.TaskStream, **settings: Any) -> eg.Learner:
    """A learner of the whole stream: trained once with the same settings, and every caller has a copy."""
    key = (id(stream), *sorted(settings.items()))
    if key not in FITTED:
        FITTED[key] = stream, make(**settings).fit(stream)  # while it is kept, no other has its id
    return copy.deepcopy(FITTED[key][1])


def near(found: Any, wanted: Any, tolerance: float = 1e-8) -> bool:
    """Tensors and numbers to the tolerance, everything else exactly."""
    found, wanted = (value.detach() if isinstance(value, Tensor) else value for value in (found, wanted))
    if isinstance(wanted, Tensor):
        scale = max(1.0, float(wanted.abs().max()))
        return found.shape == wanted.shape and float((found - wanted).abs().max()) <= tolerance * scale
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(near(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(near(a, b) for a, b in zip(found, wanted))
    if isinstance(wanted, float):
        return abs(found - wanted) <= tolerance * max(1.0, abs(wanted))
    return found == wanted


def assert_same(found: eg.Learner, wanted: eg.Learner) -> None:
    """All that a learner keeps, but for when it was learned and that something was forgotten."""
    assert found.classes_ == wanted.classes_
    assert (found.num_tasks, found.history) == (wanted.num_tasks, wanted.history)
    for key, value in wanted.method.state_dict().items():
        if key not in FORMS:
            assert near(found.method.state_dict()[key], value), key
    assert near(sums(found), sums(wanted))
    assert near(dict(found.model.state_dict()), dict(wanted.model.state_dict()))
    assert near(found.first_accuracies, wanted.first_accuracies)
    for ours, theirs in zip(found.records, wanted.records):
        plain, right = ({key: one[key] for key in one if key not in SINCE} for one in (ours, theirs))
        plain["before"].pop("task_rows_", None), right["before"].pop("task_rows_", None)
        assert near(plain, right)
    assert near(found.temperature, wanted.temperature)


def some_nodes(task: eg.Task) -> Tensor:
    """Training, validation and test nodes."""
    return torch.cat([task.train[1:6], task.val[:2], task.test[:1]])


@pytest.mark.parametrize(
    ("number", "keep_in_graph"),
    [(0, False), (2, True), slow(0, True), slow(1, False), slow(1, True), slow(2, False)],
)
@pytest.mark.parametrize(
    "settings", [{"balance": 0.0}, {}, {"model": eg.Auto.model}, {"method": "analytic", "hidden": 40}]
)
def test_nodes_were_never_learned(stream: eg.TaskStream, number: int, keep_in_graph: bool, settings) -> None:
    """With the tasks since then at hand, every number that is kept is what it would be."""
    nodes = some_nodes(stream[number])
    found = fitted(stream, **settings)
    assert found.forget(nodes, [stream[i] for i in range(number, 3)], keep_in_graph=keep_in_graph) == nodes.numel()
    wanted = make(**settings)
    for task in stream:
        wanted.learn(task.without(nodes, keep_in_graph=keep_in_graph) if task.index == number else task)
    assert_same(found, wanted)


@pytest.mark.parametrize("memory", ["1MB", "2MB", "3MB", "8MB"])
def test_what_does_not_fit_into_memory_is_dropped_as_if_the_node_had_never_been(memory: str) -> None:
    """Factors of a float64 model take eight bytes an entry, at the first task as later."""
    task = eg.stream("sbm:nodes=200,classes=4,features=12,signal=2")[0]
    found, wanted = (make(eg.Auto.model, hidden=7168, memory=memory) for _ in range(2))
    found.learn(task)
    method = found.method
    assert sum(part.nbytes for part in (*method.factor_.values(), *method.gram_.values())) <= method.budget()
    assert found.forget(task.train[:1], task) == 1
    wanted.learn(task.without(task.train[:1]))
    assert found.model.kept == wanted.model.kept
    assert near(found.predict(task.graph).table, wanted.predict(task.graph).table)
    assert_same(found, wanted)


STANDS = r"heads are as if .* until forget has the data of {} \(sbm\) in one list \(--later\)"


def test_sums_that_became_dense_and_gave_up_sets_are_made_from_the_first_task() -> None:
    """The second task, learned again with G instead of factors, would give up sets that it kept."""
    stream = eg.TaskStream(sbm(nodes=200, classes=8, degree=4, features=8, signal=1.5, seed=0), 2)
    found, wanted = (make(hidden=100, memory="2MB") for _ in range(2))
    found.fit(stream)
    nodes = stream[1].train[:8]
    with pytest.warns(eg.EvergraphWarning, match=STANDS.format("tasks 1 to 4")):
        found.forget(nodes, [stream[1], stream[2], stream[3]])
    found.forget(nodes, [stream[1], stream[0], stream[2], stream[3]])
    for task in stream:
        wanted.learn(task.without(nodes) if task.index == 1 else task)
    assert_same(found, wanted)


@pytest.mark.parametrize("number", [1, 2])
def test_sums_that_became_dense_and_would_give_up_sets_are_made_from_the_first_task(number: int) -> None:
    """G was formed after the last task had chosen among all sets, and would leave room for some of them."""
    stream = eg.TaskStream(sbm(nodes=120, classes=6, degree=4, features=8, signal=0.7, seed=0), 2)
    found, wanted = (make(eg.Auto.model, hidden=112, memory="1MB") for _ in range(2))
    found.fit(stream)
    nodes, later = stream[number].train[:1], [stream[i] for i in range(number, 3)]
    with pytest.warns(eg.EvergraphWarning, match=STANDS.format("tasks 1 to 3")):
        found.forget(nodes, later)
    found.forget(nodes, [*later, *(stream[i] for i in range(number))])
    for task in stream:
        wanted.learn(task.without(nodes) if task.index == number else task)
    assert_same(found, wanted)


@pytest.mark.parametrize("settings", [{"balance": 0.0}, {"method": "analytic", "hidden": 40}])
@pytest.mark.parametrize(("number", "whole"), [(0, False), (0, True), (1, True), slow(1, False)])
def test_choices_that_stood_are_made_again_when_all_data_come(stream, number: int, whole: bool, settings, tmp_path):
    """Another time, after a save; a whole task that is gone by then is not given any more."""
    task, later = stream[number], [stream[i] for i in range(number + 1, 3)]
    nodes = torch.cat([task.train, task.val, task.test]) if whole else some_nodes(task)
    found, wanted = fitted(stream, **settings), make(**settings)
    span = {(0, False): "tasks 1 to 3", (0, True): "tasks 1 and 2", (1, False): "tasks 2 and 3", (1, True): "task 2"}
    with pytest.warns(eg.EvergraphWarning, match=STANDS.format(span[number, whole])):
        assert found.forget(nodes, task) == nodes.numel()
    left = later if whole else [task, *later]
    for each in [stream[i] for i in range(number)] + ([] if whole else [task.without(nodes)]) + later:
        wanted.learn(each)
    with pytest.raises(AssertionError):
        assert_same(found, wanted)
    found.save(tmp_path / "kept")
    found = eg.Learner.load(tmp_path / "kept")
    with pytest.warns(
        eg.EvergraphWarning, match="was left to forget.*, which stood after an earlier forget, were made"
    ):
        assert found.forget([] if whole else nodes, left) == 0
    assert_same(found, wanted)
    with pytest.warns(eg.EvergraphWarning, match="nothing was forgotten"):
        assert found.forget([] if whole else nodes, left) == 0


def test_choices_that_stood_are_made_again_with_what_is_forgotten_next(stream: eg.TaskStream) -> None:
    """Data of the last task alone repeat its choices only; those of all tasks, all."""
    gone = [some_nodes(task) for task in stream]
    found, wanted = fitted(stream), make()
    with pytest.warns(eg.EvergraphWarning, match=STANDS.format("tasks 2 and 3")):
        found.forget(gone[1], stream[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.forget(gone[2][:2], stream[2]) == 2
        assert found.forget(gone[2][2:], [stream[2], stream[0], stream[1]]) == 6
    for task, nodes in zip(stream, [gone[0][:0], gone[1], gone[2]]):
        wanted.learn(task.without(nodes))
    assert_same(found, wanted)


def test_where_features_were_dropped_since_the_data_of_all_tasks_make_it_exact(stream: eg.TaskStream) -> None:
    """With those of the last task, what was dropped stays dropped, and a note says which data are missing."""
    settings: dict[str, Any] = {"model": eg.Auto.model, "memory": "1MB"}
    found, nodes = fitted(stream, **settings), some_nodes(stream[2])
    assert "kept" not in found.records[2]["layout"]
    assert not all(found.model.kept)
    with pytest.warns(eg.EvergraphWarning, match=STANDS.format("tasks 1 to 3")):
        found.forget(nodes, stream[2])
    wanted = make(**settings)
    for task in stream:
        wanted.learn(task.without(nodes) if task.index == 2 else task)
    data = [stream[2], stream[0], stream[1]]  # nodes are numbered in the first
    found.forget(nodes, data)
    assert_same(found, wanted)
    found = fitted(stream, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.forget(nodes, data) == nodes.numel()
    assert_same(found, wanted)


@pytest.mark.parametrize("number", [0, 1])
def test_with_the_task_alone_the_sums_and_heads_are_those_of_never_having_learned(stream, number: int) -> None:
    """At choices that are given. Later tasks' counts stand."""
    fixed = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0, "judge_edges": False}
    nodes = some_nodes(stream[number])
    found, wanted = fitted(stream, **fixed), make(**fixed)
    found.forget(nodes, stream[number])
    for task in stream:
        wanted.learn(task.without(nodes) if task.index == number else task)
    for key in ("gram_", "cross_", "vote_", "class_sizes_", "task_of_unit_"):
        assert near(getattr(found.method, key), getattr(wanted.method, key)), key
    assert near(dict(found.model.state_dict()), dict(wanted.model.state_dict()))
    assert near(found.logits(stream.graph), wanted.logits(stream.graph))
    assert found.history == wanted.history


def test_counts_of_forgotten_validation_nodes_go_too(stream: eg.TaskStream) -> None:
    learner = fitted(stream)
    before = learner.method.validated_
    learner.forget(stream[0].val[:4], stream[0])
    assert learner.method.validated_ == before - 4
    assert sum(row[-1] for row in learner.records[0]["familiar"]) == stream[0].val.numel() - 4


@pytest.mark.parametrize("whole", [True, False])
def test_a_class_was_never_met(stream: eg.TaskStream, whole: bool) -> None:
    """Its output unit goes, and those behind it move up."""
    fixed = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0, "judge_edges": False}
    found, wanted = fitted(stream, **fixed), make(**fixed)
    name = stream[1].class_names[0]
    found.forget(classes=[name], data=stream if whole else stream[1])
    for task in stream:
        places = [task.graph.class_names.index(name)] if name in task.class_names else []
        wanted.learn(task.without(torch.nonzero(torch.isin(task.graph.y, torch.tensor(places))).reshape(-1)))
    assert name not in found.classes_
    assert found.classes_ == wanted.classes_
    assert near(dict(found.model.state_dict()), dict(wanted.model.state_dict()))
    assert near(found.logits(stream.graph), wanted.logits(stream.graph))
    if whole:
        assert_same(found, wanted)


def test_a_whole_task_goes_and_everything_goes(stream: eg.TaskStream) -> None:
    fixed = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0}
    found, wanted = fitted(stream, **fixed), make(**fixed).fit([stream[0], stream[2]])
    found.forget(classes=stream[1].class_names, data=stream[1])
    assert found.num_tasks == 2
    assert near(sums(found), sums(wanted))
    assert found.method.task_of_unit_ == wanted.method.task_of_unit_
    assert near(found.logits(stream.graph), wanted.logits(stream.graph))
    found.forget(classes=found.classes_, data=stream)
    assert (found.classes_, found.num_tasks, found.method.cross_) == ([], 0, {})
    with pytest.raises(eg.EvergraphError, match="has not learned anything"):
        found.predict(stream.graph)
    assert near(found.fit(stream).logits(stream.graph), fitted(stream, **fixed).logits(stream.graph))


def test_when_everything_is_forgotten_other_columns_may_come_and_the_data_are_not_known_again() -> None:
    graph = sbm(nodes=60, classes=2, features=4, seed=3)
    first, second = (graph.altered(feature_names=list(names)) for names in ("abcd", "wxyz"))
    learner = make(hidden=20)
    learner.learn(first)
    learner.forget(torch.arange(60), first)
    with pytest.raises(eg.EvergraphError, match="or all of it was forgotten"):
        learner.forget([1], first)
    learner.learn(second)
    assert learner.feature_names == list("wxyz")


def test_twice_in_any_order_and_across_a_save(stream: eg.TaskStream, tmp_path: Path) -> None:
    """The same data are known again after something was forgotten."""
    task, tasks = stream[1], [stream[1], stream[2]]
    first, second = task.train[:3], torch.cat([task.train[4:6], task.val[:1]])
    once, found = fitted(stream), fitted(stream)
    once.forget(torch.cat([first, second]), tasks)
    found.forget(second, tasks)
    found.save(tmp_path / "kept")
    found = eg.Learner.load(tmp_path / "kept")
    assert found.forget(torch.cat([first, second]), tasks) == 3  # the others are forgotten already
    assert_same(found, once)
    assert found.records[1]["forgotten_examples"] == 6
    assert found.records[1]["learned"] <= eg.Learner.load(tmp_path / "kept").records[1]["learned"]


@pytest.mark.parametrize(
    ("method", "after_a_whole_task"),
    [("analytic", False), ("auto", True), slow("analytic", True), slow("auto", False)],
)
def test_rows_of_tasks_that_lost_some_are_found_again(stream, after_a_whole_task: bool, method: str) -> None:
    """Sums kept as rows of each task: a task that goes takes its place along, and one that shrinks moves others."""
    fixed = {"method": method, "ridge": 0.5, "smoothing": 0.0, "judge_edges": False, "hidden": 1024}
    found, wanted = fitted(stream, **fixed), make(**fixed)
    steps = [(0, None), (1, some_nodes(stream[1]))]
    if not after_a_whole_task:
        steps = [(number, some_nodes(stream[number])) for number in (0, 2, 1)]
    for number, nodes in steps:
        gone = {"classes": stream[number].class_names} if nodes is None else {"nodes": nodes}
        found.forget(data=stream[number], **gone)
    lost = dict(steps)
    for task in stream:
        if task.index not in lost:
            wanted.learn(task)
        elif lost[task.index] is not None:
            wanted.learn(task.without(lost[task.index]))
    assert found.method.factor_
    assert found.method.task_rows_ == wanted.method.task_rows_
    assert near(sums(found), sums(wanted))
    assert near(found.method.cross_, wanted.method.cross_)
    if method == "analytic":
        assert near(dict(found.model.state_dict()), dict(wanted.model.state_dict()))


def test_in_single_precision_features_of_a_forgotten_task_alone_are_gone(stream: eg.TaskStream) -> None:
    """Sums that were rows and became a matrix: what is left of such a feature is rounding, and does not count."""
    graph = stream.graph
    own = torch.nn.functional.one_hot(graph.y // 2, 3).repeat_interleave(8, 1)
    apart = eg.TaskStream(graph.altered(x=graph.x.repeat(1, 3) * own), 2)
    learners = []
    for tasks in (list(apart), list(apart)[1:]):
        model = eg.make_model("mixed-features", hidden=64)
        learners.append(eg.Learner(model, eg.Analytic(ridge=0.5, smoothing=0.0, judge_edges=False)).fit(tasks))
    found, wanted = learners
    found.forget(classes=apart[0].class_names, data=apart[0])
    assert found.method.gram_
    left, right = (diagonal(learner.method.gram("train")) > 0 for learner in learners)
    assert torch.equal(left, right)
    assert near(found.model.head, wanted.model.head, 1e-4)


def test_features_that_die_in_two_steps_are_gone() -> None:
    """Rounding of the first is small beside what the sum was, not beside the little that was left for the second."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 0] = torch.where(torch.arange(60) < 20, x[:, 0] + 3, 0.0)
    x[20, 0] = 1e-3
    graph = eg.make_graph(x, torch.empty(2, 0, dtype=torch.long), torch.arange(60) // 20)
    tasks = [eg.Task.of(graph, [name], hold_out=False, index=name) for name in range(3)]

    def make_linear() -> eg.Learner:
        model = eg.RandomFeatures(blocks=[(0, 1.0, "linear")], lift=0.0, scales=False)
        return eg.Learner(model, eg.Analytic(ridge=0.5, smoothing=0.0, judge_edges=False), dtype=torch.float64)

    last = torch.tensor([20])
    found, wanted = make_linear().fit(tasks), make_linear().fit([tasks[1].without(last), tasks[2]])
    assert found.method.gram_
    found.forget(tasks[0].train, tasks[0])
    found.forget(last, tasks[1])
    assert diagonal(found.method.gram("train"))[0] == 0
    assert near(found.logits(graph)[:, :2], wanted.logits(graph)[:, :2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_validation_nodes_nothing_is_chosen_by_rounding(dtype: torch.dtype) -> None:
    graph = sbm(nodes=60, classes=4, degree=4, features=8, signal=1.5, seed=1)
    stream = eg.TaskStream(graph, order=[[0, 1], [1, 2], [0, 3]])
    tasks = [replace(task, val=task.val[:0]) if task.index != 1 else task for task in stream]
    found, wanted = (eg.Learner(eg.make_model("random-features", hidden=160), "auto", dtype=dtype) for _ in range(2))
    found.fit(tasks), wanted.fit([tasks[0], tasks[2]])
    found.forget(torch.cat([tasks[1].train, tasks[1].val, tasks[1].test]), tasks[1:])
    assert found.method.factor_
    assert not bool(found.method.cross_["val"].any())
    assert near(found.logits(graph), wanted.logits(graph), 1e-8 if dtype == torch.float64 else 1e-4)


def test_weights_of_a_class_that_came_again_are_put_right(stream: eg.TaskStream) -> None:
    """Nodes count by the size that their class had reached: later ones of the class change weight too."""
    fixed = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0, "judge_edges": False}
    pieces = [*stream[0].pieces(20), stream[1]]
    found, wanted = make(**fixed).fit(pieces), make(**fixed)
    gone = pieces[0].train[:5]
    with pytest.raises(eg.EvergraphError, match=r"task 2 \(sbm\) had examples of the same classes"):
        found.forget(gone, pieces[0], keep_in_graph=True)
    found.forget(gone, pieces[:-1], keep_in_graph=True)
    wanted.learn(pieces[0].without(gone, keep_in_graph=True))
    for task in pieces[1:]:
        wanted.learn(task)
    assert near(sums(found), sums(wanted))
    assert near(found.logits(stream.graph), wanted.logits(stream.graph))


@pytest.mark.parametrize("balance", [0.0, 0.75])
def test_a_class_that_is_gone_from_its_first_task_came_with_the_next_one_that_has_it(balance: float) -> None:
    graph = sbm(nodes=150, classes=6, degree=4, features=8, signal=1.5, seed=1)
    tasks = list(eg.TaskStream(graph, order=[[0, 1], [2, 3], [0, 4], [5]]))
    gone = torch.nonzero(tasks[0].graph.y == 0).reshape(-1)
    fixed = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0, "judge_edges": False, "balance": balance}
    found, wanted = make(**fixed), make(**fixed)
    for task in tasks:
        found.learn(task)
        wanted.learn(task.without(gone) if task is tasks[0] else task)
    found.forget(gone, [tasks[0], tasks[2]] if balance else tasks[0])
    by_name = [dict(zip(one.classes_, one.method.task_of_unit_)) for one in (found, wanted)]
    assert by_name[0] == by_name[1] == {0: 2, 1: 0, 2: 1, 3: 1, 4: 2, 5: 3}
    before = found.records[2]["before"]["task_of_unit_"]
    assert dict(zip(found.classes_, before))[0] == -1


@pytest.mark.parametrize(
    ("order", "balance"),
    [
        ((0, 1, 2), 0.75),
        ((2, 0, 1), 0.0),
        ((1, 2, 0), 0.75),
        *(
            pytest.param(*way, marks=pytest.mark.slow)
            for way in (((0, 1, 2), 0.0), ((2, 0, 1), 0.75), ((1, 2, 0), 0.0))
        ),
    ],
)
def test_in_several_steps_classes_keep_their_own_units(order: Sequence[int], balance: float) -> None:
    """A class that lives on in a later task comes behind those between, whatever is forgotten before and after."""
    graph = sbm(nodes=120, classes=6, degree=4, features=8, signal=1.5, seed=1)
    tasks = list(eg.TaskStream(graph, order=[[0, 1], [2, 0], [3, 4], [5, 2]]))
    fixed = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0, "judge_edges": False, "balance": balance}
    zeros, twos = (torch.nonzero(tasks[task].graph.y == name).reshape(-1) for task, name in ((0, 0), (1, 2)))
    steps = [(0, zeros, [0, 1]), (2, some_nodes(tasks[2]), [2, 3]), (1, twos, [1, 3])]  # task, nodes, data given
    found, left = make(hidden=20, **fixed).fit(tasks), list(tasks)
    for step in order:
        number, gone, given = steps[step]
        found.forget(gone, [tasks[place] for place in given])
        left[number] = tasks[number].without(gone)
        wanted = make(hidden=20, **fixed).fit(left)
        assert found.classes_ == wanted.classes_
        assert found.history == wanted.history
        for key in ("class_sizes_", "task_of_unit_", "cross_", "vote_"):
            assert near(getattr(found.method, key), getattr(wanted.method, key)), key
        for ours, theirs in zip(found.records, wanted.records):
            assert ours["before"]["class_sizes_"] == theirs["before"]["class_sizes_"]
            assert ours["before"]["task_of_unit_"] == theirs["before"]["task_of_unit_"]
        assert near(sums(found), sums(wanted))
        assert near(found.logits(graph), wanted.logits(graph))
        assert near(found.predict_proba(graph, calibrated=False), wanted.predict_proba(graph, calibrated=False))
        assert found.predict(graph).labels == wanted.predict(graph).labels
    assert found.classes_ == [1, 0, 3, 4, 2, 5]


def test_corrected_labels(stream: eg.TaskStream) -> None:
    """Forget the nodes, then learn them with the right label: the sums of having had it from the start."""
    fixed = {"method": "analytic", "ridge": 0.5, "balance": 0.0, "smoothing": 0.0, "judge_edges": False}
    right = stream[0]
    wrong_nodes = right.train[:4]
    y = right.graph.y.clone()
    y[wrong_nodes] = 1 - y[wrong_nodes]
    wrong = eg.Task(0, right.class_positions, right.graph.altered(y=y), right.train, right.val, right.test, 6)
    found, wanted = make(**fixed).fit([wrong, stream[1]]), make(**fixed).fit([right, stream[1]])
    found.forget(wrong_nodes, wrong, keep_in_graph=True)
    none = right.val[:0]
    found.learn(eg.Task(0, right.class_positions, right.graph, wrong_nodes, none, none, 6))
    assert near(sums(found), sums(wanted))
    assert near(found.logits(stream.graph), wanted.logits(stream.graph))


def test_a_failure_leaves_the_learner_as_it_was(stream: eg.TaskStream, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, untouched = fitted(stream), fitted(stream)
    numbers, names = learner.generator.get_state(), learner.feature_names

    def fail(learner: eg.Learner, *words: object) -> None:
        learner.feature_names = ["another"] * stream.graph.num_features
        torch.rand(1, generator=learner.generator)
        raise ZeroDivisionError

    monkeypatch.setattr("evergraph.training.forgetting.learn", fail)
    with pytest.raises(ZeroDivisionError):
        learner.forget(stream[0].train[:3], stream)
    monkeypatch.undo()
    assert_same(learner, untouched)
    assert torch.equal(learner.generator.get_state(), numbers)
    assert learner.feature_names == names
    learner.forget(stream[0].train[:3], stream)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda made, tasks: made.forget([1]), "needs the data"),
        (lambda made, tasks: made.forget(data=tasks[0]), "say what to forget"),
        (lambda made, tasks: made.forget([1], tasks[0], classes=[0]), "say what to forget"),
        (lambda made, tasks: made.forget([999], tasks[0]), "one asked for is outside"),
        (lambda made, tasks: made.forget([1], tasks[0], keep_in_graph="no"), "keep_in_graph='no' must be true"),
        (lambda made, tasks: made.forget(classes=3.5, data=tasks[0]), r"classes=3\.5 must be"),
        (lambda made, tasks: made.forget(classes=["cat"], data=tasks[0]), "knows no class 'cat'"),
        (lambda made, tasks: made.forget([1], tasks.graph), "is not data that this learner learned from"),
        (lambda made, tasks: made.forget(classes=[0, 2], data=tasks[0]), "was learned in task 2 \\(sbm\\) too"),
    ],
)
def test_wrong_calls_are_one_line(stream: eg.TaskStream, call: Any, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        call(fitted(stream), stream)


@pytest.mark.parametrize(
    "method", ["finetune", "ewc", "er-gnn", "ema+ewc", eg.Analytic(encoder="first"), "joint", "stand-in-curvature"]
)
def test_other_methods_say_what_is_possible(stream: eg.TaskStream, method: Any) -> None:
    model = eg.GCN(hidden=4)
    learner = eg.Learner(model, method, epochs=1)
    learner.learn(stream[0])
    with pytest.raises(eg.EvergraphError, match=r"cannot.*learn anew without them"):
        learner.forget([1], stream[0])


def test_from_the_command_line(evergraph, small_graph: eg.Graph, tmp_path: Path) -> None:
    """The learner in the folder, and one in Python that learned the rest."""
    from torch_geometric.data import Data

    paths = []
    for number in range(2):
        part = small_graph.subgraph(
            torch.isin(small_graph.y, torch.tensor([2 * number, 2 * number + 1])).nonzero()[:, 0]
        )
        paths.append(tmp_path / f"{number}.pt")
        torch.save(Data(x=part.x, edge_index=part.edge_index, y=part.y), paths[-1])
        assert evergraph("learn", paths[-1], "--checkpoint", tmp_path / "kept", "--hidden", "20")[0] == 0
    words = ("forget", paths[0], "--checkpoint", tmp_path / "kept")
    status, out, error = evergraph(*words, "--nodes", "0", "--nodes", "3", "--later", paths[1])
    assert (status, error.count("\n")) == (0, 1)
    assert "note: task 2 (1): where the data hold these nodes too" in error  # they have no ids
    assert "forgot 2 nodes" in out
    wanted = eg.Learner(eg.make_model(eg.Auto.model, hidden=20), "auto", num_classes=2)
    wanted.learn(eg.Task.of(paths[0]).without(torch.tensor([0, 3])))
    wanted.learn(paths[1])
    found = eg.Learner.load(tmp_path / "kept")
    assert near(found.logits(small_graph)[:, :4], wanted.logits(small_graph)[:, :4], 1e-4)
    assert "2 forgotten since" in " ".join(evergraph("info", tmp_path / "kept")[1].split())
    for extra, message in (
        (("--nodes", "0", "--classes", "1"), "--nodes and --classes both say what to forget; give one of the two"),
        (("--nodes", "1,b"), "--nodes b: the nodes of 0 have no ids; give their numbers, from 0 to"),
        (("--nodes", "-1"), "--nodes -1: the nodes of 0 have no ids"),
        (("--classes", "7"), "knows no class '7'"),
    ):
        status, _, error = evergraph(*words, *extra)
        assert status == 2
        assert message in error
        assert error.count("\n") == 1
    assert evergraph("forget", paths[0], "--checkpoint", tmp_path / "none", "--nodes", "1")[0] == 2
    assert not (tmp_path / "none").exists()


def test_a_class_of_two_months_asks_for_the_other_one(evergraph, month: Path, tmp_path: Path) -> None:
    data = torch.load(month, weights_only=False)
    data.x = data.x + 1
    torch.save(data, tmp_path / "feb.pt")
    for path in (month, tmp_path / "feb.pt"):
        assert evergraph("learn", path, "--checkpoint", tmp_path / "kept", "--hidden", "20")[0] == 0
    words = ("forget", month, "--checkpoint", tmp_path / "kept")
    for asked in (("--classes", "c"), ("--nodes", "0")):
        status, _, error = evergraph(*words, *asked)
        assert status == 2
        assert "--later GRAPH" in error
    assert evergraph(*words, "--classes", "c", "--later", tmp_path / "feb.pt")[0] == 0


def test_numbers_are_not_forgotten_and_the_error_says_so(evergraph, tmp_path: Path) -> None:
    from torch_geometric.data import Data

    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    edges = torch.tensor([range(39), range(1, 40)])
    data = Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=x[:, 0])
    torch.save(data, tmp_path / "reg.pt")
    words = (tmp_path / "reg.pt", "--checkpoint", tmp_path / "kept")
    assert evergraph("learn", *words, "--problem", "node-regression", "--hidden", "20")[0] == 0
    for asked in (("--nodes", "0"), ("--classes", "0")):
        status, _, error = evergraph("forget", *words, *asked)
        assert status == 2
        assert "those of node-regression have numbers; learn anew without them" in error
    with pytest.raises(eg.EvergraphError, match="have numbers; learn anew"):
        eg.Learner.load(tmp_path / "kept").forget("0", data)


@pytest.mark.parametrize("later", [True, False])
def test_what_was_forgotten_is_not_measured_and_the_history_stays(
    evergraph, small_graph: eg.Graph, tmp_path: Path, later: bool
) -> None:
    from torch_geometric.data import Data

    folder, paths = tmp_path / "kept", [tmp_path / "jan.pt", tmp_path / "feb.pt"]
    for number, path in enumerate(paths):
        mine = torch.isin(small_graph.y, torch.tensor([2 * number, 2 * number + 1]))
        part = small_graph.subgraph(torch.nonzero(mine)[:, 0])
        torch.save(Data(x=part.x, edge_index=part.edge_index, y=part.y), path)
        assert evergraph("learn", path, "--checkpoint", folder, "--hidden", "20")[0] == 0
    jan = eg.Task.of(paths[0])
    gone = torch.cat([jan.test[:2], jan.train[:1], jan.val[:1]])
    words = ("--nodes", ",".join(map(str, gone.tolist())), *(("--later", paths[1]) if later else ()))
    assert evergraph("forget", paths[0], "--checkpoint", folder, *words)[0] == 0
    status, out, error = evergraph("evaluate", *paths, "--checkpoint", folder, "--by-class", "--json")
    assert (status, error) == (0, "")
    said, learner = json.loads(out), eg.Learner.load(folder)
    row = said["graphs"][0]
    assert (row["which"], row["examples"]) == ("held out", jan.test.numel() - 2)
    assert sum(own["examples"] for own in row["classes"]) == row["examples"]
    assert row["then"] == learner.first_accuracies[0]
    assert said["af"] == pytest.approx(row["now"] - row["then"])
    without = learner.evaluate([jan.without(gone), paths[1]])
    for given in ([jan, paths[1]], paths):
        assert vars(learner.evaluate(given)) == vars(without)
    assert vars(without)["accuracies"] == [each["now"] for each in said["graphs"]]


@pytest.mark.parametrize("alone", [False, True])
def test_no_file_names_a_forgotten_class(tmp_path: Path, alone: bool) -> None:
    """The data are recognized all the same, also as a graph, and in learners whose record named the classes."""
    names = ["ant", "secret-bee", "cow", "dog"]
    graph = sbm(nodes=120, classes=4, degree=4, features=8, signal=1.5, seed=1).altered(class_names=names)
    tasks = [eg.Task.of(graph, [names[3], names[1]]), eg.Task.of(graph, names[::2])]
    learner = make(**FIXED, hidden=40).fit(tasks)
    bees, dogs = (int((graph.y == place).sum()) for place in (1, 3))
    assert learner.forget(classes=names[1], data=tasks[0] if alone else graph) == bees
    learner.save(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"secret-bee" in path.read_bytes()]
    learner = eg.Learner.load(tmp_path)
    named = copy.deepcopy(learner)
    named.records[0] = {**named.records[0], "given_classes": [[name, 0] for name in tasks[0].class_names]}
    for each in (learner, named):
        assert len(each.evaluate([tasks[0], tasks[1]]).accuracies) == 2
        assert each.forget(classes="dog", data=graph) == dogs
        assert each.classes_ == ["ant", "cow"]


def test_a_task_named_by_its_classes_is_recognized_after_one_of_them_is_forgotten(evergraph, month: Path) -> None:
    words = ("--checkpoint", month.parent / "kept")
    assert evergraph("learn", month, *words, "--hidden", "20", "--classes", "d,c")[0] == 0
    assert evergraph("forget", month, *words, "--classes", "d")[1].endswith(" knows 1 class now\n")
    (row,) = json.loads(evergraph("evaluate", month, *words, "--classes", "c,d", "--json")[1])["graphs"]
    assert (row["which"], row["now"], row["then"]) == ("held out", 100.0, 100.0)


@pytest.mark.parametrize("test_graph", ["task", "seen", "node"])
def test_what_was_forgotten_of_a_stream_is_not_measured(stream: eg.TaskStream, test_graph: str) -> None:
    learner = fitted(stream)
    gone = stream[1].test[1:3]
    assert learner.forget(gone, [stream[1], stream[2]], keep_in_graph=True) == 2
    graph, nodes = stream.tests(2, 1, test_graph)
    kept = torch.cat([nodes[:1], nodes[3:]])
    right = learner.logits(graph, kept)[:, :6].argmax(1) == graph.y[kept]
    found = learner.evaluate(stream, test_graph=test_graph)
    assert found.accuracies[1] == pytest.approx(100 * float(right.double().mean()))
    assert (found.af is None) == (test_graph != "task")
    assert test_graph != "task" or found.first == learner.first_accuracies


@pytest.fixture
def month(small_graph: eg.Graph, tmp_path: Path) -> Path:
    from torch_geometric.data import Data

    y = torch.where(small_graph.y < 3, small_graph.y, -1)
    names = ["a, b", "c", "d", *"efghij"][: small_graph.num_classes]
    torch.save(Data(x=small_graph.x, edge_index=small_graph.edge_index, y=y, class_names=names), tmp_path / "month.pt")
    return tmp_path / "month.pt"


def test_what_was_forgotten_does_not_come_back_by_learning_the_same_data(evergraph, month: Path) -> None:
    kept = month.parent / "kept"
    words = ("--checkpoint", kept)
    assert evergraph("learn", month, *words, "--hidden", "20")[0] == 0
    nodes = eg.Task.of(month).train[:2]
    assert evergraph("forget", month, *words, "--nodes", ",".join(map(str, nodes.tolist())))[0] == 0
    before = eg.Learner.load(kept).logits(month)
    status, out, error = evergraph("learn", month, *words)
    assert (status, out) == (0, "")
    assert "was learned already, as task 1 (nodes forgotten since: 2); --again learns it again" in error
    assert torch.equal(eg.Learner.load(kept).logits(month), before)
    with pytest.warns(eg.EvergraphWarning, match=r"learned already, as task 1.*including nodes forgotten since \(2\)"):
        eg.Learner.load(kept).learn(month)
    assert evergraph("learn", month, *words, "--again")[0] == 0
    assert eg.Learner.load(kept).num_tasks == 2


def test_a_graph_that_was_learned_in_pieces_is_not_learned_again_as_a_whole(evergraph, month: Path) -> None:
    words = ("learn", month, "--checkpoint", month.parent / "kept", "--hidden", "20")
    assert evergraph(*words, "--classes", '"a, b"')[0] == 0
    status, out, error = evergraph(*words)
    assert (status, out) == (2, "")
    own, every = (eg.Task.of(month, classes).train.numel() for classes in (["a, b"], None))
    assert f"{own} of {every} training nodes were learned already, in task 1; --classes c,d learns the oth" in error
    assert evergraph(*words, "--classes", "c,d")[0] == 0
    status, out, error = evergraph(*words)
    assert (status, out) == (0, "")
    assert "was learned already, in tasks 1 and 2; --again learns it again; nothing was done" in error
    learner = eg.Learner.load(month.parent / "kept")
    assert learner.num_tasks == 2
    with pytest.warns(
        eg.EvergraphWarning, match=f"{every} of {every} training nodes were learned already, in tasks 1 "
    ):
        learner.learn(month)
    assert evergraph(*words, "--all-nodes")[0] == 2  # the same nodes among others
    assert evergraph(*words, "--again")[0] == 0


@pytest.mark.parametrize("keep_in_graph", [False, True])
def test_one_graph_that_was_learned_in_two_tasks(stream: eg.TaskStream, keep_in_graph: bool) -> None:
    """As `learn --classes` does: a node leaves the graph of both."""
    graph = stream[0].graph
    names = stream[0].class_names
    found, wanted = make(), make()
    for name in names:
        found.learn(eg.Task.of(graph, [name]))
    nodes = torch.tensor([0, 5, 9])
    assert found.forget(nodes, graph, keep_in_graph=keep_in_graph) == 3
    for name in names:
        wanted.learn(eg.Task.of(graph, [name]).without(nodes, keep_in_graph=keep_in_graph))
    assert_same(found, wanted)
    assert found.forget(nodes, graph, keep_in_graph=keep_in_graph) == 0
    found.forget(classes=names[:1], data=graph)
    assert found.classes_ == names[1:]


def test_what_is_calibrated_by_heads_of_many_features_is_that_of_never_having_learned() -> None:
    """From 512 features on, heads are solved in float32 and refined; those that are only measured too."""
    tasks = list(eg.TaskStream(sbm(nodes=900, classes=4, degree=3, features=20, signal=0.8, seed=2), 2))
    gone = torch.cat([tasks[0].train[1:5], tasks[0].val[:2]])
    found, wanted = (make(hidden=600, method="analytic") for _ in range(2))
    found.fit(tasks)
    found.forget(gone, tasks, keep_in_graph=True)
    wanted.learn(tasks[0].without(gone, keep_in_graph=True))
    wanted.learn(tasks[1])
    for ours, theirs in zip(found.records, wanted.records):
        assert near(ours["calibration"], theirs["calibration"])
    assert near(found.temperature, wanted.temperature)


def links_without(gone: list[int], hold_edges: bool = False) -> eg.Graph:
    """Links of two kinds, some twice, some of them edges besides; without a few, which may stay as edges."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(40, 8, generator=random)
    pairs = torch.unique(torch.randint(40, (2, 130), generator=random).sort(0).values, dim=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    pairs = torch.cat([pairs, pairs[:, 5:8], pairs[:, 2:3].flip(0)], 1)  # the same ends again, also the other way round
    edges = pairs[:, [1, 8, 9]]
    y = (x[pairs[0], 0] * x[pairs[1], 0] > 0).long()
    part = torch.where(torch.arange(pairs.size(1)) % 5 == 4, 2, 0)
    kept = torch.tensor([i for i in range(pairs.size(1)) if i not in gone])
    if hold_edges:
        edges = torch.cat([edges, pairs[:, [i for i in gone if part[i] == 0]]], 1)
    return eg.make_links(
        x, pairs[:, kept], y[kept], edge_index=edges, splits=part[kept], class_names=["dislike", "like"]
    )


@pytest.mark.parametrize("keep_in_graph", [False, True])
def test_forgotten_links_are_no_edges(keep_in_graph: bool) -> None:
    """0 and 3 are edges as nothing but links; 1 is one besides, 2 and 6 are trained on twice, and 4 is tested on."""
    gone = [0, 1, 2, 3, 4, 6]
    graph, never = links_without([]), links_without(gone, hold_edges=keep_in_graph)
    task = eg.Task.of(graph).without(torch.tensor(gone), keep_in_graph=keep_in_graph)
    assert torch.equal(task.graph.adjacency.dense(), eg.Task.of(never).graph.adjacency.dense())
    left = torch.tensor([i for i in range(graph.num_examples) if i not in gone])
    for data in (graph, eg.Task.of(graph)):
        found = make(method="analytic", hidden=40).fit([graph])
        assert found.forget(gone[:2], data, keep_in_graph=keep_in_graph) == 2
        assert found.forget(gone, data, keep_in_graph=keep_in_graph) == 4
        wanted = make(method="analytic", hidden=40).fit([never])
        assert near(sums(found), sums(wanted))
        assert near(found.logits(eg.Task.of(never).graph), wanted.logits(eg.Task.of(never).graph))
        assert near(found.logits(graph, left), wanted.logits(graph, left))


PEOPLE = 120


def people(number: int, *, without: Sequence[int] = (), unlabelled: Sequence[int] = ()) -> eg.Graph:
    """A month of people with ids: the first 60; all, with labels at the new ones and two old; all, with some labels."""
    random = torch.Generator().manual_seed(3)
    y = torch.arange(PEOPLE) % 4
    x = torch.randn(PEOPLE, 6, generator=random)
    x[torch.arange(PEOPLE), y] += 3
    edges = torch.randint(PEOPLE, (2, 400), generator=random)
    here = [i for i in range(60 if number == 0 else PEOPLE) if i not in without]
    place = torch.full((PEOPLE,), -1)
    place[here] = torch.arange(len(here))
    told = {0: set(range(60)), 1: {5, 9, *range(60, 120)}, 2: set(range(0, 120, 3))}[number] - set(unlabelled)
    joined = place[edges][:, (place[edges] >= 0).all(0)]
    return eg.make_graph(
        x[here],
        joined,
        [int(y[i]) if i in told else -1 for i in here],
        class_names=list("abcd"),
        undirected=True,
        name=f"month{number}",
        attributes={"id": [f"p{i}" for i in here]},
        splits=[[0, 0, 0, 1, 2][i // 4 % 5] for i in here],
    )


FIXED = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0, "judge_edges": False, "balance": 0.0}


@pytest.mark.parametrize("keep_in_graph", [False, True])
@pytest.mark.parametrize("settings", [{}, {"method": "analytic", "hidden": 40}])
def test_whoever_comes_again_in_later_data_is_forgotten_there_too(keep_in_graph: bool, settings) -> None:
    """By id: 7 is a neighbour in the second month, 9 is labelled there again."""
    found, wanted = make(**settings).fit([people(0), people(1)]), make(**settings)
    options: Any = {"unlabelled": (7, 9)} if keep_in_graph else {"without": (7, 9)}
    months = [people(0), people(1)]
    assert found.forget(["p7", "p9"], months, keep_in_graph=keep_in_graph) == 2
    wanted.fit([people(0, **options), people(1, **options)])
    if keep_in_graph:
        assert near(sums(found), sums(wanted))
    else:
        assert_same(found, wanted)
    assert near(found.logits(people(2)), wanted.logits(people(2)))
    assert found.forget(["p7", "p9"], months, keep_in_graph=keep_in_graph) == 0


def test_later_data_that_are_not_given_are_named() -> None:
    """Those given are put right all the same, and the call with the others undoes the rest."""
    months = [people(number) for number in range(3)]
    found, wanted = make(**FIXED).fit(months), make(**FIXED)
    line = r"the data of task 3 \(month2\) are not given: where they hold these nodes too.*learned from them stands"
    found.forget(["p7"], months)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.forget(["p9", "p5"], months, keep_in_graph=True)
    with pytest.warns(eg.EvergraphWarning, match=line):
        assert found.forget("p11", months[:2]) == 1
    wanted.fit([people(0, without=(7, 11), unlabelled=(5, 9)), people(1, without=(7, 11), unlabelled=(5, 9)),
                people(2, without=(7,), unlabelled=(5, 9))])  # fmt: skip
    assert near(sums(found), sums(wanted))
    assert near(found.logits(people(1)), wanted.logits(people(1)))
    assert found.forget(["p11"], months) == 1
    wanted = make(**FIXED).fit([people(number, without=(7, 11), unlabelled=(5, 9)) for number in range(3)])
    assert near(sums(found), sums(wanted))
    assert near(found.logits(people(1)), wanted.logits(people(1)))


def test_a_class_leaves_later_graphs_too() -> None:
    """Its people are neighbours without a label there."""
    gone = [i for i in range(PEOPLE) if i % 4 == 2]
    found, wanted = make().fit([people(0), people(1)]), make()
    assert found.forget(classes="c", data=[people(0), people(1)]) == len(gone)
    wanted.fit([people(0, without=gone), people(1, without=gone)])
    assert found.classes_ == wanted.classes_
    assert near(sums(found), sums(wanted))
    assert near(found.logits(people(2)), wanted.logits(people(2)))


def test_whoever_has_another_class_later_stays_there() -> None:
    """5 was in class b, which is forgotten, and is in class a since."""
    later = people(1)
    later.y[5] = 0
    gone = [i for i in range(PEOPLE) if i % 4 == 1]
    found, wanted = make().fit([people(0), later]), make()
    assert found.forget(classes="b", data=[people(0), later]) == len(gone)
    left = torch.tensor([i for i in gone if i != 5])
    wanted.fit([people(0, without=gone), eg.Task.of(later).without(left)])
    assert near(sums(found), sums(wanted))
    assert near(found.logits(people(2)), wanted.logits(people(2)))


@pytest.mark.parametrize("whole", [True, False])
def test_nodes_leave_all_tasks_of_a_stream_that_hold_them(whole: bool) -> None:
    graph = sbm(nodes=150, classes=6, degree=4, features=8, signal=1.5, seed=1)
    stream = eg.TaskStream(graph, 2, edges_between_tasks=True)
    found, wanted = fitted(stream), make()
    nodes = some_nodes(stream[0])
    assert found.forget(nodes, stream if whole else list(stream)) == nodes.numel()
    number = stream[0].origin[1][nodes]
    for task in stream:
        wanted.learn(task.without(torch.nonzero(torch.isin(task.origin[1], number)).reshape(-1)))
    assert_same(found, wanted)
    with pytest.warns(eg.EvergraphWarning, match="the data of task 3 "):
        found.forget(stream[1].train[:2], stream[1])


def test_links_leave_the_edges_of_all_tasks_of_a_stream() -> None:
    stream = eg.TaskStream(links_without([]), 1, edges_between_tasks=True)
    links = stream[0].train[:6]
    found, wanted = (make(method="analytic", hidden=40) for _ in range(2))
    assert found.fit(stream).forget(links, stream) == 6
    number = stream[0].origin[1][links]
    for task in stream:
        left = task.without(torch.nonzero(torch.isin(task.origin[1], number)).reshape(-1))
        assert left.graph.num_edges < task.graph.num_edges
        wanted.learn(left)
    assert near(sums(found), sums(wanted))
    assert near(found.logits(stream.graph), wanted.logits(stream.graph))


def test_the_card_counts_every_forgotten_node_once(stream: eg.TaskStream, tmp_path: Path) -> None:
    """One graph that was learned as two tasks: each says how many of its own examples were forgotten."""
    graph, names = stream[0].graph, stream[0].class_names
    learner = make().fit([eg.Task.of(graph, [name]) for name in names])
    sizes = [6, 3]
    nodes = [torch.nonzero(graph.y == place).reshape(-1)[:size] for place, size in enumerate(sizes)]
    assert learner.forget(torch.cat(nodes), graph) == 9
    learner.save(tmp_path / "kept")
    about = describe(tmp_path / "kept")
    assert [task["forgotten"] for task in about["tasks"]] == sizes
    assert about["card"]["forgotten"] == 9
    assert learner.forget(torch.cat(nodes), graph) == 0
    neighbours = make().fit([people(0), people(1)])
    neighbours.forget("p7", [people(0), people(1)])
    assert [record["forgotten_examples"] for record in neighbours.records] == [1, 0]
    assert neighbours.forget("p7", [people(0), people(1)]) == 0


def test_tasks_made_of_one_graph_hold_the_same_nodes(stream: eg.TaskStream) -> None:
    """Read twice, too."""
    graph, names = stream[0].graph, stream[0].class_names
    tasks = [eg.Task.of(graph.altered(), [name]) for name in names]
    found, wanted = make().fit(tasks), make()
    nodes = tasks[0].train[:4]
    assert found.forget(nodes, tasks) == 4
    assert_same(found, wanted.fit([task.without(nodes) for task in tasks]))


def batches(stream: eg.TaskStream) -> list[eg.Graph]:
    """One graph twice, with labels at every other node each time, as nodes that arrive in batches have them."""
    graph = stream[0].graph
    even = torch.arange(graph.num_nodes) % 2 == 0
    return [graph.altered(y=torch.where(told, graph.y, -1)) for told in (even, ~even)]


@pytest.mark.parametrize("settings", [{}, {"method": "analytic", "hidden": 40}])
@pytest.mark.parametrize(("turned", "keep_in_graph"), [(False, True), (True, False)])
def test_a_node_leaves_all_batches_of_labels_of_one_graph(stream, turned: bool, keep_in_graph: bool, settings) -> None:
    """It is an example in one of them and a neighbour in the other, whichever is given first."""
    months = batches(stream)
    node = eg.Task.of(months[0]).train[:1]
    found = make(**settings).fit(months)
    assert found.forget(node, months[::-1] if turned else months, keep_in_graph=keep_in_graph) == 1
    tasks = [eg.Task.of(month).without(node, keep_in_graph=keep_in_graph) for month in months]
    assert_same(found, make(**settings).fit(tasks))


def test_forgetting_what_was_not_learned_or_is_forgotten_says_so(evergraph, stream, tmp_path: Path) -> None:
    from torch_geometric.data import Data

    months = batches(stream)
    learner, never = make().fit(months[:1]), make().fit(months[:1])
    line = "nothing was forgotten: no node asked for was learned from these data, or all were forgotten before"
    for nodes in ([1], []):  # node 1 has its label in the other batch
        with pytest.warns(eg.EvergraphWarning, match=line):
            assert learner.forget(nodes, months[0], keep_in_graph=True) == 0
    assert_same(learner, never)
    assert learner.forget([2], months[0]) == 1
    with pytest.warns(eg.EvergraphWarning, match=line):
        assert learner.forget([2], months[0]) == 0
    path, words = tmp_path / "month.pt", ("--checkpoint", tmp_path / "kept")
    torch.save(Data(x=months[0].x, edge_index=months[0].edge_index, y=months[0].y), path)
    assert evergraph("learn", path, *words, "--hidden", "20")[0] == 0
    status, out, error = evergraph("forget", path, *words, "--nodes", "1", "--keep-in-graph")
    assert (status, out.split(";")[0]) == (0, "forgot 0 nodes")
    assert f"note: {line}" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("number", "settings"), [(0, {}), (1, {"method": "analytic", "hidden": 40})])
def test_nodes_that_stayed_in_the_graph_leave_it_when_asked_to(stream, number: int, settings, tmp_path: Path) -> None:
    """Across a save, and together with nodes that are not forgotten yet."""
    tasks, nodes = list(stream)[number:], some_nodes(stream[number])
    found = fitted(stream, **settings)
    found.forget(nodes[:-1], tasks, keep_in_graph=True)
    found.save(tmp_path / "kept")
    found = eg.Learner.load(tmp_path / "kept")
    assert found.forget(nodes, tasks) == nodes.numel()
    wanted = make(**settings).fit([task.without(nodes) if task.index == number else task for task in stream])
    assert_same(found, wanted)
    assert found.records[number]["forgotten"] == {"unlabelled": [], "removed": sorted(nodes.tolist())}
    assert found.forget(nodes, tasks) == 0


def test_with_the_task_alone_nodes_that_stayed_in_the_graph_leave_it_too(stream: eg.TaskStream) -> None:
    fixed = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0, "judge_edges": False}
    found, nodes = fitted(stream, **fixed), some_nodes(stream[0])
    for keep_in_graph in (True, False):
        assert found.forget(nodes, stream[0], keep_in_graph=keep_in_graph) == nodes.numel()
    wanted = make(**fixed).fit([stream[0].without(nodes), stream[1], stream[2]])
    assert near(sums(found), sums(wanted))
    assert near(found.logits(stream.graph), wanted.logits(stream.graph))


def test_links_that_stayed_as_edges_go_when_asked_to() -> None:
    gone, graph = [0, 1, 3], links_without([])
    found, wanted = (make(method="analytic", hidden=40) for _ in range(2))
    found.fit([graph]).forget(gone, graph, keep_in_graph=True)
    assert found.forget(gone, graph) == 3
    wanted.fit([links_without(gone)])
    assert near(sums(found), sums(wanted))


def test_a_corrected_node_is_erased_from_all_its_tasks(stream: eg.TaskStream) -> None:
    """Forgotten with a wrong label, learned with the right one, then forgotten for good."""
    months = batches(stream)
    node = eg.Task.of(months[0]).train[:1]
    found = make().fit(months)
    found.forget(node, months, keep_in_graph=True)
    y = torch.full_like(months[0].y, -1)
    y[node] = 1 - months[0].y[node]
    right = eg.Task.of(months[0].altered(y=y), hold_out=False)
    found.learn(right)
    assert found.forget(node, [*months, right]) == 1
    assert_same(found, make().fit([eg.Task.of(month).without(node) for month in months]))


def said(learner: eg.Learner, key: str) -> list[Any]:
    """One entry of all tasks' records; None where it is missing."""
    return [record.get(key) for record in learner.records]


@pytest.mark.parametrize("keep_in_graph", [False, True])
def test_with_the_task_alone_nothing_measured_on_forgotten_validation_nodes_remains(stream, keep_in_graph) -> None:
    """All of them go: the other tasks calibrate, and what stood out from the forgotten ones is not known."""
    found, before = fitted(stream), fitted(stream)
    found.forget(stream[1].val, stream[1], keep_in_graph=keep_in_graph)
    for key in ("calibration", "familiar"):
        assert said(found, key) == [said(before, key)[0], None, said(before, key)[2]]
    assert said(before, "separations")[1:] != [None, None]
    assert said(found, "separations") == [None, None, None]
    assert found.temperature == best_temperature([said(before, "calibration")[number] for number in (0, 2)])


def test_with_the_task_alone_what_is_left_of_its_validation_nodes_is_measured_again(stream: eg.TaskStream) -> None:
    """By heads that never had the forgotten ones: they are those of another learner."""
    fixed = {"method": "analytic", "ridge": 0.5, "smoothing": 0.0, "judge_edges": False, "learn_validation": False}
    gone = stream[0].val[:3]
    found, wanted = fitted(stream, **fixed), make(**fixed).fit([stream[0].without(gone), stream[1], stream[2]])
    found.forget(gone, stream[0])
    left = stream[0].without(gone)
    outputs = wanted.outputs(left.graph, left.val)[:, :6]
    truth = wanted.problem.targets(left.graph, wanted.classes_)[left.val]
    assert near(said(found, "calibration")[0], losses_at_temperatures(wanted.problem, outputs, truth))
    assert sum(row[-1] for row in said(found, "familiar")[0]) == left.val.numel()


@pytest.mark.parametrize("keep_in_graph", [False, True])
def test_how_classes_stood_out_stays_where_no_forgotten_node_was_read(stream: eg.TaskStream, keep_in_graph) -> None:
    """Before a task is learned, its training nodes are only neighbours of its validation nodes."""
    found, before = fitted(stream), fitted(stream)
    found.forget(stream[1].train[:5], stream[1], keep_in_graph=keep_in_graph)
    wanted = said(before, "separations")
    assert None not in wanted[1:]
    assert said(found, "separations") == [None, wanted[1] if keep_in_graph else None, wanted[2]]
