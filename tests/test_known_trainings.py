"""Trainings that several runs have in common are carried out once, and change nothing."""

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import evergraph as eg
from evergraph.core.capabilities import capable
from evergraph.experiments.cells import SHARED, Cell, run_cells
from evergraph.experiments.specification import RunSpec
from evergraph.methods import METHODS, make_method
from evergraph.persistence.checkpoint import INDEX
from evergraph.training import known_trainings as module
from evergraph.training.known_trainings import known_trainings
from evergraph.training.learning import make_context
from evergraph.training.side_by_side import clock, side_by_side

STREAM = eg.stream("sbm:nodes=80,classes=4,features=6")
SETTINGS: dict[str, Any] = {"epochs": 3, "lr": 0.01, "batch_size": 8, "weight_decay": 0.0, "label_scope": "seen"}
SETTINGS |= {"reduction": "sum", "class_balanced": False, "patience": 0}  # some methods have defaults of their own
SHARING = ("ewc", "online-ewc", "mas", "lwf", "twp", "ema", "curvature", "queue-curvature", "stand-in-curvature")


def learner(method: str = "finetune", **settings: Any) -> eg.Learner:
    return eg.Learner(eg.GCN(hidden=6), make_method(method), **{**SETTINGS, **settings})


def parameters(of: eg.Learner) -> list[Tensor]:
    return [value.detach().clone() for value in of.model.parameters()]


def same(one: eg.Learner, other: eg.Learner) -> bool:
    return all(torch.equal(a, b) for a, b in zip(parameters(one), parameters(other)))


def recalled(of: eg.Learner, task: int = 0) -> bool:
    return "another run" in of.history[task]["steps"]


@pytest.mark.parametrize("method", SHARING)
def test_the_first_task_is_taken_over_and_all_tasks_end_in_the_same_bits(method: str, tmp_path: Path) -> None:
    alone, first, second = learner(method), learner(), learner(method)
    alone.fit(STREAM)
    with known_trainings(tmp_path):
        first.learn(STREAM[0])
        second.fit(STREAM)
    assert not recalled(first)
    assert recalled(second)
    assert not recalled(second, 1)
    assert same(alone, second)
    assert torch.equal(alone.random_state, second.random_state)
    assert second.history[0]["epochs"] == 3


@pytest.mark.parametrize("name", METHODS)
def test_steps_that_claim_to_be_plain_are_those_of_fine_tuning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if METHODS[name].model != "gcn" or METHODS[name].training_data is not eg.Method.training_data:
        pytest.skip("another model or other data than fine-tuning's")
    plain, own, asked = learner(), learner(name), learner(name)
    asked.model.setup(STREAM[0].graph.num_features, 4)
    claim = capable(asked.method, "steps_depend_on")
    if claim is None or claim(make_context(asked, STREAM[0], STREAM[0])) != []:
        pytest.skip("claims nothing")
    for one in (plain, own):
        monkeypatch.setattr(one.method, "end_task", lambda context: None)
        one.learn(STREAM[0])
    assert same(plain, own)


def test_methods_whose_first_task_is_theirs_claim_nothing() -> None:
    for name in ("si", "ewc++"):
        assert capable(make_method(name), "steps_depend_on") is None


@pytest.mark.parametrize(
    ("one", "other", "tasks"),
    [
        ("lwf", "lwf", [0, 1]),
        ("ewc", "online-ewc", [0, 1]),  # which part ways at the third task
        ("ewc", "mas", [0]),
        ("twp", "twp", [0, 1]),
        ("ema+ewc", "ema+ewc", [0, 1]),
        ("ema+ewc", "ewc", [0]),
        ("curvature", "curvature", [0]),
    ],
)
def test_a_training_that_depends_on_the_same_is_carried_out_once(
    one: str, other: str, tasks: list[int], tmp_path: Path
) -> None:
    alone, second = learner(other), learner(other)
    alone.fit(STREAM)
    with known_trainings(tmp_path):
        learner(one).fit(STREAM)
        second.fit(STREAM)
    assert [task for task in range(2) if recalled(second, task)] == tasks
    assert same(alone, second)
    assert torch.equal(alone.random_state, second.random_state)


def test_another_strength_is_another_training(tmp_path: Path) -> None:
    with known_trainings(tmp_path):
        learner("lwf").fit(STREAM)
        second = eg.Learner(eg.GCN(hidden=6), make_method("lwf", {"strength": 3.0}), **SETTINGS)
        second.fit(STREAM)
    assert recalled(second)
    assert not recalled(second, 1)


