"""Data that come again in another order, with other labels or among more nodes are recognized, and others are not."""

import warnings

import numpy as np
import pytest
import torch

import evergraph as eg
from evergraph.core.sparse import SparseMatrix
from evergraph.data import make_graph
from evergraph.data.mapped import read_mapped, write_mapped
from evergraph.data.outline import outline
from evergraph.errors import EvergraphWarning

HOW = "in another order or form, with other labels or with others held out"
SAME = f"are those of task 1, {HOW}; they are learned again and count twice"
FIX = "if labels were corrected, forget these nodes first, then learn them alone"
GROWN = "begins with the 60 nodes of task 1, and the 60 examples among these are labelled here too"

silent = pytest.mark.filterwarnings("error:.*of task 1")


def people(number=60, seed=0, classes=2):
    """A graph of some classes, with edges at random."""
    rng = np.random.default_rng(seed)
    y = np.arange(number) % classes
    x = rng.normal(size=(number, 6)).astype(np.float32) + y[:, None]
    return make_graph(x, rng.integers(number, size=(2, 3 * number)), y, undirected=True, name=f"people {seed}")


def taken(graph, nodes, y=None):
    """The graph of some nodes, in the given order."""
    place = np.full(graph.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    ends = place[graph.edge_index.numpy()]
    y = graph.y if y is None else y
    ends = ends[:, (ends >= 0).all(0)]
    return make_graph(graph.x[nodes], ends, y[nodes], undirected=True, class_names=graph.class_names, name="taken")


def learner_of(*data):
    learner = eg.Learner(eg.RandomFeatures(hidden=20), "auto")
    for some in data:
        learner.learn(some)
    return learner


def orders(number):
    return torch.randperm(number, generator=torch.Generator().manual_seed(1))


def test_an_outline_is_that_of_the_same_nodes_in_any_order():
    graph = people()
    whole = outline(eg.Task.of(graph)).whole()
    assert whole[:2] == [60, 60]
    assert outline(eg.Task.of(taken(graph, orders(60)))).whole() == whole
    assert outline(eg.Task.of(graph, hold_out=False, seed=3)).whole() == whole
    assert outline(eg.Task.of(graph.altered(x=SparseMatrix.from_dense(graph.x)))).whole() == whole
    assert outline(eg.Task.of(graph.altered(x=graph.x.double()))).whole() == whole
    assert outline(eg.Task.of(graph.altered(y=1 - graph.y))).whole() == whole


def test_an_outline_tells_features_edges_and_examples_apart():
    graph = people()
    whole = outline(eg.Task.of(graph)).whole()
    x, y, matrix = graph.x.clone(), graph.y.clone(), graph.adjacency
    x[7, 2] += 1e-3
    y[7] = -1
    swapped = graph.x[torch.tensor([1, 0, *range(2, 60)])]  # the same rows, with other neighbours
    rewired = SparseMatrix.from_scipy(matrix.to_scipy()[orders(60).numpy()][:, orders(60).numpy()])
    others = [graph.altered(x=x), graph.altered(x=swapped), graph.altered(adjacency=rewired), graph.altered(y=y)]
    for other in others:
        changed = outline(eg.Task.of(other))
        assert changed.whole() != whole
        assert not changed.begins_with(whole)


@pytest.mark.parametrize("first", [0, 2, 25, 60])
def test_the_outline_of_the_first_nodes_is_that_of_their_graph(first):
    graph = people()
    graph = graph.altered(y=torch.where(torch.arange(60) % 7 == 3, -1, graph.y))
    found = outline(eg.Task.of(graph, hold_out=False)).upto(first)
    assert found[:2] == [first, int((graph.y[:first] >= 0).sum())]
    if first:
        assert found == outline(eg.Task.of(taken(graph, torch.arange(first)), hold_out=False)).whole()


def test_nodes_that_cannot_be_told_apart_are_not_recognized():
    """Without features of their own, other nodes may be as many and have as many edges."""
    ring = torch.stack([torch.arange(40), (torch.arange(40) + 1) % 40])
    alike = make_graph(torch.ones(40, 3), ring, torch.arange(40) % 2, undirected=True)
    assert not outline(eg.Task.of(alike)).begins_with(outline(eg.Task.of(alike)).whole())
    few = make_graph(torch.eye(2, 3), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1]))  # two, unlike each other
    task = eg.Task.of(few, hold_out=False)
    assert outline(task).begins_with(outline(task).whole())


