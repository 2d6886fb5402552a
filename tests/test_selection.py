"""Selection: what each rule looks at and chooses, who proposes, and that a stopped search goes on."""

import io
import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.table import Table

import evergraph as eg
from evergraph.cli.tune import _trials_table
from evergraph.core.features import as_dense
from evergraph.data.class_parts import parts_of_classes
from evergraph.experiments.result_file import CELLS, read_results
from evergraph.experiments.selection import (
    SELECTION_RULES,
    Choices,
    CurrentTask,
    FirstTasks,
    PseudoStream,
    Range,
    SelectionRule,
    Space,
    StabilityDecay,
    Trial,
    compare_rules,
    make_rule,
    tune,
)
from evergraph.experiments.selection import proposals as proposing
from evergraph.experiments.selection.proposals import Climb, batches, spread
from evergraph.experiments.selection.search import DIVERGED, Search
from evergraph.experiments.selection.stability_decay import decreasing
from evergraph.persistence.reading import read_record, write_record
from forked import Forked
from test_problems import make_data

SMALL = "sbm:nodes=180,classes=9,degree=4,features=8,signal=3"
QUICK = ["--epochs", "2", "--hidden", "8", "--device", "cpu", "--label-scope", "seen"]
TEN_STEPS = Space({"strength": Range(1.0, 1e10, log=True)}, {"strength": "settings"}, ("strength",))
Call = Callable[..., tuple[int, str, str]]


def small_spec(method: str = "ewc", **options: Any) -> eg.RunSpec:
    return eg.RunSpec(
        SMALL,
        stream={"classes_per_task": 3},
        method=method,
        model_settings={"hidden": 8},
        training=eg.Training(epochs=2, label_scope="seen"),
        device="cpu",
        **options,
    )


# streams to look at


@pytest.fixture
def graph() -> eg.Graph:
    """Seven classes of 20 nodes; the features are the nodes' numbers."""
    y = np.arange(140) % 7
    edges = np.random.default_rng(0).integers(0, 140, (2, 600))
    return eg.make_graph(np.arange(140.0)[:, None], edges, y, undirected=True)


def nodes_of(stream: eg.TaskStream) -> set[float]:
    return {float(number) for task in stream for number in task.graph.x[:, 0]}


def part_of(stream: eg.TaskStream, part: str) -> set[float]:
    return {float(number) for task in stream for number in task.graph.x[getattr(task, part), 0]}


@pytest.mark.parametrize("test_graph", ["task", "seen"])
def test_a_pseudo_stream_has_the_first_tasks_nodes_alone_and_no_test_node(graph: eg.Graph, test_graph: str) -> None:
    options: dict[str, Any] = {"classes_per_task": 3, "seed": 2, "test_graph": test_graph}
    whole, pseudo = eg.stream(graph, **options), eg.stream(graph, pseudo_stream=True, **options)
    first = whole[0]
    assert nodes_of(pseudo) == part_of(whole.first(1), "train") | part_of(whole.first(1), "val")
    assert not nodes_of(pseudo) & {float(number) for number in first.graph.x[first.test, 0]}
    parts = [f"{name}, part {number}" for number in (1, 2, 3, 4) for name in first.class_names]
    assert [name for task in pseudo for name in task.class_names] == parts
    for part, of_first in (("train", "train"), ("val", "val"), ("test", "val")):
        assert part_of(pseudo, part) == part_of(whole.first(1), of_first)
    for after in range(len(pseudo)):
        for index in range(after + 1):
            tested, nodes = pseudo.tests(after, index)
            assert set(tested.x[nodes, 0].tolist()) <= part_of(whole.first(1), "val")
    assert pseudo.num_classes == 12
    assert pseudo.protocol()["extent"] == "the classes of task 0, without its test examples"


@pytest.mark.parametrize(
    ("classes", "whole", "tasks"),
    [
        (2, False, [2, 2, 2, 2]),
        (3, False, [3, 3, 2, 2, 2]),
        (4, False, [2, 2, 2, 2]),
        (7, False, [3, 3, 3, 3, 2]),
        (8, True, [2, 2, 2, 2]),
        (9, True, [3, 2, 2, 2]),
        (11, True, [3, 2, 2, 2, 2]),
    ],
)
def test_how_a_task_is_cut(classes: int, whole: bool, tasks: list[int]) -> None:
    source = f"sbm:nodes={120 * classes},classes={classes},degree=4,features=8"
    pseudo = eg.stream(source, classes_per_task=classes).within_task(0)
    assert [len(task.class_names) for task in pseudo] == tasks
    assert (pseudo.num_classes == classes) == whole
    for task in pseudo:
        for part in (task.train, task.val):
            assert set(task.graph.y[part].tolist()) == {pseudo.graph.class_names.index(n) for n in task.class_names}


def test_parts_of_classes_are_halves_along_the_first_axis_of_what_nodes_see() -> None:
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(300, 5)) * [9, 4, 1, 1, 1]  # axes far apart
    graph = eg.make_graph(x, numbers.integers(0, 300, (2, 150)), np.arange(300) % 3, undirected=True)
    part = parts_of_classes(graph, torch.zeros(300), 2)
    looped = graph.adjacency.dense().double() + torch.eye(graph.num_nodes)
    seen = torch.linalg.matrix_power(looped / looped.sum(1, keepdim=True), 2) @ as_dense(graph.x).double()
    naive = torch.zeros(graph.num_nodes, dtype=torch.long)
    for _ in range(2):
        halves = torch.zeros_like(naive)
        for position in range(3):
            for number in naive[graph.y == position].unique():
                own = torch.nonzero((graph.y == position) & (naive == number)).reshape(-1)
                cloud = seen[own] - seen[own].mean(0)
                axis = torch.linalg.svd(cloud).Vh[0]
                halves[own[cloud @ axis > (cloud @ axis).median()]] = 1
        naive = 2 * naive + halves
    for position in range(3):
        own = graph.y == position
        assert torch.bincount(part[own]).tolist() == [25] * 4
        # an axis has two ends: the same parts under other numbers, but for what lies next to the median
        together = torch.zeros(4, 4)
        together.index_put_((part[own], naive[own]), torch.ones(int(own.sum())), accumulate=True)
        assert float(together.max(1).values.sum()) >= 96


