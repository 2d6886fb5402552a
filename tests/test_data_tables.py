"""Graphs as people have them: tables, NetworkX, npz files; classes as text; what is missing is said."""

from __future__ import annotations

import warnings
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import evergraph as eg
from evergraph.data import as_graph, find_graph
from evergraph.data.from_tables import table_files
from evergraph.errors import EvergraphWarning

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both"),
    pytest.mark.filterwarnings("ignore:.*looks like an index written by pandas"),
]

PEOPLE = "id,age,height,city,role\nada,3,1.5,Rome,admin\nbob,4,1.0,Bonn,user\ncy,2,,Rome,user\ndee,3.5,2,Bonn,\n"
FOLLOWS = "source,target,weight\nada,bob,1\nbob,cy,2\ncy,dee,0.5\n"


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "people.csv").write_text(PEOPLE)
    (tmp_path / "follows.csv").write_text(FOLLOWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def alike(first: eg.Graph, second: eg.Graph) -> bool:
    return (
        torch.equal(torch.as_tensor(first.x), torch.as_tensor(second.x))
        and torch.equal(first.edge_index, second.edge_index)
        and torch.equal(first.adjacency.values, second.adjacency.values)
        and torch.equal(first.y, second.y)
        and first.class_names == second.class_names
        and first.feature_names == second.feature_names
    )


@pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")
def test_every_kind_of_table_is_the_same_graph(tables: Path) -> None:
    wanted = eg.from_tables("people.csv", "follows.csv", label="role", missing="zero")
    assert wanted.x.tolist() == [[3, 1.5], [4, 1], [2, 0], [3.5, 2]]
    assert (wanted.feature_names, wanted.class_names) == (["age", "height"], ["admin", "user"])
    assert wanted.y.tolist() == [0, 1, 1, -1]
    assert wanted.adjacency.dense().tolist() == [[0, 1, 0, 0], [1, 0, 2, 0], [0, 2, 0, 0.5], [0, 0, 0.5, 0]]
    people, follows = pd.read_csv("people.csv"), pd.read_csv("follows.csv")
    people.to_parquet("people.parquet")
    follows.to_parquet("follows.parquet")
    (tables / "people.tsv").write_text(PEOPLE.replace(",", "\t"))
    (tables / "semicolons.csv").write_text("\ufeff" + PEOPLE.replace(",", ";"), encoding="utf-8")
    shuffled = follows.rename(columns={"source": "from", "target": "to"})[["weight", "to", "from"]]
    for nodes, edges in (
        (people, follows),
        ({key: people[key].tolist() for key in people}, {key: follows[key].tolist() for key in follows}),
        ("people.parquet", "follows.parquet"),
        ("people.tsv", "follows.csv"),
        ("semicolons.csv", shuffled),
    ):
        assert alike(eg.from_tables(nodes, edges, label="role", missing="zero"), wanted)
    assert alike(as_graph("people.csv:edges=follows.csv,label=role,missing=zero"), wanted)
    assert alike(find_graph(tables / "people.csv:edges=follows.csv,label=role,missing=zero")[0], wanted)
    graph = nx.Graph()
    for row in people.to_dict("records"):
        graph.add_node(row.pop("id"), **{key: None if pd.isna(value) else value for key, value in row.items()})
    graph.add_weighted_edges_from(follows.itertuples(index=False, name=None))
    assert alike(eg.from_networkx(graph, label="role", missing="zero"), wanted)


def test_ids_stay_with_the_nodes(tables: Path) -> None:
    made = {"id": [f"n{i}" for i in range(40)], "a": np.arange(40.0) % 2, "b": 1 - np.arange(40.0) % 2}
    made["class"] = ["odd" if i % 2 else "even" for i in range(40)]
    edges = {"source": made["id"][:-2], "target": made["id"][2:]}
    graph = eg.from_tables(made, edges, undirected=True)
    learner = eg.Learner(eg.RandomFeatures(hidden=20), "auto")
    learner.learn(graph)
    found = learner.predict(graph, ["n7", "n4"])
    assert (found.names, found.labels) == (["n7", "n4"], ["odd", "even"])
    assert learner.predict(graph.subgraph(torch.arange(3, 12)), "n8").nodes.tolist() == [5]
    turned = eg.from_tables({key: made[key] for key in ("id", "b", "a")}, edges, undirected=True)
    with pytest.raises(eg.EvergraphError, match="feature 0 is 'b', and the learner was built with 'a' there"):
        learner.predict(turned)
    with pytest.raises(eg.EvergraphError, match="no node has the id 'zoe'; ids are like 'n0'"):
        learner.predict(graph, ["zoe"])


def test_splits_and_numbered_nodes() -> None:
    nodes = {"x": [1.0, 2.0, 3.0], "y": [1, 0, None], "split": ["train", "test", None]}
    graph = eg.from_tables(nodes, {"a": [0, 1], "b": [1, 2]}, undirected=False)
    assert graph.splits.reshape(-1).tolist() == [0, 2, -1]
    assert graph.y.tolist() == [1, 0, -1]
    assert graph.edge_index.tolist() == [[0, 1], [1, 2]]
    assert graph.directed


def test_networkx_vectors_directions_and_multigraphs() -> None:
    graph = nx.MultiDiGraph()
    graph.add_node(10, x=[1.0, 2.0], y="p")
    graph.add_node(20, x=[3.0, 4.0], y="q")
    graph.add_edge(10, 20)
    graph.add_edge(10, 20)
    made = eg.from_networkx(graph, undirected=False)
    assert (made.edge_index.tolist(), made.feature_names) == ([[0], [1]], ["x[0]", "x[1]"])
    assert made.attributes["id"].values.tolist() == [10, 20]
    with pytest.warns(EvergraphWarning, match="read in both"):
        assert as_graph(graph).num_edges == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        assert as_graph(nx.Graph(graph)).num_edges == 2


def test_npz_in_the_words_of_pyg(tmp_path: Path) -> None:
    x, edges = np.eye(4, dtype=np.float32), np.array([[0, 1, 2], [1, 2, 3]])
    mask = np.array([True, True, False, False])
    parts = {"x": x, "edge_index": edges, "y": np.array(["a", "b", "", "a"]), "edge_weight": np.array([1.0, 2, 3])}
    np.savez(tmp_path / "g.npz", **parts, train_mask=mask, val_mask=~mask, feature_names=list("wxyz"))
    graph = as_graph(tmp_path / "g.npz", undirected=True)
    assert (graph.class_names, graph.y.tolist(), graph.feature_names) == (["a", "b"], [0, 1, -1, 0], list("wxyz"))
    assert graph.splits.reshape(-1).tolist() == [0, 0, 1, 1]
    assert graph.adjacency.dense()[1].tolist() == [1, 0, 2, 0]


def test_what_was_done_with_features_is_said(tables: Path) -> None:
    with pytest.warns(EvergraphWarning) as told:
        eg.from_tables("people.csv", "follows.csv", label="role", missing="mean", undirected=True)
    text = "\n".join(str(entry.message) for entry in told)
    assert "columns of text are not features: 'city'" in text
    assert "1 of 8 features are missing, in column 'height' (1); filled in with the mean of the column" in text
    with pytest.warns(EvergraphWarning, match="whole numbers, read as amounts"):
        eg.make_graph(np.array([[1, 7], [2, 3]]), np.zeros((2, 0), int))
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        eg.make_graph(np.array([[1, 0], [0, 1]]), np.zeros((2, 0), int))
        eg.make_graph(np.eye(40_000, 3, dtype=bool) | [True, False, False], np.zeros((2, 0), int))  # rare is not small


def test_numbers_that_may_be_ids_are_not_passed_over_in_silence() -> None:
    """Edges that name customers would join other rows, and nothing would look wrong."""
    nodes, edges = {"customer": [2, 0, 1], "age": [1.5, 2.5, 3.5]}, {"from": [0, 1], "to": [1, 2]}
    with pytest.warns(
        EvergraphWarning, match="called by the number of their row.*the column 'customer', give id=custom"
    ):
        assert eg.from_tables(nodes, edges).feature_names == ["customer", "age"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        made = eg.from_tables(nodes, edges, id="customer", undirected=True)
    assert made.adjacency.dense().tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]  # customers 0, 1 and 2 in a row
    assert made.feature_names == ["age"]


def test_an_index_that_pandas_wrote_is_no_feature(tables: Path) -> None:
    """The number of a row would be learned as if it said something."""
    people, follows = pd.read_csv("people.csv").drop(columns=["city", "height"]), pd.read_csv("follows.csv")
    wanted = eg.from_tables(people, follows, label="role", undirected=True)
    for number, column in enumerate(("''", "'', 'Unnamed: 0'", "'', 'Unnamed: 0.1', 'Unnamed: 0'")):
        people.to_csv(f"people-{number}.csv")
        follows.to_csv(f"follows-{number}.csv")
        with pytest.warns(EvergraphWarning) as told:
            made = eg.from_tables(f"people-{number}.csv", f"follows-{number}.csv", label="role", undirected=True)
        notes = [str(note.message) for note in told]
        assert [note.partition(" looks like an index written by pandas")[0] for note in notes] == [
            f"people-{number}: column {column}",
            f"follows-{number}.csv: column {column}",
        ]
        assert alike(made, wanted)
        people, follows = pd.read_csv(f"people-{number}.csv"), pd.read_csv(f"follows-{number}.csv")
    people.set_index("id", drop=False).rename_axis(None).to_parquet("index.parquet")
    assert "__index_level_0__" not in (eg.from_tables("index.parquet", label="role").feature_names or ())


def test_an_index_that_is_asked_for_is_read(tables: Path) -> None:
    nodes = {"": ["ada", "bob"], "Unnamed: 0": [7.0, 8.0], "age": [1.0, 2.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        made = eg.from_tables(nodes, {"": ["ada"], "to": ["bob"]}, id="", features=["Unnamed: 0"], undirected=True)
    assert made.attributes["id"].names == ["ada", "bob"]
    assert (made.x.tolist(), made.num_edges) == ([[7.0], [8.0]], 2)
    pd.DataFrame({"one": ["ada"], "other": ["bob"], "amount": [2.0]}).to_csv("amounts.csv")
    with pytest.warns(EvergraphWarning) as told:
        eg.from_tables(nodes, "amounts.csv", id="", source="one", target="other", features=["age"], undirected=True)
    assert any("columns not read: amount (weight=amount" in str(note.message) for note in told)


def test_empty_cells_among_dates_and_decimals_are_no_names() -> None:
    days = [date(2024, 1, 1), None, date(2024, 1, 2)]
    for labels in (days, pd.to_datetime(days), pd.PeriodIndex(days, freq="D")):
        graph = eg.from_tables({"x": [1.0, 2.0, 3.0], "label": labels})
        assert graph.y.tolist() == [0, -1, 1]
        assert [name[:10] for name in graph.class_names] == ["2024-01-01", "2024-01-02"]
    graph = eg.from_tables({"x": [1.0, 2.0, 3.0], "label": [Decimal(1), None, Decimal("NaN")]})
    assert (graph.y.tolist(), graph.class_names) == ([1, -1, -1], [0, 1])
    with pytest.raises(eg.EvergraphError, match="row 2 has nothing in column 'id'"):
        eg.from_tables({"x": [1.0, 2.0, 3.0], "id": days})
    with pytest.raises(eg.EvergraphError, match="row 1 has nothing in column 'target'"):
        eg.from_tables({"x": [1.0], "id": days[:1]}, {"source": [days[0], days[0]], "target": [None, days[0]]})
    assert eg.from_tables({"x": [1.0, 2.0], "split": [None, None]}).splits.tolist() == [[-1], [-1]]


def test_decimals_and_long_whole_numbers_are_numbers(tables: Path) -> None:
    price, ids = [Decimal("1.50"), None, Decimal("2.00")], [Decimal(10) ** 20, Decimal(10) ** 20 + 1, Decimal("7.00")]
    nodes = pd.DataFrame({"price": price, "id": ids})
    nodes.to_parquet("prices.parquet")
    with pytest.warns(EvergraphWarning, match="filled in"):
        graph = eg.from_tables("prices.parquet", missing="zero")
    assert (graph.feature_names, graph.x.tolist()) == (["price"], [[1.5], [0.0], [2.0]])
    edges = {"source": [10**20 + 1], "target": [7]}
    graph = eg.from_tables(nodes.assign(price=1.5), edges, undirected=True)
    assert graph.edge_index.tolist() == [[2, 1], [1, 2]]  # ids keep all their digits
    with pytest.raises(eg.EvergraphError, match="divide the column by a constant"):
        eg.from_tables({"price": [2**64, 1]})


def test_an_empty_column_is_missing_in_every_kind_of_table(tables: Path) -> None:
    Path("half.csv").write_text("age,size,label\n1,,a\n2,NA,b\n")
    for table in ("half.csv", {"age": [1, 2], "size": [None, None], "label": ["a", "b"]}):
        with pytest.raises(eg.EvergraphError, match="column 'size' has no value at all"):
            eg.from_tables(table)
        with pytest.warns(EvergraphWarning, match="filled in with 0"):
            assert eg.from_tables(table, missing="zero").x.tolist() == [[1, 0], [2, 0]]
    Path("blank.csv").write_text("x,label,split\n1,,\n2,,\n")
    graph = eg.from_tables("blank.csv")
    assert (graph.y.tolist(), graph.class_names, graph.splits.tolist()) == ([-1, -1], [], [[-1], [-1]])


@pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")
def test_suffixes_are_found_in_any_case(tables: Path) -> None:
    (tables / "JAN.CSV").write_text(PEOPLE.replace("cy,2,,", "cy,2,1,"))
    (tables / "LINKS.TSV").write_text(FOLLOWS.replace(",", "\t"))
    np.savez("plain.npz", x=np.eye(2), edge_index=[[0], [1]])
    Path("plain.npz").rename("FEB.NPZ")
    assert find_graph("JAN.CSV:edges=LINKS.TSV,label=role", undirected=True)[0].num_edges == 6
    assert find_graph("FEB.NPZ", undirected=True)[0].num_nodes == 2


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "people.csv": ({}, "a node table needs its edge list; write people.csv:edges=EDGES.csv"),
    "nobody.csv": ({}, "no file nobody.csv"),
    "people.csv:edges=nobody.csv": ({}, "no file nobody.csv"),
    "nobody.csv:edges=follows.csv": ({}, "no file nobody.csv"),
    "people.csv:edges=follows.csv,label=rule": ({}, "no column 'rule' for the classes; its columns are: id, age"),
    "people.csv:edges=follows.csv": ({}, "1 of 8 features are missing, in column 'height' (1); missing='mean'"),
    "people.csv:edges=follows.csv,features=city": ({}, "column 'city' holds text and cannot be a feature"),
    "people.csv:edges=follows.csv,missing=guess": ({}, "missing='guess'"),
    "people.csv,edges=follows.csv,missing=mean": (
        {},
        "follow a colon; write people.csv:edges=follows.csv,missing=mean",
    ),
    "people.csv,edges=follows.csv": ({}, "settings of a table follow a colon; write people.csv:edges=follows.csv"),
    "people.csv:edge=follows.csv": ({}, "unknown setting of people.csv 'edge'; choose one of: edges"),
    "people.csv:edges=far.csv,missing=zero": ({"far.csv": "a,b\nada,zoe\n"}, "line 2 names node 'zoe'"),
    "shop.csv:edges=sold.csv": (
        {"shop.csv": "product,x\np1,1\np2,2\n", "sold.csv": "from,to\np1,p2\n"},
        "line 2 names node 'p1', which is not in shop; its nodes are called 0 to 1 unless a column of ids is named "
        "(id=product)",
    ),
    "twice.csv:edges=none": ({"twice.csv": "id,x\na,1\na,2\n"}, "two nodes have the id 'a'"),
    "people.csv:edges=empty.csv,missing=zero": (
        {"empty.csv": "source,target\n"},
        "a graph without edges has no edge list",
    ),
    "empty.csv:edges=none": ({"empty.csv": "id,x\n"}, "empty.csv: no rows"),
    "ragged.csv:edges=none": ({"ragged.csv": "id,x\na,1\n\nb\n"}, "line 4 has 1 cell, but there are 2 columns"),
    "names.csv:edges=none": ({"names.csv": "x,x\n1,2\n"}, "two columns are called 'x'"),
    "text.csv:edges=none": ({"text.csv": "id,city\na,Rome\n"}, "no column of numbers to take as features"),
    "bytes.csv:edges=none": ({"bytes.csv": b"id,x\n\xff\xfe,1\n"}, "not a text table in UTF-8"),
    "latin.csv:edges=none": ({"latin.csv": "id,x\nZoë,1\n".encode("latin-1")}, "; save it as UTF-8"),
    "utf16.csv:edges=none": ({"utf16.csv": "id,x\nZoë,1\n".encode("utf-16")}, "; save it as UTF-8"),
    "utf16-le.csv:edges=none": ({"utf16-le.csv": "id,x\nada,1\n".encode("utf-16-le")}, "; save it as UTF-8"),
    "wide.csv:edges=none": ({"wide.csv": f"id,x\na,{'1' * 200_000}\n"}, "wide.csv: not a text table (field larger"),
    "people.csv.gz:edges=follows.csv": ({}, "people.csv.gz: cannot tell what this is; tables are .csv, .tsv or .parq"),
    "PEOPLE.TXT:edges=follows.csv,label=role": ({}, "PEOPLE.TXT: cannot tell what this is; tables are .csv, .tsv or"),
    "people.csv:edges=text.csv,missing=zero": (
        {"text.csv": "source,target,weight\n\nada,bob,1\nbob,ada,heavy\n"},
        "text.csv: line 4 has the weight 'heavy' in column 'weight'; weights are finite numbers of at least 0",
    ),
    "people.csv:edges=gap.csv,missing=zero,weight=w": (
        {"gap.csv": "source,target,w\nada,bob,1\nbob,ada,\n"},
        "gap.csv: line 3 has nothing in column 'w'; fill it in, or leave the row out",
    ),
    "people.csv:edges=below.csv,missing=zero": (
        {"below.csv": "source,target,weight\nada,bob,-1\n"},
        "below.csv: line 2 has the weight -1 in column 'weight'; weights are finite numbers of at least 0",
    ),
    "people.csv:edges=infinite.csv,missing=zero": (
        {"infinite.csv": "source,target,weight\nada,bob,inf\n"},
        "infinite.csv: line 2 has the weight inf in column 'weight'",
    ),
    "bad.parquet:edges=none": ({"bad.parquet": b"PAR1"}, "damaged or not a Parquet file"),
    "split.csv:edges=none": ({"split.csv": "x,split\n1,tran\n"}, "column 'split' holds 'tran'"),
    "thin.csv:edges=one.csv": ({"thin.csv": "x\n1\n", "one.csv": "source\n0\n"}, "one column alone"),
    "half.npz": ({"half.npz": {"x": np.eye(2)}}, "no edge_index inside"),
    "words.npz": (
        {"words.npz": {"features": np.eye(2), "edges": [[0], [1]], "labels": [0, 1]}},
        "words.npz: no x and no edge_index inside; a graph needs x and edge_index (and y to learn from), or the arrays",
    ),
    "mask.npz": (
        {"mask.npz": {"x": np.eye(2), "edge_index": [[0], [1]], "y": [0, 1], "train_mask": [1, 0]}},
        "train_mask is of type int64; a mask holds True/False for each of the 2 examples",
    ),
    "short.npz": (
        {"short.npz": {"x": np.eye(2), "edge_index": [[0], [1]], "y": [0, 1], "val_mask": [True]}},
        "val_mask has shape (1,); a mask holds True/False for each of the 2 examples",
    ),
    "names.npz": (
        {"names.npz": {"x": np.eye(2), "edge_index": np.zeros((2, 0), int), "feature_names": ["a"]}},
        "1 feature_names for 2 features",
    ),
    "far.npz": ({"far.npz": {"x": np.eye(2), "edge_index": [[0], [5]]}}, "an edge names node 5"),
    "nan.npz": ({"nan.npz": {"x": np.eye(2) * np.nan, "edge_index": [[0], [1]]}}, "features contain NaN"),
    "labels.npz": ({"labels.npz": {"x": np.eye(2), "edge_index": [[0], [1]], "y": ["a"]}}, "2 rows of features but 1"),
}


@pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")
@pytest.mark.parametrize("source", WRONG)
def test_wrong_input_is_one_line_and_status_2(evergraph, tables: Path, source: str) -> None:
    files, message = WRONG[source]
    for name, content in files.items():
        if isinstance(content, dict):
            np.savez(name, **content)
        else:
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, error = evergraph("learn", source, "--checkpoint", "kept")
    assert (status, out) == (2, "")
    assert message in error
    assert sum(line.startswith("error: ") for line in error.splitlines()) == 1
    assert "Traceback" not in error
    assert not Path("kept").exists()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.Graph(), "has no nodes"),
        (nx.path_graph(3), "have no attributes to take as features"),
        (nx.from_dict_of_lists({"a": ["b"]}), "have no attributes"),
        ("uneven", "'x' is not a vector of one length at every node: 1 value at node 0 and 2 values at node 1"),
        ("bare", "'x' is not a vector of one length at every node: 2 values at node 1 and nothing at node 0"),
        ("mixed", "'x' is not a vector of one length at every node: 2 values at node 0 and a number alone at node 1"),
        ("partial", "1 of 2 features are missing, in column 'size' (1)"),
    ],
)
def test_wrong_networkx_graphs(graph: Any, message: str) -> None:
    if isinstance(graph, str):
        made = nx.path_graph(2)
        nx.set_node_attributes(made, {"uneven": {0: [1.0], 1: [1.0, 2.0]}, "bare": {1: [1.0, 2.0]},
                                      "mixed": {0: [1.0, 2.0], 1: 3.0}, "partial": {0: 1.0}}[graph],
                               "size" if graph == "partial" else "x")  # fmt: skip
        graph = made
    with pytest.raises(eg.EvergraphError) as raised:
        as_graph(graph)
    assert message in str(raised.value)


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pa.table, "parquet", "array"])
@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([[1, 2], [3], [4, 5]], "2 values in row 1 and 1 value in row 2"),
        ([[1, 2], [3, 4], None], "2 values in row 1 and nothing in row 3"),
    ],
)
def test_vectors_of_unlike_lengths_name_the_column_and_the_rows(
    cells: list[Any], found: str, kind: Any, tmp_path: Path
) -> None:
    columns: Any = {"id": ["a", "b", "c"], "g": cells}
    if kind == "parquet":
        pd.DataFrame(columns).to_parquet(tmp_path / "nodes.parquet")
        columns = tmp_path / "nodes.parquet"
    elif kind == "array":
        columns["g"] = [None if cell is None else torch.tensor(cell) for cell in cells]
    else:
        columns = kind(columns)
    with pytest.raises(eg.EvergraphError) as raised:
        eg.from_tables(columns)
    assert str(raised.value).endswith(f"column 'g' is not a vector of one length in every row: {found}")


