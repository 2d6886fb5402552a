"""Trainings that take turns in one process end in the numbers that each ends in alone."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import evergraph as eg
from cases import slow
from evergraph.core.compiled import kernels
from evergraph.core.params import copy_params
from evergraph.core.sparse import SparseMatrix
from evergraph.data.datasets.sbm import sbm
from evergraph.errors import EvergraphError, EvergraphWarning
from evergraph.experiments import RunSpec
from evergraph.experiments.cells import Cell, run_cells
from evergraph.experiments.engines import Work
from evergraph.experiments.engines.processes import TOGETHER, grouped
from evergraph.methods import make_method
from evergraph.training import side_by_side as module
from evergraph.training.compiled_adam import compiled_adam_suits
from evergraph.training.executors.recording import RecordingExecutor
from evergraph.training.known_trainings import keep, known_trainings
from evergraph.training.member import Member
from evergraph.training.side_by_side import clock, give_way, side_by_side, together
from evergraph.training.stacked import Stack, StackedExecutor, stacking_key

CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MEMBERS: list[tuple[str, dict[str, Any], int]] = [
    ("finetune", {}, 0),
    ("finetune", {}, 1),
    ("curvature", {"estimator": "sampled"}, 0),
    ("curvature", {"strength": 3.0}, 0),
    ("reservoir", {"replay_size": 3}, 2),
    ("ewc++", {"labels": "sample"}, 3),
]


def training(
    name: str, settings: dict[str, Any], seed: int, device: str = "cpu", batch_size: int = 8
) -> tuple[dict[str, Tensor], list[float], Tensor]:
    """Two tasks with dropout where the method allows it: parameters, losses and the random numbers left."""
    stream = eg.TaskStream(sbm(nodes=60, classes=4, degree=5, features=6, signal=2.0, seed=0), 2, seed=seed)
    model = eg.GCN(hidden=8, dropout=0.3 if name in {"finetune", "reservoir"} else 0.0)
    learner = eg.Learner(
        model, make_method(name, settings), epochs=3, batch_size=batch_size, device=device, seed=seed, lr=0.01
    )
    losses = [row["loss"] for task in stream for row in learner.learn(task)]
    losses += learner.evaluate(stream).accuracies
    return copy_params(learner.model), losses, learner.random_state


def test_each_member_is_equal_to_its_own_run_alone() -> None:
    alone = [training(*member) for member in MEMBERS]
    before = torch.get_rng_state()
    found = side_by_side([partial(training, *member) for member in MEMBERS], CPU, taking_turns=True)
    assert torch.equal(before, torch.get_rng_state())
    for expected, member in zip(alone, found):
        assert not isinstance(member, Exception)
        assert member[1] == expected[1]
        assert torch.equal(member[2], expected[2])
        assert all(torch.equal(member[0][key], value) for key, value in expected[0].items())


# members that train as one


def seeds_of(name: str, settings: dict[str, Any], number: int, **more: Any) -> list[Any]:
    """Trainings in float64 that differ in their seed alone."""
    return [partial(stackable, name, settings, seed, **more) for seed in range(number)]


def stackable(
    name: str,
    settings: dict[str, Any],
    seed: int,
    device: str = "cpu",
    batch_size: int = 8,
    sparse: bool = False,
    **training: Any,
) -> tuple[dict[str, Tensor], list[float], Tensor, list[str]]:
    """Three tasks: parameters, losses and accuracies, the random numbers left, how steps were carried out."""
    graph = sbm(nodes=72, classes=6, degree=5, features=6, signal=2.0, seed=0)
    if sparse:
        graph = eg.make_graph(SparseMatrix.from_dense(graph.x * (graph.x > 0.5)).to_scipy(), graph.edge_index, graph.y)
    stream = eg.TaskStream(graph, 2, seed=seed)
    learner = eg.Learner(
        eg.GCN(hidden=8), make_method(name, settings), batch_size=batch_size, device=device, seed=seed,
        dtype=torch.float64, **{"epochs": 3, "lr": 0.01, **training},
    )  # fmt: skip
    losses = [row["loss"] for task in stream for row in learner.learn(task)]
    losses += learner.evaluate(stream).accuracies
    return copy_params(learner.model), losses, learner.random_state, [entry["steps"] for entry in learner.history]


STACKABLE: list[tuple[str, dict[str, Any]]] = [
    ("finetune", {}),
    ("curvature", {}),
    ("curvature", {"anchors": "latest", "ema": 0.0}),
    ("ewc", {"strength": 1.0}),
    ("online-ewc", {"strength": 1.0}),
    ("mas", {"strength": 1.0}),
    ("ema+ewc", {}),
    ("mas+batch-curvature", {}),
    ("lwf", {}),
    ("lwf", {"distillation": "per-task"}),
    ("twp", {"reading": "cglb", "task_weight": 1.0, "topology_weight": 1.0}),
    ("joint", {}),
]


DRAWING: list[tuple[str, dict[str, Any]]] = [
    ("curvature", {"estimator": "sampled"}),
    ("curvature", {"estimator": "queue", "queue_size": 7, "strength": 1.0}),
    ("queue-curvature", {"queue_size": 4, "queue_rule": "algorithm", "over_nodes": "sum"}),
]
"""Methods that draw within a step, each by its own numbers: with kernels, so on a GPU alone."""


@pytest.fixture
def stacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU too, without the shortcuts that are a CPU's own."""
    monkeypatch.setattr("evergraph.training.stacked.DEVICES", frozenset({"cpu", "cuda"}))
    monkeypatch.setattr("evergraph.core.needed_rows.WORTH", -1)
    monkeypatch.setattr("evergraph.methods.lwf.DEVICES", frozenset())
    monkeypatch.setattr("evergraph.training.optimizers.compiled_adam_suits", lambda params: False)


