"""Graphs: what is accepted, what is refused, and what a subgraph is."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

import evergraph as eg
from evergraph.core.sparse import SparseMatrix

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both"),
    pytest.mark.filterwarnings("ignore:.*features are whole numbers"),
]

X = np.arange(12, dtype=np.float32).reshape(4, 3)
EDGES = np.array([[0, 1, 1, 2, 2], [1, 2, 2, 2, 0]])  # 1 → 2 twice, a loop at 2
Y = np.array([0, 1, 1, -1])


def edges_of(graph: eg.Graph) -> set[tuple[int, ...]]:
    return set(map(tuple, graph.edge_index.T.tolist()))


def test_directed_edges_keep_their_direction_once_and_without_loops() -> None:
    graph = eg.make_graph(X, EDGES, Y, undirected=False)
    assert edges_of(graph) == {(0, 1), (1, 2), (2, 0)}
    assert graph.num_edges == 3
    # row v of the adjacency holds v's in-neighbours
    assert graph.adjacency.dense()[2].tolist() == [0, 1, 0, 0]


def test_undirected_adds_the_reverse_edges() -> None:
    graph = eg.make_graph(X, EDGES, Y, undirected=True)
    assert edges_of(graph) == {(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)}


def test_names_and_counts() -> None:
    graph = eg.make_graph(X, EDGES, Y, class_names=["cat", "dog"])
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (4, 3, 2)
    assert graph.class_sizes().tolist() == [1, 2]
    assert eg.make_graph(X, EDGES, Y).class_names == [0, 1]


def test_gaps_between_labels() -> None:
    """A few classes without examples leave the labels as they are; years take a position each."""
    few = eg.make_graph(X, EDGES, np.array([0, 7, 99, -1]))
    assert (few.y.tolist(), few.class_names) == ([0, 7, 99, -1], list(range(100)))
    most = eg.make_graph(np.ones((150, 1)), EDGES, 2 * np.arange(150) // 3)
    assert (most.y.tolist(), most.num_classes) == ((2 * np.arange(150) // 3).tolist(), 100)
    years = eg.make_graph(X, EDGES, np.array([2024, -1, 2020, 2024]))
    assert (years.y.tolist(), years.class_names) == ([1, -1, 0, 1], [2020, 2024])
    named = eg.make_graph(X, EDGES, np.array([2024, 2022, 2020, -1]), class_names={2020: "then", 2024: "now"})
    assert (named.y.tolist(), named.class_names) == ([2, 1, 0, -1], ["then", 2022, "now"])
    assert eg.make_graph(X, EDGES, np.array([2, 0, -1, -1]), class_names={2: "c"}).class_names == [0, 1, "c"]


def test_names_from_numpy_become_plain_python() -> None:
    graph = eg.make_graph(X, EDGES, Y, class_names=np.array([7, 9]))
    assert [type(name) for name in graph.class_names] == [int, int]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(np.float64, torch.float64), (np.float32, torch.float32), (np.float16, torch.float32), (int, torch.float32)],
)
def test_feature_types(kind: type, expected: torch.dtype) -> None:
    assert eg.make_graph(X.astype(kind), EDGES, Y).x.dtype == expected
    if kind is not np.float16:  # scipy has no sparse half precision
        sparse = eg.make_graph(sp.csr_matrix(X.astype(kind)), EDGES, Y).x
        assert isinstance(sparse, SparseMatrix)
        assert sparse.dtype == expected


def test_torch_short_floats_are_taken() -> None:
    assert torch.equal(eg.make_graph(torch.tensor(X).bfloat16(), EDGES, Y).x, torch.tensor(X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[:0]}, "shape (0, 3)"),
        ({"x": X[0]}, "shape (3,)"),
        ({"x": np.array([["a"]] * 4)}, "real numbers"),
        ({"x": np.where(X == 5, np.nan, X)}, "NaN or infinite"),
        ({"x": np.where(X == 5, np.inf, X)}, "NaN or infinite"),
        ({"x": sp.csr_matrix(np.where(X == 5, np.nan, X))}, "NaN or infinite"),
        ({"y": Y[:3]}, "4 rows of features but 3 labels"),
        ({"y": np.array([0, 1, 1, -2])}, "label -2 is out of range"),
        ({"y": np.array([0, 1, 2, 1]), "class_names": ["a", "b"]}, "label 2 is out of range"),
        ({"y": np.array([0, 1, 2, 1]), "class_names": {0: "a", 1: "b"}}, "label 2 is out of range: there are 2"),
        ({"y": np.array([0, 1, 10**12, 1])}, "label 1000000000000 is out of range"),
        ({"y": np.array([0, 1, 0.5, 1])}, "not whole numbers"),
        ({"y": np.array([0, 1, np.inf, 1])}, "label inf is out of range"),
        ({"y": np.array(["a", 1, "a", "b"], dtype=object)}, "labels mix text and 1"),
        ({"y": np.array(["a", "b", "a", "b"]), "class_names": ["a", "c"]}, "'b' is not one of the class names"),
        ({"class_names": ["a", "a"]}, "two classes are called 'a'"),
        ({"class_names": [1, "1"]}, "two classes are called '1'"),
        ({"edge_index": EDGES.T}, "shape (5, 2)"),
        ({"edge_index": EDGES + 2}, "an edge names node 4, but nodes run from 0 to 3"),
        ({"edge_index": EDGES - 1}, "an edge names node -1"),
        ({"edge_index": EDGES + 0.5}, "integers"),
    ],
)
def test_bad_arrays_are_named(change: dict, message: str) -> None:
    arguments = {"x": X, "edge_index": EDGES, "y": Y, "name": "mine", **change}
    with pytest.raises(eg.EvergraphError) as caught:
        eg.make_graph(**arguments)
    assert message in str(caught.value)
    assert str(caught.value).startswith("mine: ")
    assert "\n" not in str(caught.value)


def test_an_edgeless_graph_is_a_graph() -> None:
    assert eg.make_graph(X, np.zeros((2, 0), dtype=int), Y).num_edges == 0


@pytest.mark.parametrize("at_once", [2**22, 5])
def test_subgraph_equals_pygs(small_graph: eg.Graph, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergraph.data.graph.ENTRIES_AT_ONCE", at_once)
    nodes = torch.tensor([50, 3, 17, 22, 41, 8, 9, 30, 31, 5])
    ours = small_graph.subgraph(nodes)
    order = nodes.sort()
    theirs, _ = subgraph(order.values, small_graph.edge_index, relabel_nodes=True, num_nodes=small_graph.num_nodes)
    back = order.indices  # PyG numbers the nodes in ascending order, we in the order given
    assert edges_of(ours) == {(int(back[u]), int(back[v])) for u, v in theirs.T.tolist()}
    assert torch.equal(ours.x, small_graph.x[nodes])
    assert torch.equal(ours.y, small_graph.y[nodes])


@pytest.mark.parametrize("at_once", [2**22, 1])
def test_subgraph_of_a_directed_graph_with_groups(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergraph.data.graph.ENTRIES_AT_ONCE", at_once)
    graph = eg.make_graph(np.eye(5), np.array([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]), [0] * 5, undirected=False)
    part = graph.subgraph(torch.tensor([0, 1, 2, 3]))
    assert edges_of(part) == {(0, 1), (1, 2), (2, 3), (0, 2)}
    groups = torch.tensor([0, 0, 1, 1, 1])
    assert edges_of(graph.subgraph(torch.tensor([0, 1, 2, 3]), groups)) == {(0, 1), (2, 3)}
    joining = torch.tensor([True, False, False, False, False])
    assert edges_of(graph.subgraph(torch.tensor([0, 1, 2, 3]), joining=joining)) == {(1, 2), (2, 3)}
    assert edges_of(graph.subgraph(torch.tensor([3]))) == edges_of(graph.subgraph(torch.tensor([], dtype=torch.long)))


def test_sparse_long_doubles_are_doubles() -> None:
    x = sp.csr_matrix(np.eye(3)).astype(np.longdouble)
    assert eg.make_graph(x, [[0], [1]], undirected=True).x.values.dtype == torch.float64


def test_sparse_features_stay_sparse_in_subgraphs() -> None:
    graph = eg.make_graph(sp.csr_matrix(X), EDGES, Y)
    part = graph.subgraph(torch.tensor([2, 0]))
    assert isinstance(part.x, SparseMatrix)
    assert torch.equal(part.x.dense(), torch.tensor(X[[2, 0]]))


@pytest.mark.parametrize("layout", ["dense", "coo", "csr", "csc"])
def test_from_pyg_keeps_directions_names_and_sparsity(layout: str) -> None:
    x = torch.tensor(X)
    x = {"dense": x, "coo": x.to_sparse_coo(), "csr": x.to_sparse_csr(), "csc": x.to_sparse_csc()}[layout]
    data = Data(x=x, edge_index=torch.tensor(EDGES), y=torch.tensor(Y).reshape(-1, 1), class_names=["cat", "dog"])
    graph = eg.from_pyg(data, undirected=False)
    assert edges_of(graph) == {(0, 1), (1, 2), (2, 0)}
    assert graph.class_names == ["cat", "dog"]
    assert graph.y.tolist() == Y.tolist()
    assert isinstance(graph.x, SparseMatrix) == (layout != "dense")
    dense = graph.x.dense() if isinstance(graph.x, SparseMatrix) else graph.x
    assert torch.equal(dense, torch.tensor(X))


@pytest.mark.filterwarnings("ignore:.*too few labelled nodes to hold any out")
def test_from_pyg_without_labels_can_be_predicted_on_but_not_learned() -> None:
    graph = eg.from_pyg(Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES)))
    assert graph.y.tolist() == [-1] * 4
    with pytest.raises(eg.EvergraphError, match="no node has a label"):
        eg.stream(graph)
    learner = eg.Learner()
    learner.learn(eg.from_pyg(Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), y=torch.tensor([0, 0, 1, 1]))))
    for call in (eg.Task.of, learner.learn, learner.evaluate):
        with pytest.raises(eg.EvergraphError, match=r"graph: no node has a label: give y, or name a table's column of"):
            call(graph)


def test_from_pyg_names_what_is_missing() -> None:
    with pytest.raises(eg.EvergraphError, match="no x and no edge_index"):
        eg.from_pyg(Data(y=torch.tensor(Y)))
    for made in (eg.from_pyg, lambda data: eg.Task.of([data])):
        with pytest.raises(eg.EvergraphError, match=r"has no x; evergraph needs x .* and edge_index \(the edges\)"):
            made(Data(edge_index=torch.tensor(EDGES)))
    with pytest.raises(eg.EvergraphError, match="str is not a graph"):
        eg.from_pyg("not a graph")


def test_a_graph_is_shown_in_one_line() -> None:
    graph = eg.stream("sbm:nodes=60,classes=4,features=6").graph
    assert repr(graph) == f"Graph('sbm', 60 nodes, {graph.num_edges} edges, 6 features, 4 classes)"
    assert repr(graph.adjacency) == f"SparseMatrix(60 × 60, {graph.num_edges} entries, torch.float32)"


def test_targets_at_test_nodes_alone_are_nothing_to_train_on() -> None:
    y = [[1.5], [float("nan")], [2.5]]
    graph = eg.make_graph(torch.eye(3), [[0, 1], [1, 2]], y, undirected=True, splits=[2, 0, 2])
    with pytest.raises(eg.EvergraphError, match="none of the training nodes has a target"):
        eg.Task.of(graph)