def test_an_edge_list_without_edges_says_what_to_give_instead(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\n")
    for edges, none in (
        (pd.DataFrame({"source": [], "target": []}), "None"),
        (tmp_path / "e.csv", "none; in Python None"),
    ):
        with pytest.raises(eg.EvergraphError, match=rf"no rows; .*has no edge list \(edges={none}\)"):
            eg.from_tables({"x": [1.0, 2.0]}, edges)


def test_uneven_vectors_of_vectors_are_refused_in_the_same_words() -> None:
    with pytest.raises(eg.EvergraphError, match=r"every row: 2 values in row 1 and lists of unequal lengths in row 2"):
        eg.from_tables({"g": [[1, 2], [[3], [4, 5]]]})
    with pytest.raises(eg.EvergraphError, match=r"^nodes: column 'g': .* is not an array"):
        eg.from_tables({"g": 2 * [[[3], [4, 5]]]})


def test_tables_in_the_place_of_a_graph_name_what_reads_them() -> None:
    columns = {"x": [1.0, 2.0], "label": ["a", "b"]}
    for table in (columns, pd.DataFrame(columns), pa.table(columns)):
        with pytest.raises(eg.EvergraphError, match=r"is not a graph; eg\.from_tables\(nodes, edges\) makes one"):
            eg.Learner().learn(table)
    with pytest.raises(eg.EvergraphError, match=r"a dict is not a graph; eg\.make_graph\(\*\*arrays\) makes one"):
        eg.Learner().learn({"x": np.eye(2), "edge_index": [[0], [1]], "y": [0, 1]})


def test_tables_that_are_none() -> None:
    for table, message in (
        (5, "5 is not a table"),
        ({"x": [1.0, 2.0], "y": [1]}, "columns of different lengths"),
        ({"x": 5}, "is not a list of values"),
        ({0: [1.0], "0": [2.0]}, "two columns are called '0'"),
        (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), "two columns are called 'a'"),
        ({}, "no rows"),
    ):
        with pytest.raises(eg.EvergraphError, match=message):
            eg.from_tables(table)


@pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")
def test_from_a_csv_to_a_prediction_with_a_reason(evergraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"p{i},{i % 3 == 0:d},{i % 3 == 1:d},{i % 3 == 2:d},{'abc'[i % 3]}" for i in range(60)]
    Path("nodes.csv").write_text("\n".join(["id,red,green,blue,label", *rows]))
    Path("edges.csv").write_text("\n".join(["source,target", *(f"p{i},p{i + 3}" for i in range(57))]))
    source = "nodes.csv:edges=edges.csv"
    assert evergraph("learn", source, "--checkpoint", "kept", "--hidden", "40")[0] == 0
    status, out, _ = evergraph("predict", source, "--checkpoint", "kept", "--nodes", "p4,p5", "--all-classes")
    assert status == 0
    assert [line.split(",")[:2] for line in out.splitlines()] == [["node", "class"], ["p4", "b"], ["p5", "c"]]
    assert out.splitlines()[0].endswith("p(a),p(b),p(c)")
    repeated = ("--nodes", "p4", "--nodes", "p5", "--classes", "a", "--classes", "b,c")
    assert evergraph("predict", source, "--checkpoint", "kept", "--all-classes", *repeated)[1] == out
    status, out, _ = evergraph("why", source, "--checkpoint", "kept", "--node", "p4", "--picture", "why.png")
    assert status == 0
    assert "node p4: 'b' with probability" in out
    assert "green +" in out
    assert Path("why.png").read_bytes().startswith(b"\x89PNG")


