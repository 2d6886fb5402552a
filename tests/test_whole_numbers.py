"""Whole numbers (counts, ages) are targets to predict as numbers where such a problem is asked for."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.data import find_graph
from evergraph.errors import EvergraphWarning

pytestmark = pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")
COUNT = 60
X = np.random.default_rng(0).normal(size=(COUNT, 3)).astype(np.float32)
EDGES = np.stack([np.arange(COUNT - 1), np.arange(1, COUNT)])
COUNTS = np.round(10 * X[:, 0]).astype(np.float64)  # below zero, and -1 among them
COUNTS[3] = np.nan


def sources(folder: Path) -> dict[str, Any]:
    """The same targets in every kind of data."""
    data = Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), y=torch.tensor(COUNTS))
    torch.save(data, folder / "counts.pt")
    np.savez(folder / "counts.npz", x=X, edge_index=EDGES, y=COUNTS)
    frame = pd.DataFrame({"id": range(COUNT), **{f"f{i}": X[:, i] for i in range(3)}, "y": COUNTS})
    frame.to_csv(folder / "nodes.csv", index=False)
    pd.DataFrame(EDGES.T, columns=["source", "target"]).to_csv(folder / "edges.csv", index=False)
    network = nx.Graph()
    for node in range(COUNT):
        network.add_node(node, x=X[node].tolist(), y=None if np.isnan(COUNTS[node]) else float(COUNTS[node]))
    network.add_edges_from(EDGES.T.tolist())
    return {
        "pt": str(folder / "counts.pt"),
        "npz": str(folder / "counts.npz"),
        "csv": f"{folder / 'nodes.csv'}:edges={folder / 'edges.csv'}",
        "data": data,
        "networkx": network,
    }


@pytest.mark.parametrize("kind", ["pt", "npz", "csv", "data", "networkx"])
def test_counts_are_numbers_where_the_problem_says_so(kind: str, tmp_path: Path) -> None:
    source = sources(tmp_path)[kind]
    graph = find_graph(source, numbers=True)[0]
    assert graph.y.shape == (COUNT, 1)
    np.testing.assert_array_equal(graph.y[:, 0].numpy(), COUNTS.astype(np.float32))
    learner = eg.Learner(eg.RandomFeatures(hidden=60), "analytic", problem="node-regression")
    learner.learn(source)
    assert isinstance(learner.predict(source, [5]).labels[0], float)
    assert 0 < learner.evaluate([source]).accuracies[0] < 10


def test_graphs_and_links_with_counts(tmp_path: Path) -> None:
    graphs = [Data(x=torch.tensor(X[:4]), edge_index=torch.tensor(EDGES[:, :3]), y=float(i - 1)) for i in range(6)]
    assert eg.Task.of(graphs, numbers=True).graph.y[:, 0].tolist() == [-1, 0, 1, 2, 3, 4]
    links = Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), edge_label_index=torch.tensor(EDGES[:, :9]))
    links.edge_label = torch.arange(9) - 4
    task = eg.Task.of(links, numbers=True)
    assert task.graph.y[:, 0].tolist() == list(range(-4, 5))
    learner = eg.Learner("analytic", problem="link-regression")
    learner.learn(links)


def test_a_graph_made_before_is_read_anew() -> None:
    graph = eg.make_graph(X, EDGES, np.arange(COUNT) % 7 - 1)
    task = eg.Task.of(graph, numbers=True)
    assert bool(task.graph.y[0].isnan())
    assert task.graph.y[1:7, 0].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(eg.EvergraphError, match=r"Task.of\(graph, numbers=True\)"):
        eg.Learner("analytic", problem="node-regression").learn(eg.Task.of(graph))
    named = eg.make_graph(X, EDGES, ["ham", "spam"] * (COUNT // 2))
    with pytest.raises(eg.EvergraphError, match="no numbers to predict"):
        eg.Task.of(named, numbers=True)
    with pytest.raises(eg.EvergraphError, match="--problem node-regression"):
        eg.make_graph(X, EDGES, COUNTS + 0.5)


def test_the_commands_take_counts_as_numbers(tmp_path: Path, evergraph: Callable[..., tuple[int, str, str]]) -> None:
    known, later = sources(tmp_path), tmp_path / "later.npz"
    np.savez(later, x=X, edge_index=EDGES, y=np.abs(np.nan_to_num(COUNTS)))
    asked = ("--problem", "node-regression", "--method", "analytic", "--hidden", "60")
    for kind in ("csv", "pt"):
        folder = tmp_path / f"kept-{kind}"
        assert evergraph("learn", known[kind], "--checkpoint", folder, *asked)[0] == 0
        assert evergraph("learn", later, "--checkpoint", folder)[0] == 0  # the learner knows what it is about
        status, out, _ = evergraph("predict", known[kind], "--checkpoint", folder, "--nodes", "5,6")
        assert (status, out.splitlines()[0]) == (0, "node,0")


def test_a_run_takes_counts_as_numbers(
    tmp_path: Path, evergraph: Callable[..., tuple[int, str, str]], without_pictures: None
) -> None:
    data = sources(tmp_path)["data"]
    data.year = torch.arange(COUNT) // 20
    torch.save(data, tmp_path / "years.pt")
    words = (
        "run",
        tmp_path / "years.pt",
        "--by",
        "year",
        "--problem",
        "node-regression",
        "--method",
        "analytic",
        "--hidden",
        "60",
    )
    results = []
    for more in ((), ("--resume",)):
        status, _, err = evergraph(*words, "--out", tmp_path / "run", *more)
        assert status == 0, err
        results.append(json.loads((tmp_path / "run/result.json").read_text()))
    assert results[0] == results[1]
    assert results[0]["protocol"]["problem"] == "node-regression"
    assert results[0]["protocol"]["tasks"] == len({*data.year.tolist()})


def test_a_number_that_was_read_as_no_label_is_told_of() -> None:
    numbers = np.array([-1, 2, 3, -1, 5, 6] * 5)
    edges = np.stack([np.arange(29), np.arange(1, 30)])
    as_classes = eg.make_graph(X[:30], edges, numbers, undirected=True)
    with pytest.warns(EvergraphWarning, match=r"10 of 30 nodes have no label and so no number; .*columns=True"):
        assert int(eg.Task.of(as_classes, numbers=True).graph.y.isnan().sum()) == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = eg.Task.of(eg.make_graph(X[:30], edges, numbers, undirected=True, columns=True), numbers=True)
        assert not kept.graph.y.isnan().any()


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (("learn",), "analytic"),
        (("run",), "curvature"),  # two of the columns in each task
        (("run", "--scenario", "class"), "curvature"),
        (("run", "--task-incremental"), "curvature"),
        (("run", "--by", "year"), "analytic"),
        (("run", "--scenario", "time"), "analytic"),
    ],
)
def test_the_default_method_of_several_numbers_depends_on_what_a_task_is(
    words: tuple[str, ...],
    method: str,
    evergraph,  # type: ignore[no-untyped-def]
    tmp_path: Path,
) -> None:
    y, year = torch.randn(COUNT, 4), torch.arange(COUNT) % 2
    data = Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), y=y, year=year)
    torch.save(data, tmp_path / "numbers.pt")
    command, *options = words
    few = ("--epochs", 1, "--hidden", 20, "--device", "cpu")
    place = ("--checkpoint" if command == "learn" else "--out", tmp_path / "made")
    status, out, err = evergraph(command, tmp_path / "numbers.pt", *options, *few, *place, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert (found["method"] if command == "run" else eg.Learner.load(tmp_path / "made").method.name) == method