def test_parts_of_classes_look_at_no_node_without_a_class_and_may_be_the_class() -> None:
    graph = eg.make_graph(np.ones((6, 2)), [[0, 1], [1, 2]], [0, 0, 0, 0, 1, -1], undirected=True)
    assert parts_of_classes(graph, torch.zeros(6), 0).tolist() == [0, 0, 0, 0, 0, -1]
    halves = parts_of_classes(graph, torch.tensor([0, 1, 0, 1, 0, 0]), 1).tolist()
    assert sorted(halves[0:4:2]) == sorted(halves[1:4:2]) == [0, 1]  # all alike: halves all the same, in each stratum
    assert halves[5] == -1


def test_graphs_are_cut_too() -> None:
    pseudo = eg.stream(make_data("graph-classification", count=60), classes_per_task=2, pseudo_stream=True)
    assert all(len(task.class_names) >= 2 for task in pseudo)
    assert "part 1" in str(pseudo.graph.class_names[0])


def test_classes_too_small_for_parts_are_refused() -> None:
    y = np.repeat([0, 1], 5)  # one to validate on
    graph = eg.make_graph(np.arange(10.0)[:, None], [[0], [1]], y, undirected=True)
    with pytest.raises(eg.EvergraphError, match="the 2 classes of the task have too few nodes to be cut"):
        eg.stream(graph, classes_per_task=2, pseudo_stream=True)


def test_a_task_of_one_class_is_no_stream(graph: eg.Graph) -> None:
    with pytest.raises(eg.EvergraphError, match="task 1 has one class, so it cannot be cut"):
        eg.stream(graph, classes_per_task=1, pseudo_stream=True)


@pytest.mark.parametrize("edges_between_tasks", [False, True])
def test_the_first_tasks_are_the_same_tasks(graph: eg.Graph, edges_between_tasks: bool) -> None:
    options: dict[str, Any] = {"classes_per_task": 2, "order": "random:4", "edges_between_tasks": edges_between_tasks}
    whole, first = eg.stream(graph, **options), eg.stream(graph, first_tasks=2, **options)
    assert len(first) == 2
    assert first.num_classes == 4
    for mine, theirs in zip(first, whole):
        assert mine.class_names == theirs.class_names
        assert mine.graph.edge_index.equal(theirs.graph.edge_index)
        for name in ("train", "val", "test"):
            assert getattr(mine, name).equal(getattr(theirs, name))
        assert mine.graph.x.equal(theirs.graph.x)
    assert first.seen(1).graph.edge_index.equal(whole.seen(1).graph.edge_index)
    assert first.protocol()["extent"] == "the first 2 of 4 tasks"
    assert "extent" not in whole.protocol()


@pytest.mark.parametrize("tasks", [-1, 5])
def test_so_many_first_tasks_there_are_not(graph: eg.Graph, tasks: int) -> None:
    with pytest.raises(eg.EvergraphError, match=rf"first_tasks={tasks} (is impossible with 4|must be)"):
        eg.stream(graph, classes_per_task=2, first_tasks=tasks)


# search spaces


@pytest.mark.parametrize("name", [*eg.METHODS, "ema+ewc"])
def test_every_method_declares_a_space_that_it_accepts(name: str) -> None:
    spec = eg.RunSpec("digits", method=name)
    space = Space.of(spec)
    for position in (0.0, 0.5, 1.0):
        space.apply(spec, space.at([position] * len(space.dimensions))).check()
    trains = name not in {"analytic", "auto"}
    assert ("lr" in space.dimensions) == trains
    assert set(space.hold) <= space.dimensions.keys()
    # nothing to hold with, or frozen, or trained on a memory alone, or held by a prior that weakens as it grows
    nothing = {"finetune", "joint", "analytic", "auto", "ncl", "tpp", "hpn", "gdumb", "a-gem", "cat", "puma"}
    assert bool(space.hold) == (name not in {*nothing, "logit-adjustment"})


def test_composed_methods_are_searched_together() -> None:
    space = Space.of(eg.RunSpec("digits", method="ema+lwf"))
    assert list(space.dimensions) == ["ema.decay", "lr", "lwf.strength", "lwf.temperature"]
    assert space.hold == ("ema.decay", "lwf.strength")
    assert space.dimensions["ema.decay"] == Range(0.0, 0.9)
    chosen = space.apply(eg.RunSpec("digits", method="ema+lwf"), space.at([1.0] * 4))
    assert chosen.settings == {"ema.decay": 0.9, "lwf.strength": 100.0, "lwf.temperature": 20.0}
    assert chosen.training.lr == 0.01


def test_what_is_set_is_not_searched() -> None:
    assert list(Space.of(eg.RunSpec("digits", method="ewc", settings={"strength": 5})).dimensions) == ["lr"]
    assert list(Space.of(eg.RunSpec("digits", method="ema+ewc", settings={"strength": 5})).dimensions) == [
        "ema.decay",
        "lr",
    ]
    assert list(Space.of(eg.RunSpec("digits", method="ewc"), fixed=["lr"]).dimensions) == ["strength"]


