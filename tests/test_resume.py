"""Stopped at any moment, by anything, a learner or a run goes on as if nothing had happened."""

import copy
import errno
import json
import os
import shlex

import pytest
import torch

import evergraph as eg
import kill_family
from evergraph.data.datasets.sbm import sbm
from evergraph.errors import EvergraphError
from evergraph.experiments.run import run
from evergraph.experiments.run_folder import read_result
from evergraph.experiments.seed_run import SeedRun
from evergraph.experiments.specification import RunSpec
from evergraph.methods import make_method, preferred_model
from evergraph.models import MODELS, make_model
from evergraph.training import Training, driver
from evergraph.training.learner import Learner
from forked import Forked

pytestmark = pytest.mark.usefixtures("without_pictures")

STREAM = "sbm:nodes=120,classes=4,features=8,signal=3"


@pytest.fixture(scope="module")
def stream():
    return eg.TaskStream(sbm(nodes=150, classes=6, degree=4, features=8, signal=3.0, seed=1), 2)


def learner(method="finetune", model=None, **settings):
    settings = {"epochs": 4, "batch_size": 16, "device": "cpu", **settings}
    preferred = preferred_model(method)
    sizes = {key: value for key, value in MODELS[preferred]().hyperparameters().items() if key == "hidden"}
    narrow = {"hidden": 8 if sizes["hidden"] == 256 else 64} if sizes else {}
    return Learner(model or make_model(preferred, **narrow), make_method(method), **settings)


def learn_all(one, stream, keep=None):
    """Learn what remains; `keep(task, epoch)` names the folder to save to then."""
    for index in range(one.num_tasks, len(stream)):

        def on_epoch(progress, epochs, index=index):
            folder = keep(index, progress.epoch) if keep else None
            if folder:
                one.save(folder)

        one.learn(stream[index], on_epoch)
        folder = keep(index, None) if keep else None
        if folder:
            one.save(folder)
    return one


CASES = {
    **{name: lambda name=name: learner(name) for name in eg.METHODS},
    "compose": lambda: learner("ewc+ema+lwf"),
    "queue": lambda: Learner(
        eg.GCN(hidden=8), eg.OnlineCurvature(estimator="queue", queue_size=5), epochs=4, batch_size=16, device="cpu"
    ),
    "sampled": lambda: Learner(
        eg.GCN(hidden=8), eg.OnlineCurvature(estimator="sampled"), epochs=4, batch_size=16, device="cpu"
    ),
    "dropout": lambda: learner("mas", eg.GCN(hidden=8, dropout=0.5)),
    "sage, sampled neighbours": lambda: learner("lwf", eg.GraphSAGE(hidden=8), fan_out=(2, 2)),
    "gat, full batch": lambda: learner("online-ewc", eg.GAT(hidden=8, heads=2), batch_size=0),
    "early stopping": lambda: learner("ewc", patience=1, epochs=12, lr=0.05),
    "early stopping, measured in steps": lambda: learner("ewc++", patience=1, epochs=12, lr=0.05, keep_optimizer=True),
    "early stopping after a phase": lambda: learner("tpp", patience=1, epochs=4, lr=0.05),
    "plain descent": lambda: learner("ncl", optimizer="sgd", keep_optimizer=True, average_last=0.5),
    "balanced, all classes": lambda: learner("si", class_balanced=True, label_scope="all", reduction="mean"),
}


SLOW = pytest.mark.slow  # the conformance suite loads every method once after a task and once within one


@pytest.mark.parametrize("case", [pytest.param(case, marks=[SLOW] if case in eg.METHODS else []) for case in CASES])
def test_a_loaded_learner_goes_on_bit_for_bit(tmp_path, stream, case):
    def keep(task, epoch):
        return tmp_path / f"{task}-{epoch}" if (task, epoch) in {(0, 3), (0, None), (1, 1)} else None

    whole = learn_all(CASES[case](), stream, keep)
    assert len(list(tmp_path.iterdir())) == (3 if max(row["epochs"] for row in whole.history) > 1 else 1)
    for folder in tmp_path.iterdir():
        loaded = learn_all(Learner.load(folder, device="cpu"), stream)
        for (name, a), b in zip(whole.model.named_parameters(), loaded.model.parameters()):
            assert torch.equal(a, b), f"{folder.name}: {name}"
        assert loaded.evaluate(stream) == whole.evaluate(stream)
        assert torch.equal(loaded.random_state, whole.random_state)
        assert torch.equal(loaded.generator.get_state(), whole.generator.get_state())


def test_a_learner_does_not_disturb_anybody_elses_random_numbers(stream):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    learn_all(learner("curvature"), stream)
    assert torch.equal(torch.rand(4), expected)


# runs


def spec(**changes):
    settings = {"epochs": 2, "batch_size": 32, **changes.pop("training", {})}
    given = {"method": "curvature", "model_settings": {"hidden": 8}, "training": Training(**settings), **changes}
    return RunSpec(source=STREAM, device="cpu", **given)


