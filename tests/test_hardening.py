"""Damaged files, other people's folders, numbers that are not finite, a machine that refuses: one line each.

What no generator finds by chance is here; `tests/test_bad_input.py` makes up the rest.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from cases import slow
from evergraph.core.sparse import SparseMatrix
from evergraph.data.datasets.sbm import sbm
from evergraph.data.mapped import read_mapped, write_mapped
from evergraph.data.parts import read_parts, write_parts
from evergraph.errors import DivergedError
from evergraph.persistence.reading import read_record, write_record
from evergraph.training import driver
from forked import Forked, command_line
from graph_files import npz_parts

STREAM = "sbm:nodes=80,classes=4,features=6,signal=3"
FAST = ["--hidden", "8", "--epochs", "2", "--device", "cpu"]


def bad(answer, *parts, status=2):
    """One clear line, exit status 2, no traceback."""
    ended, _, error = answer
    assert ended == status, answer
    assert error.startswith("error: "), error
    assert error.count("\n") == 1, error
    for part in parts:
        assert part in error, error


def start(*words, **options):
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "evergraph", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command, env=environment, **settings)


@pytest.fixture
def place(tmp_path, monkeypatch, without_pictures):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def graph():
    return sbm(nodes=80, classes=4, degree=4, features=6, signal=3.0, seed=1)


def save(graph, path, **changes):
    np.savez(path, **{**npz_parts(graph, graph.x.numpy()), **changes})
    return path


# one way to take a folder: lock, then look


@pytest.mark.slow  # by forks, a dozen times: `test_of_two_runs_that_begin_in_one_new_folder_one_says_no`
def test_two_runs_into_one_new_folder_are_never_mixed(place):
    """Started together, one runs; the other says so and changes nothing."""
    words = ["run", STREAM, *FAST, "--epochs", 40, "--out", "run", "--json", "--method"]
    both = [Forked(command_line(*words, method)) for method in ("ewc", "mas")]
    answers = [(*process.communicate(timeout=120), process.returncode) for process in both]
    assert sorted(status for _, _, status in answers) == [0, 2], answers
    printed = json.loads(next(out for out, _, status in answers if status == 0))
    kept = json.loads((place / "run" / "result.json").read_text())
    assert (printed["method"], printed["matrices"]) == (kept["method"], kept["matrices"])
    refused = next(error for _, error, status in answers if status == 2)
    assert refused.count("\n") == 1
    assert "holds a run already" in refused or "another process is working" in refused


def test_two_learners_on_one_checkpoint_lose_no_task(place, graph, evergraph):
    save(graph, "graph.npz")
    assert evergraph("learn", "graph.npz", "--checkpoint", "l", "--classes", "0", "--num-classes", 4, *FAST)[0] == 0
    words = ["learn", "graph.npz", "--checkpoint", "l", *FAST[2:], "--classes"]
    both = [Forked(command_line(*words, name)) for name in ("1", "2")]
    answers = [(*process.communicate(timeout=120), process.returncode) for process in both]
    done = sum(status == 0 for _, _, status in answers)
    assert done >= 1, answers
    assert json.loads(evergraph("info", "l", "--json")[1])["tasks"].__len__() == 1 + done
    for _, error, status in answers:
        assert status == 0 or ("another process is working" in error and error.count("\n") == 1)


def test_a_folder_is_looked_at_again_once_it_is_locked(place, monkeypatch):
    """A run that came to its end between the first look and the lock is found by the second look."""
    from evergraph.experiments.run_folder import read_result
    from evergraph.persistence import files

    first, second = (eg.RunSpec(STREAM, method=name, training=eg.Training(epochs=1)) for name in ("ewc", "mas"))
    lock, raced = files.only_writer, []

    def late(folder):
        if not raced:
            raced.append(folder)
            eg.run(first, "run")
        return lock(folder)

    monkeypatch.setattr(files, "only_writer", late)
    with pytest.raises(eg.EvergraphError, match="run holds a run already"):
        eg.run(second, "run")
    assert read_result("run")["method"] == "ewc"


# every part of a folder carries its run's mark and a hash


@pytest.fixture
def stopped(place, graph, evergraph):
    """A run of two seeds that was stopped: one seed done, the other in its second task."""
    save(graph, "graph.npz")
    spec = eg.RunSpec("graph.npz", method="ewc", seeds=[0, 1], training=eg.Training(epochs=2, batch_size=16))
    spec.model_settings = {"hidden": 8}
    driver_seconds, driver.CHECKPOINT_SECONDS = driver.CHECKPOINT_SECONDS, 0

    def stop(seed, task, tasks, epoch, epochs):
        if (seed, task) == (1, 1):
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            eg.run(spec, "run", on_progress=stop)
    finally:
        driver.CHECKPOINT_SECONDS = driver_seconds
    assert (place / "run/seed-1/checkpoint/learner.json").exists()
    return spec


def resumed(spec, match):
    with pytest.raises(eg.EvergraphError, match=match) as caught:
        eg.run(spec, "run", resume=True)
    assert "\n" not in str(caught.value)


def test_a_stopped_run_goes_on_when_nothing_was_touched(stopped):
    assert len(eg.run(stopped, "run", resume=True)["matrices"]) == 2


def test_resume_refuses_a_changed_graph_file(stopped, graph, place):
    before = {path: path.read_bytes() for path in (place / "run").rglob("*.json")}
    changed = graph.x.numpy().copy()
    changed[3, 2] += 1e-3
    save(graph, "graph.npz", attr_matrix=changed)
    resumed(stopped, "run was run on another graph: graph.npz has changed since")
    assert {path: path.read_bytes() for path in (place / "run").rglob("*.json")} == before
    save(graph, "graph.npz")
    eg.run(stopped, "run", resume=True)
    save(graph, "graph.npz", attr_matrix=changed)
    resumed(stopped, "another graph")  # a finished run's numbers are the old graph's, too


def test_a_resumed_comparison_reads_the_graph_file_once(place, graph, evergraph, monkeypatch):
    """However many of its cells are known; and again after it was written."""
    from evergraph.data import files

    save(graph, "graph.npz")
    words = ["compare", "graph.npz", "--methods", "finetune,ewc,mas", "--seeds", "1", *FAST, "--out", "here"]
    assert evergraph(*words)[0] == 0
    read, times = files.read_graph_file, []
    monkeypatch.setattr(files, "read_graph_file", lambda *given, **more: times.append(given) or read(*given, **more))
    assert evergraph(*words, "--resume")[0] == 0
    assert len(times) == 1
    assert evergraph(*words, "--resume")[0] == 0
    assert len(times) == 1
    save(graph, "graph.npz", attr_matrix=graph.x.numpy() + 1)
    bad(evergraph(*words, "--resume"), "was run on another graph: graph.npz has changed since")
    assert len(times) == 2


def test_resume_refuses_swapped_seeds(stopped, place):
    (place / "run/seed-0").rename(place / "run/kept")
    (place / "run/seed-1").rename(place / "run/seed-0")
    (place / "run/kept").rename(place / "run/seed-1")
    resumed(stopped, "is another run's or another seed's; remove run/seed-0")


def test_resume_refuses_another_methods_checkpoint(stopped, place):
    other = eg.Learner(eg.GCN(hidden=8), "mas", epochs=2, device="cpu")
    other.learn(stopped.make_stream(1, None)[0])
    shutil.rmtree(place / "run/seed-1/checkpoint")
    other.save(place / "run/seed-1/checkpoint", notes={"matrix": [], "finished": False})
    resumed(stopped, "checkpoint is another run's or another seed's")


def test_resume_refuses_a_foreign_matrix(stopped, place):
    path = place / "run/seed-0/matrix.json"
    state = read_record(path)
    write_record(path, {**state, "run": "0" * 64})
    resumed(stopped, "matrix.json is another run's")
    write_record(path, {key: value for key, value in state.items() if key != "kept_bytes"})
    resumed(stopped, "matrix.json is damaged .there is no 'kept_bytes'")


def says_the_same(damaged: bytes, whole: bytes) -> bool:
    """Whether both are the same values: the last digit of a number may be beyond its precision."""
    try:
        return json.loads(damaged) == json.loads(whole)
    except ValueError:
        return False


def test_resume_refuses_every_flipped_bit(stopped, place):
    """One bit in each of 60 places over the files that a resume reads."""
    for name in ("run.json", "seed-0/matrix.json", "seed-1/checkpoint/learner.json"):
        path = place / "run" / name
        whole = path.read_bytes()
        for position in np.random.default_rng(0).integers(0, len(whole), 20):
            damaged = bytearray(whole)
            damaged[position] ^= 1
            if says_the_same(damaged, whole):
                continue
            path.write_bytes(bytes(damaged))
            resumed(stopped, "damaged|cannot be read|not an evergraph checkpoint|other settings|format")
        path.write_bytes(whole)
    assert len(eg.run(stopped, "run", resume=True)["matrices"]) == 2


def test_a_result_of_another_run_is_not_reported(stopped, place, evergraph):
    eg.run(stopped, "run", resume=True)
    evergraph("run", STREAM, "--method", "mas", *FAST, "--out", "other")
    shutil.copy(place / "other/result.json", place / "run/result.json")
    bad(evergraph("report", "run", "--out", "page.html"), "result.json is another run's")
    text = (place / "other/result.json").read_text()
    (place / "other/result.json").write_text(text.replace('"mean": ', '"mean": 1', 1))
    bad(evergraph("report", "other", "--out", "page.html"), "its hash does not fit")


DAMAGED = {
    "run.json": ("{}", "[]", "", "{", '{"spec": 5}', "\x00" * 9, "9" * 5000, "[" * 100_000),
    "result.json": ("{}", "[]", "", "{", '{"matrices": NaN}', '{"run": 1}'),
    "seed-0/log.csv": ("task\n\x00\n", "a,b\n1", '"', "task,epoch,loss\n0,1,x\n", "task,epoch,loss\n0\n"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_of_a_run_are_one_line(name, place, evergraph):
    assert evergraph("run", STREAM, "--method", "ewc", *FAST, "--out", "run")[0] == 0
    for text in DAMAGED[name]:
        (place / "run" / name).write_text(text)
        for words in (["run", STREAM, "--method", "ewc", *FAST, "--out", "run", "--resume"], ["report", "run"]):
            status, _, error = evergraph(*words)
            assert status in (0, 2), (text, words, error)
            assert "Traceback" not in error
            assert status == 0 or (error.startswith("error: ") and error.count("\n") == 1), error
        if name == "result.json":
            bad(evergraph("report", "run"), "damaged")


# one way to read a file


@pytest.mark.parametrize("name", ["graph.npz", "graph.pt", "folder/graph.json", "l/learner.json"])
def test_a_pipe_where_a_file_is_expected_is_refused_at_once(name, place, evergraph):
    (place / name).parent.mkdir(exist_ok=True)
    os.mkfifo(place / name)
    begun = time.monotonic()
    words = ["info", "l"] if name.startswith("l/") else ["run", name.partition("/")[0], *FAST]
    bad(evergraph(*words))
    assert time.monotonic() - begun < 5


def test_devices_and_folders_are_not_files(place, evergraph):
    os.symlink("/dev/zero", "zero.npz")
    bad(evergraph("run", "zero.npz"), "zero.npz is a device, not a file")
    os.mkdir("folder.pt")
    bad(evergraph("run", "folder.pt"), "folder.pt is a folder, not a file")


def array_cases(folder):
    """Each array of a converted graph, damaged in its content, its type, its layout and its length."""
    for path in sorted(folder.glob("*.npy")):
        whole = np.load(path)
        flat = whole.reshape(-1)
        huge, negative, nan = flat.copy(), flat.copy(), flat.copy()
        huge[flat.size // 2] = 10**9
        negative[flat.size // 2] = -7
        if whole.dtype.kind == "f":
            nan[0] = np.nan
        for label, array in {
            "huge": huge.reshape(whole.shape),
            "negative": negative.reshape(whole.shape),
            "nan": nan.reshape(whole.shape) if whole.dtype.kind == "f" else None,
            "big-endian": whole.astype(whole.dtype.newbyteorder(">")),
            "short": flat[:-1],
            "long": np.concatenate([flat, flat]),
            "float16": whole.astype(np.float16),
            "longdouble": whole.astype(np.longdouble),
            "objects": np.array([{}] * 3, dtype=object),
            "by columns": np.asfortranarray(whole) if whole.ndim == 2 else None,
            "empty": flat[:0],
        }.items():
            if array is not None:
                yield path, label, array


@pytest.mark.parametrize("hashed", [True, False], ids=["compared by hash", "too large to hash"])
def test_damaged_arrays_of_a_converted_graph_never_reach_the_kernels(graph, tmp_path, monkeypatch, hashed):
    """Both for arrays whose hash is compared and for those too large for it, whose numbers are checked instead."""
    if not hashed:
        monkeypatch.setattr("evergraph.data.mapped.HASHED_WHOLE", -1)
    folder = write_mapped(graph, tmp_path / "graph")
    for path, label, array in array_cases(folder):
        if not hashed and path.stem == "x" and label in {"huge", "negative", "nan"}:
            continue  # a number like any other; NaN is met by the guard in training, below
        whole = path.read_bytes()
        np.save(path, array, allow_pickle=True)
        with pytest.raises(eg.EvergraphError, match=r"damaged or not a converted graph .*convert again"):
            read_mapped(folder)
        path.write_bytes(whole)
    read_mapped(folder)


@pytest.mark.parametrize("name", ["y", "indptr", "indices", "x_indptr", "x_indices"])
@pytest.mark.parametrize("number", [10**6, -7])
def test_damaged_arrays_of_a_graph_in_parts_never_reach_the_kernels(graph, tmp_path, monkeypatch, name, number):
    """Those too large for their hash to be compared."""
    monkeypatch.setattr("evergraph.data.mapped.HASHED_WHOLE", -1)
    folder = write_parts(graph.altered(x=SparseMatrix.from_dense(graph.x)), tmp_path / "parts", 2)
    read_parts(folder)[0].rows.edges()
    file = folder / f"part-00001/{name}.npy"
    array = np.load(file)
    array[array.size // 2] = number
    np.save(file, array)
    with pytest.raises(eg.EvergraphError, match=r"damaged or not a graph in parts .*convert again"):
        read_parts(folder)[0].rows.edges()


def test_a_damaged_header_of_a_converted_graph_is_one_line(graph, tmp_path):
    folder = write_mapped(graph, tmp_path / "graph")
    header = read_record(folder / "graph.json")
    for change in ({"class_names": 5}, {"num_features": 0}, {"arrays": {}}, {"name": None}, {"num_features": 10**30}):
        write_record(folder / "graph.json", {**header, **change})
        with pytest.raises(eg.EvergraphError, match="damaged"):
            read_mapped(folder)


def test_converting_refuses_features_that_are_not_finite(tmp_path):
    from evergraph.data.mapped import write_mapped_blocks

    block = np.array([[1.0, np.nan]], dtype=np.float32)
    with pytest.raises(eg.EvergraphError, match="features contain NaN"):
        write_mapped_blocks(
            tmp_path / "graph", features=[block], edges=list, y=np.zeros(1, int), num_features=2, class_names=[0]
        )


def test_arrays_of_other_byte_orders_and_widths_are_read(graph, tmp_path):
    """Big-endian and long-double files give the very graph that native ones give."""
    native = eg.stream(save(graph, tmp_path / "native.npz")).graph
    for kind in (">f4", ">f8", "longdouble"):
        parts = {"attr_matrix": graph.x.numpy().astype(kind), "labels": graph.y.numpy().astype(">i4")}
        parts["adj_indices"] = graph.adjacency.indices.numpy().astype(">i8")
        other = eg.stream(save(graph, tmp_path / "other.npz", **parts)).graph
        assert torch.equal(other.x.float(), native.x)
        assert torch.equal(other.y, native.y)
        assert torch.equal(other.adjacency.indices, native.adjacency.indices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.full(80, 1e30)}, "is out of range"),
        ({"labels": np.full(80, 2**64 - 1, dtype=np.uint64)}, "is out of range"),
        ({"labels": np.full(80, -1e300)}, "label -1e.300 is out of range"),
        ({"class_names": np.array([1.5, 2.5, 3.5, 4.5])}, "names are text or whole numbers"),
        ({"class_names": np.array([True, False, True, False])}, "names are text or whole numbers"),
        ({"attr_matrix": np.ones((80, 6), dtype=complex)}, "must be real numbers"),
        ({"attr_matrix": np.full((80, 6), np.nan)}, "NaN or infinite"),
        ({"adj_indptr": np.arange(81)[::-1].copy()}, "inconsistent arrays"),
        ({"adj_indices": np.array("text")}, "inconsistent arrays"),
    ],
)
def test_odd_arrays_of_a_file_are_one_line(graph, tmp_path, changes, message):
    with pytest.raises(eg.EvergraphError, match=message):
        eg.stream(save(graph, tmp_path / "graph.npz", **changes))


# one guard for numbers that are not finite


def test_a_learning_rate_too_large_is_an_error_and_no_accuracy(evergraph, place, graph):
    save(graph, "graph.npz")
    learn = ["learn", "graph.npz", "--checkpoint", "l", "--method", "finetune", *FAST]
    bad(evergraph(*learn, "--lr", "1e30"), "diverged", "lower lr (now 1e+30)")
    bad(evergraph(*learn, "--lr", "1e30", "--epochs", "1"), "diverged")
    assert not Path("l/learner.json").exists()


@pytest.mark.parametrize("method", ["ewc", "mas", "si", "lwf", "kfac", "curvature", "twp", "stand-in-curvature"])
def test_a_strength_too_large_is_an_error_and_no_result(method, evergraph, place):
    model = ["--model", "gat"] if method == "twp" else []
    words = ["run", STREAM, "--method", method, *model, *FAST, "--set", "strength=1e300", "--out", "run"]
    status, _, error = evergraph(*words)
    if status:
        bad((status, "", error), "diverged")
    else:  # a penalty whose gradient Adam scales down to size
        assert np.isfinite(json.loads(Path("run/result.json").read_text())["ap"]["mean"])


def test_features_that_are_not_finite_are_met_by_the_guard(graph):
    """However the graph was made: an array on disk can change after it was checked."""
    graph.x[:, 0] = torch.nan
    stream = eg.TaskStream(graph, 2)
    for method in ("finetune", "ewc", "auto", "joint"):
        learner = eg.Learner(None, method, epochs=1, device="cpu")
        with pytest.raises(DivergedError):
            learner.learn(stream[0])
        assert learner.num_tasks == 0


def test_json_never_holds_nan(tmp_path):
    with pytest.raises(eg.EvergraphError, match="not a finite number"):
        write_record(tmp_path / "result.json", {"ap": float("nan")})
    assert list(tmp_path.iterdir()) == []


# options that were ignored without a word


def test_a_setting_reaches_the_part_of_a_composed_method(evergraph, place):
    words = ["compare", STREAM, "--methods", "ema+ewc", "--set", "strength=5", "--seeds", 1, *FAST, "--json"]
    status, out, error = evergraph(*words)
    assert status == 0, error
    found = json.loads(out)["results"][0]["hyperparameters"]
    assert found["1.ewc"]["strength"] == 5


@pytest.fixture
def mine():
    """A closed form of another family."""
    eg.METHODS.register(type("Mine", (eg.Analytic,), {"name": "mine", "family": "my own"}))
    yield
    eg.METHODS.remove("mine")


@pytest.mark.usefixtures("mine")
def test_training_settings_of_a_closed_form_are_not_ignored_without_a_word(evergraph, place):
    words = ["sbm:nodes=60,classes=4", "--model-set", "hidden=8", "--device", "cpu"]
    given, note = ["--lr", "0.1", "--batch-size", "4"], "note: --lr, --batch-size: no effect; auto learned in"
    calls = {"run": ["--out", "run"], "compare": ["--methods", "auto", "--seeds", "1", "--out", "compared"]}
    for command, rest in {**calls, "learn": ["--checkpoint", "kept"]}.items():
        status, _, said = evergraph(command, *words, *rest, *given)
        assert (status, said.startswith(note), said.count("\n")) == (0, True, 1), said
    assert evergraph("run", *words, "--out", "silent")[::2] == (0, "")
    for name in ("mine", "mine+ema"):  # whatever family a method says that it is of
        status, _, said = evergraph("run", *words, *given, "--method", name, "--out", name)
        assert (status, said.startswith(f"note: --lr, --batch-size: no effect; {name} learned in")) == (0, True), said
    words[1:3] = ["--epochs", "1", "--hidden", "8"]
    status, _, said = evergraph("compare", *words, "--methods", "auto,ewc", "--seeds", "1", "--out", "both")
    assert (status, said) == (0, "1/2 auto\n2/2 ewc\n")  # the network does use them


def test_a_setting_given_twice_is_refused(evergraph, place):
    bad(evergraph("run", STREAM, "--set", "ridge=1", "--set", "ridge=2"), "--set ridge is given twice")


IGNORED = [
    (["run", STREAM, "--min-class-size", "-1"], "min_class_size=-1 must be"),
    (["learn", "graph.npz", "--checkpoint", "l", "--num-classes", "0"], "num_classes=0 must be"),
    (["learn", "graph.npz", "--checkpoint", "l", "--num-classes", "-3"], "num_classes=-3 must be"),
    (["learn", "graph.npz", "--checkpoint", "l", "--seed", "-1"], "seed=-1 must be"),
    (["compare", STREAM, "--methods", ""], "no method named"),
    (["compare", STREAM, "--methods", "ewc", "--set", "strenght=1"], "unknown setting of ewc 'strenght'"),
    (["run", STREAM, "--method", "ewc", "--set", "strenght=1"], "unknown setting of ewc 'strenght'"),
    (["run", STREAM, "--method", ""], "unknown method ''"),
    (["run", ""], "unknown stream ''"),
    (["run", STREAM, "--out", "--json"], "--out '--json' is an option, not a folder; name one"),
    (["learn", "graph.npz", "--checkpoint", "--restart"], "--checkpoint '--restart' is an option, not a folder"),
    (["compare", STREAM, "--jobs", "1" + "0" * 22], "Invalid value for '--jobs'"),
]


@pytest.mark.parametrize(("words", "message"), IGNORED, ids=[" ".join(words)[:60] for words, _ in IGNORED])
def test_options_that_make_no_sense_are_refused(words, message, evergraph, place, graph):
    save(graph, "graph.npz")
    bad(evergraph(*words), message)


@pytest.mark.parametrize("option", [("--lr", "0.5"), ("--epochs", "9"), ("--label-scope", "all"), ("--method", "mas")])
def test_a_task_left_in_the_middle_goes_on_as_it_was_begun(option, evergraph, place, graph, monkeypatch):
    save(graph, "graph.npz")
    words = ["learn", "graph.npz", "--checkpoint", "l", "--method", "ewc", *FAST, "--lr", "0.01"]
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0)
    commit = driver.Driver.commit
    monkeypatch.setattr(driver.Driver, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert evergraph(*words)[0] == 130
    monkeypatch.setattr(driver.Driver, "commit", commit)
    assert Path("l/unfinished/learner.json").exists()
    bad(evergraph(*words, *option), option[1])
    assert evergraph("learn", "graph.npz", "--checkpoint", "l", "--method", "ewc")[0] == 0  # what is not named stays
    assert json.loads(evergraph("info", "l", "--json")[1])["training"]["lr"] == 0.01


def test_another_learners_unfinished_task_is_refused(evergraph, place, graph, monkeypatch):
    save(graph, "graph.npz")
    words = ["learn", "graph.npz", "--method", "ewc", *FAST, "--classes", "0,1", "--num-classes", "4", "--checkpoint"]
    for folder, seed in (("a", 0), ("b", 1)):
        assert evergraph(*words, folder, "--seed", seed)[0] == 0
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0)
    commit = driver.Driver.commit
    monkeypatch.setattr(driver.Driver, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert evergraph("learn", "graph.npz", "--classes", "2,3", "--checkpoint", "a")[0] == 130
    monkeypatch.setattr(driver.Driver, "commit", commit)
    shutil.copytree("a/unfinished", "b/unfinished")
    bad(evergraph("learn", "graph.npz", "--classes", "2,3", "--checkpoint", "b"), "is another learner's", "--restart")
    assert evergraph("learn", "graph.npz", "--classes", "2,3", "--checkpoint", "a")[0] == 0


# the machine refuses


def test_no_memory_is_one_line(evergraph, place, monkeypatch):
    bad(evergraph("run", STREAM, "--method", "ewc", *FAST, "--hidden", 10**15), "not enough memory")
    bad(evergraph("run", f"sbm:nodes={10**15},classes=2"), "not enough memory")


def test_huge_whole_numbers_are_one_line(evergraph, place):
    for value in (10**30, "9" * 4000, "9" * 6000):
        bad(evergraph("run", f"sbm:nodes={value}"))
        bad(evergraph("run", STREAM, "--epochs", value))
        bad(evergraph("run", STREAM, "--model", "gcn", "--model-set", f"hidden={value}"))
        bad(evergraph("learn", STREAM, "--checkpoint", "l", "--seed", value))


def test_names_that_no_file_system_takes_are_one_line(evergraph, place, graph):
    name = "n" * 300
    for words in (
        ["run", name],
        ["run", f"{name}.npz"],
        ["run", STREAM, *FAST, "--out", name],
        ["learn", STREAM, "--checkpoint", name, *FAST],
        ["info", name],
        ["report", name],
        ["compare", STREAM, *FAST, "--out", name],
        ["run", "coauthor-cs", "--data-root", name],
        ["convert", STREAM, name],
        ["predict", STREAM, "--checkpoint", name],
    ):
        bad(evergraph(*words))
    save(graph, f"{'n' * 240}.npz")
    assert evergraph("run", f"{'n' * 240}.npz", *FAST)[0] == 0  # a long name that exists gives a shorter folder


def test_a_class_may_be_called_like_markup(evergraph, place, graph):
    names = ["[/b]", "[bold]x", ":smile:", "[link=x]"]
    torch.save(Data(x=graph.x, edge_index=graph.edge_index, y=graph.y, class_names=names), "graph.pt")
    assert evergraph("learn", "graph.pt", "--checkpoint", "[/b]", "--method", "ewc", *FAST)[0] == 0
    status, out, _ = evergraph("info", "[/b]")
    assert status == 0
    for name in names:
        assert repr(name) in out
    assert evergraph("run", "graph.pt", "--method", "ewc", *FAST, "--out", "[/i]")[0] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("spawned", [False, slow(True)])
def test_a_full_or_closed_stdout_is_one_line(spawned):
    with open("/dev/full", "w") as full:
        process = Forked(command_line("streams"), stdout=full.fileno())
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error.count("\n")) == (2, 1), error
    assert "No space left on device" in error
    said = "error: standard output is closed; send it to a file, or to /dev/null\n"
    if spawned:
        words = ["sh", "-c", '"$0" -m evergraph streams >&-', sys.executable]
        closed = subprocess.run(words, capture_output=True, text=True)
        assert (closed.returncode, closed.stderr) == (2, said)
        return

    def run():
        os.close(1)
        sys.stdout = None  # as Python has it in a process that begins so
        command_line("streams")()

    process = Forked(run)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (2, said)


def test_a_reader_that_goes_away_is_no_error():
    reader, writer = os.pipe()
    process = Forked(partial(_after_closing, reader, command_line("methods", "--json")), stdout=writer)
    os.close(writer)
    assert os.read(reader, 1) == b"["
    os.close(reader)
    assert (process.communicate(), process.returncode) == (("", ""), 0)


def _after_closing(descriptor, run):
    os.close(descriptor)
    run()


@pytest.mark.parametrize("spawned", [False, slow(True)])
def test_a_terminal_that_knows_ascii_alone_gets_escapes(graph, place, evergraph, spawned):
    torch.save(Data(x=graph.x, edge_index=graph.edge_index, y=graph.y, class_names=["ü", "é", "Ω", "c"]), "graph.pt")
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert evergraph("learn", "graph.pt", "--checkpoint", "l", "--method", "ewc", *FAST)[0] == 0

    def run():
        sys.stdout.reconfigure(encoding="ascii")  # with strict errors, as Python has it there
        command_line("info", "l")()

    process = start("info", "l", env=environment, cwd=place) if spawned else Forked(run, folder=place)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, ""), error
    assert "'\\xfc'" in out


@pytest.mark.parametrize(
    "delay", [0.8, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.1, 0.3, 0.5, 1.2, 1.6, 2.0))]
)
def test_an_interrupt_while_importing_is_one_line(delay):
    """At any moment, from before the first import to after the last."""
    process = start("methods", stdout=subprocess.DEVNULL)
    threading.Event().wait(delay)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode in (0, 130, -signal.SIGINT), error
    assert "Traceback" not in error
    assert error in ("", "stopped\n")