def test_a_space_of_ones_own() -> None:
    spec = eg.RunSpec("digits", method="curvature", settings={"nodes": "prototypes", "ema": "0"})
    changes = {"prototypes": "1:64:log", "strength": "1,10", "model.hidden": "16:32", "weight_decay": "0:0.1"}
    space = Space.of(spec, changes, fixed=["lr"])
    assert space.dimensions == {
        "strength": Choices((1.0, 10.0)),
        "prototypes": Range(1, 64, log=True, integer=True),
        "model.hidden": Range(16, 32, integer=True),
        "weight_decay": Range(0, 0.1),
    }
    chosen = space.apply(spec, space.at([0.6, 0.5, 1.0, 0.25]))
    assert chosen.settings == {"nodes": "prototypes", "ema": "0", "strength": 10.0, "prototypes": 8}
    assert chosen.model_settings == {"hidden": 32}
    assert chosen.training == replace(spec.training, weight_decay=0.025)
    options = space.run_options(space.at([0.6, 0.5, 1.0, 0.25]))
    assert shlex.join(options) == "--set strength=10 --set prototypes=8 --weight-decay 0.025 --model-set hidden=32"


@pytest.mark.parametrize(
    ("dimension", "position", "value"),
    [(Range(1e-2, 1e6, log=True), 0.5, 100.0), (Range(0.0, 0.9), 0.5, 0.45), (Choices(("a", "b", "c")), 0.5, "b")],
)
def test_positions_and_values(dimension: Range | Choices, position: float, value: object) -> None:
    assert dimension.at(position) == value
    assert dimension.position(value) == pytest.approx(position)  # type: ignore[arg-type]
    assert dimension.at(0.0) == dimension.at(-0.0)
    assert dimension.position(dimension.at(1.0)) == 1.0


# rules on results made by hand


class WithoutTests(dict):
    """A result that cannot be asked about test nodes."""

    def __getitem__(self, key: str) -> Any:
        assert key not in {"matrices", "ap", "af", "metrics", "also_tested"}, f"{key} is about test nodes"
        return super().__getitem__(key)


def made_trial(number: int, strength: float, learned: float, final: float, **point: float) -> Trial:
    """A trial on a stream of two tasks, whose test figures say the opposite of its validation figures."""

    def matrix(learned: float, final: float) -> list[list[float | None]]:
        return [[learned, None], [2 * final - learned, learned]]  # its diagonal's mean and its last row's

    validation = [matrix(learned, final), matrix(learned, final)]
    tests = [matrix(100 - learned, 100 - final)] * 2
    result = WithoutTests(validation=validation, matrices=tests, ap={"mean": 100 - final}, af={"mean": 0.0})
    return Trial(f"full/{number:03d}", {"strength": strength, **point}, small_spec(), result)


TRIALS = [
    made_trial(0, 1e2, learned=98, final=50),  # fine-tuning in all but name
    made_trial(1, 1e4, learned=96, final=70),
    made_trial(2, 1e6, learned=85, final=80),
    made_trial(3, 1e8, learned=60, final=60),  # nothing new is learned
]


@pytest.mark.parametrize(
    ("rule", "number"),
    [(PseudoStream(), 2), (FirstTasks(), 2), (CurrentTask(), 1), (CurrentTask(margin=0.2), 2), (CurrentTask(0.0), 0)],
)
def test_rules_choose_by_validation_nodes_alone(rule: SelectionRule, number: int) -> None:
    assert rule.choose(TEN_STEPS, TRIALS).key == f"full/{number:03d}"
    assert rule.choose(TEN_STEPS, TRIALS[::-1]).key == f"full/{number:03d}"


@pytest.mark.parametrize(("share", "number"), [(0.8, 2), (0.5, 3), (0.95, 1)])
def test_stability_decay_takes_the_first_strength_that_lets_new_tasks_in(share: float, number: int) -> None:
    strongest_first, fine_tuning = TRIALS[::-1], made_trial(9, 0.0, learned=99, final=40)
    chosen = StabilityDecay(share).choose(TEN_STEPS, strongest_first, fine_tuning)
    assert chosen.key == f"full/{number:03d}"


def test_stability_decay_ends_with_the_weakest() -> None:
    assert StabilityDecay(1.0).choose(TEN_STEPS, TRIALS[:0:-1], TRIALS[0]).key == "full/001"


def test_of_equal_holds_current_task_takes_the_better_learner() -> None:
    pair = [made_trial(0, 1e4, learned=95, final=50), made_trial(1, 1e4, learned=96, final=50)]
    assert CurrentTask().choose(TEN_STEPS, pair) is pair[1]


def seeds_trial(number: int, strength: float, finals: list[float]) -> Trial:
    """A trial of so many seeds, each with a final AP of its own."""
    trial = made_trial(number, strength, learned=90, final=0)
    validation = [[[90.0, None], [2 * final - 90.0, 90.0]] for final in finals]
    return replace(trial, result=WithoutTests(validation=validation))


@pytest.mark.parametrize("kind", [PseudoStream, FirstTasks])
def test_one_standard_error_takes_the_strongest_hold_that_seeds_cannot_tell_from_the_best(kind: type[Any]) -> None:
    # seeds differ by twenty points, and shift all trials alike: what counts is the difference within a seed
    trials = [
        seeds_trial(0, 1e1, [60.0, 80.0, 70.0]),
        seeds_trial(1, 1e2, [62.0, 82.0, 72.0]),  # the best: 72
        seeds_trial(2, 1e3, [62.5, 80.5, 72.4]),  # behind by -0.5, 1.5, -0.4: 0.2 with an error of 0.65
        seeds_trial(3, 1e4, [61.0, 81.0, 71.1]),  # behind by 1, 1, 0.9: steadily, with an error of 0.03
        seeds_trial(4, 1e5, [40.0, 82.1, 72.1]),  # one seed lost: 7.3 behind, with an error of 7.4; the best's is 5.8
    ]
    assert kind().choose(TEN_STEPS, trials) is trials[1]
    assert kind(standard_errors=1).choose(TEN_STEPS, trials) is trials[2]
    assert kind(standard_errors=1).choose(TEN_STEPS, trials[::-1]) is trials[2]
    assert kind(standard_errors=0.2).choose(TEN_STEPS, trials[:4]) is trials[1]
    assert kind(standard_errors=50).choose(TEN_STEPS, trials[:4]) is trials[3]
    nothing_holds = Space({"lr": Range(1e-4, 1e-2, log=True)}, {"lr": "training"})
    assert kind(standard_errors=50).choose(nothing_holds, trials[:4]) is trials[1]


