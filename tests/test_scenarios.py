"""Scenarios: which examples belong to which task, what is known at test time, whose split it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.data.datasets.drift import drift, growing_links, growing_ratings
from evergraph.data.negatives import NEGATIVES
from evergraph.errors import EvergraphWarning
from test_problems import make_data

pytestmark = [
    pytest.mark.usefixtures("without_pictures"),
    pytest.mark.filterwarnings("ignore:.*no effect; .* learns in one pass"),
    pytest.mark.filterwarnings("ignore:.*join the ends of validation and test links"),
    pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both"),
]

SMALL = {"epochs": 2, "lr": 0.02, "batch_size": 16, "device": "cpu"}


def papers(nodes: int = 80) -> Data:
    """A PyG object with years and masks."""
    random = np.random.default_rng(0)
    data = Data(
        x=torch.tensor(random.random((nodes, 5)), dtype=torch.float32),
        edge_index=torch.tensor(random.integers(0, nodes, (2, 3 * nodes))),
        y=torch.arange(nodes) % 4,
    )
    data.year = torch.arange(nodes) // 10 + 2000
    return data


def with_masks(data: Data) -> Data:
    number = torch.arange(data.num_nodes)
    data.train_mask, data.val_mask, data.test_mask = number < 50, (number >= 50) & (number < 60), number >= 70
    return data


# a user's own split


@pytest.mark.parametrize("options", [{}, {"by": "year", "bins": 1}, {"scenario": "task"}])
def test_masks_are_respected(options: dict) -> None:
    data = with_masks(papers())
    if options.get("by"):
        data.year = torch.zeros_like(data.year)
        options = {"by": "year", "bins": 0}
    stream = eg.stream(data, classes_per_task=4, **options)
    assert len(stream) == 1
    assert [stream[0].train.numel(), stream[0].val.numel(), stream[0].test.numel()] == [50, 10, 10]
    assert stream[0].graph.num_nodes == 80  # nodes in no mask are still somebody's neighbours
    assert stream.protocol()["split"] == "as the data came"
    assert eg.stream(data, classes_per_task=4, split="random")[0].train.numel() == 48


def test_a_task_made_of_masked_data_trains_on_the_mask() -> None:
    task = eg.Task.of(with_masks(papers()))
    assert task.train.tolist() == list(range(50))
    assert task.test.tolist() == list(range(70, 80))
    everything = eg.Task.of(with_masks(papers()), hold_out=False)
    assert everything.train.tolist() == list(range(50))
    assert not everything.test.numel()
    learner = eg.Learner(eg.GCN(hidden=4), "finetune", **SMALL)
    learner.learn(task)
    assert learner.history[0]["nodes"] == 50


def test_of_several_splits_the_seed_takes_one() -> None:
    data = papers()
    masks = torch.rand(80, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    data.train_mask, data.val_mask, data.test_mask = masks, ~masks & False, ~masks
    for seed in range(5):
        task = eg.stream(data, classes_per_task=4, seed=seed)[0]
        assert task.train.tolist() == torch.nonzero(masks[:, seed % 3]).reshape(-1).tolist()


# tasks from attributes


def test_a_stream_by_year() -> None:
    stream = eg.stream(papers(), by="year")
    assert stream.task_names == [str(year) for year in range(2000, 2008)]
    assert stream.tasks_classes == [[0, 1, 2, 3]] * 8
    binned = eg.stream(papers(), by="year", bins=4, scenario="time")
    assert binned.task_names == ["2000–2001", "2002–2003", "2004–2005", "2006–2007"]
    assert [task.graph.num_nodes for task in binned] == [20] * 4
    assert binned.protocol()["scenario"] == "time-incremental"
    assert binned.candidates(0, 0) == [0, 1, 2, 3]
    together = eg.stream(papers(), by="year", bins=4, edges_between_tasks=True)
    assert [task.graph.num_nodes for task in together] == [20, 40, 60, 80]
    assert all(set(together[2].train.tolist()) <= set(range(40, 60)) for _ in [0])


def test_a_time_that_is_missing_is_refused_and_ids_make_no_tasks() -> None:
    graph = papers()
    graph.year = graph.year.double()
    graph.year[::7] = torch.nan
    with pytest.raises(eg.EvergraphError, match="'year' is missing at 12 of 80 examples"):
        eg.stream(graph, by="year", bins=4, scenario="time")
    table = eg.from_tables({"id": list("abcdef"), "f": [*range(6)], "label": [0, 1] * 3})
    with pytest.raises(eg.EvergraphError, match=r"scenario time needs an attribute; name one of f with by="):
        eg.stream(table, scenario="time")
    with pytest.raises(eg.EvergraphError, match="'f' is its only feature"):
        eg.stream(table, by="f")
    with pytest.raises(eg.EvergraphError, match="scenario time needs an attribute; it has none"):
        eg.stream(eg.make_graph(np.eye(6), [[], []], [0, 1] * 3), scenario="time")


def test_parts_of_tasks_are_disjoint_and_stable() -> None:
    stream = eg.stream(drift(nodes=200), scenario="time", bins=5, test_graph="seen")
    again = eg.stream(drift(nodes=200), scenario="time", bins=5)
    for task, same in zip(stream, again):
        assert task.train.tolist() == same.train.tolist()
        parts = torch.cat([task.train, task.val, task.test])
        assert parts.unique().numel() == parts.numel() == 40
    graph, examples = stream.tests(4, 1)
    assert graph.num_nodes == 200
    assert (graph.y[examples] == stream[1].graph.y[stream[1].test]).all()


def test_attributes_and_masks_of_links_and_graphs() -> None:
    data = Data(x=torch.randn(6, 3), edge_index=torch.zeros(2, 0, dtype=torch.long))
    data.edge_label_index, data.edge_label = torch.randint(6, (2, 40)), torch.arange(40) % 2
    data.edge_year, data.shop = 2000 + torch.arange(40) // 10, torch.arange(40) % 2
    assert eg.stream(data, by="year").task_names == ["2000", "2001", "2002", "2003"]
    assert len(eg.stream(data, by="shop")) == 2
    data.train_mask = torch.arange(40) < 30
    data.test_mask = ~data.train_mask
    assert eg.stream(data)[0].train.tolist() == list(range(30))
    graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor(n % 2)) for n in range(20)]
    for number, graph in enumerate(graphs):
        graph.year = 2000 + number // 10
    assert eg.stream(graphs, by="year").task_names == ["2000", "2001"]


def test_a_stream_by_year_on_the_command_line(evergraph, tmp_path) -> None:
    torch.save(papers(160), tmp_path / "papers.pt")
    words = [
        "run",
        tmp_path / "papers.pt",
        "--by",
        "year",
        "--bins",
        8,
        "--method",
        "ewc",
        "--epochs",
        1,
        "--hidden",
        4,
    ]
    status, out, err = evergraph(*words, "--out", tmp_path / "run", "--json")
    assert status == 0, err
    result = json.loads(out)
    assert len(result["matrices"][0]) == 8
    assert result["task_classes"][0] == ["2000–2001"]
    assert (result["protocol"]["by"], result["protocol"]["scenario"]) == ("year", "domain-incremental")


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_attributes_of_unsigned_numbers_make_domains(kind: type) -> None:
    years = (2020 + np.arange(20) % 2 if kind is not np.uint8 else np.arange(20) % 2).astype(kind)
    graph = eg.make_graph(np.eye(20), np.zeros((2, 0), int), np.arange(20) // 2 % 2, attributes={"year": years})
    stream = eg.stream(graph, by="year")
    assert [task.graph.num_nodes for task in stream] == [10, 10]


def test_names_make_domains() -> None:
    graph = eg.make_graph(
        np.eye(20), np.zeros((2, 0), int), np.arange(20) % 2, attributes={"shop": ["b", "a"] * 10, "day": np.arange(20)}
    )
    stream = eg.stream(graph, by="shop")
    assert stream.task_names == ["a", "b"]
    assert stream[0].graph.num_nodes == 10
    with pytest.raises(eg.EvergraphError, match="needs an attribute; name one of shop, day"):
        eg.stream(graph, scenario="domain")
    with pytest.raises(eg.EvergraphError, match="unknown attribute of graph 'year'"):
        eg.stream(graph, by="year")
    with pytest.raises(eg.EvergraphError, match="does not go with scenario class"):
        eg.stream(graph, by="shop", scenario="class")
    with pytest.raises(eg.EvergraphError, match="has 300 values, and each would be a task"):
        eg.stream(eg.make_graph(np.eye(300), np.zeros((2, 0), int), np.arange(300) % 2,
                                attributes={"day": np.arange(300)}), by="day")  # fmt: skip


@pytest.mark.parametrize("level", ["node", "graph", "link"])
@pytest.mark.parametrize("kind", ["labelling", "regression"])
def test_columns_arrive_in_turn(level: str, kind: str) -> None:
    """Every example comes in every task, in the same part, with other labels or numbers of it."""
    data = make_data(f"{level}-{kind}", 40)
    stream = eg.stream(data, classes_per_task=2, order=["2", "0", "1"])
    assert stream.task_names == ["2, 0", "1"]
    first, second = stream
    assert (~first.graph.y.isnan()).any(0).tolist() == [True, True, False]
    assert (~second.graph.y.isnan()).any(0).tolist() == [False, False, True]
    assert second.graph.y[:, 2].tolist() == data.y[:, 1].tolist()
    assert first.graph.num_examples == second.graph.num_examples == 40
    assert first.test.tolist() == second.test.tolist()
    assert first.train.tolist() == second.train.tolist()
    together = stream.so_far(1)
    assert together.train.numel() == 2 * first.train.numel()
    one = eg.Learner(eg.GCN(hidden=4), "lwf", label_scope="seen", **SMALL).fit(stream)
    assert one.classes_ == [2, 0, 1]
    alone, joined = (stream.tests(1, 0, graph) for graph in ("task", "seen"))
    assert torch.allclose(one.logits(*alone), one.logits(*joined), atol=1e-5)
    with pytest.raises(eg.EvergraphError, match="classes do not arrive in turn, so it cannot be cut"):
        eg.stream(data, pseudo_stream=True)


def test_a_single_label_needs_an_attribute() -> None:
    data = make_data("graph-labelling")
    single = data.altered(y=data.y[:, 1:2], class_names=[1])
    with pytest.raises(eg.EvergraphError, match="have one label or number each, and no class"):
        eg.stream(single)
    assert len(eg.stream(single, by="domain")) == 2


# classes that come again, boundaries that are not sharp


def test_a_class_that_comes_again_brings_new_examples() -> None:
    graph = drift(nodes=200, classes=4)
    stream = eg.TaskStream(graph, order=[["0", "1"], ["0", "2"], ["0", "3"]])
    sizes = [int((task.graph.y[task.train] == 0).sum()) for task in stream]
    assert max(sizes) - min(sizes) <= 1
    assert sum(task.graph.num_nodes for task in stream) == 200
    assert stream.candidates(1, 0) == [0, 1, 2]
    learner = eg.Learner(eg.GCN(hidden=4), "lwf", label_scope="seen", **SMALL).fit(stream)
    assert learner.classes_ == [0, 1, 2, 3]
    assert len(learner.evaluate(stream).accuracies) == 3


def test_blurry_boundaries() -> None:
    graph = drift(nodes=400, classes=4)
    sharp, blurry = eg.TaskStream(graph), eg.TaskStream(graph, blur=0.3)
    assert [task.test.numel() for task in sharp] == [task.test.numel() for task in blurry]
    assert sum(task.train.numel() for task in sharp) == sum(task.train.numel() for task in blurry)
    strangers = [int((task.graph.y[task.train] >= 2).sum()) for task in blurry]
    assert 0.15 < strangers[0] / blurry[0].train.numel() < 0.45
    assert blurry.tasks_classes[0] == [0, 1, 2, 3]
    assert blurry.protocol()["blur"] == 0.3
    eg.Learner(eg.GCN(hidden=4), "ewc", label_scope="seen", **SMALL).fit(blurry).evaluate(blurry)
    with pytest.raises(eg.EvergraphError, match="blur does not go with scenario task"):
        eg.TaskStream(graph, blur=0.1, scenario="task")


@pytest.mark.parametrize("method", ["finetune", "curvature", "ewc", "online-ewc", "mas", "si", "lwf", "analytic"])
def test_a_single_pass_without_boundaries(method: str) -> None:
    stream = eg.TaskStream(drift(nodes=120, classes=4))
    model = eg.RandomFeatures(hidden=10) if method == "analytic" else eg.GCN(hidden=4)
    learner = eg.Learner(model, method, label_scope="seen", **{**SMALL, "epochs": 1})
    for index, task in enumerate(stream):
        pieces = list(task.pieces(20))
        assert torch.cat([piece.train for piece in pieces]).tolist() == task.train.tolist()
        for piece in pieces:
            learner.learn(piece)
        assert len(learner.evaluate(stream, after=index).accuracies) == index + 1
    assert learner.num_tasks > len(stream)
    assert all(np.isfinite(learner.evaluate(stream, after=1).accuracies))


# links


def test_links_to_predict_are_no_edges() -> None:
    stream = eg.stream(growing_ratings(nodes=60, groups=3, links=300), by="time", bins=3, scenario="time")
    for task in stream:
        graph = task.graph
        edges = set(map(tuple, graph.edge_index.T.tolist()))
        ends = graph.members.indices.view(-1, 2)
        train = {pair for link in ends[task.train].tolist() for pair in (tuple(link), tuple(link[::-1]))}
        assert edges == {pair for pair in train if pair[0] != pair[1]}
    everything = stream.seen(2)
    assert everything.graph.num_edges > stream[0].graph.num_edges


def test_pairs_without_a_link_are_drawn_reproducibly() -> None:
    graph = growing_links(nodes=60, waves=2, groups=3, links=100)
    options = {"scenario": "time", "bins": 3, "problem": "link-prediction"}
    first, again, other = (eg.TaskStream(graph, seed=seed, **options) for seed in (0, 0, 1))
    ends = graph.members.indices.view(-1, 2).tolist()
    known = {pair for link in ends for pair in (tuple(link), tuple(link[::-1]))}
    for task, same, different in zip(first, again, other):
        assert task.graph.members.indices.tolist() == same.graph.members.indices.tolist()
        assert task.graph.members.indices.tolist() != different.graph.members.indices.tolist()
        for number, part in enumerate((task.train, task.val, task.test)):
            linked = task.graph.y[part, 0] > 0
            assert int((~linked).sum()) == NEGATIVES[number] * int(linked.sum())
            pairs = task.graph.members.rows(part[~linked]).indices.view(-1, 2).tolist()
            assert not {tuple(pair) for pair in pairs} & known


@pytest.mark.parametrize(
    ("values", "bins", "names"),
    [
        (np.arange(40) % 2 == 0, 0, ["False", "True"]),
        (1_234_567 + np.arange(40) // 20, 0, ["1234567", "1234568"]),
        (np.arange(40) // 20 + 0.5, 0, ["0.5", "1.5"]),
        (1_234_567 + np.arange(40), 2, ["1234567–1234586", "1234587–1234606"]),
        (1.6e9 + 86_400 * np.arange(40), 2, ["2020-09-13–2020-10-02", "2020-10-03–2020-10-22"]),
        (1.6e12 + 86_400_000 * np.arange(40), 2, ["2020-09-13–2020-10-02", "2020-10-03–2020-10-22"]),
        (np.datetime64("2020-01-01") + np.arange(40), 2, ["2020-01-01–2020-01-20", "2020-01-21–2020-02-09"]),
        (np.array([f"week {week:02}" for week in range(40)]), 2, ["week 00–week 19", "week 20–week 39"]),
    ],
)
def test_tasks_are_named_by_their_values(values: np.ndarray, bins: int, names: list[str]) -> None:
    graph = eg.make_graph(np.eye(40), [[], []], np.arange(40) // 2 % 2, attributes={"at": values})
    assert eg.stream(graph, by="at", scenario="time" if bins else "domain", bins=bins).task_names == names


def test_truth_values_of_a_pyg_object_define_tasks() -> None:
    data = Data(x=torch.eye(40), edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.arange(40) // 2 % 2)
    data.member = torch.arange(40) % 2 == 0
    assert eg.stream(data, by="member").task_names == ["False", "True"]


def test_a_missing_name_is_no_task() -> None:
    shops = np.array(["north", "south", "", "north"] * 10)
    graph = eg.make_graph(np.eye(40), [[], []], np.arange(40) // 2 % 2, attributes={"shop": shops})
    with pytest.raises(eg.EvergraphError, match="'shop' is missing at 10 of 40 examples"):
        eg.stream(graph, by="shop")


def shops(folder: Path) -> dict[str, Any]:
    """The same nodes in every kind of data: a year and two other columns of numbers, a country and a truth value."""
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) // 2 % 2
    year, country, open_ = 2000 + np.arange(40) // 20, np.array(["DE", "FR"] * 20), np.arange(40) % 4 < 2
    columns = {"a": x[:, 0], "b": x[:, 1], "year": year, "country": country, "open": open_}
    table = {"id": [f"n{i}" for i in range(40)], **{key: list(values) for key, values in columns.items()}, "y": y}
    network = nx.Graph()
    network.add_nodes_from((node, {key: table[key][row] for key in table}) for row, node in enumerate(table["id"]))
    np.savez(folder / "n.npz", x=x, edge_index=np.zeros((2, 0), int), y=y, year=year, country=country, open=open_)
    pd.DataFrame(table).to_csv(folder / "n.csv", index=False)
    return {"table": eg.from_tables(table), "networkx": network, "npz": folder / "n.npz"} | {
        "csv": f"{folder / 'n.csv'}:edges=none"
    }


@pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")
@pytest.mark.parametrize("kind", ["table", "networkx", "npz", "csv"])
def test_tasks_are_made_of_columns_of_tables_and_files(kind: str, tmp_path: Path) -> None:
    source = shops(tmp_path)[kind]
    for by, names in (("year", ["2000", "2001"]), ("country", ["DE", "FR"]), ("open", ["False", "True"])):
        stream = eg.stream(source, by=by)
        assert stream.task_names == names
        assert by not in (stream.graph.feature_names or ())
    with pytest.raises(eg.EvergraphError, match=r"unknown attribute .*'town'; choose one of: .*country"):
        eg.stream(source, by="town")


def test_a_column_that_defines_tasks_is_no_feature() -> None:
    table = {"a": np.arange(40.0), "year": 2000 + np.arange(40) // 20, "y": np.arange(40) % 2}
    with pytest.warns(EvergraphWarning, match="'year' defines the tasks and is no feature in this stream"):
        stream = eg.stream(eg.from_tables(table), by="year")
    assert stream.graph.feature_names == ["a"]
    assert torch.equal(stream.graph.x[:, 0], torch.arange(40.0))
