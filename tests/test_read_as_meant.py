"""Input that was once read otherwise than it was meant, without a word: each is now refused, read right, or told of."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.data.files import as_graph, read_npz
from evergraph.errors import EvergraphWarning
from evergraph.methods.memory.budget import Budget
from evergraph.training.learned_data import learned_before

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both"),
    pytest.mark.filterwarnings("ignore:.*are in several masks"),
]

NUMBER = 40
X = np.random.default_rng(0).normal(size=(NUMBER, 3)).astype(np.float32)
EDGES = np.stack([np.arange(NUMBER), (np.arange(NUMBER) + 2) % NUMBER])
Y = np.arange(NUMBER) % 2
NODES = {
    "id": [f"n{i}" for i in range(NUMBER)],
    "label": [f"c{label}" for label in Y],
    "a": X[:, 0],
    "b": X[:, 1],
}
ENDS = {side: [f"n{i}" for i in ends] for side, ends in zip(("source", "target"), EDGES)}


def graph(**changes: Any) -> eg.Graph:
    given = {"x": X, "edge_index": EDGES, "y": Y, "undirected": True, **changes}
    return eg.make_graph(given.pop("x"), given.pop("edge_index"), given.pop("y"), **given)


def told(read: Any) -> str:
    with pytest.warns(EvergraphWarning) as notes:
        read()
    return "\n".join(str(note.message) for note in notes)


def learned(of: eg.Graph) -> eg.Learner:
    learner = eg.Learner(eg.RandomFeatures(hidden=16), "analytic")
    learner.learn(of)
    return learner


def test_a_note_points_to_the_line_of_the_user() -> None:
    """Not to the file of this package, or of torch, in which it arose."""
    data = Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), y=torch.tensor(Y))
    with pytest.warns(EvergraphWarning) as notes:
        eg.Learner(eg.RandomFeatures(hidden=16), "analytic", epochs=2).learn(data)
    assert {note.filename for note in notes} == {__file__}


# weights


def test_weights_are_found_under_any_case() -> None:
    made = eg.from_tables(NODES, {**ENDS, "Weight": [3.0] * NUMBER}, undirected=True)
    assert set(made.adjacency.values.tolist()) == {3.0}


def test_a_column_of_edges_that_is_not_read_is_named() -> None:
    edges = {**ENDS, "amount": [3.0] * NUMBER}
    assert "columns not read: amount (weight=amount" in told(lambda: eg.from_tables(NODES, edges, undirected=True))
    weighed = eg.from_tables(NODES, edges, weight="amount", undirected=True)
    assert set(weighed.adjacency.values.tolist()) == {3.0}


def test_an_attribute_of_networkx_edges_that_is_not_read_is_named() -> None:
    nx = pytest.importorskip("networkx")
    made = nx.path_graph(4)
    nx.set_node_attributes(made, 1.0, "x")
    nx.set_edge_attributes(made, 2.0, "amount")
    assert "'amount' is not read" in told(lambda: eg.from_networkx(made))
    assert set(eg.from_networkx(made, weight="amount").adjacency.values.tolist()) == {2.0}
    with pytest.raises(eg.EvergraphError, match="no edge has an attribute 'nothing'"):
        eg.from_networkx(made, weight="nothing")


@pytest.mark.parametrize("weight", [1e38, 1e-30])
def test_weights_whose_sums_are_lost_are_refused(weight: float) -> None:
    with pytest.raises(eg.EvergraphError, match=r"edge weights of up to .* multiply all weights by one constant"):
        graph(edge_weight=np.full(NUMBER, weight))


def test_a_tiny_weight_among_others_is_fine() -> None:
    weights = np.ones(NUMBER)
    weights[0] = 1e-30
    assert graph(edge_weight=weights).num_edges


def test_weights_that_vanish_beside_the_node_itself_are_told_of() -> None:
    assert "neighbours hardly count" in told(lambda: graph(edge_weight=np.full(NUMBER, 1e-7)))


def test_weights_that_are_all_zero_are_told_of() -> None:
    assert "every edge has the weight 0; such edges are dropped" in told(lambda: graph(edge_weight=np.zeros(NUMBER)))


# tables


def test_ids_and_classes_are_found_under_any_case() -> None:
    named = {"ID": NODES["id"], "Class": NODES["label"], "a": NODES["a"], "Y": NODES["b"]}
    made = eg.from_tables(named, ENDS, undirected=True)
    assert made.class_names == ["c0", "c1"]
    assert made.feature_names == ["a", "Y"]  # a coordinate, as likely as not
    assert made.attributes["id"].names is not None


def test_labels_among_the_features_are_told_of() -> None:
    nodes = {**NODES, "label": Y, "role": NODES["label"]}
    text = told(lambda: eg.from_tables(nodes, ENDS, label="role", undirected=True))
    assert "read as features: label" in text


def test_a_column_that_may_hold_the_classes_is_named() -> None:
    nodes = {"id": NODES["id"], "title": NODES["id"], "fruit": NODES["label"], "a": NODES["a"]}
    text = told(lambda: eg.from_tables(nodes, ENDS, undirected=True))
    assert "'title', 'fruit'; give each of their values a column of 0 and 1; if 'fruit' holds the classes" in text
    assert text.endswith("add label=fruit")
    several = told(lambda: eg.from_tables({**nodes, "town": NODES["label"]}, ENDS, undirected=True))
    assert several.endswith("if one of them holds the classes, add label=COLUMN")
    with pytest.warns(EvergraphWarning), pytest.raises(eg.EvergraphError, match=r"name a table's column.*label=COLUMN"):
        eg.Task.of(eg.from_tables(nodes, ENDS, undirected=True))
    assert "add label=" not in told(lambda: eg.from_tables({**nodes, "label": Y}, ENDS, undirected=True))


def test_the_cell_that_makes_a_column_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(
        "id,label,a,b\n" + "\n".join(f"n{i},c,{'1.5' if i != 7 else '1;5'},{i}" for i in range(9))
    )
    (tmp_path / "e.csv").write_text("source,target\nn0,n1\n")
    text = told(lambda: eg.from_tables(tmp_path / "n.csv", tmp_path / "e.csv", undirected=True))
    assert "'a' (line 9 holds '1;5')" in text


@pytest.mark.parametrize(
    "cells",
    [["1,5", "-,25", "2"], ["1,234", "12,345.5", "7"], ["5%", "7.5 %", ""], ["1.234,5", "1 234", "-3"], ["1,5e3", "0"]],
)
@pytest.mark.filterwarnings("ignore:.*columns of text are not features")
def test_numbers_written_as_people_write_them_are_told_of(cells: list[str]) -> None:
    """To take them for categories, as the note on text does, would throw the numbers away."""
    nodes = {**NODES, "price": [cells[i % len(cells)] for i in range(NUMBER)], "town": NODES["label"]}
    text = told(lambda: eg.from_tables(nodes, ENDS, undirected=True))
    assert f"their numbers are written as text: 'price' (row 1 holds {cells[0]!r}); write numbers with" in text
    assert "columns of text are not features: 'town';" in text
    for settings in ({"features": ["price"]}, {"label": "price", "numbers": True}):
        with pytest.raises(eg.EvergraphError, match=r"'price' \(row 1 holds .*; write numbers with a decimal point"):
            eg.from_tables({**NODES, "price": nodes["price"]}, ENDS, undirected=True, **settings)
    with pytest.raises(eg.EvergraphError, match=r"row 1 has the weight .*; write numbers with a decimal point"):
        eg.from_tables(NODES, {**ENDS, "weight": [cells[0]] * len(ENDS["source"])}, undirected=True)


def test_a_plain_number_is_not_one_written_as_text() -> None:
    """0.942 could be nine hundred and forty-two, and is not; of a column with both, the one as written is shown."""
    nodes = {**NODES, "a": ["abc", *["0.942"] * (NUMBER - 1)], "b": ["abc", "1,942", *["0.942"] * (NUMBER - 2)]}
    text = told(lambda: eg.from_tables({**nodes, "c": X[:, 0]}, ENDS, undirected=True))
    assert "columns of text are not features: 'a' (row 1 holds 'abc');" in text
    assert "their numbers are written as text: 'b' (row 2 holds '1,942');" in text


def as_parquet(columns: dict[str, Any], folder: Path, name: str) -> Path:
    pd.DataFrame(columns).to_parquet(folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


@pytest.mark.parametrize("kind", [list, pd.Series, pd.Categorical, as_parquet])
def test_weights_and_targets_that_are_text_are_numbers_all_the_same(kind: Any, tmp_path: Path) -> None:
    """They can be nothing else: a text file has no other kind of cells either."""

    def tables(cells: list[str]) -> tuple[Any, Any]:
        nodes, edges = {**NODES, "price": [*cells, *[""] * (NUMBER - 3)]}, {"source": ["n0", "n1", "n2"]}
        edges |= {"target": ["n1", "n2", "n3"], "weight": cells}
        if kind is as_parquet:
            return as_parquet(nodes, tmp_path, "n"), as_parquet(edges, tmp_path, "e")
        return {**nodes, "price": kind(nodes["price"])}, {**edges, "weight": kind(cells)}

    made = eg.from_tables(*tables(["0.5", "1", "1e1"]), label="price", numbers=True, undirected=False, features=["a"])
    assert made.adjacency.values.tolist() == [0.5, 1, 10]
    assert made.y[:3, 0].tolist() == [0.5, 1, 10]
    assert made.y[3:].isnan().all()
    for wrong in ("-1", "inf", "nan", "heavy", "1,5", "1_5", "١٥"):
        nodes, edges = tables(["0.5", wrong, "2"])
        called = "e.parquet" if kind is as_parquet else "the edges of nodes"
        message = f"{called}: row 2 has the weight '{wrong}' in column 'weight'; "
        with pytest.raises(eg.EvergraphError, match=message):
            eg.from_tables(nodes, edges, features=["a"])
    with pytest.raises(eg.EvergraphError, match=r"'price' \(row 2 holds 'heavy'\) holds text, which is no number"):
        eg.from_tables(tables(["0.5", "heavy", "2"])[0], label="price", numbers=True, features=["a"])


@pytest.mark.parametrize("cells", [["0.5", "1"], ["", "7", "8"], ["n/a", "-1e3"], ["08540", "10115"]])
def test_a_column_of_numbers_as_text_says_how_to_convert_it(cells: list[str]) -> None:
    """These may be codes, so that they are not converted without a word."""
    nodes = {"id": NODES["id"], "a": NODES["a"], "g": [cells[i % len(cells)] for i in range(NUMBER)]}
    row, cell = next((row, cell) for row, cell in enumerate(cells, start=1) if cell not in ("", "n/a"))
    text = told(lambda: eg.from_tables(nodes, ENDS, undirected=True))
    assert f"their numbers are written as text: 'g' (row {row} holds {cell!r}); convert them, e.g. with pandas" in text
    assert text.endswith("if they are codes; if 'g' holds the classes, add label=g")
    assert "columns of text" not in text
    with pytest.raises(eg.EvergraphError, match=rf"'g' \(row {row} holds '{cell}'\) holds numbers as text; convert"):
        eg.from_tables(nodes, ENDS, undirected=True, features=["g"])


@pytest.mark.parametrize("cell", ["1_5", "1_0.5", "١٥", "１.5"])
def test_what_only_python_reads_as_a_number_is_text(cell: str, tmp_path: Path) -> None:
    """`1_5` is a typing error for 1.5, not the number 15."""
    rows = "".join(f"n{i},{i},{cell if i == 7 else i}\n" for i in range(9))
    (tmp_path / "n.csv").write_text(f"id,a,b\n{rows}", encoding="utf-8")
    text = told(lambda: eg.from_tables(tmp_path / "n.csv", undirected=True))
    assert f"columns of text are not features: 'b' (line 9 holds {cell!r})" in text
    with pytest.raises(eg.EvergraphError, match=f"'b' .line 9 holds '{cell}'. holds text, which is no number"):
        eg.from_tables(tmp_path / "n.csv", label="b", numbers=True)
    nodes = {**NODES, "b": [cell, *["2"] * (NUMBER - 1)]}
    with pytest.raises(eg.EvergraphError, match=f"'b' .row 1 holds '{cell}'. holds text, which is no number"):
        eg.from_tables(nodes, label="b", numbers=True)


def test_a_column_of_text_that_may_weigh_edges_is_named() -> None:
    weighed = {**ENDS, "strength": ["2"] * len(ENDS["source"])}
    assert "(weight=strength would weigh" in told(lambda: eg.from_tables(NODES, weighed, undirected=True))


@pytest.mark.parametrize("cells", [["Jan 31", "Dec 24"], ["a,b", "1,5", "c"], ["10.0.0.1", "10.0.0.12"]])
def test_other_text_is_not_taken_for_numbers(cells: list[str]) -> None:
    nodes = {**NODES, "said": [cells[i % len(cells)] for i in range(NUMBER)]}
    assert "columns of text are not features: 'said';" in told(lambda: eg.from_tables(nodes, ENDS, undirected=True))


def test_names_of_classes_that_are_nearly_alike_are_told_of() -> None:
    names = ["spam", "Spam "] * (NUMBER // 2)
    assert "are two classes" in told(lambda: graph(y=names))
    learner = learned(graph(y=["spam", "ham"] * (NUMBER // 2)))
    text = told(lambda: learner.learn(graph(y=["SPAM", "eggs"] * (NUMBER // 2))))
    assert "class 'SPAM' is new, and the learner knows 'spam'" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "source", "target": "source"}, "cannot be both the source and the target"),
        ({"features": ["a", "a"]}, "feature 'a' is named twice"),
        ({"label": "id"}, "cannot hold both the ids and the classes"),
    ],
)
def test_one_column_in_two_places_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        eg.from_tables(NODES, ENDS, **settings)


@pytest.mark.parametrize(("value", "message"), [(1e300, r"holds 1e\+300"), (np.inf, "holds inf; give finite")])
def test_numbers_without_room_in_single_precision_name_their_column(value: float, message: str) -> None:
    column = X[:, 0].astype(np.float64)
    column[3] = value
    with pytest.raises(eg.EvergraphError, match=f"column 'a' {message}"):
        eg.from_tables({**NODES, "a": column}, ENDS)


def test_time_stamps_that_become_one_are_told_of() -> None:
    times = {**NODES, "time": 1_700_000_000 + np.arange(NUMBER)}
    assert "column 'time' can no longer be told apart" in told(lambda: eg.from_tables(times, ENDS, undirected=True))


def test_settings_given_twice_or_empty_are_refused(evergraph: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("n.csv").write_text("id,label,a\nn0,c,1\nn1,d,2\n")
    Path("e.csv").write_text("source,target\nn0,n1\n")
    for settings, message in (("edges=e.csv,edges=f.csv", "edges is given twice"), ("edges=", "edges= is empty")):
        code, _, stderr = evergraph("learn", f"n.csv:{settings}", "--checkpoint", "kept")
        assert code == 2
        assert message in stderr
    assert not Path("kept").exists()


# targets


def test_classes_in_columns_are_told_of() -> None:
    one_hot = np.eye(3)[np.arange(NUMBER) % 3]
    assert "if these are classes, give y.argmax(1)" in told(lambda: graph(y=one_hot))
    one_hot[3:5] = np.nan
    assert "single 1, and its 3 columns are read as labels" in told(lambda: graph(y=torch.tensor(one_hot)))
    several, unknown = np.eye(3)[np.arange(NUMBER) % 3], one_hot.copy()
    several[0], unknown[3, 0] = 1, 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvergraphWarning)
        for y in (several, several[:, :1] * 0.5, unknown, X):
            graph(y=y)


# masks


def pyg(**masks: Any) -> Data:
    return Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), y=torch.tensor(Y), **masks)


def test_test_nodes_are_not_trained_on_where_there_is_no_train_mask() -> None:
    test = torch.arange(NUMBER) < 10
    with pytest.warns(EvergraphWarning, match="there is no train_mask; what is outside test_mask is trained on"):
        task = eg.Task.of(pyg(test_mask=test))
    assert task.test.tolist() == list(range(10))
    assert task.train.tolist() == list(range(10, NUMBER))


def test_masks_without_training_nodes_name_the_graph_and_the_way_out(evergraph: Any, tmp_path: Path) -> None:
    torch.save(pyg(train_mask=torch.zeros(NUMBER, dtype=torch.bool)), tmp_path / "month.pt")
    status, _, error = evergraph("learn", tmp_path / "month.pt", "--checkpoint", tmp_path / "kept")
    assert status == 2
    assert "error: month, task 1: no training nodes; put some into the split (train_mask, or the column split" in error


def test_masks_of_different_numbers_of_splits_are_refused(evergraph: Any, tmp_path: Path) -> None:
    x, edges, y = np.eye(6), np.array([[0, 1], [1, 0]]), np.arange(6) % 2
    nodes = np.arange(6)
    masks = {"train_mask": np.tile(nodes[:, None] < 3, 10), "test_mask": np.tile(nodes[:, None] >= 3, 5)}
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges, y=y, **masks)
    status, out, error = evergraph("learn", tmp_path / "g.npz", "--checkpoint", tmp_path / "k")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "train_mask has shape (6, 10) and test_mask has shape (6, 5); give all masks as many columns" in error
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges, y=y, **{**masks, "test_mask": nodes >= 3})
    splits = read_npz(tmp_path / "g.npz").splits  # one column serves all splits
    assert splits is not None
    assert splits.tolist() == [[0 if node < 3 else 2] * 10 for node in range(6)]


def test_overlapping_masks_are_told_of() -> None:
    whole = torch.ones(NUMBER, dtype=torch.bool)
    with pytest.warns(EvergraphWarning, match="10 examples are in several masks"):
        eg.from_pyg(pyg(train_mask=torch.arange(NUMBER) < 10, test_mask=whole))


def test_masks_beside_a_graph_in_the_benchmark_layout_are_read(tmp_path: Path) -> None:
    import scipy.sparse as sp

    adjacency = sp.csr_matrix((np.ones(NUMBER), EDGES), shape=(NUMBER, NUMBER))
    parts = {"adj_indices": adjacency.indices, "adj_indptr": adjacency.indptr, "attr_matrix": X, "labels": Y}
    mask = np.arange(NUMBER) < 10
    np.savez(tmp_path / "g.npz", **parts, train_mask=~mask, test_mask=mask)
    assert eg.Task.of(read_npz(tmp_path / "g.npz", undirected=True)).test.tolist() == list(range(10))


# what was learned, and what is asked


def test_evaluating_checks_the_columns_as_predicting_does() -> None:
    learner = learned(graph(feature_names=list("abc")))
    turned = graph(x=X[:, ::-1].copy(), feature_names=list("cba"))
    with pytest.raises(eg.EvergraphError, match="feature 0 is 'c'"):
        learner.evaluate([turned])
    with pytest.raises(eg.EvergraphError, match="no feature 'c'; give the columns"):
        learner.predict(graph(x=X[:, :2], feature_names=list("ab")))


def test_pyg_objects_name_their_columns(tmp_path: Path) -> None:
    months = [
        Data(x=torch.tensor(X[:, order]), edge_index=torch.tensor(EDGES), y=torch.tensor(Y), feature_names=names)
        for order, names in (([0, 1, 2], list("abc")), ([2, 1, 0], np.array(list("cba"))))
    ]
    learner = learned(months[0])
    torch.save(months[0], tmp_path / "month.pt")
    learner.predict(tmp_path / "month.pt")
    with pytest.raises(eg.EvergraphError, match="feature 0 is 'c'"):
        learner.predict(months[1])
    links = Data(x=torch.tensor(X), edge_label_index=torch.tensor(EDGES), feature_names=list("abc"))
    assert as_graph(links).feature_names == list("abc")
    for month in months:
        month.y = 1
    assert as_graph([months[0], months[0]]).feature_names == list("abc")
    with pytest.raises(eg.EvergraphError, match="graph 1 of the list has other feature_names"):
        as_graph(months)


def test_test_nodes_that_were_trained_on_are_told_of(recwarn: pytest.WarningsRecorder) -> None:
    month = graph()
    learner = eg.Learner(eg.RandomFeatures(hidden=16), "analytic")
    learner.learn(eg.Task.of(month, hold_out=False))
    with pytest.warns(EvergraphWarning, match="8 of 8 test nodes were trained on"):
        learner.evaluate([month])
    recwarn.clear()
    learned(month).evaluate([month, graph(x=X + 1)])  # held out, and another graph
    assert not recwarn.list


def test_test_nodes_of_a_graph_that_was_learned_again_are_told_of(recwarn: pytest.WarningsRecorder) -> None:
    """Held out the first time, and trained on since; those forgotten in between do not count."""
    month = graph()
    learner, gone = learned(month), eg.Task.of(month).test[:3]
    learner.learn(eg.Task.of(month, hold_out=False))
    with pytest.warns(EvergraphWarning, match="8 of 8 test nodes were trained on"):
        learner.evaluate([month])
    learner.forget(gone, [month])
    with pytest.warns(EvergraphWarning, match="5 of 5 test nodes were trained on"):
        learner.evaluate([month])
    learner = learned(month)
    learner.learn(eg.Task.of(month))
    recwarn.clear()
    learner.evaluate([month])  # the same nodes were held out both times
    assert not recwarn.list


def pairs() -> np.ndarray:
    """Ends of some links."""
    ends = np.random.default_rng(0).integers(0, NUMBER, (2, 60))
    return ends[:, ends[0] != ends[1]]


KINDS = {
    "classes of links": lambda: eg.make_links(X, pairs(), pairs().sum(0) % 2, class_names=["odd", "even"]),
    "whether there is a link": lambda: eg.make_links(X, pairs(), negatives=True),
    "numbers": lambda: graph(y=X[:, :1], columns=True),
    "labels": lambda: graph(y=(X[:, :2] > 0).astype(float), columns=True),
}


@pytest.mark.parametrize("kind", ["classes of links", "whether there is a link"])
def test_test_links_that_were_trained_on_since_are_told_of(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    links = KINDS[kind]()
    learner = eg.Learner(eg.RandomFeatures(hidden=40), "analytic")
    learner.learn(links)
    recwarn.clear()
    learner.evaluate([links])
    assert not recwarn.list
    learner.learn(eg.Task.of(links, hold_out=False))
    tests = eg.Task.of(links).test
    trained = int((tests < links.num_examples).sum())  # pairs that were drawn are others in every split
    with pytest.warns(EvergraphWarning, match=f"{trained} of {tests.numel()} test links were trained on"):
        learner.evaluate([links])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_data_are_told_of_with_another_split_too(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    """All of them are learned first, then those that would be trained on, or the other way round."""
    data = KINDS[kind]()
    own, every = (eg.Task.of(data, hold_out=hold_out).train for hold_out in (True, False))
    own, every = (train[train < data.num_examples].numel() for train in (own, every))  # pairs drawn do not count
    learner = eg.Learner(eg.RandomFeatures(hidden=40), "analytic")
    learner.learn(eg.Task.of(data, hold_out=False))
    before = learned_before(learner, eg.Task.of(data), data)
    assert before is not None
    assert (before.examples, before.total, before.numbers, before.whole) == (own, own, [0], False)
    with pytest.warns(EvergraphWarning, match=f"{own} of {own} training .*s were learned already, in task 1"):
        learner.learn(data)
    learner = eg.Learner(eg.RandomFeatures(hidden=40), "analytic")
    learner.learn(data)
    before = learned_before(learner, eg.Task.of(data, hold_out=False), data)
    assert before is not None
    assert (before.examples, before.total) == (own, every)
    with pytest.warns(EvergraphWarning, match="this very task was learned already, as task 1"):
        learner.learn(data)
    recwarn.clear()
    learner.learn(data.altered(x=data.x + 1))  # another graph
    assert not [note for note in recwarn.list if "learned already" in str(note.message)]


def test_a_list_of_graphs_has_no_other_test_graph() -> None:
    learner, month = learned(graph()), graph()
    assert learner.evaluate([month], test_graph="task").ap == learner.evaluate([month]).ap
    with pytest.raises(eg.EvergraphError, match="test_graph='seen' joins the tasks of a stream"):
        learner.evaluate([month], test_graph="seen")
    with pytest.raises(eg.EvergraphError, match="unknown test graph 'other'"):
        learner.evaluate([month], test_graph="other")


@pytest.mark.parametrize("directed", [False, True])
def test_reading_both_directions_can_be_confirmed(directed: bool, evergraph, tmp_path: Path) -> None:
    np.savez(tmp_path / "one-way.npz", x=X, edge_index=EDGES, y=Y)
    words = ["convert", tmp_path / "one-way.npz", tmp_path / "folder"]
    status, _, err = evergraph(*words, "--directed" if directed else "--undirected")
    assert (status, err) == (0, "")
    assert as_graph(tmp_path / "folder").directed == directed
    made = graph(undirected=not directed)
    assert as_graph(made, undirected=not directed) is made
    for kept in (made, tmp_path / "folder"):
        with pytest.raises(eg.EvergraphError, match=r"made with its edges in .*direction.*; leave out undirected="):
            as_graph(kept, undirected=directed)


def test_a_graph_in_parts_keeps_its_directions(evergraph, tmp_path: Path) -> None:
    np.savez(tmp_path / "one-way.npz", x=X, edge_index=EDGES, y=Y)
    words = ["convert", tmp_path / "one-way.npz", tmp_path / "parts", "--parts", "2", "--directed"]
    assert evergraph(*words)[0] == 0
    for flag in ("--directed", "--undirected"):
        status, _, err = evergraph("learn", tmp_path / "parts", "--checkpoint", tmp_path / "learner", flag)
        assert status == 2
        assert f"parts is in parts, which keep the directions they were converted with; leave out {flag}" in err


@pytest.mark.parametrize("directed", [False, True])
def test_directions_that_differ_from_those_learned_are_told_of(directed: bool, tmp_path: Path) -> None:
    learner = learned(graph(undirected=not directed))
    learner.save(tmp_path / "kept")
    again = eg.Learner.load(tmp_path / "kept")
    assert "to read them alike" in told(lambda: again.predict(graph(undirected=directed)))


def test_an_edge_list_of_self_loops_is_told_of() -> None:
    assert "every edge joins a node to itself" in told(lambda: graph(edge_index=np.stack([EDGES[0]] * 2)))


# commands


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a graph in it, and a learner that has learned it."""
    monkeypatch.chdir(tmp_path)
    np.savez("month.npz", x=X, edge_index=EDGES, y=Y)
    learned(graph()).save("kept")
    return tmp_path


