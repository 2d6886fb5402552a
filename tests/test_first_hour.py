"""The first hour of a practitioner: the way in, months as tasks, and calls with something else than was meant."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.methods import METHODS

pytestmark = pytest.mark.filterwarnings("ignore:.*no effect; .* learns in one pass")

FAST = {"epochs": 2, "device": "cpu"}
SMALL = ["--hidden", "16", "--device", "cpu"]


def auto() -> eg.Learner:
    """The default method with few features."""
    return eg.Learner(eg.RandomFeatures(hidden=16), "auto", device="cpu")


def month(first: int, last: int, seed: int = 0, nodes: int = 90) -> Data:
    """A month's graph with some of six classes, by name."""
    graph = sbm(nodes=nodes, classes=6, degree=4, features=8, signal=3.0, seed=seed)
    kept = ((graph.y >= first) & (graph.y < last)).nonzero().reshape(-1)
    part = graph.subgraph(kept)
    names = [f"class {position}" for position in range(6)]
    return Data(x=part.x, edge_index=part.edge_index, y=part.y, class_names=names)


@pytest.fixture(scope="module")
def learned() -> eg.Learner:
    """One that has learned the classes of a first month; nobody changes it."""
    made = auto()
    made.learn(month(0, 2))
    return made


@pytest.fixture
def learner(learned: eg.Learner) -> eg.Learner:
    """A copy of it."""
    return copy.deepcopy(learned)


# the way in


def test_a_learner_by_name_with_a_model_or_with_a_method() -> None:
    assert eg.Learner("auto").method.name == eg.Learner().method.name == "auto"
    assert eg.Learner("auto").model.hyperparameters() == eg.Learner().model.hyperparameters()
    named = eg.Learner(eg.GCN(hidden=4), "ewc")
    assert (named.method.name, named.model.hidden) == ("ewc", 4)
    assert eg.Learner(eg.EWC(strength=3.0)).method.strength == 3
    assert eg.Learner("gcn").method.name == eg.Learner(eg.GCN()).method.name == "stand-in-curvature"
    assert eg.Learner("random-features").method.name == "auto"


def test_auto_is_the_default_of_every_command(evergraph, tmp_path: Path, without_pictures: None) -> None:
    torch.save(month(0, 6), tmp_path / "graph.pt")
    common = [tmp_path / "graph.pt", *SMALL]
    assert evergraph("learn", *common, "--checkpoint", tmp_path / "learner")[0] == 0
    assert eg.Learner.load(tmp_path / "learner").method.name == "auto"
    for number, words in enumerate((["run"], ["compare", "--seeds", "1", "--epochs", "1"], ["tune", "--trials", "1"])):
        status, out, error = evergraph(words[0], *common, *words[1:], "--json", "--out", tmp_path / str(number))
        assert status == 0, error
        assert '"method": "auto"' in out


@pytest.mark.parametrize("method", ["auto", "ewc", "lwf", "joint", "curvature", "si", "kfac"])
def test_the_output_layer_grows_by_itself(method: str) -> None:
    """Two months with new classes are learned as if the outputs had been there from the start."""
    made = eg.Learner(
        eg.RandomFeatures(hidden=16) if method == "auto" else eg.GCN(hidden=4), method, num_classes=2, **FAST
    )
    made.learn(eg.Task.of(month(0, 6), [f"class {i}" for i in (0, 1)]))
    assert made.model.out_channels == 2
    made.learn(eg.Task.of(month(0, 6), [f"class {i}" for i in (2, 3, 4)]))
    assert made.model.out_channels == made.num_classes == len(made.classes_) == 5
    assert made.predict_proba(month(0, 6)).shape == (90, 5)