def test_settings_that_are_written_alike_one_after_the_other_are_another_training(tmp_path: Path) -> None:
    """1.0 and 12.5 are not 1.01 and 2.5."""
    alone = eg.Learner(eg.GCN(hidden=6), eg.LwF(strength=1.01, temperature=2.5), **SETTINGS).fit(STREAM)
    with known_trainings(tmp_path):
        eg.Learner(eg.GCN(hidden=6), eg.LwF(strength=1.0, temperature=12.5), **SETTINGS).fit(STREAM)
        second = eg.Learner(eg.GCN(hidden=6), eg.LwF(strength=1.01, temperature=2.5), **SETTINGS).fit(STREAM)
    assert recalled(second)
    assert not recalled(second, 1)
    assert same(alone, second)


@pytest.mark.parametrize("other", [{"lr": 0.02}, {"epochs": 2}, {"seed": 1}, {"weight_decay": 0.1}, {"batch_size": 4}])
def test_another_training_is_carried_out(other: dict[str, Any], tmp_path: Path) -> None:
    with known_trainings(tmp_path):
        learner().learn(STREAM[0])
        second = learner(**other)
        second.learn(STREAM[0])
        third = learner()
        third.learn(STREAM[1])
    assert not recalled(second)
    assert not recalled(third)


def test_a_step_of_one_s_own_is_carried_out(tmp_path: Path) -> None:
    class Watching(eg.Method):
        steps = 0

        def after_step(self, step: eg.Step) -> None:
            self.steps += 1

    watching = Watching()
    with known_trainings(tmp_path):
        learner().learn(STREAM[0])
        eg.Learner(eg.GCN(hidden=6), watching, **SETTINGS).learn(STREAM[0])
    assert watching.steps


def test_what_cannot_be_read_or_written_is_trained_anew(tmp_path: Path) -> None:
    alone = learner()
    alone.learn(STREAM[0])
    with known_trainings(tmp_path / "kept"):
        learner().learn(STREAM[0])
        (index,) = (tmp_path / "kept").rglob(INDEX)
        index.write_text("{}")
        again = learner()
        again.learn(STREAM[0])
    assert not recalled(again)
    assert same(alone, again)
    (tmp_path / "a file").write_text("")
    with known_trainings(tmp_path / "a file"):
        blocked = learner()
        blocked.learn(STREAM[0])
    assert same(alone, blocked)


