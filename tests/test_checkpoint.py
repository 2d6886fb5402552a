"""Saving and loading: nothing lost, nothing executed, nothing half-written."""

import collections
import copy
import errno
import json
import math
import os
import pkgutil
import resource
import threading

import numpy as np
import pytest
import torch

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.errors import EvergraphError
from evergraph.persistence import checkpoint, files
from evergraph.persistence.checkpoint import load_tree, remove_tree, save_tree
from evergraph.persistence.files import only_writer, write_atomically
from evergraph.persistence.reading import write_record
from evergraph.training import learning

TREE = {
    "text": "Ünïcode </script>",
    "numbers": [1, 2.5, -0.0, 1e-300, True, None],
    "odd": [float("inf"), float("-inf")],
    "keys": {1: "int", "1": "text", "a/b": torch.arange(3), "a": {"b": torch.ones(2, dtype=torch.float64)}},
    "tuples": ((1, torch.ones(1)), [()]),
    "empty": {"list": [], "dict": {}, "tensor": torch.zeros(0, 4), "scalar": torch.tensor(3, dtype=torch.int8)},
}


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def test_a_tree_comes_back_as_it_was(tmp_path):
    save_tree(tmp_path / "c", TREE)
    assert same(load_tree(tmp_path / "c"), TREE)
    assert not same(load_tree(tmp_path / "c"), {**TREE, "text": ""})  # the comparison itself can fail


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({1, 2}, "of type set"),
        (collections.defaultdict(int), "of type defaultdict"),
        (collections.namedtuple("Pair", "a b")(1, 2), "of type Pair"),
        (torch.eye(2).to_sparse(), "sparse, of type Tensor"),
        ({(0, 1): 1.0}, r"with a key \(0, 1\) of type tuple"),
        ({math.inf: 1.0}, "with a key inf of type float"),
        ({math.nan: 1.0}, "with a key nan of type float"),
        ({np.int64(3): 1.0}, r"with a key np.int64\(3\) of type int64"),
        ({torch.tensor(1): 1.0}, r"with a key tensor\(1\) of type Tensor"),
    ],
    ids=str,
)
def test_state_that_would_not_come_back_as_it_was_is_refused(tmp_path, value, what):
    with pytest.raises(EvergraphError, match=f"cannot save /a/0, {what}; state is dense tensors and plain values"):
        save_tree(tmp_path / "c", {"a": [value]})
    assert not (tmp_path / "c").exists()


def test_saving_again_leaves_two_files(tmp_path):
    for number in range(3):
        save_tree(tmp_path, {"x": torch.tensor(number)})
        (tmp_path / f".killed.{number}.part").write_text("left by a killed writer")
    save_tree(tmp_path, {"x": torch.tensor(3)})
    assert len(list(tmp_path.iterdir())) == 2
    assert int(load_tree(tmp_path)["x"]) == 3
    remove_tree(tmp_path)
    assert not tmp_path.exists()


class FullDisk:
    """Stands in for a function; its n-th call, counted over all of them together, finds no space."""

    def __init__(self, at: int) -> None:
        self.left, self.fired = at, False

    def wrap(self, function):
        def call(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                self.fired = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*args, **kwargs)

        return call


@pytest.mark.parametrize("existing", [True, False], ids=["second save", "first save"])
def test_a_failure_at_any_step_keeps_the_last_good_one(tmp_path, monkeypatch, existing):
    if existing:
        save_tree(tmp_path, {"x": torch.zeros(5)})
    for at in range(1, 30):
        disk = FullDisk(at)
        with monkeypatch.context() as patch:
            for name in ("replace", "fsync"):
                patch.setattr(os, name, disk.wrap(getattr(os, name)))
            for name in ("save_file", "file_hash"):
                patch.setattr(checkpoint, name, disk.wrap(getattr(checkpoint, name)))
            for module in (checkpoint, files):
                patch.setattr(module, "open", disk.wrap(open), raising=False)
            said = ""
            try:
                save_tree(tmp_path, {"x": torch.full((5,), float(at))})
            except EvergraphError as error:
                said = str(error)
        if not said:
            break
        assert "No space left on device" in said
        left = {path.name for path in tmp_path.iterdir()}
        assert len(left) == (2 if existing else 0), left
        if existing:
            assert torch.equal(load_tree(tmp_path)["x"], torch.zeros(5))
    assert at > 6  # every step was made to fail in turn
    assert torch.equal(load_tree(tmp_path)["x"], torch.full((5,), float(at)))