def error_trial(number: int, strength: float, error: float) -> Trial:
    """A trial of two seeds whose matrices hold mean absolute errors."""
    result = {"validation": [[[error, None], [error, error]]] * 2, "protocol": {"metric": "mae"}}
    return replace(seeds_trial(number, strength, [0, 0]), result=WithoutTests(result))


@pytest.mark.parametrize("rule", [FirstTasks(), PseudoStream(), PseudoStream(standard_errors=1.0), CurrentTask()])
def test_errors_count_against_a_trial(rule: SelectionRule) -> None:
    space = Space({"strength": Range(1, 100, log=True)}, {"strength": "settings"}, ("strength",))
    trials = [error_trial(0, 100, 0.8), error_trial(1, 10, 0.2), error_trial(2, 1, 0.5)]
    assert rule.choose(space, trials).key == trials[1].key


def test_stability_decay_lets_errors_be_a_quarter_larger() -> None:
    reference = error_trial(9, 0, 0.4)
    trials = [error_trial(0, 100, 0.8), error_trial(1, 10, 0.47), error_trial(2, 1, 0.41)]
    assert StabilityDecay(share=0.8).reached(trials, reference) == trials[1:]


def test_a_score_that_is_no_number_is_never_the_best() -> None:
    space = Space({"strength": Range(1, 100, log=True)}, {"strength": "settings"}, ("strength",))
    trials = [seeds_trial(0, 100, [float("nan")] * 2), seeds_trial(1, 10, [50.0, 52.0])]
    for rule in (FirstTasks(), FirstTasks(standard_errors=1.0)):
        assert rule.choose(space, trials).key == trials[1].key
    assert FirstTasks(3).tasks == 3


def printed(table: Table) -> list[list[str]]:
    """The cells of a table's rows, heading first."""
    console = Console(width=120, file=io.StringIO())
    console.print(table)
    lines = console.file.getvalue().replace("┃", "│").splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]


def test_the_table_of_trials_has_errors_as_they_are_and_diverged_trials_last() -> None:
    rows = [{"trial": str(n), "score": score} for n, score in enumerate((None, -2.5, -0.004, float("nan")))]
    rows = [{**row, "settings": {}, "training": {"lr": 0.01}, "model_settings": {}} for row in rows]
    found = {"stream": "a", "method": "ewc", "rule": "r", "about": "", "trials": rows, "best": rows[2]}
    space = Space({"lr": Range(0.001, 0.1, log=True)}, {"lr": "training"})
    head, *body = printed(_trials_table({**found, "metric": "mae"}, space))
    assert head[-1] == "score: −mean absolute error"
    assert [(row[0], row[1], row[-1]) for row in body[:2]] == [("→", "2", "-0.00400"), ("", "1", "-2.50")]
    assert {(row[1], row[-1]) for row in body[2:]} == {("0", "diverged"), ("3", "nan")}
    head, first, *_ = printed(_trials_table({**found, "metric": "accuracy"}, space))
    assert (head[-1], first[-1]) == ("score (%)", "-0.00")


def test_a_listed_hold_grows_in_whatever_order_it_is_listed() -> None:
    space = Space.of(small_spec(), {"strength": "30,3,100", "lr": "0.01,0.001"})
    assert [space.strength_of({"strength": value}) for value in (3.0, 30.0, 100.0)] == [0.0, 0.5, 1.0]
    assert decreasing(space, 3) == [{"strength": 100.0}, {"strength": 30.0}, {"strength": 3.0}]
    assert space.dimensions["lr"] == Choices((0.01, 0.001))


@pytest.mark.parametrize("rule", [PseudoStream(), FirstTasks(), CurrentTask()])
def test_failed_trials_are_not_chosen(rule: SelectionRule) -> None:
    failed = replace(TRIALS[2], result=None, error="the model diverged")
    assert rule.choose(TEN_STEPS, [failed, TRIALS[1]]) is TRIALS[1]
    with pytest.raises(eg.EvergraphError, match=r"none of 1 trials came to an end \(the model diverged\)"):
        rule.choose(TEN_STEPS, [failed])


def test_a_hold_of_several_settings_is_lowered_together() -> None:
    ranges = {"a": Range(1.0, 16.0, log=True), "b": Range(0.0, 0.9), "lr": Range(1e-4, 1e-2, log=True)}
    space = Space(ranges, dict.fromkeys(ranges, "settings"), ("a", "b"))
    halved = [{"a": 16, "b": 0.9}, {"a": 8, "b": 0.675}, {"a": 4, "b": 0.45}, {"a": 2, "b": 0.225}, {"a": 1, "b": 0}]
    assert decreasing(space, 5) == halved
    assert decreasing(space, 50) == halved  # no finer than halving
    assert decreasing(space, 3) == [halved[0], halved[2], halved[4]]
    assert decreasing(space, 1) == [halved[0]]
    assert space.strength_of({"a": 4.0, "b": 0.9, "lr": 1e-3}) == 0.75