def test_a_training_in_the_middle_goes_on_by_itself(tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(progress: eg.training.Progress, epochs: int) -> None:
        if progress.epoch == 2:
            raise StoppedError

    alone, halted = learner(), learner()
    alone.learn(STREAM[0])
    with pytest.raises(StoppedError):
        halted.learn(STREAM[0], on_epoch=stop)
    with known_trainings(tmp_path):
        learner().learn(STREAM[0])
        halted.learn(STREAM[0])
    assert not recalled(halted)
    assert same(alone, halted)


def test_a_table_trains_the_first_task_of_a_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = eg.training.Training(**SETTINGS)
    cells = [
        Cell(name, RunSpec(source="sbm:nodes=80,classes=4,features=6", method=name, seeds=[0, 1], training=training))
        for name in ("finetune", "ewc", "curvature")
    ]
    together = run_cells(cells, tmp_path / "together")
    assert not (tmp_path / "together" / SHARED).exists()
    monkeypatch.setattr(module, "place_of", lambda member: None)
    monkeypatch.setattr("evergraph.training.loop.place_of", lambda member: None)
    alone = run_cells(cells, tmp_path / "alone")
    for cell in cells:
        assert together[cell.key]["matrices"] == alone[cell.key]["matrices"]
        taken = ["another run" in steps[0] for steps in together[cell.key]["steps"]]
        assert taken == [cell.key != "finetune"] * 2


def test_processes_that_begin_with_the_same_task_wait_for_the_first(tmp_path: Path) -> None:
    """One of them trains it, and the time that others wait is not theirs."""
    training = eg.training.Training(**{**SETTINGS, "epochs": 60})
    cells = [
        Cell(name, RunSpec(source="sbm:nodes=300,classes=4,features=6", method=name, seeds=[0], training=training))
        for name in ("finetune", "ewc", "mas")
    ]
    results = run_cells(cells, tmp_path, jobs=3)
    taken = ["another run" in results[cell.key]["steps"][0][0] for cell in cells]
    assert sorted(taken) == [False, True, True]


def test_a_training_whose_process_died_is_not_waited_for(tmp_path: Path) -> None:
    first, second = learner(), learner()
    with known_trainings(tmp_path):
        first.learn(STREAM[0])
        (place,) = (path for path in tmp_path.iterdir() if path.is_dir())
        shutil.rmtree(place)  # what it held is free, and nothing came of it
        assert place.with_suffix(".lock").exists()
        second.learn(STREAM[0])
    assert not recalled(second)
    assert same(first, second)
    assert not module._held


def test_a_training_that_others_of_the_process_hold_is_not_waited_for(tmp_path: Path) -> None:
    """They might wait for this one in turn."""
    one, other = (partial(learned, number, tmp_path) for number in (0, 1))
    outcomes = side_by_side([one, other, one], torch.device("cpu"), taking_turns=True, kin=["a", "b", "c"])
    assert not any(recalled(outcome) for outcome in outcomes)  # type: ignore[arg-type]
    assert not module._held


def learned(seed: int, folder: Path) -> eg.Learner:
    """A learner of the first task that gives way to others after every epoch."""
    with known_trainings(folder):
        of = learner(seed=seed)
        of.learn(STREAM[0])
    return of


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["ewc", "curvature"])
def test_seeds_that_train_as_one_on_a_gpu_take_over_what_they_know(method: str, tmp_path: Path) -> None:
    def fitted(seed: int, name: str, folder: Path | None) -> eg.Learner:
        with known_trainings(folder):
            return learner(name, seed=seed, device="cuda").fit(STREAM)

    def seeds(name: str, folder: Path | None) -> list[Any]:
        device = torch.device("cuda")
        return side_by_side([partial(fitted, seed, name, folder) for seed in range(2)], device, kin=["seeds"] * 2)

    alone = seeds(method, None)
    seeds("finetune", tmp_path)
    for expected, found in zip(alone, seeds(method, tmp_path)):
        assert recalled(found)
        assert found.history[1]["steps"].endswith("2 as one")
        assert torch.equal(found.random_state, expected.random_state)
        for one, other in zip(parameters(found), parameters(expected)):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_foreign_code_is_not_remembered(tmp_path: Path) -> None:
    class Own(type(make_method("lwf"))):  # type: ignore[misc]
        name = "own-lwf"

    with known_trainings(tmp_path):
        learner().fit(STREAM)
        for method in (make_method("finetune"), Own()):
            one = eg.Learner(eg.GCN(hidden=6), method, **SETTINGS)
            if isinstance(method, Own):
                one.fit(STREAM)
                assert not recalled(one)
        hooked = learner()
        hooked.model.register_forward_hook(lambda *_: None)
        hooked.learn(STREAM[0])
        assert not recalled(hooked)


def test_seconds_of_what_is_taken_over_count(tmp_path: Path) -> None:
    with known_trainings(tmp_path):
        began = clock()
        learner(epochs=30).learn(STREAM[0])
        first = clock() - began
        began, real = clock(), time.perf_counter()
        again = learner(epochs=30)
        again.learn(STREAM[0])
        assert recalled(again)
        assert time.perf_counter() - real < clock() - began
        assert clock() - began > 0.3 * first


def test_a_folder_takes_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 0)
    with known_trainings(tmp_path):
        learner().learn(STREAM[0])
        again = learner("ewc")
        again.learn(STREAM[0])
    assert not recalled(again)


def test_members_that_take_turns_share_what_they_know(tmp_path: Path) -> None:
    def fitted(name: str) -> eg.Learner:
        return learner(name).fit(STREAM)

    with known_trainings(tmp_path):
        side_by_side([partial(fitted, "finetune")] * 2, torch.device("cpu"), taking_turns=True)
        found = side_by_side([partial(fitted, "ewc")] * 2, torch.device("cpu"), taking_turns=True)
    assert all(recalled(one) for one in found)


def test_trainings_of_an_earlier_attempt_are_not_taken_over(tmp_path: Path) -> None:
    stale = tmp_path / SHARED / "stale"
    stale.mkdir(parents=True)
    spec = RunSpec("sbm:nodes=80,classes=4,features=6", training=eg.Training(epochs=1), device="cpu")
    run_cells([Cell("one", spec)], tmp_path)
    assert not (tmp_path / SHARED).exists()