def test_predictions_never_overwrite_what_is_read(evergraph: Any, place: Path) -> None:
    Path("n.csv").write_text("id,label,a,b,c\n" + "\n".join(f"n{i},c,1,2,{i}" for i in range(9)) + "\n")
    Path("e.csv").write_text("source,target\nn0,n1\n")
    for out in ("n.csv", "./e.csv"):
        before = Path(out).read_text()
        code, _, stderr = evergraph("predict", "n.csv:edges=e.csv", "--checkpoint", "kept", "--out", out)
        assert code == 2
        assert "would overwrite" in stderr
        assert Path(out).read_text() == before


def test_a_learner_where_a_graph_is_expected_is_named(evergraph: Any, place: Path) -> None:
    code, _, stderr = evergraph("learn", "kept", "--checkpoint", "other")
    assert code == 2
    assert "kept is the folder of a learner" in stderr


def test_a_run_that_cannot_be_measured_leaves_nothing_behind(evergraph: Any, place: Path) -> None:
    Path("n.csv").write_text("id,label,a\n" + "\n".join(f"n{i},c{i % 2},{i}" for i in range(NUMBER)) + "\n")
    Path("e.csv").write_text("source,target\nn0,n1\n")
    code, _, stderr = evergraph("run", "n.csv:edges=e.csv", "--method", "finetune", "--by", "id", "--out", "run")
    assert code == 2
    assert "task 1 (n0) has no test nodes" in stderr
    assert not Path("run").exists()


