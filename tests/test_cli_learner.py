"""`evergraph learn`, `predict` and `info`: a learner that lives in a folder, from the command line."""

import csv
import json
import re
import sys

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.data import find_graph
from evergraph.data.datasets.sbm import sbm
from evergraph.training import driver
from evergraph.training.learner import Learner

SMALL = ["--hidden", "8", "--epochs", "3", "--device", "cpu"]
CURVATURE = ["--method", "curvature", *SMALL]


@pytest.fixture
def graph_file(tmp_path):
    """Six classes with names of several kinds, saved as people save them."""

    def write(name="graph.pt", labels=True, features=8, names=("zebra", "1", "ant", "ü, quoted", "e", "f")):
        graph = sbm(nodes=120, classes=6, degree=4, features=features, signal=3.0, seed=1)
        data = Data(x=graph.x, edge_index=graph.edge_index)
        if labels:
            data.y = graph.y
            data.class_names = list(names)
        torch.save(data, tmp_path / name)
        return tmp_path / name

    return write


def bad(answer, *parts):
    """One clear line, exit status 2, no traceback."""
    status, out, error = answer
    assert status == 2, answer
    assert out == ""
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for part in parts:
        assert part in error


def test_a_learner_is_measured_on_labelled_graphs(evergraph, graph_file, tmp_path):
    """Learned classes on the examples held out then, others on all of them: the numbers that Python has."""
    graph, folder = graph_file(), tmp_path / "learner"
    for classes in ("zebra,e", "ant"):
        assert evergraph("learn", graph, "--checkpoint", folder, "--classes", classes, "--device", "cpu")[0] == 0
    options = ["--checkpoint", folder, "--device", "cpu"]
    learner = Learner.load(folder, device="cpu")
    said = json.loads(evergraph("evaluate", graph, *options, "--classes", "zebra,e", "--by-class", "--json")[1])
    (row,) = said["graphs"]
    task = eg.Task.of(graph, ["zebra", "e"])
    assert (row["which"], row["examples"]) == ("held out", task.test.numel())
    assert row["now"] == learner.evaluate([task]).ap
    assert (
        row["then"] == learner.history[0]["accuracy"] if "accuracy" in learner.history[0] else row["then"] is not None
    )
    predicted = learner.predict(graph, task.test).labels
    truth = [task.graph.class_names[unit] for unit in task.graph.y[task.test].tolist()]
    for own in row["classes"]:
        hits = [name == own["class"] for name, true in zip(predicted, truth) if true == own["class"]]
        assert (own["examples"], own["correct"]) == (len(hits), sum(hits))

    other = tmp_path / "march.pt"
    march = sbm(nodes=90, classes=3, degree=4, features=8, signal=3.0, seed=1)
    names = ["zebra", "e", "ant"]
    torch.save(Data(x=march.x, edge_index=march.edge_index, y=march.y, class_names=names), other)
    said = json.loads(evergraph("evaluate", other, *options, "--json")[1])
    assert (said["graphs"][0]["which"], said["graphs"][0]["examples"]) == ("test split", eg.Task.of(other).test.numel())
    said = json.loads(evergraph("evaluate", other, *options, "--all", "--metric", "balanced-accuracy", "--json")[1])
    assert (said["graphs"][0]["which"], said["graphs"][0]["examples"]) == ("all labelled", 90)
    right = torch.tensor([name == names[unit] for name, unit in zip(learner.predict(other).labels, march.y.tolist())])
    expected = torch.stack([right[march.y == unit].double().mean() for unit in range(3)]).mean()
    assert said["graphs"][0]["now"] == pytest.approx(100 * float(expected))

    masked = tmp_path / "masked.pt"
    parts = {f"{part}_mask": torch.arange(90) % 5 == number for number, part in enumerate(("train", "val", "test"))}
    torch.save(Data(x=march.x, edge_index=march.edge_index, y=march.y, class_names=names, **parts), masked)
    for extra, size in (([], 18), (["--all"], 90), (["--all", "--classes", "ant"], int((march.y == 2).sum()))):
        said = json.loads(evergraph("evaluate", masked, *options, *extra, "--json")[1])
        assert said["graphs"][0]["examples"] == size
    every = tmp_path / "every"
    assert evergraph("learn", other, "--checkpoint", every, "--all-nodes", "--device", "cpu")[0] == 0
    status, out, note = evergraph("evaluate", other, "--checkpoint", every, "--device", "cpu", "--json")
    assert json.loads(out)["graphs"][0]["which"] == "trained on"
    assert "were trained on" in note

    first = ["--checkpoint", tmp_path / "first", "--device", "cpu"]
    for extra, which in (([], "held out"), (["--all-nodes", "--again"], "trained on")):
        assert evergraph("learn", other, *first, *extra)[0] == 0
        status, out, note = evergraph("evaluate", other, *first, "--json")
        assert json.loads(out)["graphs"][0]["which"] == which
        assert ("22 of 22 test nodes were trained on" in note) == (which == "trained on")
    first[1] = tmp_path / "masks"
    assert evergraph("learn", masked, *first, "--all-nodes")[0] == 0  # those of train_mask alone
    status, out, note = evergraph("evaluate", masked, *first, "--json")
    assert (json.loads(out)["graphs"][0]["which"], note) == ("test split", "")

    status, out, _ = evergraph("evaluate", other, graph, *options, "--classes", "zebra,e", "--by-class")
    assert status == 0
    assert "class zebra" in out
    assert "AP " in out
    bad(
        evergraph("evaluate", graph, *options),
        "does not know: '1', 'ü, quoted', 'f'; learn them first",
    )
    bad(evergraph("evaluate", graph_file("bare.pt", labels=False), *options), "bare.pt: no node has a label to compare")
    bad(evergraph("evaluate", other, *options, "--by-class", "--metric", "calibration-error"), "--by-class shows acc")
    again = json.loads(evergraph("evaluate", graph, *options, "--classes", "e,zebra", "--json")[1])["graphs"][0]
    assert (again["which"], again["now"], again["then"]) == ("held out", row["now"], row["then"])
    bad(evergraph("evaluate", graph, *options, "--metric", "speed"), "unknown metric 'speed'")
    bad(evergraph("evaluate", graph, "--checkpoint", tmp_path / "nowhere"), "nowhere")