def test_growth_is_undone_with_a_task_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = eg.Learner(eg.GCN(hidden=4), "ewc", num_classes=2, **FAST)
    made.learn(eg.Task.of(month(0, 6), ["class 0", "class 1"]))
    before = made.logits(month(0, 6))
    monkeypatch.setattr(eg.EWC, "end_task", lambda self, context: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.learn(eg.Task.of(month(0, 6), ["class 2", "class 3"]))
    assert made.model.out_channels == made.num_classes == 2
    assert torch.equal(made.logits(month(0, 6)), before)
    monkeypatch.undo()
    made.learn(eg.Task.of(month(0, 6), ["class 2", "class 3"]))
    assert made.model.out_channels == 4


def test_months_are_tasks(tmp_path: Path) -> None:
    """Matrix, AP and AF over months given as graphs, also by a learner that was saved in between."""
    months = [month(0, 2), month(2, 4, seed=1), month(4, 6, seed=2)]
    made = eg.Learner(eg.GCN(hidden=8), "finetune", epochs=20, lr=0.02, label_scope="seen", device="cpu")
    rows = []
    for number, data in enumerate(months):
        made.learn(data)
        found = made.evaluate(months[: number + 1])
        rows.append(found.accuracies)
        made.save(tmp_path / "learner")
        made = eg.Learner.load(tmp_path / "learner", device="cpu")
    for number, row in enumerate(rows):
        assert found.matrix[number, : number + 1].tolist() == row
        assert np.isnan(found.matrix[number, number + 1 :]).all()
    assert found.ap == pytest.approx(np.mean(rows[-1]))
    assert found.af == pytest.approx(np.mean([rows[2][0] - rows[0][0], rows[2][1] - rows[1][1]]))
    assert found.af == pytest.approx(eg.average_forgetting(found.matrix))
    assert found.af < -20
    assert made.evaluate(months[0]).af == pytest.approx(rows[2][0] - rows[0][0])  # an old month alone
    assert made.evaluate([months[2]]).af == 0  # the newest cannot be forgotten yet
    found = made.evaluate([month(0, 2, seed=5), months[2]])  # the first was never learned, and is measured all the same
    assert found.matrix[1].tolist() == found.accuracies
    assert np.isnan(found.matrix[0]).all()


def test_months_are_files_too(tmp_path: Path) -> None:
    paths = [tmp_path / "january.pt", tmp_path / "february.pt"]
    for number, path in enumerate(paths):
        torch.save(month(2 * number, 2 * number + 2), path)
    made = auto().fit(paths)
    assert made.evaluate(list(map(str, paths))).matrix.shape == (2, 2)
    assert len(made.predict(paths[0])) == len(made.predict(torch.load(paths[0], weights_only=False)))


def with_a_rare_class() -> Data:
    data = month(0, 3)
    third = (data.y == 2).nonzero().reshape(-1)
    data.y[third[3:]] = -1
    return data


def test_a_class_with_three_labelled_nodes_does_not_block_a_month() -> None:
    data = with_a_rare_class()
    with pytest.warns(eg.EvergraphWarning, match=r"hold any out of 'class 2' \(3\); trained on, not tested"):
        task = eg.Task.of(data)
    rare = task.graph.y == 2
    assert int(rare[task.train].sum()) == 3
    assert not rare[task.val].any()
    assert not rare[task.test].any()
    made = auto()
    with pytest.warns(eg.EvergraphWarning, match="class 2"):
        made.learn(data)
    assert "class 2" in made.classes_


def test_a_month_of_rare_classes_alone_is_learned_and_not_tested() -> None:
    data = month(0, 2)
    data.y[8:] = -1
    data.y[:8] = torch.tensor([0, 0, 0, 1, 1, 1, -1, -1])
    made = auto()
    with pytest.warns(eg.EvergraphWarning, match="trained on, not tested"):
        made.learn(data)
    assert made.first_accuracies == [None]
    with pytest.warns(eg.EvergraphWarning), pytest.raises(eg.EvergraphError, match="no test nodes"):
        made.evaluate(data)


def test_the_command_line_says_which_classes_are_not_tested(evergraph, tmp_path: Path) -> None:
    torch.save(with_a_rare_class(), tmp_path / "march.pt")
    status, _, error = evergraph("learn", tmp_path / "march.pt", *SMALL, "--checkpoint", tmp_path / "learner")
    assert status == 0
    assert "note: march: too few labelled nodes to hold any out of 'class 2' (3); trained on, not tested\n" in error


def test_learning_the_same_file_twice_is_noticed(evergraph, tmp_path: Path, learner: eg.Learner) -> None:
    with pytest.warns(eg.EvergraphWarning, match="learned already, as task 1"):
        learner.learn(month(0, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changed = month(0, 2)
        changed.x = changed.x + 1  # the same nodes, edges and labels with other features are another month
        learner.learn(changed)
    torch.save(month(0, 2), tmp_path / "january.pt")
    words = ["learn", tmp_path / "january.pt", *SMALL, "--checkpoint", tmp_path / "learner"]
    assert evergraph(*words)[0] == 0
    status, out, error = evergraph(*words)
    assert (status, out) == (0, "")
    assert "january.pt was learned already, as task 1; --again learns it again; nothing was done" in error
    assert eg.Learner.load(tmp_path / "learner").num_tasks == 1
    status, out, error = evergraph(*words, "--again")
    assert status == 0
    assert "task 2" in out


# wrong answers


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, tuple])
def test_a_mask_of_nodes_is_a_mask(learner: eg.Learner, kind: type) -> None:
    data = month(0, 2)
    mask = [number in (3, 7, 11) for number in range(data.num_nodes)]
    for ask in (learner.predict, learner.predict_proba, learner.logits):
        a, b = ask(data, nodes=kind(mask)), ask(data, nodes=[3, 7, 11])
        assert torch.equal(*(x.probabilities if isinstance(x, eg.Prediction) else x for x in (a, b)))
    assert learner.predict(data, nodes=kind(mask)).nodes.tolist() == [3, 7, 11]


def test_an_unrelated_stream_has_no_forgetting(learner: eg.Learner) -> None:
    """Names of classes alone do not make a task one that was learned."""
    made = eg.Learner(eg.GCN(hidden=4), "finetune", **FAST).fit(eg.TaskStream(sbm(nodes=60, classes=6, seed=1), 2))
    other = eg.TaskStream(sbm(nodes=60, classes=6, seed=2), 2)
    found = made.evaluate(other)
    assert found.af is None
    assert found.first == [None] * 3
    assert "AF –" in str(found)
    assert made.evaluate(eg.TaskStream(sbm(nodes=60, classes=6, seed=1), 2)).af is not None


# calls with something else than was meant


def test_a_pyg_object_is_enough(learner: eg.Learner) -> None:
    data = month(0, 2)
    assert learner.logits(data).shape == (data.num_nodes, learner.model.out_channels)
    assert learner.evaluate(data).ap > 50
    assert auto().fit(data).num_tasks == 1
    assert auto().fit([data, month(2, 4)]).num_tasks == 2
    assert len(eg.TaskStream(month(0, 6), 2)) == 3


def test_one_node_is_a_list_of_one(learner: eg.Learner) -> None:
    assert learner.predict(month(0, 2), nodes=5).nodes.tolist() == [5]
    assert learner.predict(month(0, 2), nodes=[]).labels == []


def networkx_graph() -> object:
    return pytest.importorskip("networkx").path_graph(4)


def hetero() -> HeteroData:
    data = HeteroData()
    data["author"].x, data["paper"].x = torch.eye(3), torch.eye(3)
    return data


STREAM = eg.TaskStream(sbm(nodes=60, classes=6, features=8, seed=1), 2)
BAD_CALLS = {
    "nodes=['a']": (lambda made: made.predict(month(0, 2), nodes=["a"]), "nodes=.'a'. are not node numbers"),
    "nodes='a'": (lambda made: made.predict(month(0, 2), nodes="a"), "nodes='a' are not node numbers"),
    "nodes=1.5": (lambda made: made.predict(month(0, 2), nodes=[1.5]), "not whole numbers"),
    "nodes=[[1]]": (lambda made: made.predict(month(0, 2), nodes=[[1]]), r"shape \(1, 1\)"),
    "nodes=[[1], [2, 3]]": (lambda made: made.predict(month(0, 2), nodes=[[1], [2, 3]]), "not node numbers"),
    "nodes=[True, 2]": (lambda made: made.predict(month(0, 2), nodes=[True, 2]), "mix numbers and truth values"),
    "nodes=[-1]": (lambda made: made.predict(month(0, 2), nodes=[-1]), "nodes run from 0"),
    "nodes=10**6": (lambda made: made.predict(month(0, 2), nodes=10**6), "nodes run from 0"),
    "nodes=None in a list": (lambda made: made.predict(month(0, 2), nodes=[None]), "not node numbers"),
    "a mask of another size": (lambda made: made.predict(month(0, 2), nodes=[True] * 3), "does not fit"),
    "a mask as uint8": (
        lambda made: made.predict(month(0, 2), nodes=torch.ones(month(0, 2).num_nodes, dtype=torch.uint8)),
        "a mask or numbers",
    ),
    "classes=[]": (lambda made: made.predict(month(0, 2), classes=[]), "leaves nothing to choose from"),
    "classes='class 1'": (lambda made: made.predict(month(0, 2), classes="class 1"), "is not a list"),
    "classes=3": (lambda made: made.predict(month(0, 2), classes=3), "is not a list"),
    "an unknown class": (lambda made: made.predict(month(0, 2), classes=["x"]), "unknown class 'x'"),
    "learn(stream)": (lambda made: made.learn(STREAM), r"is a stream of 3 tasks; .* learner.fit\(stream\)"),
    "learn([…])": (lambda made: made.learn([month(0, 2)]), r"learn several with learner.fit"),
    "learn(5)": (lambda made: made.learn(5), "int is not a graph"),
    "learn(None)": (lambda made: made.learn(None), "NoneType is not a graph"),
    "learn({})": (lambda made: made.learn({}), "dict is not a graph"),
    "fit([])": (lambda made: made.fit([]), "the list of tasks is empty"),
    "fit({})": (lambda made: made.fit({}), "dict is not a graph"),
    "fit(3)": (lambda made: made.fit(3), "int is not a graph"),
    "evaluate([])": (lambda made: made.evaluate([]), "the list of tasks is empty"),
    "evaluate([1, 2])": (lambda made: made.evaluate([1, 2]), "int is not a graph"),
    "evaluate(other classes)": (
        lambda made: made.evaluate(month(2, 4)),
        "the learner does not know: 'class 2'",
    ),
    "evaluate(a stream's name)": (lambda made: made.evaluate("digits"), "cannot tell what this is"),
    "NetworkX": (
        lambda made: made.predict(networkx_graph()),
        "this NetworkX Graph have no attributes to take",
    ),
    "learn(NetworkX)": (lambda made: made.learn(networkx_graph()), "NetworkX Graph"),
    "fit(NetworkX)": (lambda made: made.fit(networkx_graph()), "NetworkX Graph"),
    "HeteroData": (lambda made: made.predict(hetero()), r"several types \(author, paper\)"),
    "learn(HeteroData)": (lambda made: made.learn(hetero()), "HeteroData"),
    "evaluate(HeteroData)": (lambda made: made.evaluate(hetero()), "HeteroData"),
    "a missing path": (lambda made: made.learn("no/such/month.npz"), "no file no/such/month.npz"),
    "a path of another kind": (lambda made: made.predict("month.gml"), "evergraph reads .npz and .pt"),
    "Learner(5)": (lambda made: eg.Learner(5), "Learner: model=5 must be None or of type Module"),
    "Learner('gcm')": (lambda made: eg.Learner("gcm"), "unknown method 'gcm'"),
    "Learner(model, 5)": (
        lambda made: eg.Learner(eg.GCN(), 5),
        "method=.* must be None or of type Method",
    ),
    "Learner(model, EWC)": (
        lambda made: eg.Learner(eg.GCN(), eg.EWC),
        "method=.* must be None or of type Method",
    ),
    "Learner(training={})": (
        lambda made: eg.Learner(training={"epochs": 5}),
        "training=.* must be",
    ),
    "stream([])": (lambda made: eg.stream([]), "the list of graphs is empty"),
    "stream(5)": (lambda made: eg.stream(5), "int is not a graph"),
    "TaskStream('digits')": (lambda made: eg.TaskStream("digits"), "cannot tell what this is"),
    "stream(task_incremental=tensor)": (
        lambda made: eg.stream("sbm", task_incremental=torch.zeros(2, 2)),
        "task_incremental=.* must be",
    ),
    "grow(10**13)": (
        lambda made: made.grow(10**13),
        "num_classes=10000000000000 must be a whole number of at least 1 and at most 10,000,000",
    ),
    "Task.of(5)": (lambda made: eg.Task.of(5), "int is not a graph"),
    "nodes=slice": (
        lambda made: made.predict(month(0, 2), slice(3)),
        r"slice\(None, 3, None\) are not node numbers; give",
    ),
    "nodes={1, 2}": (lambda made: made.predict(month(0, 2), {1, 2}), "nodes={1, 2} are not node numbers; give a list"),
    "evaluate(part='tests')": (lambda made: made.evaluate(STREAM, part="tests"), "part='tests' must be one of"),
    "save(3)": (lambda made: made.save(3), "save: path=3 must be text or of type Path"),
    "why(graph)": (lambda made: made.why(month(0, 2)), "why: missing a required argument: 'node'"),
    "learn(on_epoch=5)": (lambda made: made.learn(month(0, 2), 5), "on_epoch=5 must be None or a function or a class"),
    "Learner(dtype=torch.int32)": (
        lambda made: eg.Learner(dtype=torch.int32),
        "dtype=torch.int32 must be torch.float32 or",
    ),
    "stream['a']": (lambda made: STREAM["a"], "task 'a' of a stream of 3; tasks are numbered from 0"),
    "leak_score(graph)": (lambda made: eg.leak_score(STREAM.graph), "leak_score: stream=.* must be of type TaskStream"),
    "average_forgetting('x')": (lambda made: eg.average_forgetting("x"), "rows of numbers, not 'x'"),
    "learn(columns of labels)": (
        lambda made: made.learn(eg.make_graph(month(0, 2).x, month(0, 2).edge_index, np.eye(month(0, 2).num_nodes, 2))),
        "several labels or numbers, and node-classification needs one class for each",
    ),
    "features of 1e30": (
        lambda made: eg.make_graph(month(0, 2).x * 1e30, month(0, 2).edge_index),
        r"features of up to \de\+30; squares of such numbers overflow",
    ),
    "features of 1e-30": (
        lambda made: eg.make_graph(month(0, 2).x * 1e-30, month(0, 2).edge_index),
        r"features of up to \de-30; squares",
    ),
    "register(Nameless)": (
        lambda made: eg.register(type("Nameless", (eg.Method,), {})),
        'class Nameless has no name of its own; give it one: name = "mine"',
    ),
    "register(3)": (lambda made: eg.register(3), "3 has no name to be registered by"),
    "class_names=set": (
        lambda made: eg.make_graph(np.eye(4), [[0], [1]], [0, 1, 0, 1], class_names={"a", "b"}),
        "class_names are a set, which has no order",
    ),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_wrong_call_is_one_line_that_names_it(learner: eg.Learner, call: str) -> None:
    action, message = BAD_CALLS[call]
    before = learner.num_tasks, list(learner.classes_)
    with pytest.raises(eg.EvergraphError, match=message) as caught:
        action(learner)
    assert "\n" not in str(caught.value)
    assert (learner.num_tasks, learner.classes_) == before


def test_every_method_can_be_named_where_a_learner_is_made() -> None:
    for name in METHODS:
        assert eg.Learner(name).method.name == name