def equal(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    assert not isinstance(found, Exception), found
    assert found[1] == pytest.approx(expected[1], rel=tolerance)
    assert torch.equal(found[2], expected[2])
    for key, value in expected[0].items():
        torch.testing.assert_close(found[0][key], value, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize(
    ("name", "settings", "batch_size", "sparse"),
    [
        *((*method, 8, True) for method in STACKABLE),
        *(slow(*method, 8, False, when=method[0] not in ("curvature", "joint")) for method in STACKABLE),
        *(slow(*method, 0, False, when=method[0] not in ("curvature", "ewc", "lwf", "twp")) for method in STACKABLE),
    ],
)
def test_seeds_that_train_as_one_are_equal_to_their_runs_alone(
    name: str, settings: dict[str, Any], batch_size: int, sparse: bool
) -> None:
    # at an anchor that EWC has merged, a gradient is the last bit of a difference, of which Adam makes a whole step
    optimizer = {"optimizer": "sgd"} if name in {"ewc", "twp"} else {}
    members = seeds_of(name, settings, 2, batch_size=batch_size, sparse=sparse, **optimizer)
    alone = [member() for member in members]
    found = side_by_side(members, CPU, taking_turns=True, kin=["seeds"] * 2)
    for expected, member in zip(alone, found):
        equal(member, expected)
        assert all(way.endswith("2 as one") for way in member[3])


DIFFERENT: list[list[tuple[str, dict[str, Any]]]] = [
    [("curvature", {"strength": 0.1}), ("curvature", {"strength": 3.0, "ema": 0.0}), ("curvature", {"ema": 0.2})],
    [("ewc", {"strength": 1.0}), ("ewc", {"strength": 5.0, "labels": "exact"}), ("mas", {}), ("online-ewc", {})],
    [("lwf", {"strength": 1.0}), ("lwf", {"strength": 4.0})],
    [("finetune", {}), ("ema", {})],
    [("twp", {"reading": "cglb", "task_weight": 2.0}), ("twp", {"reading": "cglb", "strength": 0.5})],
    [("ema+ewc", {"decay": 0.1}), ("ema+mas", {"decay": 0.7, "strength": 2.0})],
]
"""Methods and settings whose steps are the same but for their factors."""
DIFFERENT_DRAWING: list[list[tuple[str, dict[str, Any]]]] = [
    [("curvature", {"estimator": "sampled", **other}) for other in ({}, {"strength": 2.0, "ema": 0.0})],
    [("curvature", {"estimator": "queue", "queue_size": 4, **other}) for other in ({}, {"ema": 0.0})],
]
"""Likewise, of methods that draw within a step: on a GPU alone."""


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize(
    ("different", "batch_size"),
    [
        slow(different, size, when=size == 0 and different is not DIFFERENT[1])
        for size in (8, 0)
        for different in DIFFERENT
    ],
    ids=lambda value: value if isinstance(value, int) else value[0][0],
)
def test_settings_that_train_as_one_are_equal_to_their_runs_alone(
    different: list[tuple[str, dict[str, Any]]], batch_size: int
) -> None:
    members = [
        partial(stackable, name, settings, number % 2, batch_size=batch_size, sparse=True, optimizer="sgd")
        for number, (name, settings) in enumerate(different)
    ]
    alone = [member() for member in members]
    found = side_by_side(members, CPU, taking_turns=True, kin=["settings"] * len(members))
    for expected, member in zip(alone, found):
        equal(member, expected, 1e-8)
        assert all(way.endswith(f"{len(members)} as one") for way in member[3])


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize("different", DIFFERENT, ids=lambda methods: methods[0][0])
def test_steps_of_several_settings_as_one_can_be_repeated(
    different: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordingExecutor, "can_record", classmethod(lambda kind, context: True))
    monkeypatch.setattr("evergraph.training.executors.cuda_graphs.cuda_graph_of", lambda step: step)
    members = [partial(stackable, *method, 0, sparse=True) for method in different]
    for member in side_by_side(members, CPU, taking_turns=True, kin=["settings"] * len(members)):
        assert not isinstance(member, Exception), member
        assert member[3] == [f"captured, {len(members)} as one"] * 3


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("curvature", {}), ("curvature", {"strength": 0.0})),
        (("curvature", {}), ("curvature", {"over_nodes": "sum"})),
        (("lwf", {}), ("lwf", {"temperature": 3.0})),
        (("ewc", {}), ("lwf", {})),
    ],
)
def test_settings_that_steps_read_do_not_train_as_one(one: tuple[str, Any], other: tuple[str, Any]) -> None:
    members = [partial(stackable, *method, 0) for method in (one, other)]
    alone = [member() for member in members]
    for expected, member in zip(alone, side_by_side(members, CPU, taking_turns=True, kin=["settings"] * 2)):
        equal(member, expected, 1e-14)
        assert not any("as one" in way for way in member[3])