def test_numbers_are_learned_on_without_naming_the_problem_again(evergraph, tmp_path):
    folder, rng = tmp_path / "learner", np.random.default_rng(0)
    for number in range(2):
        x = rng.normal(size=(60, 4))
        edges = np.stack([np.arange(60), (np.arange(60) + 1) % 60])
        np.savez(tmp_path / f"month{number}.npz", x=x, edge_index=np.hstack([edges, edges[::-1]]), y=x.sum(1))
    first, second = (tmp_path / f"month{number}.npz" for number in range(2))
    bad(evergraph("learn", first, "--checkpoint", folder), "--problem node-regression")
    assert evergraph("learn", first, "--checkpoint", folder, "--problem", "node-regression", "--device", "cpu")[0] == 0
    assert evergraph("learn", second, "--checkpoint", folder, "--device", "cpu")[0] == 0
    said = json.loads(evergraph("evaluate", first, second, "--checkpoint", folder, "--device", "cpu", "--json")[1])
    assert [row["which"] for row in said["graphs"]] == ["held out"] * 2
    words = ("learn", first, "--checkpoint", folder, "--device", "cpu")
    status, out, error = evergraph(*words)
    assert (status, out) == (0, "")
    assert "was learned already, as task 1; --again learns it again; nothing was done" in error
    bad(evergraph(*words, "--all-nodes"), "36 of 60 training nodes were learned already, in task 1; --again learns all")
    assert evergraph(*words, "--all-nodes", "--again")[0] == 0
    said = json.loads(evergraph("evaluate", first, "--checkpoint", folder, "--device", "cpu", "--json")[1])
    assert said["graphs"][0]["which"] == "trained on"
    status, out, error = evergraph("why", first, "--checkpoint", folder, "--node", "3", "--device", "cpu")
    assert status == 0, error
    assert out.startswith("node 3: 0 is ")
    bad(evergraph("evaluate", first, "--checkpoint", folder, "--by-class"), "--by-class is for examples with classes")