@pytest.mark.parametrize("pieces", [0, 16])
def test_no_task_is_built_again_to_count_what_was_learned(tmp_path, monkeypatch, pieces):
    arrivals, built = SeedRun._arrivals, []
    monkeypatch.setattr(SeedRun, "_arrivals", lambda self, index: built.append(index) or arrivals(self, index))
    run(spec(method="finetune", pieces=pieces, training={"epochs": 1}), tmp_path)
    assert built == [0, 1]


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs."""


def test_stopped_before_every_single_write(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0.0)
    whole = run(spec(), tmp_path / "whole")
    real, stops = os.replace, 0
    for at in range(1, 100):
        left = at

        def replace(source, target):
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            real(source, target)

        folder = tmp_path / f"stopped-{at}"
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            try:
                run(spec(), folder)
                break
            except Killed:
                stops += 1
        result = run(spec(), folder, resume=True)
        assert result["matrices"] == whole["matrices"], at
        assert (folder / "seed-0" / "log.csv").read_text() == (tmp_path / "whole" / "seed-0" / "log.csv").read_text()
        assert {path.name for path in folder.rglob("*")} == {
            "run.json",
            "result.json",
            "seed-0",
            "log.csv",
            "matrix.json",
        }
    assert stops >= 18  # every epoch and every task writes


def test_a_full_disk_stops_a_run_that_then_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0.0)
    whole = run(spec(), tmp_path / "whole")
    real, left = os.fsync, 9

    def fsync(handle):
        nonlocal left
        left -= 1
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(EvergraphError, match=r"No space left on device.*go on with --resume"):
            run(spec(), tmp_path / "full")
    assert not (tmp_path / "full" / "result.json").exists()
    with pytest.raises(EvergraphError, match="holds a run that is not finished"):
        read_result(tmp_path / "full")
    assert run(spec(), tmp_path / "full", resume=True)["matrices"] == whole["matrices"]


@pytest.mark.parametrize(("kills", "cases"), [(3, 1), pytest.param(40, 5, marks=SLOW)])
def test_processes_killed_at_random_moments(tmp_path, kills, cases):
    family = Forked(lambda: kill_family.main(tmp_path, kills, kill_family.CASES[:cases]))
    out, error = family.communicate(timeout=500)
    assert family.returncode == 0, error
    said = json.loads(out.splitlines()[-1])
    assert said["kills"] >= kills
    assert said["failed"] == 0, error
    assert said["rounds"] >= cases
    assert all(said["equal"]), said
    assert said["left"] == []


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    def second(*_):
        run(spec(), tmp_path / "run", resume=True)

    with pytest.raises(EvergraphError, match="another process is working in"):
        run(spec(), tmp_path / "run", on_progress=second)


def test_a_damaged_checkpoint_says_how_to_begin_anew(tmp_path, monkeypatch):
    def stop(seed, task, tasks, epoch, epochs):
        if task == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec(), tmp_path / "run", on_progress=stop)
    folder = tmp_path / "run" / "seed-0" / "checkpoint"
    tensors = next(folder.glob("tensors-*"))
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.raises(EvergraphError, match=r"damaged .*; remove .*checkpoint to begin seed 0 anew"):
        run(spec(), tmp_path / "run", resume=True)
    with pytest.raises(EvergraphError, match="holds a run with other settings"):
        run(spec(method="ewc"), tmp_path / "run", resume=True)
    with pytest.raises(EvergraphError, match="add --resume to go on with it"):
        run(spec(), tmp_path / "run")


def test_ctrl_c_says_how_to_go_on_and_that_works(tmp_path, monkeypatch, evergraph):
    monkeypatch.chdir(tmp_path)
    words = [
        "run",
        STREAM,
        "--method",
        "ewc",
        "--set",
        "strength=10",
        "--epochs",
        "3",
        "--hidden",
        "8",
        "--device",
        "cpu",
    ]
    assert evergraph(*words, "--out", "whole", "--json")[0] == 0
    real = Learner.learn

    def stopped(self, task, on_epoch=None):
        def hook(progress, epochs):
            on_epoch(progress, epochs)
            if self.num_tasks == 1 and progress.epoch == 2:
                raise KeyboardInterrupt

        return real(self, task, hook)

    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "learn", stopped)
        status, _, error = evergraph(*words, "--out=my run", "--json")
    assert status == 130
    assert "Traceback" not in error
    command = error.split("go on with: ")[1].strip()
    assert command.startswith("evergraph run ")
    assert command.endswith("--out 'my run' --resume")
    status, printed, _ = evergraph(*shlex.split(command)[1:])
    assert status == 0
    whole = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert json.loads(printed)["matrices"] == whole["matrices"]


def test_a_copy_made_after_an_epoch_goes_on_as_the_learner_does(stream, tmp_path):
    whole, copies = learner("ewc", epochs=6), []
    whole.learn(stream[0])

    def keep(progress, epochs):
        if progress.epoch == 3:
            copies.append(copy.deepcopy(whole))

    whole.learn(stream[1], on_epoch=keep)
    copies[0].save(tmp_path / "copy")
    for one in (copies[0], Learner.load(tmp_path / "copy", device="cpu")):
        one.learn(stream[1])
        for found, wanted in zip(one.model.parameters(), whole.model.parameters()):
            assert torch.equal(found, wanted)