def test_no_epochs_are_no_pass(evergraph: Any, place: Path) -> None:
    code, stdout, stderr = evergraph(
        "learn", "month.npz", "--checkpoint", "new", "--method", "finetune", "--hidden", "4", "--epochs", "0"
    )
    assert code == 0
    assert "in 0 epochs" in stdout
    assert "the network is not trained" in stderr


def test_a_memory_beyond_all_bounds_is_one_without_bounds() -> None:
    budget = Budget.of("er-gnn", "99999999999999999999", 1)
    assert budget.most_examples(NUMBER, torch.ones(5, dtype=torch.long)) == 5


# folders


def test_a_learner_can_be_read_by_whoever_can_read_the_folder(place: Path) -> None:
    modes = {path.stat().st_mode & 0o777 for path in Path("kept").iterdir()}
    assert len(modes) == 1


def test_a_file_that_may_not_be_read_is_not_called_damaged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # the tests may run as root
    with pytest.raises(eg.EvergraphError, match="permission denied"):
        eg.Learner.load("kept")


def test_a_learner_is_not_saved_without_a_name(place: Path) -> None:
    with pytest.raises(eg.EvergraphError, match="path is empty"):
        eg.Learner.load("kept").save("")


def test_settings_that_a_closed_form_does_not_read_are_named() -> None:
    stream = eg.stream("sbm:nodes=60,classes=4,features=6")
    with pytest.warns(eg.EvergraphWarning, match="epochs, lr: no effect; analytic learns in one pass"):
        eg.Learner(eg.RandomFeatures(hidden=40), "analytic", epochs=3, lr=0.1).learn(stream[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", eg.EvergraphWarning)
        eg.Learner(eg.RandomFeatures(hidden=40), "analytic").learn(stream[0])
        eg.Learner("finetune", epochs=1).learn(stream[0])