@pytest.mark.parametrize("ending", [".npz", ".csv"])
def test_whole_numbers_are_learned_on_as_numbers_and_minus_one_is_one_of_them(evergraph, tmp_path, ending):
    folder, rng = tmp_path / "learner", np.random.default_rng(0)
    months = []
    for month in ("jan", "feb"):
        x = rng.normal(size=(100, 3))
        y = np.clip(np.round(x[:, 0]), -1, 3).astype(int)
        assert 0 < (y == -1).sum() < 100
        edges = np.stack([np.arange(99), np.arange(1, 100)])
        np.savez(tmp_path / f"{month}.npz", x=x, edge_index=np.hstack([edges, edges[::-1]]), y=y)
        rows = [",".join(map(str, (*row, label))) for row, label in zip(x.tolist(), y.tolist())]
        (tmp_path / f"{month}.csv").write_text("\n".join(["a,b,c,label", *rows]))
        months.append(f"{tmp_path / month}{ending}{':edges=none' * (ending == '.csv')}")
    options = ["--checkpoint", folder, "--device", "cpu", "--json"]
    first, second = (
        json.loads(evergraph("learn", month, *options, *words)[1])
        for month, words in zip(months, (["--problem", "node-regression"], []))
    )
    assert (first["nodes"], second["nodes"]) == (60, 60)  # of 100, 40 are held out
    assert second["classes"] == first["classes"]
    bad(evergraph("learn", months[1], *options, "--problem", "node-classification"), "has node-regression")


def test_what_was_learned_already_is_an_object_too(evergraph, graph_file, tmp_path):
    graph = graph_file()
    learn = ["learn", graph, "--checkpoint", tmp_path / "learner", "--device", "cpu", "--json"]
    first = json.loads(evergraph(*learn, "--classes", "zebra,ant")[1])
    assert first["learned"] is True
    status, out, error = evergraph(*learn, "--classes", "zebra,ant")
    assert status == 0
    assert "nothing was done" in error
    assert json.loads(out) == {**first, "new_classes": [], "learned": False}
    second = json.loads(evergraph(*learn, "--classes", "e,f")[1])
    both = json.loads(evergraph(*learn, "--classes", "zebra,ant,e,f")[1])  # learned in two tasks
    assert both.keys() == first.keys()
    assert (both["learned"], both["nodes"]) == (False, first["nodes"] + second["nodes"])
    assert both["classes"] == ["zebra", "ant", "e", "f"]


def test_a_learner_lives_in_a_folder(evergraph, graph_file, tmp_path):
    graph, folder = graph_file(), tmp_path / "learner"
    status, out, _ = evergraph(
        "learn", graph, "--checkpoint", folder, "--classes", "zebra, e", *SMALL, "--method", "ewc"
    )
    assert status == 0
    assert "learned 'zebra', 'e' from" in out
    status, out, _ = evergraph("learn", graph, "--checkpoint", folder, "--classes", "ant", "--json")
    said = json.loads(out)
    assert (said["classes"], said["new_classes"], said["epochs"]) == (["ant"], ["ant"], 3)
    bad(
        evergraph("learn", graph, "--checkpoint", folder),
        "in tasks 1 and 2; --classes '1,\"ü, quoted\",f' learns the others",
    )
    assert evergraph("learn", graph, "--checkpoint", folder, "--lr", "0.01", "--class-balanced", "--again")[0] == 0
    info = json.loads(evergraph("info", folder, "--json")[1])
    assert info["classes"] == ["zebra", "e", "ant", "1", "ü, quoted", "f"]
    assert info["method"]["name"] == "ewc"
    assert info["training"]["epochs"] == 3  # kept from the first call
    assert info["training"]["lr"] == 0.01
    assert [len(task["classes"]) for task in info["tasks"]] == [2, 1, 6]
    assert info["parameters"] == 9 * 8 + 9 * 6
    assert info["method_state_bytes"] == 2 * 4 * info["parameters"] + 8  # importances, anchors, a constant
    status, out, _ = evergraph("info", folder)
    assert "curvature" not in out
    assert "'ü, quoted'" in out
    assert "epochs=3, lr=0.01" in " ".join(out.split())
    closed = tmp_path / "closed"
    assert evergraph("learn", graph, "--checkpoint", closed, "--hidden", "16", "--device", "cpu")[0] == 0
    out = evergraph("info", closed)[1]
    assert "one pass over each task, without epochs" in out
    assert "lr=" not in out
    more = ("--checkpoint", folder, "--classes", '"ü, quoted",e', "--again", "--json")
    said = json.loads(evergraph("learn", graph, *more)[1])
    assert said["classes"] == ["ü, quoted", "e"]