def test_a_disk_that_really_fills_keeps_the_last_good_one(tmp_path):
    """The system itself cuts the files off, at sizes from nothing to just too small."""
    old, new = {"x": torch.zeros(500)}, {"x": torch.ones(500), "y": "text " * 600}
    save_tree(tmp_path, old)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    failures = 0
    for size in (0, 1, 100, 1000, 1900, 2050, 2100, 2500, 3000, 10**6):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            save_tree(tmp_path, new)
        except EvergraphError:
            failures += 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert same(load_tree(tmp_path), new if size == 10**6 else old), size
        assert len(list(tmp_path.iterdir())) == 2
    assert failures == 9


def test_text_files_too_are_whole_or_old(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", FullDisk(1).wrap(os.fsync))
    with pytest.raises(EvergraphError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_every_damaged_byte_is_noticed(tmp_path):
    save_tree(tmp_path, {"classes": ["a", "b"], "x": torch.arange(4.0), "n": 3})
    for path in list(tmp_path.iterdir()):
        whole = path.read_bytes()
        for position in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[position] ^= 0x01
            path.write_bytes(damaged)
            with pytest.raises(EvergraphError):
                load_tree(tmp_path)
        for length in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(EvergraphError):
                load_tree(tmp_path)
        path.write_bytes(whole)
    assert load_tree(tmp_path)["n"] == 3


def test_foreign_newer_and_missing_ones_are_named(tmp_path):
    with pytest.raises(EvergraphError, match="holds no checkpoint"):
        load_tree(tmp_path)
    index = tmp_path / "learner.json"
    for text in ("[]", '{"format": 1}', "3", '{"kind": "something else", "format": 1}', "[" * 100_000):
        index.write_text(text)
        with pytest.raises(EvergraphError, match=r"not an evergraph checkpoint|damaged") as error:
            load_tree(tmp_path)
        assert "\n" not in str(error.value)
    save_tree(tmp_path, {"x": 1})
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(EvergraphError, match="format 99 is newer than this evergraph's"):
        load_tree(tmp_path)
    index.write_text(json.dumps({**content, "format": 1}))
    with pytest.raises(EvergraphError, match=r"format 1 is of evergraph 0\.1.*; use 0\.1 for it, or learn anew"):
        load_tree(tmp_path)
    index.write_text(json.dumps(content))
    next(tmp_path.glob("tensors-*")).unlink()
    with pytest.raises(EvergraphError, match="missing"):
        load_tree(tmp_path)


def test_a_tensor_file_cannot_be_named_outside_the_folder(tmp_path):
    save_tree(tmp_path / "other", {"x": torch.ones(1)})
    save_tree(tmp_path / "c", {"x": torch.ones(1)})
    index = tmp_path / "c" / "learner.json"
    content = json.loads(index.read_text())
    content.pop("sha256")
    content["tensors"]["file"] = "../other/" + content["tensors"]["file"]
    (tmp_path / "c" / "tensors-0.safetensors").unlink(missing_ok=True)
    next((tmp_path / "c").glob("tensors-*")).unlink()
    write_record(index, content)
    with pytest.raises(EvergraphError, match="missing"):
        load_tree(tmp_path / "c")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "c", "/proc/evergraph"):
        with pytest.raises(EvergraphError, match="cannot write to"):
            save_tree(folder, {"x": 1})


def test_reading_while_another_saves(tmp_path):
    save_tree(tmp_path, {"x": torch.zeros(3)})
    stop = threading.Event()

    def keep_saving():
        number = 0
        while not stop.is_set():
            number += 1
            save_tree(tmp_path, {"x": torch.full((3,), float(number))})

    writer = threading.Thread(target=keep_saving)
    writer.start()
    try:
        for _ in range(200):
            x = load_tree(tmp_path)["x"]
            assert bool((x == x[0]).all())
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("moment", ["os.stat", "os.access", "evergraph.persistence.checkpoint.load_file"])
def test_a_save_that_removes_the_tensors_at_any_moment_of_reading(tmp_path, monkeypatch, moment):
    """The tensors that the index names go just before the reader looks for them, asks for leave, and opens them."""
    save_tree(tmp_path, {"x": torch.zeros(3)})
    tensors = next(tmp_path.glob("tensors-*"))
    look, saves = pkgutil.resolve_name(moment), []

    def be_overtaken(path, *rest, **options):
        if path == tensors and not saves:
            saves.append(path)
            save_tree(tmp_path, {"x": torch.ones(3)})
        return look(path, *rest, **options)

    monkeypatch.setattr(moment, be_overtaken)
    assert torch.equal(load_tree(tmp_path)["x"], torch.ones(3))
    assert saves
    assert not tensors.exists()


def test_two_saves_into_one_folder_take_turns(tmp_path, monkeypatch):
    """The second one begins when the first has written its tensors, and not yet the index that names them."""
    rename, others = os.replace, []

    def rename_and_be_overtaken(*paths):
        rename(*paths)
        if not others:
            others.append(threading.Thread(target=save_tree, args=(tmp_path, {"x": torch.ones(3)})))
            others[0].start()
            others[0].join(0.2)

    monkeypatch.setattr(os, "replace", rename_and_be_overtaken)
    save_tree(tmp_path, {"x": torch.zeros(3)})
    others[0].join()
    assert torch.equal(load_tree(tmp_path)["x"], torch.ones(3))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_state_dict_and_a_size_are_saved_as_what_they_hold(tmp_path):
    layer = torch.nn.Linear(2, 3)
    save_tree(tmp_path, {"teacher": layer.state_dict(), "shape": layer.weight.shape})
    found = load_tree(tmp_path)
    assert list(found["teacher"]) == ["weight", "bias"]
    assert torch.equal(found["teacher"]["weight"], layer.weight)
    assert found["shape"] == (3, 2)


def test_two_writers_are_kept_apart(tmp_path):
    with (
        only_writer(tmp_path),
        pytest.raises(EvergraphError, match="another process is working"),
        only_writer(tmp_path),
    ):
        pass
    with only_writer(tmp_path):  # free again
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not list(tmp_path.iterdir())
    with pytest.raises(EvergraphError, match="cannot write"), only_writer(tmp_path / "missing"):
        pass


# learners


@pytest.fixture
def small_graph():
    return sbm(nodes=90, classes=6, degree=4, features=8, signal=3.0, seed=1)


def small(method=None, model=None, **settings):
    model, method = model or eg.GCN(hidden=8), method or eg.Finetune()
    return eg.Learner(model, method, **{"epochs": 3, "batch_size": 8, "device": "cpu", **settings})


def fingerprint(learner):
    params = [value.detach().clone() for value in learner.model.parameters()]
    return params, list(learner.classes_), list(learner.first_accuracies), learner.num_tasks


def test_class_names_are_the_users_own(tmp_path, small_graph):
    names = ["zebra", 7, "ant", 3, "</b>", "ü"]
    graph = eg.Graph(small_graph.x, small_graph.adjacency, small_graph.y, names)
    stream = eg.TaskStream(graph, order=[["ü", 7], ["zebra"], [3, "</b>", "ant"]])
    learner = small()
    for task in stream:
        learner.learn(task)
        learner.save(tmp_path)
        learner = eg.Learner.load(tmp_path, device="cpu")
    assert learner.classes_ == ["ü", 7, "zebra", 3, "</b>", "ant"]
    assert set(learner.predict(graph).labels) <= set(names)
    assert [row["classes"] for row in learner.history] == [["ü", 7], ["zebra"], [3, "</b>", "ant"]]


def test_two_classes_of_one_name_are_a_slip(small_graph):
    learner = small()
    learner.learn(eg.TaskStream(small_graph, order=[[0, 1]])[0])
    renamed = eg.Graph(small_graph.x, small_graph.adjacency, small_graph.y, [1, "1", 2, 3, 4, 5])
    with pytest.raises(EvergraphError, match="two classes are called '1', one by text and one by a number"):
        learner.learn(eg.Task.of(renamed))
    assert learner.classes_ == [0, 1]


def test_the_output_layer_grows_on_request(tmp_path, small_graph):
    first, second = (eg.Task.of(_only(small_graph, classes)) for classes in ([0, 1], [2, 3, 4]))
    learner = small(eg.OnlineCurvature(), num_classes=2)
    learner.learn(first)
    before = learner.logits(small_graph, torch.arange(10))
    learner.grow(5)
    torch.testing.assert_close(learner.logits(small_graph, torch.arange(10))[:, :2], before)
    learner.save(tmp_path)
    loaded = eg.Learner.load(tmp_path, device="cpu")
    for one in (learner, loaded):
        one.learn(second)
    assert same(fingerprint(learner), fingerprint(loaded))
    with pytest.raises(EvergraphError, match="5 units already"):
        learner.grow(3)


def _only(graph, classes):
    y = torch.where(torch.isin(graph.y, torch.tensor(classes)), graph.y, -1)
    return eg.Graph(graph.x, graph.adjacency, y, graph.class_names)


def test_float64_stays_float64(tmp_path, small_stream):
    torch.set_default_dtype(torch.float64)
    try:
        learner = small()
        learner.learn(small_stream[0])
    finally:
        torch.set_default_dtype(torch.float32)
    learner.save(tmp_path)
    loaded = eg.Learner.load(tmp_path, device="cpu")
    assert {value.dtype for value in loaded.model.parameters()} == {torch.float64}
    assert same(fingerprint(learner), fingerprint(loaded))


def test_random_features_are_those_learned_with_whatever_torch_s_default_dtype(tmp_path, small_stream):
    """They are drawn again from their seed, and other types would draw other numbers."""
    learner = eg.Learner(eg.RandomFeatures(hidden=40), "analytic", device="cpu")
    learner.learn(small_stream[0])
    learner.save(tmp_path)
    expected = learner.logits(small_stream.graph.altered())
    torch.set_default_dtype(torch.float64)
    try:
        found = eg.Learner.load(tmp_path, device="cpu").logits(small_stream.graph.altered())
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)
    before = learner.model.projection.clone()
    learner.model.bfloat16()
    assert learner.model.projection.dtype == torch.bfloat16
    learner.model.float()
    assert torch.equal(learner.model.projection, before)


