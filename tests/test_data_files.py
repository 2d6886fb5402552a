"""Files: the two formats, and everything that can be wrong with them."""

import os
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.core.sparse import SparseMatrix
from evergraph.data.files import fingerprint, read_graph_file
from evergraph.errors import EvergraphWarning
from graph_files import npz_parts

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both"),
    pytest.mark.filterwarnings("ignore:.*not read: "),
]


@pytest.fixture
def parts(small_graph: eg.Graph) -> dict:
    """A graph in the GNN-benchmark layout with sparse features."""
    return npz_parts(small_graph, sp.csr_matrix(small_graph.x.numpy() * (small_graph.x.numpy() > 1.5)))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_sparse_features(small_graph: eg.Graph, parts: dict, tmp_path: Path, save) -> None:
    save(tmp_path / "mine.npz", **parts, class_names=np.array(list("abcdef")))
    graph = read_graph_file(tmp_path / "mine.npz")
    assert isinstance(graph.x, SparseMatrix)
    assert torch.equal(graph.x.dense(), torch.where(small_graph.x > 1.5, small_graph.x, 0))
    assert torch.equal(graph.edge_index, small_graph.edge_index)
    assert torch.equal(graph.y, small_graph.y)
    assert graph.class_names == list("abcdef")
    assert graph.name == "mine"


def test_npz_with_dense_features(small_graph: eg.Graph, tmp_path: Path) -> None:
    np.savez(tmp_path / "dense.npz", **npz_parts(small_graph, small_graph.x.numpy()))
    assert torch.equal(read_graph_file(tmp_path / "dense.npz").x, small_graph.x)
    # a full matrix in sparse form takes twice the room: it is kept dense
    np.savez(tmp_path / "full.npz", **npz_parts(small_graph, sp.csr_matrix(small_graph.x.numpy())))
    assert torch.equal(read_graph_file(tmp_path / "full.npz").x, small_graph.x)


def test_npz_edges_become_undirected(parts: dict, tmp_path: Path) -> None:
    size = parts["labels"].size
    one_way = sp.csr_matrix((np.ones(1), ([0], [1])), shape=(size, size))
    parts |= {"adj_data": one_way.data, "adj_indices": one_way.indices, "adj_indptr": one_way.indptr}
    np.savez(tmp_path / "g.npz", **parts)
    assert read_graph_file(tmp_path / "g.npz").edge_index.T.tolist() == [[1, 0], [0, 1]]


def test_pickled_members_that_are_not_needed_are_not_read(parts: dict, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **parts, attr_names=np.array(["a", {}], dtype=object), metadata=np.array({}))
    assert read_graph_file(tmp_path / "g.npz").num_nodes == 60


@pytest.mark.parametrize("layout", ["plain", "benchmark"])
def test_arrays_that_are_not_read_are_named(small_graph: eg.Graph, parts: dict, tmp_path: Path, layout: str) -> None:
    plain = {"x": small_graph.x, "edge_index": small_graph.edge_index, "y": small_graph.y}
    given = plain if layout == "plain" else parts
    np.savez(tmp_path / "fine.npz", **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        read_graph_file(tmp_path / "fine.npz")
    extra = {"edge_attr": np.ones((2, 3)), "ids": np.arange(60), "target": np.array([{}], dtype=object)}
    np.savez(tmp_path / "g.npz", **given, **extra)
    with pytest.warns(EvergraphWarning, match=r"not read: edge_attr, ids, target; the arrays read are .*class_names"):
        read_graph_file(tmp_path / "g.npz")


def test_labels_under_the_name_of_the_other_layout_are_named(small_graph: eg.Graph, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", x=small_graph.x, edge_index=small_graph.edge_index, labels=small_graph.y)
    with pytest.warns(EvergraphWarning, match="not read: labels; the arrays read are x, edge_index, y,"):
        assert not read_graph_file(tmp_path / "g.npz").labelled.any()


@pytest.mark.parametrize("key", ["labels", "attr_data", "class_names"])
def test_pickled_members_that_are_needed_are_refused(parts: dict, tmp_path: Path, key: str) -> None:
    np.savez(tmp_path / "g.npz", **{**parts, key: np.array([{"a": 1}] * 60, dtype=object)})
    with pytest.raises(eg.EvergraphError, match="pickled objects, which are refused"):
        read_graph_file(tmp_path / "g.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adj_indices": None}, "no adj_indices inside"),
        ({"attr_indptr": None, "attr_shape": None}, "no attr_indptr, attr_shape inside"),
        ({"adj_indptr": np.array([0, 5, 3])}, "inconsistent arrays"),
        ({"adj_indices": np.zeros(3, dtype=int)}, "inconsistent arrays"),
        ({"attr_shape": np.array([60, 2])}, "inconsistent arrays"),
        ({"attr_shape": np.array([60])}, "inconsistent arrays"),
        ({"adj_indptr": np.zeros(41, dtype=int), "adj_indices": np.zeros(0, int)}, "the adjacency has 40 rows"),
        ({"labels": np.zeros(59, dtype=int)}, "60 rows of features but 59 labels"),
        ({"labels": np.full(60, -7)}, "label -7 is out of range"),
        ({"class_names": np.array(["a", "b"])}, "label 5 is out of range: there are 2 class names"),
    ],
)
def test_npz_with_wrong_members(parts: dict, tmp_path: Path, change: dict, message: str) -> None:
    merged = {key: value for key, value in {**parts, **change}.items() if value is not None}
    np.savez(tmp_path / "g.npz", **merged)
    with pytest.raises(eg.EvergraphError) as caught:
        read_graph_file(tmp_path / "g.npz")
    assert message in str(caught.value)
    assert "g" in str(caught.value)