def test_the_command_line_learns_what_python_learns(evergraph, graph_file, tmp_path):
    graph, folder = graph_file(), tmp_path / "learner"
    learner = Learner(eg.GCN(hidden=8), eg.MAS(strength=3.0), epochs=3, device="cpu", seed=5)
    data = find_graph(graph)[0]
    for names in (["f", "1"], ["zebra"]):
        learner.learn(eg.Task.of(data, names, seed=5))
        options = ["--method", "mas", "--set", "strength=3", "--seed", "5", *SMALL]
        assert evergraph("learn", graph, "--checkpoint", folder, "--classes", ",".join(names), *options)[0] == 0
    kept = Learner.load(folder, device="cpu")
    for a, b in zip(learner.model.parameters(), kept.model.parameters()):
        assert torch.equal(a, b)
    out = tmp_path / "predictions.csv"
    said = f"120 predictions: {out}\n"
    assert evergraph("predict", graph, "--checkpoint", folder, "--out", out, "--ignore-labels") == (0, said, "")
    rows = list(csv.DictReader(out.open(encoding="utf-8", newline="")))
    expected = learner.predict(data)
    assert [row["class"] for row in rows] == expected.labels
    assert [int(row["node"]) for row in rows] == list(range(120))
    np.testing.assert_allclose([float(row["probability"]) for row in rows], expected.probabilities, rtol=1e-5)


def test_auto_is_the_default(evergraph, graph_file, tmp_path):
    """With the model and the training that it asks for; what is named comes before that."""
    graph, folder = graph_file(), tmp_path / "learner"
    small = ["--hidden", "64", "--device", "cpu"]
    said = json.loads(evergraph("learn", graph, "--checkpoint", folder, *small, "--json")[1])
    assert not {"epochs", "steps"} & set(said)  # it learns in one pass
    info = json.loads(evergraph("info", folder, "--json")[1])
    assert (info["method"]["name"], info["model"]["name"]) == ("auto", eg.Auto.model)
    learner = Learner(eg.MixedFeatures(hidden=64), "auto", device="cpu")
    learner.learn(eg.Task.of(find_graph(graph)[0]))
    kept = Learner.load(folder, device="cpu")
    assert kept.training == learner.training
    assert kept.predict(find_graph(graph)[0]).labels == learner.predict(find_graph(graph)[0]).labels
    assert evergraph("learn", graph, "--checkpoint", tmp_path / "other", "--epochs", "2", *small)[0] == 0
    assert json.loads(evergraph("info", tmp_path / "other", "--json")[1])["training"]["epochs"] == 2


@pytest.mark.parametrize("method", ["curvature", "auto"])
def test_predictions_as_parquet_and_on_stdout(evergraph, graph_file, tmp_path, monkeypatch, method):
    parquet = pytest.importorskip("pyarrow.parquet")
    graph, folder = graph_file(), tmp_path / "learner"
    evergraph("learn", graph, "--checkpoint", folder, "--method", method, *SMALL)
    out = tmp_path / "p.parquet"
    assert evergraph("predict", graph, "--checkpoint", folder, "--out", out)[0] == 0
    table = parquet.read_table(out)
    printed = evergraph("predict", graph, "--checkpoint", folder)[1]
    rows = list(csv.DictReader(printed.splitlines()))
    assert table.column_names == ["node", "class", "probability"]
    assert table.column("class").to_pylist() == [row["class"] for row in rows]
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    bad(evergraph("predict", graph, "--checkpoint", folder, "--out", tmp_path / "q.parquet"), "evergraph[parquet]")
    bad(evergraph("predict", graph, "--checkpoint", folder, "--out", tmp_path / "q.txt"), ".csv or .parquet")
    nowhere = tmp_path / "nowhere"
    bad(
        evergraph("predict", graph, "--checkpoint", folder, "--out", nowhere / "q.csv"), f"there is no folder {nowhere}"
    )
    assert not list(tmp_path.glob("q.*"))


