"""Lists of PyG objects as people have them: labels as text or missing, graphs without nodes, links without labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

import evergraph as eg
from evergraph.data import as_graph
from evergraph.errors import EvergraphWarning
from evergraph.problems import problem_of

pytestmark = pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")


def graphs(targets: list[Any], empty: tuple[int, ...] = ()) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for number, y in enumerate(targets):
        nodes = 0 if number in empty else 3 + number % 3
        x = torch.randn(nodes, 3, generator=generator) + 2 * (number % 2)
        edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)]) if nodes else torch.zeros(2, 0).long()
        made.append(Data(x=x, edge_index=edges, y=y))
    return made


NAN = float("nan")


@pytest.mark.parametrize(
    ("targets", "y", "names"),
    [
        ([torch.tensor([value]) for value in (0.0, 1.0, 2.0, NAN)], [0, 1, 2, -1], [0, 1, 2]),
        ([torch.tensor([0]), torch.tensor([1]), None, torch.tensor([1])], [0, 1, -1, 1], [0, 1]),
        (["spam", "ham", "", None], [1, 0, -1, -1], ["ham", "spam"]),
        ([["spam"], ["ham"], ["ham"], ["ham"]], [1, 0, 0, 0], ["ham", "spam"]),
        ([0, 1, 1, -1], [0, 1, 1, -1], [0, 1]),
        ([None] * 4, [-1] * 4, []),
    ],
)
def test_classes_of_graphs_may_be_missing_or_text(targets: list[Any], y: list[int], names: list[Any]) -> None:
    graph = as_graph(graphs(targets))
    assert graph.has_classes
    assert (graph.y.tolist(), graph.class_names) == (y, names)


def test_numbers_of_graphs_stay_numbers() -> None:
    graph = as_graph(graphs([torch.tensor([value]) for value in (0.5, NAN, 2.0)]))
    assert problem_of(graph) == "graph-regression"
    assert graph.y[[0, 2], 0].tolist() == [0.5, 2.0]
    assert bool(graph.y[1].isnan())
    assert as_graph(graphs([torch.tensor([[1, 0]]), None, torch.tensor([[0, 1]])])).y.shape == (3, 2)


def test_numbers_of_links_stay_numbers(tmp_path: Path, evergraph: Callable[..., tuple[int, str, str]]) -> None:
    x, ends = torch.randn(20, 3), torch.randint(0, 20, (2, 60))
    for y in (x[ends[0], 0] + x[ends[1], 1], (x[ends[0], 0] + x[ends[1], 1]).reshape(-1, 1)):
        data = Data(x=x, edge_label_index=ends, edge_label=y.clone())
        data.edge_label[3] = NAN
        graph = as_graph(data)
        assert (problem_of(graph), graph.y.shape) == ("link-regression", (60, 1))
        assert graph.y[[0, 1], 0].tolist() == y.reshape(-1)[[0, 1]].tolist()
        assert bool(graph.y[3].isnan())
    whole = Data(x=x, edge_label_index=ends, edge_label=(torch.arange(60) % 2).float())
    assert problem_of(as_graph(whole)) == "link-classification"
    assert problem_of(as_graph(Data(x=x, edge_label_index=ends, edge_label=torch.arange(60)), numbers=True)) == (
        "link-regression"
    )
    torch.save(data, tmp_path / "links.pt")
    status, out, _ = evergraph("learn", tmp_path / "links.pt", "--checkpoint", tmp_path / "k", "--device", "cpu")
    assert status == 0
    assert "mean absolute error on held-out links" in out


@pytest.mark.parametrize(("make", "level"), [("make_graph", "node"), ("make_graphs", "graph"), ("make_links", "link")])
def test_numbers_among_classes_name_a_way_out_that_works(make: str, level: str) -> None:
    x, edges, y = torch.randn(6, 2), torch.tensor([[0, 1], [1, 0]]), [0.5, 1.5]
    given = {"node": (x[:2], edges), "graph": (x, edges, [0, 0, 0, 1, 1, 1]), "link": (x, edges)}[level]
    with pytest.raises(eg.EvergraphError, match=rf"labels are not whole numbers.*columns=True in {make}$") as error:
        getattr(eg, make)(*given, y)
    assert ("--problem node-regression" in str(error.value)) == (level == "node")
    assert problem_of(getattr(eg, make)(*given, y, columns=True)) == f"{level}-regression"


@pytest.mark.parametrize("parts", [[], ["--parts", "2"]])
def test_only_nodes_with_classes_are_converted(
    parts: list[str], tmp_path: Path, evergraph: Callable[..., tuple[int, str, str]]
) -> None:
    x, edges = torch.randn(6, 2), torch.tensor([[0, 1], [1, 0]])
    for data in (
        Data(x=x, edge_index=edges, y=torch.rand(6)),
        Data(x=x, edge_index=edges, y=torch.rand(6, 2)),
        Data(x=x, edge_label_index=edges, edge_label=torch.rand(2)),
    ):
        torch.save(data, tmp_path / "numbers.pt")
        status, out, error = evergraph("convert", tmp_path / "numbers.pt", tmp_path / "folder", *parts)
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert error.endswith("only graphs whose examples are nodes with one class each can be converted\n")
        assert not (tmp_path / "folder").exists()


def test_odd_targets_of_graphs_are_one_line() -> None:
    with pytest.raises(eg.EvergraphError, match="neither text nor numbers"):
        as_graph(graphs([{"a": 1}, {"b": 2}]))
    with pytest.raises(eg.EvergraphError, match="mix text and 1"):
        as_graph(graphs(["spam", 1]))


@pytest.mark.parametrize("sizes", [[8] * 4, [8, 5, 1, 3]])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_graphs_with_a_label_per_node_are_no_graphs_with_many_labels(sizes: list[int], shape: tuple[int, ...]) -> None:
    labelled = [
        Data(x=torch.randn(size, 3), edge_index=torch.zeros(2, 0).long(), y=(torch.arange(size) % 2).reshape(shape))
        for size in sizes
    ]
    with pytest.raises(eg.EvergraphError, match=r"one label per node; such graphs are learned one at a time.*\(1, num"):
        as_graph(labelled)


def test_as_many_labels_of_a_graph_as_it_has_nodes_are_fine() -> None:
    x, edges = torch.randn(3, 2), torch.zeros(2, 0).long()
    rows = as_graph([Data(x=x, edge_index=edges, y=torch.tensor([[0, 1, number % 2]])) for number in range(4)])
    assert rows.y.shape == (4, 3)
    single = as_graph([Data(x=x[:1], edge_index=edges, y=torch.tensor([number % 2])) for number in range(4)])
    assert single.y.tolist() == [0, 1, 0, 1]


def test_a_graph_without_nodes_is_an_example_wherever_it_stands() -> None:
    some = graphs([torch.tensor([number % 2]) for number in range(30)])
    learner = eg.Learner(eg.RandomFeatures(hidden=30), "analytic", dtype=torch.float64)
    learner.learn(eg.Task.of(some))
    for empty in ((0,), (2,), (3,), (2, 3)):
        asked = graphs([None] * 4, empty)
        assert len(learner.predict(asked)) == 4
    labelled = graphs([torch.tensor([number % 2]) for number in range(30)], (29,))
    assert as_graph(labelled).num_examples == 30
    learner.learn(eg.Task.of(labelled))


def test_lists_are_learned_as_the_line_says_and_forgotten() -> None:
    some = graphs([torch.tensor([number % 2]) for number in range(30)])
    learner, never = (eg.Learner(eg.RandomFeatures(hidden=30), "analytic", dtype=torch.float64) for _ in range(2))
    with pytest.raises(eg.EvergraphError, match=r"one of many graphs with learner.learn\(eg.Task.of"):
        learner.learn(some)
    with pytest.raises(eg.EvergraphError, match=r"a list of graphs with a label each is a task"):
        eg.Task.of(some[0])
    task = eg.Task.of(some)
    learner.learn(task)
    gone = task.train[:3]
    assert learner.forget(gone.tolist(), some) == 3
    never.learn(task.without(gone))
    assert float((learner.logits(some) - never.logits(some)).abs().max()) < 1e-8
    assert learner.forget(classes=[1], data=some) > 0


def test_graphs_without_labels_say_what_is_missing() -> None:
    with pytest.raises(eg.EvergraphError, match="no graph has a label"):
        eg.Task.of(graphs([None, None]))


def test_minus_one_beside_one_alone_is_told_of() -> None:
    x, edges = torch.eye(4), torch.tensor([[0], [1]])
    with pytest.warns(EvergraphWarning, match=r"labels are -1 and 1.*\(2 of 4 have none\).*call them 0 and 1"):
        eg.make_graph(x, edges, [-1, 1, -1, 1], undirected=True)
    for fine in ([-1, 1, 0, 1], [-1, 0, 0, -1], [1, 1, 1, 1], [-1, -1, -1, -1], [1, torch.nan, 1, 1]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            eg.make_graph(x, edges, fine, undirected=True)


def test_a_learner_of_others_says_what_to_do(tmp_path: Path, evergraph: Callable[..., tuple[int, str, str]]) -> None:
    some = graphs([torch.tensor([number % 2]) for number in range(20)])
    torch.save(some, tmp_path / "graphs.pt")
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    nodes = eg.make_graph(x, torch.tensor([[0], [1]]), torch.arange(20) % 2)
    learner = eg.Learner(eg.RandomFeatures(hidden=20), "analytic")
    learner.learn(nodes)
    learner.save(tmp_path / "nodes")
    status, _, err = evergraph("learn", tmp_path / "graphs.pt", "--checkpoint", tmp_path / "nodes")
    assert status == 2
    assert "learns nodes (node-classification); name another folder with --checkpoint" in err
    with pytest.raises(eg.EvergraphError, match="a learner has one problem: begin another one"):
        learner.learn(eg.Task.of(some))
    asked = ("--problem", "node-classification", "--checkpoint", tmp_path / "new")
    status, _, err = evergraph("learn", tmp_path / "graphs.pt", *asked)
    assert status == 2
    assert "--problem graph-classification" in err


def saved_list(objects: list[Data], path: Path) -> Path:
    """Write graphs as PyG's own datasets do: joined into one object, with slices."""
    InMemoryDataset.save(objects, str(path))
    return path