@pytest.mark.parametrize("tasks", [0, 1], ids=["saved before its first task", "saved after it"])
def test_a_learner_goes_on_in_its_own_dtype(tmp_path, small_stream, tasks):
    learner = small(dtype=torch.float64)
    for number in range(tasks):
        learner.learn(small_stream[number])
    learner.save(tmp_path)
    loaded = eg.Learner.load(tmp_path, device="cpu")
    for one in (learner, loaded):
        one.learn(small_stream[tasks])
        assert {value.dtype for value in one.model.parameters()} == {torch.float64}
    assert same(fingerprint(learner), fingerprint(loaded))
    tree = load_tree(tmp_path)
    del tree["dtype"]  # as in a checkpoint of an earlier version
    save_tree(tmp_path, tree)
    assert eg.Learner.load(tmp_path).dtype is None


def test_an_error_early_in_a_task_leaves_the_learner_as_it_was(small_stream):
    class Failing(eg.Method):
        fail = False

        def after_step(self, step):
            if self.fail:
                raise RuntimeError("no memory left")

    learner, unbroken = small(Failing()), small(Failing())
    for one in (learner, unbroken):
        one.learn(small_stream[0])
    learner.method.fail = True
    before = fingerprint(learner)
    with pytest.raises(RuntimeError, match="no memory"):
        learner.learn(small_stream[1])
    assert same(fingerprint(learner), before)
    assert not learner.in_mid_task
    learner.method.fail = False
    for one in (learner, unbroken):
        one.learn(small_stream[1])
    assert same(fingerprint(learner), fingerprint(unbroken))