def test_a_graph_without_labels_is_enough_to_predict(evergraph, graph_file, tmp_path):
    folder = tmp_path / "learner"
    evergraph("learn", graph_file(), "--checkpoint", folder, *SMALL)
    bare = graph_file("bare.pt", labels=False)
    status, out, _ = evergraph("predict", bare, "--checkpoint", folder, "--classes", "ant,zebra")
    assert status == 0
    assert {row["class"] for row in csv.DictReader(out.splitlines())} <= {"ant", "zebra"}
    bad(evergraph("learn", bare, "--checkpoint", folder), "no node has a label")


@pytest.mark.parametrize("method", ["curvature", "auto"])
def test_outputs_grow_by_themselves(evergraph, graph_file, tmp_path, method):
    graph, folder = graph_file(), tmp_path / "learner"
    first = ["--classes", "e,f", "--num-classes", "2", "--method", method, *SMALL]
    assert evergraph("learn", graph, "--checkpoint", folder, *first)[0] == 0
    before = (folder / "learner.json").read_bytes()
    bad(evergraph("learn", graph, "--checkpoint", folder, "--num-classes", "4", "--classes", "ant"), "has 2; leave it")
    assert (folder / "learner.json").read_bytes() == before
    assert evergraph("learn", graph, "--checkpoint", folder, "--classes", "ant")[0] == 0
    assert Learner.load(folder).classes_ == ["e", "f", "ant"]


def test_a_class_alone_is_warned_about(evergraph, graph_file, tmp_path):
    graph, folder = graph_file(), tmp_path / "learner"
    first = ["learn", graph, "--checkpoint", folder, "--classes", "e", *CURVATURE]
    assert "give several classes at once" in evergraph(*first)[2]
    alone = ["learn", graph, "--checkpoint", folder, "--classes", "f", "--label-scope", "current"]
    assert "use --label-scope seen" in evergraph(*alone)[2]
    assert evergraph("learn", graph, "--checkpoint", folder, "--classes", "ant", "--label-scope", "seen")[2] == ""
    both = ["learn", graph, "--checkpoint", folder, "--classes", "e,f", "--label-scope", "current", "--again"]
    assert evergraph(*both)[2] == ""
    # no softmax is trained in the closed form
    assert "softmax" not in evergraph("learn", graph, "--checkpoint", tmp_path / "auto", "--classes", "e", *SMALL)[2]


@pytest.mark.parametrize("method", ["curvature", "auto"])
def test_every_node_can_be_trained_on(evergraph, graph_file, tmp_path, method):
    graph, folder = graph_file(), tmp_path / "learner"
    words = ["--all-nodes", "--json", "--method", method, *SMALL]
    said = json.loads(evergraph("learn", graph, "--checkpoint", folder, *words)[1])
    assert said["nodes"] == 120
    assert said["test_accuracy"] is None
    bad(evergraph("learn", graph, "--checkpoint", folder, "--all-nodes", "--patience", "3"), "--all-nodes")


def stop_at(monkeypatch, epoch):
    """Ctrl-C after an epoch, with a checkpoint after each."""
    real = Learner.learn

    def learn(self, task, on_epoch=None):
        def hook(progress, epochs):
            on_epoch(progress, epochs)
            if progress.epoch == epoch:
                raise KeyboardInterrupt

        return real(self, task, hook)

    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(Learner, "learn", learn)


def test_stopped_before_anything_was_saved_it_promises_nothing(evergraph, graph_file, tmp_path, monkeypatch):
    stop_at(monkeypatch, 2)
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 1e9)
    status, _, error = evergraph("learn", graph_file(), "--checkpoint", tmp_path / "learner", *CURVATURE)
    assert status == 130
    assert "stopped; nothing was saved yet; repeat the command to begin again" in error
    assert not (tmp_path / "learner").exists()