@pytest.mark.parametrize(
    "targets",
    [
        [torch.tensor([number % 2]) for number in range(6)],
        [("spam", "ham")[number % 2] for number in range(6)],
        [torch.tensor([number / 4]) for number in range(6)],
        [torch.tensor([[1.0, number % 2]]) for number in range(6)],
        [number % 2 for number in range(6)],
    ],
)
def test_a_dataset_saved_by_pyg_is_the_list_of_its_graphs(targets: list[Any], tmp_path: Path) -> None:
    objects = graphs(targets)
    for number, one in enumerate(objects):
        one.year = 2000 + number
    torch.save(objects, tmp_path / "list.pt")
    listed, saved = as_graph(tmp_path / "list.pt"), as_graph(saved_list(objects, tmp_path / "saved.pt"))
    assert (saved.level, saved.num_examples, saved.num_nodes) == ("graph", 6, sum(len(one.x) for one in objects))
    assert torch.equal(saved.x, torch.cat([one.x for one in objects]))
    assert torch.equal(saved.edge_index, listed.edge_index)
    assert torch.equal(saved.y, listed.y)
    assert saved.class_names == listed.class_names
    assert saved.attributes["year"].values.tolist() == [2000, 2001, 2002, 2003, 2004, 2005]


def test_a_dataset_of_one_graph_is_that_graph(tmp_path: Path) -> None:
    (one,) = graphs([torch.tensor([0, 1, 1])])
    ends = {key: torch.tensor([0, one[key].size(1 if key == "edge_index" else 0)]) for key in ("x", "edge_index", "y")}
    torch.save((one, ends), tmp_path / "old.pt")  # PyG wrote slices of a single graph too, once
    for path in (saved_list([one], tmp_path / "one.pt"), tmp_path / "old.pt"):
        graph = as_graph(path)
        assert (graph.level, graph.y.tolist()) == ("node", [0, 1, 1])
        assert torch.equal(graph.x, one.x)


def test_a_saved_tuple_of_graphs_is_a_list(tmp_path: Path) -> None:
    objects = graphs([torch.tensor([0]), torch.tensor([1])])
    torch.save(tuple(objects), tmp_path / "tuple.pt")
    assert as_graph(tmp_path / "tuple.pt").num_examples == 2


def test_a_saved_dataset_that_cannot_be_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(eg.EvergraphError, match=r"one label per node; such graphs are learned one at a time"):
        as_graph(saved_list([*graphs([torch.zeros(3).long()]), *graphs([torch.ones(3).long()])], tmp_path / "nodes.pt"))
    data, slices = InMemoryDataset.collate(graphs([torch.tensor([0]), torch.tensor([1])]))
    assert slices is not None
    for wrong in (
        {**slices, "y": slices["y"][:2]},
        {**slices, "x": slices["x"] + 100},
        {**slices, "x": data.x},
        {"x": [0, 3, 7]},
    ):
        torch.save((data.to_dict(), wrong, Data), tmp_path / "wrong.pt")
        with pytest.raises(eg.EvergraphError, match=r"wrong\.pt: its slices do not say where each graph begins; save"):
            as_graph(tmp_path / "wrong.pt")