@pytest.mark.parametrize("name", SELECTION_RULES)
def test_every_rule_says_what_it_looks_at(name: str, evergraph: Call) -> None:
    about = SELECTION_RULES[name].about
    assert "nodes" in about
    assert "\n" not in about
    help_text = " ".join(evergraph("tune", "--help")[1].replace("│", " ").split())
    assert f"{name}: {about}" in help_text
    assert about in " ".join((Path(__file__).parents[1] / "docs" / "selection.md").read_text().split())


def test_a_rule_of_ones_own_is_a_choice(evergraph: Call, tmp_path: Path) -> None:
    @SELECTION_RULES.register
    class Weakest(CurrentTask):
        name = "weakest"
        about = "validation nodes, not at all"

        def choose(self, space: Space, trials: Any) -> Trial:
            return min(trials, key=lambda trial: space.strength_of(trial.point))

    try:
        words = ["tune", SMALL, "--method", "ewc", "--rule", "weakest", "--trials", 2, *QUICK, "--json"]
        found = json.loads(evergraph(*words, "--out", tmp_path / "own")[1])
    finally:
        SELECTION_RULES.remove("weakest")
    assert found["best"]["settings"] == {"strength": min(row["settings"]["strength"] for row in found["trials"])}


# proposals


def test_points_are_spread_and_do_not_depend_on_how_many_are_asked_for() -> None:
    space = Space.of(eg.RunSpec("digits", method="ewc"))
    points = spread(space, 16)
    assert points[:5] == spread(space, 5)
    assert points[5:] == spread(space, 11, start=5)
    places = np.array([[space.dimensions[key].position(point[key]) for key in point] for point in points])
    for column in places.T:  # each of eight equal pieces has its share
        counts = np.histogram(column, bins=8, range=(0, 1))[0]
        assert counts.min() >= 1


def test_a_small_space_is_tried_whole_and_once() -> None:
    space = Space({"a": Choices((1, 2)), "b": Choices(("x", "y", "z"))}, {"a": "settings", "b": "settings"})
    points = spread(space, 50)
    assert len(points) == 6
    assert len({tuple(point.items()) for point in points}) == 6
    assert len(spread(space, 4)) == 4


@pytest.mark.parametrize("sizes", [(1,), (7,), (2, 3), (3, 5, 2), (2, 2, 2, 2)])
def test_in_a_space_of_choices_more_points_follow_those_of_fewer(sizes: tuple[int, ...]) -> None:
    keys = "abcd"[: len(sizes)]
    space = Space({key: Choices(tuple(range(n))) for key, n in zip(keys, sizes)}, dict.fromkeys(keys, "settings"))
    points = spread(space, 1000)
    assert len({tuple(point.items()) for point in points}) == len(points) == math.prod(sizes)
    for count in range(len(points) + 1):
        assert spread(space, count) == points[:count]
        assert spread(space, 2, start=count) == points[count : count + 2]


def climbed(space: Space, folder: Path, trials: int, stop_before: int = 10**6) -> list[dict[str, Any]]:
    """Points that Optuna proposes for a score with its peak at strength 1e6."""
    folder.mkdir(exist_ok=True)
    climb, points = Climb(space, trials, folder, batch=2), []
    for batch in batches(climb):
        for number, point in batch:
            if number >= stop_before:
                return points
            points.append(point)
            climb.tell(number, None if number == 3 else -abs(math.log10(point["strength"]) - 6))
    return points


