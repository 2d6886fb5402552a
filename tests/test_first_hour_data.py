"""What new users bring: weights, dictionaries of names, edges in one direction. Read right, or said in one line."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import evergraph as eg
from evergraph.data.files import as_graph, read_graph_file
from evergraph.data.mapped import read_mapped, write_mapped
from evergraph.models.base import neighbourhoods

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both"),
    pytest.mark.filterwarnings("ignore:.*edge_attr is not used"),
]

CHAIN = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])  # one direction each
BOTH = torch.cat([CHAIN, CHAIN.flip(0)], dim=1)
X = torch.eye(5)
Y = torch.tensor([0, 0, 1, 1, 1])


def data(**more: object) -> Data:
    return Data(**{"x": X, "edge_index": CHAIN, "y": Y, **more})


def save_npz(path: Path, **more: np.ndarray) -> Path:
    pointers = np.array([0, 0, 1, 2, 3, 4])
    np.savez(path, adj_indptr=pointers, adj_indices=[0, 1, 2, 3], attr_matrix=X.numpy(), labels=Y.numpy(), **more)
    return path


def sources(tmp_path: Path) -> dict[str, object]:
    torch.save(data(), tmp_path / "graph.pt")
    return {"npz": save_npz(tmp_path / "graph.npz"), "pt": tmp_path / "graph.pt", "Data": data()}


@pytest.mark.parametrize("kind", ["npz", "pt", "Data"])
def test_edges_are_read_in_both_directions_and_it_is_said(kind: str, tmp_path: Path) -> None:
    source = sources(tmp_path)[kind]
    with pytest.warns(eg.EvergraphWarning, match=r"4 of 8 edges were given in one direction and are read in both; un"):
        graph = as_graph(source)
    assert torch.equal(graph.edge_index.sort(1).values, eg.make_graph(X, BOTH, Y).edge_index.sort(1).values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # asked for, either is silent
        directed = as_graph(source, undirected=False)
        assert as_graph(source, undirected=True).num_edges == 8
    assert directed.edge_index.tolist() == CHAIN.tolist()


def test_edges_given_in_both_directions_are_nothing_to_say() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert eg.make_graph(X, BOTH, Y).num_edges == 8
        assert eg.from_pyg(Data(x=X, edge_index=BOTH, y=Y)).num_edges == 8


def test_directions_of_a_named_dataset_cannot_be_kept() -> None:
    with pytest.raises(eg.EvergraphError, match="digits is an undirected graph"):
        eg.stream("digits", undirected=False)


def test_edge_weights_are_propagated_as_pyg_does() -> None:
    weights = torch.tensor([0.5, 2.0, 1.0, 3.0])
    graph = eg.from_pyg(data(edge_weight=weights), undirected=True)
    model = eg.GCN(hidden=3)
    model.setup(5, 2)
    layer = GCNConv(5, 3)
    layer.lin.weight.data, layer.bias.data = model.weights[0][:-1].T.clone(), torch.zeros(3)
    operator = model.operator(graph)
    expected = layer(X, BOTH, torch.cat([weights, weights]))
    torch.testing.assert_close((operator.dense() @ X.double() @ model.weights[0][:-1].double()).float(), expected)


def test_weights_of_duplicates_are_added_and_of_directions_the_larger_counts() -> None:
    edges = torch.tensor([[0, 0, 1, 2], [1, 1, 0, 3]])
    graph = eg.make_graph(X, edges, Y, edge_weight=[1.0, 2.0, 2.5, 0.0], undirected=True)
    assert graph.adjacency.dense()[:2, :2].tolist() == [[0, 3], [3, 0]]
    assert graph.num_edges == 2  # an edge of weight 0 is none


@pytest.mark.parametrize("model", [eg.GCN(hidden=4), eg.GraphSAGE(hidden=4), eg.RandomFeatures(hidden=8)])
def test_models_see_the_weights(model: eg.GraphModel) -> None:
    plain = eg.make_graph(X, BOTH, Y)
    weighted = eg.make_graph(X, BOTH, Y, edge_weight=torch.tensor([0.1, 5, 1, 1, 0.1, 5, 1, 1]))
    torch.manual_seed(0)
    model.setup(5, 2)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value))
        a, b = (model(neighbourhoods(model, graph).batch(torch.arange(5))) for graph in (plain, weighted))
    assert not torch.allclose(a, b)


def test_a_model_without_use_for_weights_says_so() -> None:
    graph = eg.make_graph(X, BOTH, Y, edge_weight=torch.arange(1.0, 9.0))
    with pytest.warns(eg.EvergraphWarning, match="GAT does not use edge weights"):
        eg.Learner(eg.GAT(hidden=4, heads=2), "finetune", epochs=1).learn(eg.Task.of(graph, hold_out=False))


def test_edge_attributes_are_not_dropped_without_a_word() -> None:
    with pytest.warns(eg.EvergraphWarning, match="edge_attr is not used"):
        eg.from_pyg(data(edge_attr=torch.ones(4, 3)), undirected=True)
    graphs = [data(y=torch.tensor([number]), edge_attr=torch.ones(4, 3)) for number in range(2)]
    with pytest.warns(eg.EvergraphWarning, match="graphs: edge_attr is not used; put one weight per edge"):
        as_graph(graphs)
    weighed = [
        data(y=torch.tensor([number]), edge_weight=torch.ones(4), edge_attr=torch.ones(4)) for number in range(2)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", eg.EvergraphWarning)
        as_graph(weighed, undirected=True)
    del weighed[1].edge_weight
    with pytest.raises(eg.EvergraphError, match="1 of 2 graphs have edge_weight; give it to all of them or to none"):
        as_graph(weighed)
    links = data(y=None, edge_label_index=torch.tensor([[0, 1], [1, 2]]), edge_label=torch.tensor([0, 1]))
    links.edge_attr = torch.ones(4, 3)
    with pytest.warns(eg.EvergraphWarning, match="links: edge_attr is not used; put what it says into x"):
        as_graph(links)


def test_weights_in_files(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "weighted.npz", adj_data=np.array([0.5, 2, 1, 3]))
    graph = read_graph_file(path, undirected=False)
    assert graph.adjacency.values.tolist() == [0.5, 2, 1, 3]
    folder = write_mapped(graph, tmp_path / "mapped")
    assert read_mapped(folder).adjacency.values.tolist() == [0.5, 2, 1, 3]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], "one weight per edge"),
        ([1.0, -2.0, 1.0, 1.0], "weight -2; weights are finite and at least 0"),
        ([1.0, float("nan"), 1.0, 1.0], "weight nan"),
        (["a", "b", "c", "d"], "weights are numbers"),
    ],
)
def test_bad_weights_are_named(weights: list, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        eg.make_graph(X, CHAIN, Y, edge_weight=weights)


@pytest.mark.parametrize(
    "names", [{0: "cat", 1: "dog"}, {"cat": 0, "dog": 1}, {1: "dog", 0: "cat"}, {np.int64(0): "cat", 1: "dog"}]
)
def test_class_names_as_a_dictionary(names: dict) -> None:
    assert eg.make_graph(X, BOTH, Y, class_names=names).class_names == ["cat", "dog"]
    assert eg.from_pyg(Data(x=X, edge_index=BOTH, y=Y, class_names=names)).class_names == ["cat", "dog"]


def test_a_label_without_a_name_keeps_its_number() -> None:
    assert eg.make_graph(X, BOTH, Y + 1, class_names={1: "cat", 2: "dog"}).class_names == [0, "cat", "dog"]


@pytest.mark.parametrize("names", [{"cat": "a", "dog": "b"}, {}, {-1: "cat", 0: "dog"}, {"cat": 0, "dog": 0}])
def test_other_dictionaries_are_refused(names: dict) -> None:
    with pytest.raises(eg.EvergraphError, match="class_names"):
        eg.make_graph(X, BOTH, Y, class_names=names)