def test_a_subclass_has_to_say_itself_which_settings_its_steps_read() -> None:
    """What its parent declares says nothing about a helper that it overrides."""

    @dataclass(repr=False)
    class Halved(eg.BatchCurvature):
        share: float = 0.5

        def scale(self, num_examples: int, reduction: str) -> float:
            return self.share * super().scale(num_examples, reduction)

    @dataclass(repr=False)
    class Declared(Halved):
        step_settings = ("strength", "over_tasks", "over_nodes", "estimator", "share")
        step_factors = ("strength",)

    parent = [stacking_key(eg.GCN(), eg.BatchCurvature(strength)) for strength in (1.0, 2.0)]
    child = [stacking_key(eg.GCN(), Halved(share=share)) for share in (0.5, 1.0)]
    assert parent[0] == parent[1]
    assert child[0] != child[1]
    assert stacking_key(eg.GCN(), Declared(1.0)) == stacking_key(eg.GCN(), Declared(2.0))
    assert stacking_key(eg.GCN(), Declared(share=1.0)) not in (parent[0], child[1])


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize("seeds", [(0, 1), (0,)])
@pytest.mark.parametrize("batch_size", [8, 0])
def test_jobs_that_are_the_same_are_trained_once(
    seeds: tuple[int, ...], batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first task of two runs that are stacked: one of them trains it, the other loads it."""
    sizes, begin = list[int](), Stack.__init__

    def counted(stack: Stack, members: list[Member]) -> None:
        sizes.append(len(members))
        begin(stack, members)

    monkeypatch.setattr(Stack, "__init__", counted)
    settings = [("curvature", {"strength": strength, "ema": 0.0}) for strength in (0.1, 2.0)]
    members = [partial(stackable, *method, seed, batch_size=batch_size) for seed in seeds for method in settings]
    alone = [member() for member in members]

    def shared(member: Any) -> Any:
        with known_trainings(tmp_path):
            return member()

    jobs = [partial(shared, member) for member in members]
    found = side_by_side(jobs, CPU, taking_turns=True, kin=["settings"] * len(jobs))
    assert sizes == [len(seeds), len(jobs), len(jobs)]
    for expected, member in zip(alone, found):
        equal(member, expected)


@pytest.mark.usefixtures("stacking")
def test_what_several_train_as_one_is_kept_before_any_of_them_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes wait for it, and all of them end where they end alone."""
    told, end_task = list[str](), eg.EWC.end_task

    def goes_on(method: eg.EWC, context: eg.Context) -> None:
        told.append("goes on")
        end_task(method, context)

    def kept(member: Member, seconds: float) -> None:
        told.append("kept")
        keep(member, seconds)

    monkeypatch.setattr(eg.EWC, "end_task", goes_on)
    monkeypatch.setattr("evergraph.training.loop.keep", kept)

    def fitted(seed: int, name: str) -> eg.Learner:
        stream = eg.stream("sbm:nodes=80,classes=4,features=6")
        with known_trainings(tmp_path):
            return eg.Learner(
                eg.GCN(hidden=6), name, epochs=2, batch_size=8, optimizer="sgd", seed=seed, dtype=torch.float64
            ).fit(stream)

    def seeds(name: str) -> list[Any]:
        return side_by_side([partial(fitted, seed, name) for seed in (0, 1)], CPU, taking_turns=True, kin=["seeds"] * 2)

    first = seeds("ewc")
    assert told == ["kept", "kept", "goes on", "goes on"] * 2
    for expected, found in zip(first, seeds("ewc")):
        assert expected.history[0]["steps"].endswith("2 as one")
        assert "another run" in found.history[0]["steps"]
        assert "another run" in found.history[1]["steps"]
        assert torch.equal(expected.random_state, found.random_state)
        for name, value in copy_params(expected.model).items():
            assert torch.equal(value, copy_params(found.model)[name])


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize("name", ["finetune", "mas", "online-ewc"])
def test_an_optimizer_pulls_several_that_train_as_one_while_it_moves_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it can, the method is not asked to edit gradients; each ends where it ends alone."""
    monkeypatch.setattr("evergraph.training.optimizers.compiled_adam_suits", compiled_adam_suits)
    members, edited = seeds_of(name, {}, 2, batch_size=8, sparse=True), list[object]()
    alone = [member() for member in members]
    monkeypatch.setattr("evergraph.methods.quadratic.Quadratic.edit_grads", lambda *hook: edited.append(hook))
    found = side_by_side(members, CPU, taking_turns=True, kin=["seeds"] * 2)
    assert kernels(torch.float64, torch.int32) is None or not edited
    for expected, member in zip(alone, found):
        equal(member, expected)


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize(
    ("name", "settings"),  # of the rest, steps are those of one of these but for what is measured between tasks
    [slow(*method, when=method[0] in ("online-ewc", "mas", "ema+ewc", "mas+batch-curvature")) for method in STACKABLE],
)
def test_steps_of_several_as_one_can_be_repeated(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watched on a CPU for what a recording cannot do, with a capture that only pretends."""
    monkeypatch.setattr(RecordingExecutor, "can_record", classmethod(lambda kind, context: True))
    monkeypatch.setattr("evergraph.training.executors.cuda_graphs.cuda_graph_of", lambda step: step)
    members = seeds_of(name, settings, 2, sparse=True)
    for member in side_by_side(members, CPU, taking_turns=True, kin=["seeds"] * 2):
        assert not isinstance(member, Exception), member
        assert member[3] == ["captured, 2 as one"] * 3


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize(
    ("name", "settings", "training"),
    [
        ("curvature", {"estimator": "sampled"}, {}),
        ("si", {}, {}),
        ("twp", {}, {}),
        ("reservoir", {}, {}),
        ("finetune", {}, {"patience": 2}),
        ("finetune", {}, {"fan_out": (2, 2)}),
    ],
)
def test_members_that_cannot_train_as_one_take_turns(
    name: str, settings: dict[str, Any], training: dict[str, Any]
) -> None:
    members = seeds_of(name, settings, 2, **training)
    alone = [member() for member in members]
    for expected, member in zip(alone, side_by_side(members, CPU, taking_turns=True, kin=["seeds"] * 2)):
        equal(member, expected, 1e-14)
        assert not any("as one" in way for way in member[3])


@pytest.mark.usefixtures("stacking")
def test_kin_of_several_sorts_and_strangers_at_one_table() -> None:
    """Two seeds each of two methods, one that steps alone, one that fails, one that has no kin."""
    kinds = [("curvature", {}), ("mas", {"strength": 1.0}), ("si", {})]
    members = [one for kind in kinds for one in seeds_of(*kind, 2)]
    alone = [member() for member in members]
    fails = partial(stackable, "curvature", {}, 5, lr=1e200)
    kin = [name for name, _ in kinds for _ in range(2)]
    found = side_by_side([*members, fails, members[0]], CPU, taking_turns=True, kin=[*kin, "curvature", None])
    for expected, member in zip([*alone, alone[0]], [*found[:6], found[7]]):
        equal(member, expected)
    assert isinstance(found[6], EvergraphError)
    assert "diverged" in str(found[6])
    assert found[0][3][0].endswith("2 as one")  # the one that fails has another learning rate


@pytest.mark.usefixtures("stacking")
def test_where_training_as_one_fails_each_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    members = seeds_of("curvature", {}, 2)
    alone = [member() for member in members]

    def fails(*given: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("evergraph.training.stacked.Stack.objective", fails)
    with pytest.warns(EvergraphWarning, match=r"2 trainings do not train as one \(no room\); they take turns"):
        found = side_by_side(members, CPU, taking_turns=True, kin=["seeds"] * 2)
    for expected, member in zip(alone, found):
        equal(member, expected, 1e-14)


@pytest.mark.usefixtures("stacking")
def test_a_member_that_diverges_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    members = seeds_of("finetune", {}, 3)
    alone = [member() for member in members]
    real = Stack.__init__

    def begin(stack: Stack, members: list[Member]) -> None:
        if members[0].context.index == 1:
            next(iter(members[1].context.params.values())).data.fill_(torch.nan)
        real(stack, members)

    monkeypatch.setattr(Stack, "__init__", begin)
    found = side_by_side(members, CPU, taking_turns=True, kin=["seeds"] * 3)
    assert "diverged" in str(found[1])
    for number in (0, 2):
        equal(found[number], alone[number])
    assert [way[-8:] for way in found[0][3]] == ["3 as one", "3 as one", "2 as one"]


@pytest.mark.usefixtures("stacking")
def test_members_whose_method_adds_something_infinite_stop_though_their_parameters_are_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eg.LwF, "penalty", lambda method, step: step.logits.new_tensor(torch.inf))
    steps: list[int] = []
    monkeypatch.setattr(StackedExecutor, "how", lambda executor: steps.append(len(executor.stack.members)) or "")
    found = side_by_side(seeds_of("lwf", {}, 2), CPU, taking_turns=True, kin=["seeds"] * 2)
    assert all("task 1, epoch 1: the model diverged" in str(one) for one in found)
    assert steps == [2, 2]


@pytest.mark.usefixtures("stacking")
@pytest.mark.parametrize("pause", [0.0, 20.0], ids=["saved after every epoch", "saved after tasks"])
def test_seeds_of_a_run_that_train_as_one_can_be_stopped_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """Whatever epoch a run is stopped in, the seeds go on from there, and end where they would have ended."""
    monkeypatch.setattr("evergraph.training.driver.CHECKPOINT_SECONDS", pause)
    seeds = replace(spec(seeds=[0, 1]), training=eg.Training(epochs=3))
    alone = eg.run(seeds, tmp_path / "alone")
    monkeypatch.setattr(sys.modules["evergraph.experiments.run"], "together", _with_turns)

    def stop(*where: Any) -> None:
        calls.append(where)
        if len(calls) > 8:  # both of them, in the second task's second epoch
            raise EvergraphError("stopped here")

    calls: list[Any] = []
    with pytest.raises(EvergraphError, match="stopped here"):
        eg.run(seeds, tmp_path / "stopped", on_progress=stop)
    found = eg.run(seeds, tmp_path / "stopped", resume=True)
    assert found["matrices"] == alone["matrices"]
    for log in ("seed-0/log.csv", "seed-1/log.csv"):
        broken, whole = (_losses(tmp_path / folder / log) for folder in ("stopped", "alone"))
        assert broken == pytest.approx(whole, rel=1e-5)


def _losses(log: Path) -> list[float]:
    return [float(line.split(",")[-1]) for line in log.read_text().splitlines()[1:]]


def test_turns_go_round_and_the_clock_counts_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(len(order))))  # a second for a round

    def member(name: str, rounds: int) -> float:
        began = clock()
        for _ in range(rounds):
            order.append(name)
            give_way()
        return clock() - began

    seconds = side_by_side([partial(member, "a", 3), partial(member, "b", 1), partial(member, "c", 2)], CPU,
                           taking_turns=True)  # fmt: skip
    assert "".join(order) == "abcaca"
    assert seconds == [3.0, 1.0, 2.0]