def test_the_files_that_a_table_is_read_from(tmp_path: Path) -> None:
    nodes, edges = tmp_path / "people.csv", tmp_path / "follows.csv"
    edges.touch()
    assert table_files(f"{nodes}:edges=follows.csv,label=role") == [nodes, edges]  # beside the nodes
    assert table_files(f"{nodes}:edges={edges}") == [nodes, edges]
    assert table_files(f"{nodes}:edges=none") == [nodes]


def test_the_line_of_a_row_counts_blank_lines_and_those_within_cells(tmp_path: Path) -> None:
    """The number is the one that an editor shows; a data frame has no lines, so its rows are counted."""
    nodes = {"id": ["a", "b"], "x": [1.0, 2.0]}
    (tmp_path / "e.csv").write_text('source,target,said\n\na,b,"one\n\ntwo"\n\na,zoe,three\n')
    with pytest.raises(eg.EvergraphError, match=r"e\.csv: line 7 names node 'zoe'"):
        eg.from_tables(nodes, tmp_path / "e.csv")
    with pytest.raises(eg.EvergraphError, match="the edges of nodes: row 2 names node 'zoe'"):
        eg.from_tables(nodes, {"source": ["a", "a"], "target": ["b", "zoe"]})
    with pytest.raises(
        eg.EvergraphError,
        match=r"the edges of nodes: row 2 has the weight -0\.125 in column .weight.; weights are finite",
    ):
        eg.from_tables(nodes, {"source": ["a", "b"], "target": ["b", "a"], "weight": [1, -0.125]})


def test_ids_beyond_64_bits_with_a_sign_are_names() -> None:
    ids = np.array([2**63 + 1, 2**63 + 2], dtype=np.uint64)
    made = eg.from_tables({"id": ids, "age": [1.0, 2.0]}, {"source": ids[:1], "target": ids[1:]}, undirected=True)
    assert made.attributes["id"].names == ["9223372036854775809", "9223372036854775810"]
    assert made.num_edges == 2