def test_npz_with_an_edge_out_of_range(parts: dict, tmp_path: Path) -> None:
    parts["adj_indices"] = parts["adj_indices"].copy()
    parts["adj_indices"][0] = 600
    np.savez(tmp_path / "g.npz", **parts)
    with pytest.raises(eg.EvergraphError, match="an edge names node 600, but nodes run from 0 to 59"):
        read_graph_file(tmp_path / "g.npz")


def test_saved_data(small_graph: eg.Graph, tmp_path: Path) -> None:
    data = Data(x=small_graph.x, edge_index=small_graph.edge_index, y=small_graph.y, class_names=list("abcdef"))
    for name, saved in {"data": data, "dict": data.to_dict(), "tuple": (data.to_dict(), None, Data)}.items():
        torch.save(saved, tmp_path / f"{name}.pt")
        graph = read_graph_file(tmp_path / f"{name}.pt")
        assert fingerprint(graph) == fingerprint(small_graph)
        assert torch.equal(graph.x, small_graph.x)
        assert graph.class_names == list("abcdef")


class Bomb:
    """Runs a command when it is unpickled by a loader that trusts it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_saved_data_cannot_execute_code(small_graph: eg.Graph, tmp_path: Path) -> None:
    data = Data(x=small_graph.x, edge_index=small_graph.edge_index, y=small_graph.y, extra=Bomb(tmp_path / "boom"))
    torch.save(data, tmp_path / "bomb.pt")
    with pytest.raises(eg.EvergraphError, match=r"bomb\.pt: holds .*mkdir, refused because it could execute code"):
        read_graph_file(tmp_path / "bomb.pt")
    assert not (tmp_path / "boom").exists()


def test_what_is_not_a_graph_is_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    (tmp_path / "graph.gml").write_text("0,1")
    (tmp_path / "folder.npz").mkdir()
    for name, message in {
        "list.pt": "graph 0 of the list is of type int; it has no x and no edge_index",
        "text.npz": "pickled objects|not an npz file",  # numpy takes unknown bytes for a pickle
        "array.npz": "not an npz file",
        "graph.gml": "reads .npz and .pt",
        "folder.npz": "is a folder, not a file",
        "missing.npz": "no file",
    }.items():
        with pytest.raises(eg.EvergraphError, match=message):
            read_graph_file(tmp_path / name)


@pytest.mark.parametrize("ending", ["npz", "pt"])
def test_damage_anywhere_is_one_clear_line(small_graph: eg.Graph, parts: dict, tmp_path: Path, ending: str) -> None:
    whole = tmp_path / f"whole.{ending}"
    if ending == "npz":
        np.savez_compressed(whole, **parts)
    else:
        torch.save(Data(x=small_graph.x, edge_index=small_graph.edge_index, y=small_graph.y), whole)
    content, draw, file = whole.read_bytes(), random.Random(0), tmp_path / f"damaged.{ending}"
    messages = []
    for number in range(150):
        damaged = bytearray(content)
        if number % 2:
            damaged = damaged[: draw.randrange(len(content) - 1)]
        else:
            for _ in range(20):
                damaged[draw.randrange(len(damaged))] ^= draw.randrange(1, 256)
        file.write_bytes(damaged)
        messages.append(complaint(file))  # any error but our own fails the test
    assert all(messages[1::2])  # every truncated file is refused; flipped bytes may miss all that is read
    assert not any("\n" in message for message in messages)


def complaint(file: Path) -> str:
    """What is wrong with a file; empty where nothing is."""
    try:
        read_graph_file(file)
    except eg.EvergraphError as error:
        return str(error)
    return ""
