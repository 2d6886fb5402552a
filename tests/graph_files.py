"""Graph files that several tests write."""

import dataclasses
import gzip
import io
import zipfile
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import evergraph as eg
from evergraph.core.sparse import SparseMatrix
from evergraph.data import DATASETS
from evergraph.data.datasets.official import OfficialGraph


def official_graphs() -> dict[str, OfficialGraph]:
    """The published graphs behind the datasets' names."""
    owners = {name: getattr(dataset.load, "__self__", None) for name, dataset in DATASETS.items()}
    return {name: owner for name, owner in owners.items() if isinstance(owner, OfficialGraph)}


def change_official(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """Let every dataset that loads the published graph of this name load a changed one instead."""
    before = official_graphs()[name]
    after = dataclasses.replace(before, **changes)
    for known, dataset in list(DATASETS.items()):
        if official_graphs().get(known) is before:
            monkeypatch.setitem(DATASETS._entries, known, dataclasses.replace(dataset, load=after.load))


def npz_parts(graph: eg.Graph, x: np.ndarray | sp.csr_matrix) -> dict:
    """A graph in the GNN-benchmark layout, ready for `np.savez`."""
    adjacency = graph.adjacency.to_scipy()
    parts = {f"adj_{key}": getattr(adjacency, key) for key in ("data", "indices", "indptr", "shape")}
    if sp.issparse(x):
        parts |= {f"attr_{key}": getattr(x, key) for key in ("data", "indices", "indptr", "shape")}
    else:
        parts["attr_matrix"] = x
    return {**parts, "labels": graph.y.numpy()}


def skewed_graph(sizes: list[int], features: int = 20) -> eg.Graph:
    """A graph with classes of the given sizes."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    random = np.random.default_rng(0)
    edges = random.integers(0, y.size, (2, 3 * y.size))
    x = sp.random(y.size, features, 0.1, "csr", np.float32, random_state=1)
    return eg.make_graph(x, edges, random.permutation(y), undirected=True)


def npz_bytes(graph: eg.Graph) -> bytes:
    content = io.BytesIO()
    assert isinstance(graph.x, SparseMatrix)
    np.savez(content, **npz_parts(graph, graph.x.to_scipy()), attr_names=np.array([None], dtype=object))
    return content.getvalue()


def ogb_bytes(graph: eg.Graph) -> bytes:
    """A zip as OGB ships it: arxiv/raw/*.csv.gz and more."""
    source, target = graph.edge_index.numpy()
    forward = source < target
    tables = {
        "edge": (np.stack([source[forward], target[forward]], 1), "%d"),
        "node-feat": (graph.x.dense().numpy(), "%.6f"),
        "node-label": (graph.y.numpy()[:, None], "%d"),
        "num-node-list": (np.array([[graph.num_nodes]]), "%d"),
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, (table, form) in tables.items():
            text = io.StringIO()
            np.savetxt(text, table, form, delimiter=",")
            archive.writestr(f"arxiv/raw/{name}.csv.gz", gzip.compress(text.getvalue().encode()))
        archive.writestr("arxiv/raw/", "")
        archive.writestr("arxiv/RELEASE_v1.txt", "")
        archive.writestr("arxiv/split/time/test.csv.gz", gzip.compress(b"0\n"))
    return content.getvalue()