@pytest.mark.parametrize("at", ["first task", "second task"])
def test_stopped_in_the_middle_it_goes_on_or_drops_the_task(evergraph, graph_file, tmp_path, monkeypatch, at):
    graph, whole, folder = graph_file(), tmp_path / "whole", tmp_path / "learner"
    calls = [["--classes", "ant,e", *CURVATURE], ["--classes", "zebra,f", "--epochs", "4"]]
    for words in calls:
        evergraph("learn", graph, "--checkpoint", whole, *words)
    if at == "second task":
        evergraph("learn", graph, "--checkpoint", folder, *calls.pop(0))
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        status, _, error = evergraph("learn", graph, "--checkpoint", folder, *calls[0])
    assert status == 130
    assert "stopped; repeat the command to continue" in error
    bad(
        evergraph("learn", graph, "--checkpoint", folder, "--classes", "1"),
        "another task was left in the middle",
        "--restart",
    )
    if at == "second task":
        assert json.loads(evergraph("info", folder, "--json")[1])["unfinished_task"]
        assert Learner.load(folder).num_tasks == 1  # the last finished task is untouched
    else:
        bad(evergraph("info", folder), "first task is not finished")
        bad(evergraph("predict", graph, "--checkpoint", folder), "holds no checkpoint")
    for words in calls:
        assert evergraph("learn", graph, "--checkpoint", folder, *words)[0] == 0
    for a, b in zip(Learner.load(whole).model.parameters(), Learner.load(folder).model.parameters()):
        assert torch.equal(a, b)
    assert not (folder / "unfinished").exists()
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        evergraph("learn", graph, "--checkpoint", folder, "--classes", "1")
    assert evergraph("learn", graph, "--checkpoint", folder, "--classes", "ü", "--restart")[0] == 2  # no such class
    assert evergraph("learn", graph, "--checkpoint", folder, "--classes", "e", "--restart")[0] == 0
    assert "1" not in Learner.load(folder).classes_


def test_a_state_that_a_finished_task_left_behind_is_no_unfinished_task(evergraph, graph_file, tmp_path, monkeypatch):
    graph, folder = graph_file(), tmp_path / "learner"
    with monkeypatch.context() as patch:
        patch.setattr(driver, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(driver, "remove_tree", lambda folder: None)  # as if killed before
        assert evergraph("learn", graph, "--checkpoint", folder, *CURVATURE)[0] == 0
    assert (folder / "unfinished" / "learner.json").exists()
    assert not json.loads(evergraph("info", folder, "--json")[1])["unfinished_task"]
    assert driver.change_in_folder(folder, lambda learner: learner.num_tasks)[1] == 1
    assert not (folder / "unfinished").exists()


def test_after_a_model_diverged_a_lower_learning_rate_helps(evergraph, graph_file, tmp_path, monkeypatch):
    """What the error says to do works: nothing of the diverged task is gone on with."""
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0.0)
    graph, folder = graph_file(), tmp_path / "learner"
    words = ["learn", graph, "--checkpoint", folder, "--batch-size", "0", *CURVATURE]
    bad(evergraph(*words, "--lr", "1e38"), "task 1, epoch 2: the model diverged", "lower lr (now 1e+38)")
    assert evergraph(*words, "--lr", "0.01")[0] == 0
    assert json.loads(evergraph("info", folder, "--json")[1])["training"]["lr"] == 0.01


