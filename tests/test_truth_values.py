"""Labels that are truth values: the classes `False` and `True`, whatever they come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.data import as_graph
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphWarning

pytestmark = pytest.mark.filterwarnings("ignore::evergraph.errors.EvergraphWarning")

COUNT = 40
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((COUNT, 3)).astype(np.float32)
TRUE = X[:, 0] > 0
EDGES = np.stack([np.arange(COUNT), np.roll(np.arange(COUNT), 1)])
FRAME = pd.DataFrame({**{f"x{i}": X[:, i] for i in range(3)}, "label": TRUE})
WITH_GAPS = FRAME.assign(label=FRAME["label"].astype("boolean").where(np.arange(COUNT) > 1))


def networkx_graph(labels: list[Any]) -> nx.Graph:
    graph = nx.Graph()
    for node, label in enumerate(labels):
        graph.add_node(node, x=X[node].tolist(), **({} if label is None else {"label": label}))
    return graph


def written(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_parquet(path, index=False) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


GIVEN = {
    "frame": lambda folder: eg.from_tables(FRAME),
    "dictionary": lambda folder: eg.from_tables({column: FRAME[column].tolist() for column in FRAME}),
    "csv": lambda folder: eg.from_tables(written(FRAME, folder / "t.csv")),
    "parquet": lambda folder: eg.from_tables(written(FRAME, folder / "t.parquet")),
    "networkx": lambda folder: as_graph(networkx_graph(TRUE.tolist())),
    "array": lambda folder: eg.make_graph(X, EDGES, TRUE),
    "column": lambda folder: eg.make_graph(X, EDGES, TRUE[:, None]),
    "npz": lambda folder: as_graph(npz(folder / "g.npz", x=X, edge_index=EDGES, y=TRUE)),
    "data": lambda folder: as_graph(Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), y=torch.tensor(TRUE))),
    "links": lambda folder: eg.make_links(X, EDGES, TRUE),
    "graphs": lambda folder: as_graph(graphs([torch.tensor([value]) for value in TRUE.tolist()])),
    "graphs with values": lambda folder: as_graph(graphs(TRUE.tolist())),
}
GIVEN_WITH_GAPS = {
    "frame": lambda folder: eg.from_tables(WITH_GAPS),
    "objects": lambda folder: eg.from_tables(WITH_GAPS.assign(label=[None, None, *TRUE[2:].tolist()])),
    "csv": lambda folder: eg.from_tables(written(WITH_GAPS, folder / "t.csv")),
    "parquet": lambda folder: eg.from_tables(written(WITH_GAPS, folder / "t.parquet")),
    "networkx": lambda folder: as_graph(networkx_graph([None, None, *TRUE[2:].tolist()])),
    "array": lambda folder: eg.make_graph(X, EDGES, [None, float("nan"), *TRUE[2:].tolist()]),
    "graphs": lambda folder: as_graph(graphs([None, None, *(torch.tensor(value) for value in TRUE[2:].tolist())])),
}


def graphs(targets: list[Any]) -> list[Data]:
    return [Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), y=target) for target in targets]


@pytest.mark.parametrize("kind", GIVEN)
def test_truth_values_are_the_same_classes_in_all_that_is_read(kind: str, tmp_path: Path) -> None:
    graph = GIVEN[kind](tmp_path)
    assert graph.class_names == ["False", "True"]
    assert graph.y.tolist() == TRUE.astype(int).tolist()


@pytest.mark.parametrize("kind", GIVEN_WITH_GAPS)
def test_missing_truth_values_are_missing(kind: str, tmp_path: Path) -> None:
    graph = GIVEN_WITH_GAPS[kind](tmp_path)
    assert graph.class_names == ["False", "True"]
    assert graph.y.tolist() == [-1, -1, *TRUE[2:].astype(int).tolist()]


def test_truth_values_stay_numbers_where_numbers_are_asked_for() -> None:
    assert eg.make_graph(X, EDGES, TRUE, class_names=["no", "yes"]).y.tolist() == TRUE.astype(int).tolist()
    named = eg.from_tables(WITH_GAPS, class_names=["no", "yes"])
    assert named.y.tolist() == [-1, -1, *TRUE[2:].astype(int).tolist()]
    wide = eg.make_graph(X, EDGES, np.stack([TRUE, ~TRUE], 1))
    assert wide.y.tolist() == np.stack([TRUE, ~TRUE], 1).astype(float).tolist()
    assert eg.from_tables(FRAME, numbers=True).y[:, 0].tolist() == TRUE.astype(float).tolist()
    marked = eg.from_tables(FRAME.rename(columns={"label": "flag"}), features=["flag"])
    assert marked.x[:, 0].tolist() == TRUE.astype(float).tolist()


def test_a_learner_that_called_truth_values_by_numbers_learns_on(tmp_path: Path) -> None:
    earlier = eg.make_graph(X, EDGES, TRUE.astype(int))  # as earlier versions read truth values
    same = eg.make_graph(X, EDGES, TRUE)
    learner = eg.Learner("auto", device="cpu")
    learner.learn(earlier)
    before = learner.evaluate([earlier]).ap
    assert learner.learned_as(eg.Task.of(same)) == 0
    assert learner.evaluate([same]).ap == before
    with pytest.warns(EvergraphWarning, match="by numbers: False is its class 0 and True is its class 1"):
        learner.learn(eg.make_graph(X + 0.1, EDGES, TRUE))
    assert learner.classes_ == [0, 1]
    assert learner.forget([3], same) == 1


def test_a_command_does_not_learn_the_same_truth_values_again(evergraph: Any, tmp_path: Path) -> None:
    folder = ["--checkpoint", str(tmp_path / "k"), "--device", "cpu"]
    path = npz(tmp_path / "g.npz", x=X, edge_index=EDGES, y=TRUE.astype(int))
    assert evergraph("learn", str(path), *folder)[0] == 0
    npz(path, x=X, edge_index=EDGES, y=TRUE)
    status, _, err = evergraph("learn", str(path), *folder)
    assert (status, "learned already" in err) == (0, True)


def test_truth_values_are_no_names_of_other_numbers() -> None:
    assert as_known(["False", "True"], [0, 1]) == [0, 1]
    assert as_known(["False", "True"], [0, "True"]) == [0, "True"]
    for known in ([0, 1, 2], ["False", "True"], [0, 1, "False", "True"], ["0", "1"], []):
        assert as_known(["False", "True"], known) == ["False", "True"]