def test_one_that_fails_does_not_stop_the_others() -> None:
    def fails() -> int:
        give_way()
        raise EvergraphError("no")

    def works() -> int:
        give_way()
        give_way()
        return 7

    for turns in (True, False):
        one, other = side_by_side([fails, works], CPU, taking_turns=turns)
        assert isinstance(one, EvergraphError)
        assert other == 7
    with pytest.raises(EvergraphError, match="no"):
        together([works, fails], CPU)


def test_stopping_stops_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def member(number: int) -> None:
        try:
            while True:
                time.sleep(0.001)
                give_way()
        finally:
            ended.append(number)

    calls = iter([None, KeyboardInterrupt()])
    real = module._Turn.join

    def join(self: module._Turn, timeout: float | None = None) -> None:
        if timeout is not None and (error := next(calls, None)) is not None:
            raise error
        real(self, timeout)

    monkeypatch.setattr(module._Turn, "join", join)
    with pytest.raises(KeyboardInterrupt):
        side_by_side([partial(member, number) for number in range(3)], CPU, taking_turns=True)
    assert sorted(ended) == [0, 1, 2]


def test_a_job_that_ends_the_process_stops_all_of_them() -> None:
    """An error is the outcome of its job; this is the caller's."""
    ended: list[int] = []

    def member(number: int) -> None:
        try:
            for _ in range(1 if number == 1 else 1000):
                give_way()
        finally:
            ended.append(number)
        sys.exit(3)

    with pytest.raises(SystemExit) as found:
        side_by_side([partial(member, number) for number in range(3)], CPU, taking_turns=True)
    assert found.value.code == 3
    assert sorted(ended) == [0, 1, 2]