def test_optuna_follows_the_scores_and_a_stopped_study_goes_on_alike(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed: pip install '.[tune]'")
    unbroken = climbed(TEN_STEPS, tmp_path / "unbroken", 24)
    assert len(unbroken) == 24
    assert unbroken[: proposing.STARTUP] == spread(TEN_STEPS, proposing.STARTUP)

    def distance(points: list[dict[str, Any]]) -> float:
        return float(np.mean([abs(math.log10(point["strength"]) - 6) for point in points]))

    assert distance(unbroken[-8:]) < distance(spread(TEN_STEPS, 24)[-8:])
    for stop in (1, 11):
        climbed(TEN_STEPS, tmp_path / str(stop), 24, stop_before=stop)
        (tmp_path / str(stop) / "study.log.lock").touch()  # as a killed process may leave it
        with open(tmp_path / str(stop) / "study.log", "a") as journal:
            journal.write('{"op_code":')
        assert climbed(TEN_STEPS, tmp_path / str(stop), 24) == unbroken
    assert climbed(TEN_STEPS, tmp_path / "unbroken", 26)[:24] == unbroken  # more trials of the same study


def test_a_damaged_study_is_named(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed: pip install '.[tune]'")
    (tmp_path / "study.log").write_text("[]\n{}\n")
    with pytest.raises(eg.EvergraphError, match=r"study.log is damaged"):
        climbed(TEN_STEPS, tmp_path, 4)


# searches end to end


def runs_in(folder: Path) -> dict[str, int]:
    """When each trial was finished, by its name."""
    return {str(path.parent): path.stat().st_mtime_ns for path in folder.rglob("result.json")}


def settings_of(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["trial"], row["settings"], row["training"], row["score"]) for row in found["trials"]]


@pytest.mark.parametrize("with_optuna", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_search_goes_on_and_repeats_nothing(
    tmp_path: Path, with_optuna: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_optuna:
        pytest.importorskip("optuna", reason="optuna is not installed: pip install '.[tune]'")
    else:
        monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr(proposing, "STARTUP", 2)
    spec, killed = small_spec(), tmp_path / "killed"

    def kill(key: str, done: int) -> None:
        if done == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    ended = Forked(lambda: tune(spec, FirstTasks(), killed, trials=4, on_done=kill))
    assert ended.wait() == -signal.SIGKILL, ended.communicate()
    before = runs_in(killed / CELLS)
    assert len(before) == 3
    with pytest.raises(eg.EvergraphError, match="holds a search already; add --resume"):
        tune(spec, FirstTasks(), killed, trials=4)
    resumed = tune(spec, FirstTasks(), killed, trials=4, resume=True)
    after = runs_in(killed / CELLS)
    assert len(after) == 4
    assert before.items() <= after.items()
    unbroken = tune(spec, FirstTasks(), tmp_path / "unbroken", trials=4)
    assert settings_of(resumed) == settings_of(unbroken)
    assert resumed["best"] == unbroken["best"]
    assert resumed["proposer"] == ("optuna" if with_optuna else "sobol")
    assert (killed / "study.log").exists() == with_optuna
    # with results.jsonl alone nothing is run again either
    for path in [path for path in after if path != ""]:
        (Path(path) / "result.json").unlink()
    assert settings_of(tune(spec, FirstTasks(), killed, trials=4, resume=True)) == settings_of(unbroken)
    assert not runs_in(killed / CELLS)


@pytest.mark.slow  # in the default suite: seeds of a run and cells of the paper's tables side by side
def test_two_processes_find_the_same_and_a_diverged_trial_is_none(tmp_path: Path) -> None:
    spec = small_spec(seeds=[0, 1])
    space = Space.of(spec, {"strength": "1,1e4", "lr": "1e-3,1e30"})
    found = {}
    for jobs in (1, 2):
        found[jobs] = tune(spec, CurrentTask(), tmp_path / str(jobs), space=space, trials=9, jobs=jobs)
    assert settings_of(found[1]) == settings_of(found[2])
    rows = {row["training"]["lr"]: row for row in found[2]["trials"]}
    assert len(found[2]["trials"]) == 4
    assert rows[1e30]["score"] is None
    assert "the model diverged" in rows[1e30]["error"]
    assert found[2]["best"]["training"] == {"lr": 1e-3}
    assert len(read_results(tmp_path / "2")) == 2  # those that have a result
    again = tune(spec, CurrentTask(), tmp_path / "2", space=space, trials=9, resume=True)
    assert settings_of(again) == settings_of(found[2])


def test_a_trial_that_diverged_is_not_another_one_of_its_name(tmp_path: Path) -> None:
    space = Space.of(small_spec(), {"lr": "1e-3,1e30"})
    search = Search(small_spec(), space, 1, tmp_path)
    point = {"strength": 1.0, "lr": 1e30}
    (trial,) = search.run(FirstTasks(), [search.trial(FirstTasks(), "000", point)])
    assert "diverged" in trial.error
    assert search.run(FirstTasks(), [replace(trial, error="")]) == [trial]  # not run again
    with pytest.raises(eg.EvergraphError, match="holds a run with other settings \\(training: lr\\)"):
        search.run(FirstTasks(), [search.trial(FirstTasks(), "000", {**point, "lr": 1e-3})])
    (tmp_path / DIVERGED).write_text(json.dumps({trial.key: trial.error}))  # as earlier versions wrote it
    assert search.run(FirstTasks(), [replace(trial, error="")]) == [trial]


@pytest.mark.parametrize("rule", [FirstTasks(), CurrentTask()])
@pytest.mark.parametrize("with_optuna", [True, False])
def test_a_search_of_choices_goes_on_with_more_trials(
    tmp_path: Path, rule: SelectionRule, with_optuna: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole space in the end, and the runs of the first trials as they were."""
    if with_optuna:
        pytest.importorskip("optuna", reason="optuna is not installed: pip install '.[tune]'")
    else:
        monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr(proposing, "STARTUP", 2)
    space = Space.of(small_spec(), {"strength": "1,10,100", "lr": "1e-3,1e-2"})
    before: dict[str, int] = {}
    for trials in (1, 3, 20):
        found = tune(small_spec(), rule, tmp_path / "out", space=space, trials=trials, resume=bool(before))
        now = runs_in(tmp_path / "out" / CELLS)
        assert before.items() <= now.items()
        repeated = trials - min(trials, 6) if with_optuna else 0  # Optuna may propose a point again
        assert min(trials, 6) <= len(now) == len(found["trials"]) <= min(trials, 6) + repeated
        before = now
    assert len({(row["settings"]["strength"], row["training"]["lr"]) for row in found["trials"]}) == 6


def test_a_rule_that_plans_by_the_number_of_trials_resumes_with_the_same(tmp_path: Path) -> None:
    space = Space.of(small_spec(), {"strength": "1:16:log"})
    first = tune(small_spec(), StabilityDecay(share=0.01), tmp_path / "out", space=space, trials=8)
    refusal = (
        "holds a search of 8 trials, and stability-decay plans its trials by their number; resume it with --trials 8"
    )
    with pytest.raises(eg.EvergraphError, match=refusal):
        tune(small_spec(), StabilityDecay(share=0.01), tmp_path / "out", space=space, trials=12, resume=True)
    again = tune(small_spec(), StabilityDecay(share=0.01), tmp_path / "out", space=space, trials=8, resume=True)
    assert settings_of(again) == settings_of(first)
    record = tmp_path / "out" / "tune.json"
    saved = {key: value for key, value in read_record(record).items() if key != "planned"}
    write_record(record, saved)  # as earlier versions wrote it
    assert tune(small_spec(), StabilityDecay(share=0.01), tmp_path / "out", space=space, trials=8, resume=True)


def test_results_hold_a_line_for_every_trial_with_its_score(tmp_path: Path) -> None:
    found = tune(small_spec(), FirstTasks(), tmp_path / "out", trials=3)
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines] == [row["trial"] for row in found["trials"]]
    assert [line["result"]["scores"]["first-tasks"] for line in lines] == [row["score"] for row in found["trials"]]
    for line in lines:
        assert line["spec"]["stream"]["first_tasks"] == 2
        assert len(line["result"]["validation"][0]) == 2
    best = json.loads((tmp_path / "out" / "best.json").read_text())
    assert best["best"] == found["best"]
    assert max(row["score"] for row in found["trials"]) == found["best"]["score"]
    eg.write_report([tmp_path / "out"], figures=False)  # reports read the same file


def test_another_search_does_not_go_on_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(small_spec(), FirstTasks(), tmp_path / "out", trials=1)
    for spec, rule, space, what in [
        (small_spec("mas"), FirstTasks(), None, "method"),
        (small_spec(seeds=[1]), FirstTasks(), None, "seeds"),
        (small_spec(), PseudoStream(), None, "rule"),
        (small_spec(), FirstTasks(), Space.of(small_spec(), {"strength": "1:2"}), "space"),
    ]:
        with pytest.raises(eg.EvergraphError, match=rf"holds another search \(other {what}.*\); name another"):
            tune(spec, rule, tmp_path / "out", space=space, trials=1, resume=True)
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "letter.txt").write_text("dear")
    with pytest.raises(eg.EvergraphError, match="exists and is not a search's folder"):
        tune(small_spec(), FirstTasks(), tmp_path / "stranger", trials=1, resume=True)
    if (tmp_path / "out" / "study.log").exists():
        monkeypatch.setitem(sys.modules, "optuna", None)
        with pytest.raises(eg.EvergraphError, match="was begun with Optuna, which is not installed here"):
            tune(small_spec(), FirstTasks(), tmp_path / "out", trials=1, resume=True)


def test_a_search_goes_on_in_a_folder_with_nothing_but_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "out/cells/000").mkdir(parents=True)
    assert tune(small_spec(), FirstTasks(), tmp_path / "out", trials=1, resume=True)["trials"]


def test_the_two_phases_of_stability_decay(tmp_path: Path) -> None:
    space = Space.of(small_spec(), {"strength": "1:16:log"})
    found = tune(small_spec(), StabilityDecay(share=0.01), tmp_path / "easy", space=space, trials=8)
    names = [Path(row["trial"]).name for row in found["trials"]]
    assert names == ["finetune-00", "finetune-01", "decay-00"]  # the strongest will do, so there is no second
    assert [row["method"] for row in found["trials"]] == ["finetune", "finetune", "ewc"]
    scores = [row["score"] for row in found["trials"]]
    assert found["best"]["settings"] == {"strength": 16.0}
    assert found["best"]["training"] == found["trials"][int(np.argmax(scores[:2]))]["training"]
    assert found["proposer"] == "rule"
    found = tune(small_spec("joint"), StabilityDecay(), tmp_path / "joint", trials=8)
    assert [row["method"] for row in found["trials"]] == ["finetune", "finetune", "joint"]
    assert found["note"] == "nothing searched holds on to the past: fine-tuning chose the learning rate alone"


def test_all_rules_against_the_best_in_hindsight(tmp_path: Path) -> None:
    rules = [make_rule(name) for name in SELECTION_RULES]
    found = compare_rules(small_spec(), rules, tmp_path / "out", trials=3)
    assert [row["rule"] for row in found["rules"]] == list(SELECTION_RULES)
    tests = {row["trial"]: row["scores"]["hindsight"] for row in found["trials"] if "hindsight" in row["scores"]}
    assert found["hindsight"]["best"]["score"] == max(tests.values()) == found["hindsight"]["ap"]["mean"]
    for row in found["rules"]:
        name = Path(row["best"]["trial"]).name
        assert row["hindsight"]["ap"]["mean"] == tests[f"full/{name}"]
        assert row["behind"] == pytest.approx(max(tests.values()) - tests[f"full/{name}"])
        own = {trial["trial"]: trial["scores"].get(row["rule"]) for trial in found["trials"]}
        assert own[row["best"]["trial"]] == row["best"]["score"]
    # the same settings for all rules that take what is proposed
    by_scope: dict[str, list[Any]] = {}
    for trial in found["trials"]:
        if trial["trial"].rpartition("/")[2].isdecimal():
            by_scope.setdefault(trial["trial"].rpartition("/")[0], []).append((trial["settings"], trial["training"]))
    assert by_scope.keys() == {"full", "first-2-tasks", "pseudo-stream"}
    assert by_scope["full"] == by_scope["first-2-tasks"] == by_scope["pseudo-stream"]
    result = read_results(tmp_path / "out")["full/000"]["result"]
    last = np.mean([matrix[-1][2:] for matrix in result["matrices"]])
    [row] = [row for row in found["rules"] if row["best"]["trial"].endswith("/000")][:1] or [None]
    if row is not None:
        assert row["hindsight"]["ap_later"]["mean"] == pytest.approx(last)
    table = (tmp_path / "out" / "table.md").read_text()
    assert "AP, tasks after the first 2" in table
    assert "best in hindsight (test nodes; not a rule)" in table
    before = runs_in(tmp_path / "out")
    assert compare_rules(small_spec(), rules, tmp_path / "out", trials=3, resume=True) == found
    assert runs_in(tmp_path / "out") == before


def test_rules_that_are_impossible_are_listed_with_the_reason(tmp_path: Path) -> None:
    spec = replace(small_spec("analytic"), model_settings={"hidden": 32})
    spec = replace(spec, training=replace(spec.training, label_scope="current"))
    rules = [PseudoStream(), FirstTasks(), StabilityDecay(), CurrentTask()]
    found = compare_rules(spec, rules, tmp_path / "out", trials=1)
    reasons = {row["rule"]: row.get("reason", "") for row in found["rules"]}
    assert "analytic searches neither lr nor a setting that holds on to the past" in reasons["stability-decay"]
    assert reasons["first-tasks"] == reasons["current-task"] == reasons["pseudo-stream"] == ""
    assert "not possible here" in (tmp_path / "out" / "table.md").read_text()


# the command


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, evergraph: Call, tmp_path: Path, without_pictures: None) -> Call:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return evergraph


@pytest.mark.parametrize("with_optuna", [True, False])
def test_tune_on_digits(call: Call, with_optuna: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if with_optuna:
        pytest.importorskip("optuna", reason="optuna is not installed: pip install '.[tune]'")
    else:
        monkeypatch.setitem(sys.modules, "optuna", None)
    words = ["tune", "digits", "--method", "ewc", "--rule", "first-tasks", "--trials", 3, "--out", "found"]
    options = ["--epochs", 2, "--hidden", 16, "--device", "cpu"]
    status, out, err = call(*words, *options, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert (found["method"], found["rule"]) == ("ewc", "first-tasks")
    assert found["best"].keys() >= {"settings", "training"}
    assert len(found["trials"]) == 3
    assert found["proposer"] == ("optuna" if with_optuna else "sobol")
    assert ("Optuna is not installed" in err) == (not with_optuna)
    assert err.splitlines()[-1] == "3/3 first-2-tasks/002"
    # once more, for people, and what is printed can be run
    status, out, err = call(*words, *options, "--resume")
    assert status == 0, err
    assert "chosen on the first 2 tasks: report results on the tasks after them" in out
    [line] = [line for line in out.splitlines() if line.startswith("use it: ")]
    command = shlex.split(line.removeprefix("use it: "))
    assert command[:5] == ["evergraph", "run", "digits", "--method", "ewc"]
    result = json.loads(call(*command[1:], "--json")[1])
    assert result["hyperparameters"]["strength"] == found["best"]["settings"]["strength"]
    assert result["protocol"]["lr"] == found["best"]["training"]["lr"]
    assert result["protocol"]["epochs"] == 2
    assert result["model"]["hidden"] == 16


def test_tune_all_prints_the_table(call: Call) -> None:
    words = ["tune", SMALL, "--method", "mas", "--rule", "all", "--trials", 2, "--classes-per-task", 3, *QUICK]
    status, out, err = call(*words, "--space", "lr=1e-3,1e-2", "--rule-set", "tasks=2", "--jobs", 1, "--out", "found")
    assert status == 0, err
    assert (Path("found") / "table.md").read_text() in out
    assert "first-tasks: chosen on the first 2 tasks" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rule", "guess"], "unknown selection rule 'guess'; choose one of: pseudo-stream, first-tasks"),
        (["--rule-set", "tasks=1"], "FirstTasks: tasks=1 must be a whole number of at least 2"),
        (["--rule-set", "tasks=3"], "tasks=3 leaves nothing of a stream of 3 to report on"),
        (["--rule-set", "k=3"], "unknown setting of first-tasks 'k'; choose one of: tasks, standard_errors"),
        (["--rule-set", "standard_errors=1"], "first-tasks: standard_errors=1 needs at least two seeds for each trial"),
        (["--rule-set", "standard_errors=-1"], "standard_errors=-1.0 must be a finite number of at least 0"),
        (["--rule", "all", "--rule-set", "k=3"], "unknown setting of a selection rule 'k'"),
        (
            ["--rule", "current-task", "--rule-set", "margin=1"],
            "margin=1.0 must be a finite number of at least 0 and below 1",
        ),
        (
            ["--rule", "stability-decay", "--rule-set", "share=0"],
            "share=0.0 must be a finite number above 0 and at most 1",
        ),
        (["--rule", "stability-decay", "--trials", "1"], "--trials must be at least 2"),
        (["--rule", "pseudo-stream", "--classes-per-task", "1"], "has one class, so it cannot be cut"),
        (["--trials", "0"], "Invalid value for '--trials'"),
        (["--space", "strength"], "--space 'strength' is not KEY=VALUE"),
        (["--space", "strength=a:b"], "'a' to 'b' is not a range of numbers"),
        (["--space", "strength=2:1"], "the low end must be below the high end"),
        (["--space", "strength=0:1:log"], "the low end must be below the high end and above 0"),
        (["--space", "strength=1:2:linear"], "is not LOW:HIGH, LOW:HIGH:log or a,b,c"),
        (["--space", "strength=1,two"], "strength='two' must be a finite number"),
        (["--space", "power=1:2"], "unknown setting of ewc 'power'; choose one of: strength"),
        (["--space", "model.depth=1:2"], "unknown setting of ewc 'model.depth'"),
        (["--space", "strength=1:2", "--set", "strength=1"], "strength is both set and searched"),
        (["--set", "strength=1", "--lr", "0.1"], "ewc: nothing is left to search; name a setting with --space"),
        (["--set", "power=1"], "unknown setting of ewc 'power'"),
        (["--space", "batch_size=8,-1"], "batch_size=-1 must be a whole number of at least 0"),
        (["--resume", "--out", "taken"], "taken exists and is not a search's folder"),
    ],
)
def test_bad_input_is_one_line(call: Call, words: list[str], message: str) -> None:
    Path("taken").mkdir()
    Path("taken/letter.txt").write_text("dear")
    defaults = ["--trials", "4"] if "--trials" not in words else []
    scope = [] if "--label-scope" in words else ["--label-scope", "seen"]
    per_task = [] if "--classes-per-task" in words else ["--classes-per-task", "3"]
    options = ["--epochs", "1", "--hidden", "8", "--device", "cpu", *defaults, *scope, *per_task]
    status, out, err = call("tune", SMALL, "--method", "ewc", *options, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert {path.name for path in Path().iterdir()} == {"taken"}


def test_a_search_leaves_random_numbers_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    spread(TEN_STEPS, 4)
    assert torch.rand(1).equal(expected)