def test_only_nodes_with_classes_in_memory_have_an_outline(tmp_path):
    graph = people()
    assert outline(eg.Task.of(graph.altered(y=graph.x[:, :1].double(), class_names=["height"]), numbers=True)) is None
    assert outline(eg.Task.of(read_mapped(write_mapped(graph, tmp_path / "converted")))) is None
    assert outline(eg.Task.of(graph)) is not None


@pytest.mark.parametrize("change", ["order", "label", "both"])
def test_the_same_nodes_in_another_order_or_with_other_labels(change):
    graph = people()
    y = graph.y.clone()
    if change != "order":
        y[3] = 1 - y[3]
    nodes = torch.arange(60) if change == "label" else orders(60)
    learner = learner_of(graph)
    with pytest.warns(EvergraphWarning, match=SAME) as said:
        learner.learn(taken(graph, nodes, y))
    assert str(said[0].message).endswith(f"({FIX})")


@pytest.mark.parametrize("change", ["split", "form"])
def test_the_same_nodes_with_others_held_out_or_with_sparse_features(change):
    graph = people()
    learner = learner_of(graph)
    other = graph.altered(x=SparseMatrix.from_dense(graph.x))
    if change == "split":
        other = graph.altered(splits=(torch.arange(60) % 4 // 2).reshape(-1, 1))
    with pytest.warns(EvergraphWarning, match=SAME):
        learner.learn(other)


def test_a_graph_that_has_grown():
    grown = people(80)
    learner = learner_of(taken(grown, torch.arange(60)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        learner.learn(grown.altered(y=torch.where(torch.arange(80) < 60, -1, grown.y)))  # as it should be done
    with pytest.warns(EvergraphWarning, match=GROWN) as said:
        learner.learn(grown)
    assert str(said[0].message).endswith("count twice (label new nodes only)")


@silent
def test_nothing_is_said_of_other_nodes_or_classes():
    graph = people(60, classes=4)
    learner = learner_of(*(taken(graph, nodes) for nodes in (torch.arange(30), torch.arange(30, 60))))
    learner.learn(people(60, 1))
    stream = eg.stream("sbm:nodes=300,classes=4,features=16,signal=3", classes_per_task=2)
    learner_of(*stream)
    learner_of(*stream[0].pieces(40))
    finer = taken(graph, orders(60)).altered(class_names=["a", "b", "c", "d"])
    learner.learn(finer)  # the same nodes, with classes of another kind


def test_measuring_on_nodes_that_were_learned_is_noted():
    graph, stranger = people(), people(60, 1)
    learner = learner_of(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        learner.evaluate([graph])
        learner.evaluate([stranger])
    with pytest.warns(EvergraphWarning, match="test nodes may have been trained on, and accuracy on those says little"):
        learner.evaluate([taken(graph, orders(60))])


def test_what_was_forgotten_is_not_in_the_outline(tmp_path):
    graph = people()
    learner, kept = learner_of(graph), torch.arange(60) != 5
    before = learner.records[0]["outline"]
    learner.forget([5], graph)
    remaining = taken(graph, torch.nonzero(kept).reshape(-1)[orders(59)])
    assert learner.records[0]["outline"] != before
    learner.save(tmp_path / "kept")
    learner = eg.Learner.load(tmp_path / "kept")
    assert learner.records[0]["outline"] == outline(eg.Task.of(remaining)).whole()
    with pytest.warns(EvergraphWarning, match=SAME.replace("task 1,", r"task 1 \(nodes forgotten since: 1\),")):
        learner.learn(remaining)


@pytest.mark.parametrize("keep_in_graph", [False, True])
def test_what_is_kept_before_and_after_does_not_differ_by_the_hash_of_the_node(keep_in_graph):
    """Sums would: then whoever reads the record could test whether a given person is the one that was forgotten."""
    graph = people()
    learner = learner_of(graph)
    learner.forget([5], graph, keep_in_graph=keep_in_graph)
    kept = [[int(number, 16) for number in learner.records[0][kind][2:]] for kind in ("given_outline", "outline")]
    hashes = {int(sums[6] - sums[5]) for sums in outline(eg.Task.of(graph))._sums}
    assert not hashes & {(before - after) % 2**64 for before, after in zip(*kept)}


def test_all_nodes_with_corrected_labels_after_the_wrong_ones_were_forgotten():
    """What should be learned then are the corrected nodes alone: nothing is said of these."""
    graph = people()
    learner = learner_of(graph)
    learner.forget([5], graph, keep_in_graph=True)
    y = graph.y.clone()
    y[5] = 1 - y[5]
    alone = eg.Task.of(graph.altered(y=torch.where(torch.arange(60) == 5, y, -1)), hold_out=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        learner.learn(alone)
    with pytest.warns(EvergraphWarning, match=rf"task 1 \(nodes forgotten since: 1\), {HOW}"):
        learner.learn(graph.altered(y=y))


def test_the_command_learns_nothing_twice_unless_told_to(evergraph, tmp_path):
    grown, folder = people(80), tmp_path / "learner"
    graph = taken(grown, torch.arange(60))
    for name, some in (("first", graph), ("again", taken(graph, orders(60))), ("grown", grown)):
        np.savez(tmp_path / f"{name}.npz", x=some.x, edge_index=some.edge_index, y=some.y)
    words = ("--checkpoint", folder, "--hidden", 20, "--device", "cpu")
    assert evergraph("learn", tmp_path / "first.npz", *words)[0] == 0
    order = f"its 60 labelled nodes are those of task 1, {HOW}"
    for name, said in (("again", f"{order}; {FIX}"), ("grown", f"{GROWN}; label new nodes only")):
        status, out, error = evergraph("learn", tmp_path / f"{name}.npz", *words)
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert f"{said}, or add --again to count all of them twice" in error
        assert eg.Learner.load(folder).num_tasks == 1
    status, _, error = evergraph("learn", tmp_path / "again.npz", *words, "--again")
    assert status == 0
    assert SAME in error
    assert eg.Learner.load(folder).num_tasks == 2


def months(number=2, size=30):
    """Graphs of their own nodes, and all of them in one graph, with edges between them too."""
    graph = people(number * size)
    return [taken(graph, torch.arange(size * i, size * (i + 1))) for i in range(number)], graph


def test_classes_that_were_all_renamed_do_not_hide_the_nodes():
    graph = people()
    learner = learner_of(graph)
    with pytest.warns(EvergraphWarning, match=SAME):
        learner.learn(graph.altered(class_names=["north", "south"]))


@pytest.mark.parametrize("change", ["weights", "directions", "edges"])
def test_the_same_nodes_with_other_edges(change):
    graph, ends = people(), torch.randint(60, (2, 90), generator=torch.Generator().manual_seed(2))
    weight = None if change == "edges" else torch.arange(graph.num_edges) + 1.0
    ends, weight = ends if change != "weights" else graph.edge_index, weight if change == "weights" else None
    other = make_graph(graph.x, ends, graph.y, edge_weight=weight, undirected=change != "directions", name="again")
    learner = learner_of(graph)
    line = "again: its 60 labelled nodes are those of task 1, with other edges, weights or directions"
    with pytest.warns(EvergraphWarning, match=line + "; test nodes may have been trained on"):
        learner.evaluate([other])
    with pytest.warns(EvergraphWarning, match=line + "; they are learned again and count twice") as said:
        learner.learn(other)
    ending = "(to learn them in this form, forget these nodes first, then learn them alone)"
    assert any(str(one.message).endswith(ending) for one in said)


@pytest.mark.parametrize("turned", [False, True])
def test_months_that_were_merged(turned, evergraph, tmp_path):
    some, merged = months()
    learner = learner_of(*(some[::-1] if turned else some))
    line = "people 0: its 60 labelled nodes are those of tasks 1 and 2; they are learned again and count twice"
    with pytest.warns(EvergraphWarning, match=line):
        learner.learn(merged)
    for name, graph in (("jan", some[0]), ("feb", some[1]), ("merged", merged)):
        np.savez(tmp_path / f"{name}.npz", x=graph.x, edge_index=graph.edge_index, y=graph.y)
    words = ("--checkpoint", tmp_path / "kept", "--hidden", 20, "--device", "cpu")
    assert [evergraph("learn", tmp_path / f"{name}.npz", *words)[0] for name in ("jan", "feb", "merged")] == [0, 0, 2]
    assert eg.Learner.load(tmp_path / "kept").num_tasks == 2


def test_merged_months_and_a_new_one():
    some, merged = months(3)
    learner = learner_of(*some[:2])
    line = "people 0 begins with the 60 nodes of tasks 1 and 2, and the 60 examples among these are labelled here too"
    with pytest.warns(EvergraphWarning, match=line):
        learner.learn(merged)
