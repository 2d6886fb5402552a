"""Trainings that take turns in one process end in the numbers that each ends in alone."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import evergraph as eg
from evergraph.core.params import copy_params
from evergraph.data.datasets.sbm import sbm
from evergraph.errors import EvergraphError
from evergraph.experiments import RunSpec
from evergraph.experiments.cells import Cell, run_cells
from evergraph.experiments.engines import Work
from evergraph.experiments.engines.processes import TOGETHER, grouped
from evergraph.methods import make_method
from evergraph.training import side_by_side as module
from evergraph.training.side_by_side import clock, give_way, side_by_side, together

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
        model, make_method(name, settings), epochs=6, batch_size=batch_size, device=device, seed=seed, lr=0.01
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


def spec(**more: Any) -> RunSpec:
    return RunSpec(
        "sbm", method="curvature", training=eg.Training(epochs=2), device="cpu", model_settings={"hidden": 8}, **more
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
    return side_by_side(trainings, device, taking_turns=True)


def test_seeds_share_processes_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    works = [Work(str(number), spec(), "folder", number) for number in range(42)]
    assert [len(group) for group in grouped(works, 15)] == [1] * 42
    monkeypatch.setattr("evergraph.experiments.engines.processes.pick_device", lambda name: torch.device("cuda"))
    for jobs, size in ((50, 1), (15, 2), (14, 3), (6, TOGETHER), (1, TOGETHER)):
        groups = grouped(works, jobs)
        assert [work.seed for group in groups for work in group] == list(range(42))
        assert max(map(len, groups)) == size
    assert grouped([], 3) == []


def test_cells_in_processes_report_each_seed_s_error(tmp_path: Path) -> None:
    good = Cell("good", spec(seeds=[0, 1]))
    bad = Cell("bad", RunSpec("sbm", method="ewc", settings={"strength": 1e30}, training=eg.Training(epochs=2, lr=1e30),
                              device="cpu", model_settings={"hidden": 8}))  # fmt: skip
    results = run_cells([bad, good], tmp_path, jobs=2, failed=lambda cell, error: {"error": str(error)})
    assert "diverged" in results["bad"]["error"]
    assert len(results["good"]["matrices"]) == 2


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