def test_bad_input(evergraph, graph_file, tmp_path):
    graph, folder = graph_file(), tmp_path / "learner"
    evergraph("learn", graph, "--checkpoint", folder, "--classes", "ant,e", *CURVATURE)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    learn = ["learn", graph, "--checkpoint"]
    bad(evergraph(*learn, folder, "--classes", "moth"), "no labelled node of class 'moth'", "ant")
    bad(evergraph(*learn, folder, "--classes", ","), "--classes is empty")
    bad(evergraph(*learn, folder, "--method", "ewc"), "--method ewc does not fit", "curvature")
    bad(evergraph(*learn, folder, "--hidden", "9"), "--hidden 9 does not fit")
    bad(evergraph(*learn, folder, "--seed", "9"), "--seed 9 does not fit")
    bad(evergraph(*learn, folder, "--set", "strength=7"), "--set does not fit")
    bad(evergraph(*learn, tmp_path / "new", "--method", "moth"), "unknown method 'moth'", "curvature")
    bad(evergraph(*learn, graph), "is a file")
    bad(evergraph(*learn, graph / "below"), "cannot write to")
    bad(evergraph(*learn, "/proc/evergraph"), "cannot write to")
    bad(evergraph(*learn, tmp_path), "no checkpoint; name a new or empty folder")
    bad(evergraph("learn", tmp_path / "none.npz", "--checkpoint", folder), "no file")
    wide = graph_file("wide.pt", features=9)
    bad(evergraph("learn", wide, "--checkpoint", folder), "9 features per node, but the learner was built for 8")
    bad(evergraph("predict", wide, "--checkpoint", folder, "--ignore-labels"), "9 features per node")
    bad(evergraph("predict", graph, "--checkpoint", folder), "unknown classes", "'zebra'", "--ignore-labels")
    bad(
        evergraph("predict", graph, "--checkpoint", folder, "--classes", "moth", "--ignore-labels"),
        "unknown class 'moth'",
    )
    bad(evergraph("predict", graph, "--checkpoint", tmp_path), "holds no checkpoint")
    known = graph_file("bare.pt", labels=False)
    bad(evergraph("predict", known, "--checkpoint", folder, "--out", graph / "p.csv"), "cannot write")
    bad(evergraph("info", tmp_path), "holds no checkpoint")
    for words in (["predict", known, "--checkpoint"], ["forget", known, "--nodes", "1", "--checkpoint"], ["info"]):
        bad(evergraph(*words, tmp_path / "nowhere"), "there is no folder", "nowhere; name one that holds a learner")
    torch.save(Data(x=torch.zeros(0, 8), edge_index=torch.zeros(2, 0, dtype=torch.long)), tmp_path / "empty.pt")
    for command in ("learn", "predict"):
        bad(evergraph(command, tmp_path / "empty.pt", "--checkpoint", folder), "empty")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_damaged_foreign_and_newer_checkpoints(evergraph, graph_file, tmp_path):
    graph, folder = graph_file(), tmp_path / "learner"
    evergraph("learn", graph, "--checkpoint", folder, *SMALL)
    index = folder / "learner.json"
    whole = index.read_text()
    commands = (["learn", graph, "--checkpoint", folder], ["predict", graph, "--checkpoint", folder], ["info", folder])
    for text, said in (
        ('{"a": 1}', "not an evergraph checkpoint"),
        (whole[: len(whole) // 2], "damaged"),
        (whole.replace('"format": 2', '"format": 3'), "newer than this evergraph"),
        (whole.replace('"format": 2', '"format": 1'), "format 1 is of evergraph 0.1"),
        (whole.replace("zebra", "zebro"), "damaged"),
    ):
        index.write_text(text)
        for words in commands:
            bad(evergraph(*words), said)
        assert index.read_text() == text
    index.write_text(whole)
    next(folder.glob("tensors-*")).write_bytes(b"")
    for words in commands:
        bad(evergraph(*words), "damaged")


def test_small_errors_are_printed_with_the_digits_that_tell_them_apart(evergraph, tmp_path):
    """Numbers of a thousandth: one or two decimal places would be 0.0 for all of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    edges = np.stack([np.arange(99), np.arange(1, 100)])
    np.savez(tmp_path / "small.npz", x=x, edge_index=np.hstack([edges, edges[::-1]]), y=x[:, 0] / 1000)
    folder, small = tmp_path / "learner", tmp_path / "small.npz"
    out = evergraph("learn", small, "--checkpoint", folder, "--problem", "node-regression", "--device", "cpu")[1]
    error = re.search(r"mean absolute error on held-out nodes (0\.000\d{3})", out)
    assert error is not None, out
    measured = json.loads(evergraph("evaluate", small, "--checkpoint", folder, "--json")[1])["graphs"][0]["now"]
    assert float(error[1]) == pytest.approx(measured, rel=1e-2)
    assert error[1] in evergraph("evaluate", small, "--checkpoint", folder)[1]
    assert error[1] in evergraph("info", folder)[1]
