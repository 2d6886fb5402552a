"""What people call their nodes and classes is kept as they wrote it, and a node is asked for by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import evergraph as eg
from evergraph.cli.forget import forget_command
from evergraph.cli.parsing import class_names
from evergraph.cli.predict import parse_nodes
from evergraph.data import as_graph
from evergraph.errors import EvergraphWarning

pytestmark = pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")
COUNT = 40


def columns(ids: Any, seed: int = 0) -> dict[str, Any]:
    """A node table of two classes that one feature tells apart."""
    random = np.random.default_rng(seed)
    y = np.arange(len(ids)) % 2
    x = random.normal(size=(len(ids), 3))
    x[:, 0] += 4 * y
    return {"id": list(ids), **{f"f{i}": x[:, i] for i in range(3)}, "label": y}


def write(path: Path, table: dict[str, Any]) -> str:
    rows = zip(*table.values())
    path.write_text("\n".join(",".join(map(str, row)) for row in [tuple(table), *rows]) + "\n")
    return str(path)


def learner_of(graph: Any) -> eg.Learner:
    learner = eg.Learner(eg.RandomFeatures(hidden=30), "analytic", dtype=torch.float64)
    learner.learn(graph)
    return learner


SHUFFLED = np.random.default_rng(3).permutation(COUNT)


def test_nodes_with_whole_numbers_as_ids_are_asked_for_by_these(tmp_path: Path) -> None:
    graph = eg.from_tables(columns(SHUFFLED))
    learner = learner_of(graph)
    assert learner.predict(graph, [7, 3]).names == [7, 3]
    assert learner.predict(graph, ["7"]).names == learner.predict(graph, 7).names == [7]
    assert learner.why(graph, 7).node == 7
    assert parse_nodes("7,3", graph) == ["7", "3"]
    rows = learner.predict(graph, torch.tensor([7]))  # a tensor holds numbers of rows, as a task's parts do
    assert rows.names == [int(SHUFFLED[7])]
    mask = torch.zeros(COUNT, dtype=torch.bool)
    mask[7] = True
    assert learner.predict(graph, mask).names == learner.predict(graph, mask.tolist()).names == rows.names
    assert not len(learner.predict(graph, []))
    with pytest.raises(eg.EvergraphError, match="ids of nodes, or numbers of its rows"):
        learner.predict(graph, np.array([7]))
    with pytest.raises(eg.EvergraphError, match=r"no node has the id '40'; ids are like .*; a tensor asks for rows"):
        learner.predict(graph, [40])
    assert learner.predict(graph, np.array(["7"])).names == [7]


def test_networkx_nodes_are_asked_for_by_their_names() -> None:
    table = columns(SHUFFLED)
    network = nx.Graph()
    for row, node in enumerate(SHUFFLED.tolist()):
        network.add_node(node, x=[table[f"f{i}"][row] for i in range(3)], label=int(table["label"][row]))
    network.add_edges_from(zip(SHUFFLED.tolist(), SHUFFLED[2:].tolist()))
    learner = learner_of(network)
    assert learner.predict(network, [7]).names == [7]
    grid = nx.relabel_nodes(network, {node: (node, 0) for node in network})
    assert learner.predict(grid, [(7, 0)]).names == ["(7, 0)"]


def test_whoever_is_named_is_forgotten(tmp_path: Path) -> None:
    table = columns(SHUFFLED)
    graph = eg.from_tables(table)
    task = eg.Task.of(graph, hold_out=False)
    learner, never = (eg.Learner(eg.RandomFeatures(hidden=30), "analytic", dtype=torch.float64) for _ in range(2))
    learner.learn(task)
    assert learner.forget([7, 3], task) == 2
    rows = torch.tensor([SHUFFLED.tolist().index(node) for node in (7, 3)])
    never.learn(task.without(rows))
    assert float((learner.logits(graph) - never.logits(graph)).abs().max()) < 1e-8


def test_the_command_forgets_the_nodes_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{write(tmp_path / 'nodes.csv', columns(SHUFFLED))}:edges=none"
    folder = tmp_path / "kept"
    learner_of(source).save(folder)
    asked: list[Any] = []
    monkeypatch.setattr(eg.Learner, "forget", lambda self, nodes, *_, **__: asked.append(nodes) or 0)
    forget_command(source, folder, nodes="7,3", device="cpu")
    assert asked == [["7", "3"]]


def test_a_node_that_is_not_there_is_asked_for_on_the_command_line(evergraph: Any, tmp_path: Path) -> None:
    source = f"{write(tmp_path / 'nodes.csv', columns('abcdefghij'))}:edges=none"
    learner_of(source).save(tmp_path / "kept")
    for command in (("why", source, "--node", "nobody"), ("predict", source, "--nodes", "nobody")):
        status, _, error = evergraph(*command, "--checkpoint", tmp_path / "kept")
        assert status == 2
        assert error.splitlines()[-1] == "error: nodes: no node has the id 'nobody'; ids are like 'a'"


def test_classes_with_a_comma_are_quoted_in_lists(tmp_path: Path) -> None:
    table = columns(range(COUNT))
    table["label"] = np.array(["red, green", 'the "blue", one'])[table["label"]]
    graph = eg.from_tables(table)
    learner, listed = learner_of(graph), '"red, green", "the ""blue"", one"'
    for ask in (
        lambda: learner.predict(graph, classes=["red"]),
        lambda: learner.forget(classes="red", data=graph),
        lambda: eg.Task.of(graph, ["red"]),
        lambda: eg.TaskStream(graph, order=["red"]),
    ):
        with pytest.raises(eg.EvergraphError) as raised:
            ask()
        assert str(raised.value).endswith(f": {listed}")
    assert class_names([listed]) == graph.class_names


def test_nodes_without_ids_are_asked_for_by_number() -> None:
    table = columns(range(COUNT))
    graph = eg.make_graph(np.stack([table[f"f{i}"] for i in range(3)], 1), np.zeros((2, 0), int), table["label"])
    learner = learner_of(graph)
    for nodes in ([7, 3], torch.tensor([7, 3]), np.array([7, 3]), (7, 3)):
        assert learner.predict(graph, nodes).nodes.tolist() == [7, 3]
    assert parse_nodes("7,3", graph) == [7, 3]


def test_a_class_and_a_node_of_one_name_are_told_apart() -> None:
    graph = eg.from_tables(columns([str(number) for number in range(COUNT)]))
    learner = learner_of(graph)
    with pytest.raises(
        eg.EvergraphError, match=r"'1' is a class and the id of a node: forget\(\['1'\], data\).*classes"
    ):
        learner.forget("1", graph)
    assert learner.forget(["1"], graph) == 1
    assert learner.forget(classes="1", data=graph) == COUNT // 2 - 1


def test_an_id_that_two_examples_have_names_neither() -> None:
    data = as_graph(eg.from_tables(columns(range(COUNT)))).altered()
    data.attributes["id"].values[3] = 7
    learner = learner_of(data)
    with pytest.raises(eg.EvergraphError, match="several nodes have the id '7'"):
        learner.predict(data, [7])
    assert learner.predict(data, [8]).nodes.tolist() == [8]


def test_ids_are_kept_as_they_are_written(tmp_path: Path) -> None:
    for ids, kept in (
        (["007", "07", "7"], ["007", "07", "7"]),
        (["2.10", "2.1", "2.2"], ["2.10", "2.1", "2.2"]),
        (["1_0", "10", "+3"], ["1_0", "10", "+3"]),
        (["_", "1__0", "9" * 5000], ["_", "1__0", "9" * 5000]),
        (["12345678901234567890", "12345678901234567891", "3"], ["12345678901234567890", "12345678901234567891", "3"]),
        (["NA", "none", "null"], ["NA", "none", "null"]),
        (["1e5", "100000", "nan"], ["1e5", "100000", "nan"]),
        (["12", "-3", "0"], [12, -3, 0]),
    ):
        nodes = write(tmp_path / "nodes.csv", columns(ids))
        edges = write(tmp_path / "edges.csv", {"source": [ids[0], ids[1]], "target": [ids[1], ids[2]]})
        graph = eg.from_tables(nodes, edges, undirected=False)
        assert graph.edge_index.tolist() == [[0, 1], [1, 2]]
        assert learner_of(graph).predict(graph, ids[::-1]).names == kept[::-1]


def test_classes_are_kept_as_they_are_written(tmp_path: Path) -> None:
    for labels, names, y in (
        (["01", "1", "01", ""], ["01", "1"], [0, 1, 0, -1]),
        (["1", "0", "NA", ""], [0, 1], [1, 0, -1, -1]),
        (["1.0", "0.0", "", "1.0"], [0, 1], [1, 0, -1, 1]),
        (["none", "art", "", "none"], ["art", "none"], [1, 0, -1, 1]),
        (["NA", "n/a", "", "null"], [], [-1, -1, -1, -1]),
        (["12345678901234567890", "12345678901234567891", "3", "3"], None, [0, 1, 2, 2]),
    ):
        nodes = write(tmp_path / "nodes.csv", {**columns("abcd"), "label": labels})
        graph = eg.from_tables(nodes)
        assert graph.class_names == (sorted({*labels}) if names is None else names)
        assert graph.y.tolist() == y


def months(folder: Path) -> tuple[str, str]:
    """Tables that both have a class 10: among numbers in January, beside text in February."""
    january, february = columns(range(COUNT)), columns(range(COUNT), seed=1)
    january["label"], february["label"] = 10 + january["label"], np.array(["other", "10"])[february["label"]]
    paths = (write(folder / "january.csv", january), write(folder / "february.csv", february))
    return f"{paths[0]}:edges=none", f"{paths[1]}:edges=none"


@pytest.mark.parametrize(
    ("method", "turned"), [("analytic", False), ("analytic", True), ("joint", True), ("reservoir", False)]
)
def test_a_class_is_the_same_as_text_and_as_a_number(method: str, turned: bool, tmp_path: Path) -> None:
    paths = months(tmp_path)[:: -1 if turned else 1]
    same = [eg.from_tables(path.partition(":")[0]) for path in paths]
    names = ["10", "other", 11] if turned else [10, 11, "other"]
    alike = [
        graph.altered(
            class_names=[next((own for own in names if str(own) == str(name)), name) for name in graph.class_names]
        )
        for graph in same
    ]
    learners = [eg.Learner(method, epochs=3, label_scope="seen") for _ in range(2)]
    for learner, graphs in zip(learners, (paths, alike)):
        learner.fit(graphs)
    mixed, plain = learners
    assert mixed.classes_ == plain.classes_ == names
    assert [entry["classes"] for entry in mixed.history] == [entry["classes"] for entry in plain.history]
    assert torch.equal(mixed.logits(same[0]), plain.logits(same[0]))
    assert mixed.evaluate(paths).accuracies == plain.evaluate(alike).accuracies
    assert mixed.evaluate(paths).first == plain.evaluate(alike).first
    streams = [eg.TaskStream(graph, classes_per_task=2) for graph in (same[1], alike[1])]
    assert mixed.evaluate(streams[0]).accuracies == plain.evaluate(streams[1]).accuracies
    among = [mixed.predict(paths[1], classes=["10", "other"]), plain.predict(paths[1], classes=[names[0], "other"])]
    assert among[0].labels == among[1].labels
    if method != "analytic":
        return
    assert mixed.forget(["3"], list(paths)) == plain.forget(["3"], list(alike)) == 1
    assert mixed.forget(classes="10", data=list(paths)) == plain.forget(classes=10, data=list(alike))
    assert mixed.classes_ == plain.classes_ == [name for name in names if str(name) != "10"]
    assert torch.equal(mixed.logits(same[0]), plain.logits(same[0]))


def test_commands_take_a_class_as_text_for_the_number(evergraph: Any, tmp_path: Path) -> None:
    january, february = months(tmp_path)
    for path in (january, february):
        assert evergraph("learn", path, "--checkpoint", tmp_path / "kept")[0] == 0
    status, out, _ = evergraph("predict", february, "--checkpoint", tmp_path / "kept", "--classes", "10,other")
    assert status == 0
    assert {line.split(",")[1] for line in out.splitlines()[1:]} == {"10", "other"}
    assert evergraph("evaluate", january, february, "--checkpoint", tmp_path / "kept")[0] == 0


def test_a_class_called_none_is_told_of(tmp_path: Path) -> None:
    nodes = write(tmp_path / "nodes.csv", {**columns("abcd"), "label": ["none", "art", "", "none"]})
    with pytest.warns(EvergraphWarning, match=r"a class is called 'none' \(2 of 4 rows\); leave the cell empty"):
        eg.from_tables(nodes)


def test_missing_numbers_are_still_missing(tmp_path: Path) -> None:
    nodes = write(tmp_path / "nodes.csv", {**columns("abcd"), "f0": ["NA", "none", "1", "3"]})
    assert eg.from_tables(nodes, missing="mean").x[:, 0].tolist() == [2, 2, 1, 3]


@pytest.mark.parametrize(
    ("text", "settings", "wanted"),
    [
        ("id,u,v\n9,a,b\n8,b,c\n", "", [[0, 1], [1, 2]]),
        ("Source,Target,Type\na,b,x\nb,c,x\n", "", [[0, 1], [1, 2]]),
        ("one,other,weight\na,b,1\nb,c,1\n", "", [[0, 1], [1, 2]]),
        ("year,one,other\n9,a,b\n8,b,c\n", "source=one,target=other", [[0, 1], [1, 2]]),
        ("a,b\na,b\nb,c\n", "source=a,target=b", [[0, 1], [1, 2]]),
        ("one,other\na,b\nb,c\n", "source=other", [[1, 2], [0, 1]]),
        ("a,b\nb,c\n", "", "first line, a,b, looks like an edge.*source,target"),
        ("a,b,0.5\nb,c,1\n", "", "first line, a,b,0.5, looks like an edge"),
        ("0,1\nb,c\n", "", "first line, 0,1, looks like an edge"),
        ("year,one,other\n9,a,b\n", "", "which columns are the ends.*year, one, other; name them: source=COLUMN"),
        ("source,target\na,b\nb,\n", "", "line 3 has nothing in column 'target'"),
        ("source,target\na,b\nb,zoe\n", "", "line 3 names node 'zoe'"),
        ("source\na\n", "", "one column alone"),
    ],
)
def test_edge_lists_say_which_columns_are_ends(text: str, settings: str, wanted: Any, tmp_path: Path) -> None:
    nodes = write(tmp_path / "nodes.csv", columns("abc"))
    (tmp_path / "edges.csv").write_text(text)
    named = dict(item.split("=") for item in settings.split(",") if item)
    if isinstance(wanted, str):
        with pytest.raises(eg.EvergraphError, match=wanted):
            eg.from_tables(nodes, tmp_path / "edges.csv", **named)
        return
    assert sorted(eg.from_tables(nodes, tmp_path / "edges.csv", undirected=False, **named).edge_index.T.tolist()) == (
        sorted(map(list, zip(*wanted)))
    )


def test_numbers_as_names_of_columns_are_fine_where_no_line_was_lost() -> None:
    nodes = {**columns(range(3))}
    frame = pd.DataFrame([[0, 1], [1, 2]])
    assert eg.from_tables(nodes, frame, undirected=False).edge_index.tolist() == [[0, 1], [1, 2]]
    with pytest.raises(eg.EvergraphError, match="row 2 has nothing in column '1'"):
        eg.from_tables(nodes, pd.DataFrame([[0, 1], [1, None]]))
    with pytest.raises(eg.EvergraphError, match="row 2 has nothing in column 'id'"):
        eg.from_tables({**columns("abc"), "id": ["a", None, "c"]})


def test_a_named_index_of_a_data_frame_holds_the_ids() -> None:
    frame = pd.DataFrame(columns(["ada", "bob", "cy"]))
    edges = pd.DataFrame({"source": ["ada", "bob"], "target": ["bob", "cy"]})
    wanted = eg.from_tables(frame, edges)
    renamed = frame.rename(columns={"id": "person"}).set_index("person")
    for nodes, given, settings in (
        (frame.set_index("id"), edges, {}),
        (renamed, edges, {"id": "person"}),
        (frame, edges.assign(weight=1.0).set_index(["source", "target"]), {}),
    ):
        graph = eg.from_tables(nodes, given, **settings)
        assert graph.attributes["id"].names == ["ada", "bob", "cy"]
        assert graph.feature_names == wanted.feature_names
        assert torch.equal(graph.edge_index, wanted.edge_index)
    with pytest.warns(EvergraphWarning, match=r"index of the data frame is not read.*rename_axis\('id'\)"):
        eg.from_tables(frame.drop(columns="id")[frame["label"] == 0], pd.DataFrame({"source": [0], "target": [1]}))


def test_years_are_classes_of_two_outputs(tmp_path: Path) -> None:
    """Memory follows the classes that have examples, and these keep their numbers as names."""
    tables = [columns(range(COUNT), seed) for seed in range(2)]
    tables[0]["label"], tables[1]["label"] = tables[0]["label"] * 4 + 2020, tables[1]["label"] + 2023
    months = [eg.from_tables(table) for table in tables]
    learner = learner_of(months[0])
    assert learner.model.out_channels == 2
    learner.learn(months[1])
    learner.save(tmp_path / "kept")
    learner = eg.Learner.load(tmp_path / "kept")
    assert (learner.classes_, learner.model.out_channels) == ([2020, 2024, 2023], 3)
    assert set(learner.predict(months[0], classes=[2020, "2024"]).labels) == {2020, 2024}
    assert learner.evaluate(months).accuracies[0] > 60
    assert learner.forget(classes=[2020], data=months[0]) == COUNT // 2
    assert learner.classes_ == [2024, 2023]