class FailingSI(eg.SI):
    """Fails at a given step, or at the end of a task."""

    fail_at: int | str | None = None
    steps = 0

    def after_step(self, step):
        super().after_step(step)
        self.steps += 1
        if self.steps == self.fail_at:
            raise RuntimeError("no memory left")

    def end_task(self, context):
        super().end_task(context)
        if self.fail_at == "end":
            raise RuntimeError("no memory left")


def with_running_statistics():
    """A module with batch normalization and dropout: buffers that move, random numbers that are drawn."""
    from torch_geometric.nn import GIN

    torch.manual_seed(0)
    return GIN(8, 8, 2, 6, norm="batch_norm", dropout=0.2)


def everything(learner):
    """All that a learner's future depends on, copied."""
    parts = {"model": learner.model.state_dict(), "method": learner.method.state_dict()}
    plain = {"classes": list(learner.classes_), "first": list(learner.first_accuracies), "tasks": learner.num_tasks}
    random = {"own": learner.random_state, "method's": learner.generator.get_state()}
    progress = vars(learner.progress) if learner.progress is not None else None
    kept = {"progress": progress, "optimizer": learner.optimizer_state, "history": learner.history}
    return copy.deepcopy({**parts, **plain, **random, **kept})


@pytest.mark.parametrize("moment", ["first step", "last step", "end of the task"])
@pytest.mark.parametrize("resumed", [False, True], ids=["whole task", "after a resume"])
@pytest.mark.parametrize(
    "keep_optimizer", [pytest.param(False, marks=pytest.mark.slow), True], ids=["new optimizer", "kept optimizer"]
)
def test_an_error_anywhere_in_a_task_leaves_the_learner_as_it_was(small_stream, moment, resumed, keep_optimizer):
    def stop(progress, epochs):
        if resumed and progress.epoch == 1:
            raise KeyboardInterrupt

    settings = {"epochs": 4, "keep_optimizer": keep_optimizer}
    learner, unbroken = (small(FailingSI(), with_running_statistics(), **settings) for _ in range(2))
    for one in (learner, unbroken):
        one.learn(small_stream[0])
        if resumed:
            with pytest.raises(KeyboardInterrupt):
                one.learn(small_stream[1], stop)
    steps = -(-small_stream[1].train.numel() // 8) * (3 if resumed else 4)
    learner.method.fail_at = {"first step": 1, "last step": steps, "end of the task": "end"}[moment]
    learner.method.steps = 0
    before = everything(learner)
    with pytest.raises(RuntimeError, match="no memory"):
        learner.learn(small_stream[1])
    assert same(everything(learner), before)
    assert learner.in_mid_task == resumed
    learner.method.fail_at = None
    for one in (learner, unbroken):
        one.learn(small_stream[1])
    assert same(everything(learner), everything(unbroken))


def test_an_interrupt_at_the_very_end_of_a_task_leaves_the_learner_as_it_was(small_stream, monkeypatch):
    learner = small()
    learner.learn(small_stream[0])
    before, records, as_known = everything(learner), copy.deepcopy(learner.records), learning.as_known

    def interrupted(*names):
        if learner.num_tasks == 2:  # counted, and not described yet
            raise KeyboardInterrupt
        return as_known(*names)

    monkeypatch.setattr(learning, "as_known", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(small_stream[1])
    assert same(everything(learner), before)
    assert same(learner.records, records)


def test_a_task_left_in_the_middle_is_not_taken_up_with_another(tmp_path, small_stream):
    learner = small()

    def stop(progress, epochs):
        if progress.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(small_stream[0], stop)
    assert learner.in_mid_task
    for action in (lambda: learner.learn(small_stream[1]), lambda: learner.grow(9)):
        with pytest.raises(EvergraphError, match="in the middle of"):
            action()
    learner.save(tmp_path)
    unbroken = small()
    unbroken.learn(small_stream[0])
    for one in (learner, eg.Learner.load(tmp_path, device="cpu")):
        one.learn(small_stream[0])
        assert same(fingerprint(one), fingerprint(unbroken))


def test_what_does_not_fit_is_named(tmp_path, small_stream, small_graph):
    learner = small(eg.EWC())
    learner.learn(small_stream[0])
    learner.save(tmp_path)
    with pytest.raises(EvergraphError, match="learned with method 'ewc', which 'mas' cannot go on with"):
        eg.Learner.load(tmp_path, method=eg.MAS())
    with pytest.raises(EvergraphError, match="parameters do not fit the model gcn"):
        eg.Learner.load(tmp_path, model=eg.GCN(hidden=9))
    with pytest.raises(EvergraphError, match="parameters do not fit the model gat"):
        eg.Learner.load(tmp_path, model=eg.GAT(hidden=8))
    wide = eg.Graph(small_graph.x.repeat(1, 2), small_graph.adjacency, small_graph.y, small_graph.class_names)
    for action in (lambda: learner.predict(wide), lambda: learner.learn(eg.TaskStream(wide)[1])):
        with pytest.raises(EvergraphError, match="16 features per node, but the learner was built for 8"):
            action()
    with pytest.raises(EvergraphError, match="unknown class 5"):
        learner.predict(small_graph, classes=[0, 5])
    with pytest.raises(EvergraphError, match="one asked for is outside"):
        learner.predict(small_graph, [90])
    loaded = eg.Learner.load(tmp_path, method=eg.EWC(strength=1.0))  # another strength is a choice
    assert loaded.method.strength == 1.0
    assert same(loaded.method.importance_, learner.method.importance_)


def test_models_and_methods_of_ones_own_are_passed_in(tmp_path, small_stream):
    from torch_geometric.nn import GraphSAGE

    class Mine(eg.Method):
        name = "mine"

        def __init__(self):
            self.tasks_ = 0

        def end_task(self, context):
            self.tasks_ += 1

    def module():
        torch.manual_seed(0)
        return GraphSAGE(8, 8, num_layers=2, out_channels=6)

    learner = small(Mine(), module())
    learner.learn(small_stream[0])
    learner.save(tmp_path, notes={"owner": "me"})
    with pytest.raises(EvergraphError, match="its model GraphSAGE is not evergraph's own"):
        eg.Learner.load(tmp_path)
    with pytest.raises(EvergraphError, match="its method 'mine' is unknown"):
        eg.Learner.load(tmp_path, model=module())
    loaded = eg.Learner.load(tmp_path, model=module(), method=Mine(), device="cpu")
    assert loaded.method.tasks_ == 1
    assert loaded.notes == {"owner": "me"}
    for one in (learner, loaded):
        one.learn(small_stream[1])
    assert same(fingerprint(learner), fingerprint(loaded))


def test_notes_that_cannot_be_saved_do_not_spoil_later_saves(tmp_path, small_stream):
    learner = small()
    learner.learn(small_stream[0])
    learner.save(tmp_path, notes={"owner": "me"})
    with pytest.raises(EvergraphError, match="cannot save /notes/owner, of type object"):
        learner.save(tmp_path, notes={"owner": object()})
    learner.save(tmp_path)
    assert learner.notes == eg.Learner.load(tmp_path).notes == {"owner": "me"}


def test_modules_with_lazy_layers(tmp_path, small_stream):
    from torch_geometric.nn import GraphSAGE

    def module():
        return GraphSAGE(-1, 8, num_layers=2, out_channels=6)

    learner = small(eg.EWC(), module())
    learner.learn(small_stream[0])
    learner.save(tmp_path)
    loaded = eg.Learner.load(tmp_path, model=module(), device="cpu")
    for one in (learner, loaded):
        one.learn(small_stream[1])
    assert same(fingerprint(learner), fingerprint(loaded))


def test_prediction_among_chosen_classes(small_stream, small_graph):
    learner = small()
    for task in small_stream:
        learner.learn(task)
    everything = learner.predict(small_graph)
    some = learner.predict(small_graph, [5, 3], classes=[4, 1])
    assert some.nodes.tolist() == [5, 3]
    assert set(some.labels) <= {1, 4}
    assert len(everything.labels) == small_graph.num_nodes
    assert bool((some.probabilities >= 0.5).all())
    assert not learner.predict(small_graph, []).labels
