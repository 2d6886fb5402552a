"""Graphs as others publish them: other layouts of arrays, text ids in PyG objects, adjacencies for edges."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import ToSparseTensor

import evergraph as eg
from evergraph.data.datasets.collections import read_masked_npz
from evergraph.errors import EvergraphWarning

SIZE = 20
EDGES = torch.tensor([[0, 1, 2, 5], [1, 2, 3, 6]])


def masked(path: Path, splits: int = 3, **more: Any) -> Path:
    random = np.random.default_rng(0)
    part = random.integers(0, 3, (splits, SIZE))
    arrays = {"node_features": random.normal(size=(SIZE, 4)), "node_labels": np.arange(SIZE) % 2, "edges": EDGES.T}
    np.savez(
        path, **{**arrays, **{f"{name}_masks": part == n for n, name in enumerate(("train", "val", "test"))}, **more}
    )
    return path


def told(call: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(one.message) for one in caught]


def test_the_layout_of_the_heterophilous_graphs_is_read_from_any_file(tmp_path: Path) -> None:
    path = masked(tmp_path / "texas.npz", year=np.arange(SIZE), class_names=np.array(["staff", "student"]))
    graph, said = told(lambda: eg.data.as_graph(path, undirected=True))
    assert graph.name == "texas"
    assert graph.class_names == ["staff", "student"]
    assert graph.num_edges == 2 * EDGES.size(1)
    assert graph.splits.shape == (SIZE, 3)
    assert list(graph.attributes) == ["year"]
    assert len(said) == 1  # of the year
    published = read_masked_npz(path)
    assert torch.equal(published.x, graph.x)
    assert torch.equal(published.splits, graph.splits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"edges": np.zeros((2, 9), dtype=int)},
            r"edges have shape \(2, 9\); give the two ends of an edge in each row",
        ),
        (
            {"val_masks": np.zeros((3, 5), dtype=bool)},
            r"a mask has shape \(3, 5\); give all masks a row for each split",
        ),
    ],
)
def test_wrong_arrays_in_this_layout_are_named(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        eg.data.as_graph(masked(tmp_path / "texas.npz", **change))


def test_of_several_splits_the_one_that_is_used_is_told(tmp_path: Path) -> None:
    graph = eg.data.as_graph(masked(tmp_path / "texas.npz"), undirected=True)
    with pytest.warns(EvergraphWarning, match=r"texas comes with 3 splits; split 2 is used \(seed=4\)"):
        task = eg.Task.of(graph, seed=4)
    assert torch.equal(task.train, torch.nonzero(graph.splits[:, 1] == 0).reshape(-1))


def pyg(**more: Any) -> Data:
    return Data(x=torch.randn(SIZE, 4), edge_index=EDGES, y=torch.arange(SIZE) % 2, **more)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, dtype=object)])
def test_text_ids_of_a_pyg_object_are_read(kind: Any, tmp_path: Path) -> None:
    data = pyg(id=kind([f"u{i}" for i in range(SIZE)]), year=[2000 + i for i in range(SIZE)], note=["one", "two"])
    learner = eg.Learner(eg.RandomFeatures(hidden=20), "auto")
    learner.learn(data)
    assert learner.predict(data, ["u7"]).names == ["u7"]
    graph = eg.from_pyg(data)
    assert sorted(graph.attributes) == ["id", "year"]


@pytest.mark.parametrize("weighted", [False, True])
def test_an_adjacency_stands_for_edges(weighted: bool) -> None:
    data = pyg(edge_weight=torch.tensor([1.0, 2.0, 3.0, 4.0])) if weighted else pyg()
    sparse = ToSparseTensor(attr="edge_weight" if weighted else None)(data.clone())
    assert "edge_index" not in sparse
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, wanted = (eg.data.as_graph(one, undirected=False) for one in (sparse, data))
    assert torch.equal(found.adjacency.dense(), wanted.adjacency.dense())
    assert "adj_t" in sparse


def test_minus_one_beside_named_classes_means_no_label() -> None:
    y = np.where(np.arange(SIZE) % 2, 1, -1)
    assert told(lambda: eg.make_graph(np.eye(SIZE), EDGES, y, undirected=True, class_names=["no", "yes"]))[1] == []
    assert "labels are -1 and 1" in told(lambda: eg.make_graph(np.eye(SIZE), EDGES, y, undirected=True))[1][0]


def test_labels_without_a_name_among_named_ones_are_told() -> None:
    for y in (np.arange(SIZE) % 3, np.arange(SIZE) % 2 * 2):
        with pytest.warns(EvergraphWarning, match="class_names has no name for label 1, which is called 1"):
            eg.make_graph(np.eye(SIZE), EDGES, y, undirected=True, class_names={0: "a", 2: "c"})


def test_a_split_without_training_nodes_is_one_error() -> None:
    data = pyg(train_mask=torch.zeros(SIZE, dtype=torch.bool), val_mask=torch.ones(SIZE, dtype=torch.bool))

    def learn() -> None:
        with pytest.raises(eg.EvergraphError, match="graph, task 1: no training nodes; put some into the split"):
            eg.Learner("auto").learn(data)

    assert not any("not learned" in one for one in told(learn)[1])


def test_a_set_of_ids_is_refused_as_ids() -> None:
    graph = eg.from_pyg(pyg(id=[f"u{i}" for i in range(SIZE)]), undirected=True)
    learner = eg.Learner(eg.RandomFeatures(hidden=20), "auto")
    learner.learn(graph)
    with pytest.raises(eg.EvergraphError, match=r"nodes=\{'u1'\} are not a list of ids; give a list of ids, or a mask"):
        learner.predict(graph, {"u1"})
    pandas = pytest.importorskip("pandas")
    assert told(lambda: learner.predict(graph, pandas.Series([True] * SIZE)))[1] == []


def test_the_table_of_an_evaluation_counts_tasks_from_one() -> None:
    stream = eg.stream("sbm:nodes=200,classes=4,features=8,signal=3")
    learner = eg.Learner(eg.RandomFeatures(hidden=20), "auto").fit(stream)
    lines = str(learner.evaluate(stream)).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["1", "2"]


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1 class"), (2, "2 classes"), (0, "0 classes"), (1000, "1,000 classes")]
)
def test_one_is_not_many(number: int, text: str) -> None:
    from evergraph.errors import counted

    assert counted(number, "class") == text
    assert counted(number, "node") == text.replace("classes", "nodes").replace("class", "node")
    one = eg.make_graph([[1.0]], np.zeros((2, 0), dtype=int), [0])
    assert repr(one) == "Graph('graph', 1 node, 0 edges, 1 feature, 1 class)"