def spec(**more: Any) -> RunSpec:
    return RunSpec(
        "sbm",
        **{
            "method": "curvature",
            "training": eg.Training(epochs=2),
            "device": "cpu",
            "model_settings": {"hidden": 8},
            **more,
        },
    )


def test_seeds_of_a_run_take_turns_where_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run with the seeds taking turns has the result of one in which they follow one another."""
    alone = eg.run(spec(seeds=[0, 1]), tmp_path / "alone")
    monkeypatch.setattr(sys.modules["evergraph.experiments.run"], "together", _with_turns)
    found = eg.run(spec(seeds=[0, 1]), tmp_path / "turns")
    different = {"run_dir", "seconds"}
    assert {k: v for k, v in found.items() if k not in different} == {
        k: v for k, v in alone.items() if k not in different
    }


def _with_turns(trainings: Any, device: torch.device) -> list[Any]:
    outcomes = side_by_side(trainings, device, taking_turns=True, kin=["seeds"] * len(trainings))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def test_seeds_share_processes_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    works = [Work(str(number), spec(), "folder", number) for number in range(42)]
    assert [len(group) for group in grouped(works, 15)] == [1] * 42
    monkeypatch.setattr("evergraph.experiments.engines.processes.pick_device", lambda name: torch.device("cuda"))
    for jobs, size in ((50, 1), (15, 2), (14, 3), (6, 7), (2, TOGETHER), (1, TOGETHER)):
        groups = grouped(works, jobs)
        assert [work.seed for group in groups for work in group] == list(range(42))
        assert max(map(len, groups)) == size
    assert grouped([], 3) == []
    seeds = [Work(str(number // 3), spec(), "folder", number % 3) for number in range(12)]
    for jobs, sizes in ((12, [3] * 4), (2, [6, 6]), (1, [12])):  # those of one run train as one
        assert [len(group) for group in grouped(seeds, jobs)] == sizes
    settings = [
        {"strength": 2.0},
        {"ema": 0.0},
        {"estimator": "sampled"},
        {"strength": 3.0},
    ]  # the third steps otherwise
    runs = [Work(str(run), spec(settings=own), "folder", seed) for run, own in enumerate(settings) for seed in range(3)]
    for jobs, expected in ((12, ["000", "111", "222", "333"]), (2, ["010101", "232323"]), (1, ["013201320132"])):
        assert ["".join(work.key for work in group) for group in grouped(runs, jobs)] == expected
    averaged, dropped = spec(training=eg.Training(epochs=2, average_last=0.5)), spec(model_settings={"dropout": 0.5})
    for jobs, sizes in ((12, [1] * 12), (4, [3] * 4), (2, [6, 6])):  # those that do not leave no process idle
        for apart in (averaged, dropped):
            alone = [Work(str(number // 3), apart, "folder", number % 3) for number in range(12)]
            assert [len(group) for group in grouped(alone, jobs)] == sizes


def test_cells_in_processes_report_each_seed_s_error(tmp_path: Path) -> None:
    good = Cell("good", spec(seeds=[0, 1]))
    bad = Cell("bad", RunSpec("sbm", method="ewc", settings={"strength": 1e30}, training=eg.Training(epochs=2, lr=1e30),
                              device="cpu", model_settings={"hidden": 8}))  # fmt: skip
    results = run_cells([bad, good], tmp_path, jobs=2, failed=lambda cell, error: {"error": str(error)})
    assert "diverged" in results["bad"]["error"]
    assert len(results["good"]["matrices"]) == 2


@gpu
@pytest.mark.parametrize(
    ("name", "settings", "batch_size", "sparse"),
    [
        *((*method, 8, True) for method in (*STACKABLE, *DRAWING)),
        *((*method, 0, True) for method in DRAWING),
        *((*STACKABLE[1], size, False) for size in (8, 0)),
    ],
)
def test_seeds_that_train_as_one_on_a_gpu_are_equal_to_their_runs_alone(
    name: str, settings: dict[str, Any], batch_size: int, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergraph.models.base.SPARSE_ON_GPU", (1.0, 0, 2**40))
    optimizer = {"optimizer": "sgd"} if "ewc" in name or name == "twp" else {}
    members = seeds_of(name, settings, 3, device="cuda", batch_size=batch_size, sparse=sparse, **optimizer)
    alone = [member() for member in members]
    found = side_by_side(members, torch.device("cuda"), kin=["seeds"] * 3)
    for expected, member in zip(alone, found):
        equal(member, expected, 1e-7)
        assert member[3] == ["captured, 3 as one"] * 3


@gpu
@pytest.mark.parametrize("different", [*DIFFERENT, *DIFFERENT_DRAWING], ids=lambda methods: str(methods[0]))
def test_settings_that_train_as_one_on_a_gpu_are_equal_to_their_runs_alone(
    different: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergraph.models.base.SPARSE_ON_GPU", (1.0, 0, 2**40))
    members = [
        partial(stackable, name, settings, seed, device="cuda", sparse=True, optimizer="sgd")
        for name, settings in different
        for seed in (0, 1)
    ]
    alone = [member() for member in members]
    found = side_by_side(members, torch.device("cuda"), kin=["settings"] * len(members))
    for expected, member in zip(alone, found):
        equal(member, expected, 1e-7)
        assert member[3] == [f"captured, {len(members)} as one"] * 3


@gpu
@pytest.mark.parametrize("batch_size", [0, 8])
def test_members_on_a_gpu_are_equal_to_their_runs_alone(batch_size: int) -> None:
    """Captured, each on a stream of its own, drawn labels and dropout included."""
    device = torch.device("cuda")
    alone = [training(*member, "cuda", batch_size) for member in MEMBERS]
    found = side_by_side([partial(training, *member, "cuda", batch_size) for member in MEMBERS], device)
    for expected, member in zip(alone, found):
        assert not isinstance(member, Exception), member
        assert member[1] == pytest.approx(expected[1], rel=1e-3)
        for key, value in expected[0].items():
            torch.testing.assert_close(member[0][key], value, rtol=1e-3, atol=1e-4)
