"""Readers for the layouts of public collections: TU graphs, OGB's graphs, MUSAE's countries, npz with masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from evergraph.data.arrays import native
from evergraph.data.datasets.official import read_csv_gz
from evergraph.data.datasets.pickled_arrays import read_pickled_npz
from evergraph.data.examples import make_graphs
from evergraph.data.files import read_npz
from evergraph.data.graph import Graph, make_graph
from evergraph.data.masked_layout import from_masked
from evergraph.errors import EvergraphError, first_line, tell
from evergraph.persistence.reading import DAMAGE, MissingFileError, read_json, read_rows, regular_file


def read_numbers(path: Path, kind: type = np.float64, delimiter: str = ",", skip: int = 0) -> np.ndarray:
    """Read a text file of numbers, one row per line, without its first `skip` lines."""
    try:
        regular_file(path)
    except MissingFileError:
        raise EvergraphError(f"{path} is missing; the folder must hold the collection's own files") from None
    try:
        return np.loadtxt(path, delimiter=delimiter, dtype=kind, skiprows=skip, ndmin=2)
    except (OSError, ValueError) as error:
        raise EvergraphError(f"{path}: damaged ({first_line(error)})") from None


def read_tu(folder: Path) -> Graph:
    """Read graphs in the TU collection's layout: `NAME_A.txt`, `NAME_graph_indicator.txt`, `NAME_graph_labels.txt`, ….

    Features are the node attributes, standardized to mean 0 and standard deviation 1 over all nodes (some are
    percentages, some lengths), then the one-hot node labels; ones if there are neither.
    """
    found = sorted(folder.glob("*_graph_indicator.txt"))
    if not found:
        raise EvergraphError(f"{folder}: no NAME_graph_indicator.txt inside; expected the TU collection's layout")
    prefix = found[0].name.removesuffix("_graph_indicator.txt")
    owner = read_numbers(found[0], np.int64).reshape(-1) - 1
    edges = read_numbers(folder / f"{prefix}_A.txt", np.int64).T - 1
    labels = read_numbers(folder / f"{prefix}_graph_labels.txt", np.int64).reshape(-1)
    parts = []
    if (folder / f"{prefix}_node_attributes.txt").exists():
        values = read_numbers(folder / f"{prefix}_node_attributes.txt", np.float32)
        parts.append((values - values.mean(0)) / np.maximum(values.std(0), 1e-12))
    if (folder / f"{prefix}_node_labels.txt").exists():
        kinds = read_numbers(folder / f"{prefix}_node_labels.txt", np.int64)[:, 0]
        parts.append((kinds[:, None] == np.unique(kinds)).astype(np.float32))
    x = np.concatenate(parts, axis=1) if parts else np.ones((owner.size, 1), np.float32)
    if unused := [kind for kind in ("labels", "attributes") if (folder / f"{prefix}_edge_{kind}.txt").exists()]:
        tell(f"{prefix}: the {' and '.join(unused)} of its edges are not used")
    names = np.unique(labels)
    return make_graphs(
        x, edges, owner, np.searchsorted(names, labels), class_names=names.tolist(), undirected=True, name=prefix
    )


def read_ogb_graphs(folder: Path, *, columns: bool, features_of_edges: bool = False) -> Graph:
    """Read graphs in OGB's raw layout: numbers of nodes and edges per graph, edges, features and labels as csv.gz.

    Args:
        folder: the `raw` folder.
        columns: labels are columns (molhiv), not classes (ppa).
        features_of_edges: a node's features are the mean of its edges' features (ppa has no node features).
    """
    sizes = read_csv_gz(folder / "num-node-list.csv.gz", np.int64).reshape(-1)
    edge_counts = read_csv_gz(folder / "num-edge-list.csv.gz", np.int64).reshape(-1)
    starts = np.concatenate([[0], sizes.cumsum()[:-1]])
    edges = read_csv_gz(folder / "edge.csv.gz", np.int64).T + np.repeat(starts, edge_counts)
    owner = np.repeat(np.arange(sizes.size), sizes)
    if features_of_edges:
        x = mean_over_edges(read_csv_gz(folder / "edge-feat.csv.gz", np.float32), edges, owner.size)
    else:
        x = read_csv_gz(folder / "node-feat.csv.gz", np.float32)
        if (folder / "edge-feat.csv.gz").exists():
            tell(f"{folder.parent.name}: the features of its edges are not used")
    y = read_csv_gz(folder / "graph-label.csv.gz", np.float64)
    y = y if columns else np.where(np.isnan(y), -1, y)
    return make_graphs(x, edges, owner, y, undirected=True, columns=columns, name=folder.parent.name)


def mean_over_edges(features: np.ndarray, edges: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return, for each node, the mean of the features of the edges that touch it."""
    ends, numbers = edges.reshape(-1), np.tile(np.arange(edges.shape[1]), 2)
    touches = sp.csr_matrix((np.ones(ends.size, np.float32), (ends, numbers)), shape=(num_nodes, edges.shape[1]))
    counts = np.maximum(np.asarray(touches.sum(1)), 1)
    return np.asarray(touches @ features, dtype=np.float32) / counts


def read_masked_npz(path: Path) -> Graph:
    """Read a graph in the heterophilous-graphs collection's layout: `node_features`, `node_labels`, `edges`, masks.

    Files in the layouts of the GNN-benchmark and GraphData collections (`adj_matrix`, `node_attr`, `node_label`) are
    read too: copies of these graphs come in all three.
    """
    regular_file(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            parts: dict[str, Any] = {}
            names = file.files
            if "node_features" in names:
                parts = {key: native(file[key]) for key in names}
    except DAMAGE as error:
        raise EvergraphError(f"{path}: damaged or not an npz file ({first_line(error)})") from None
    if "adj_matrix" in names:
        return _read_graph_data(path)
    if not parts:
        return read_npz(path, named_classes=False, undirected=True)
    return from_masked(parts, path, undirected=True)


def _read_graph_data(path: Path) -> Graph:
    """Read a graph of the GraphData collection; its labels are renumbered from 0, in ascending order."""
    parts = read_pickled_npz(path)
    try:
        edges = np.stack(parts["adj_matrix"].nonzero())
        labels = np.unique(parts["node_label"], return_inverse=True)[1].reshape(-1)
        return make_graph(parts["node_attr"], edges, labels, undirected=True)
    except (KeyError, AttributeError) as error:
        raise EvergraphError(f"{path}: not in the GraphData layout ({first_line(error)})") from None


def read_countries(folder: Path, countries: tuple[str, ...]) -> Graph:
    """Read the graphs of several countries, which share their features, as one; the attribute `domain` is the country.

    Each country has one npz file (`DE.npz`), or the three files of the MUSAE collection (`musae_DE_edges.csv`, …).
    """
    graphs = [_country(folder, name) for name in countries]
    width = max(graph["x"].shape[1] for graph in graphs)
    sizes = [graph["x"].shape[0] for graph in graphs]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for graph in graphs:
        graph["x"].resize(graph["x"].shape[0], width)
    return make_graph(
        sp.vstack([graph["x"] for graph in graphs]).tocsr(),
        np.concatenate([graph["edges"] + start for graph, start in zip(graphs, starts)], axis=1),
        np.concatenate([graph["y"] for graph in graphs]),
        undirected=True,
        attributes={"domain": np.repeat(countries, sizes)},
    )


def _country(folder: Path, name: str) -> dict[str, Any]:
    if (folder / f"{name}.npz").exists():
        graph = read_npz(folder / f"{name}.npz", named_classes=False, undirected=True)
        return {"x": _scipy(graph), "edges": graph.edge_index.numpy(), "y": graph.y.numpy()}
    files = {key: folder / f"musae_{name}_{key}" for key in ("edges.csv", "features.json", "target.csv")}
    for file in files.values():
        if not file.exists():
            raise EvergraphError(f"{file} is missing; the folder must hold {name}.npz or the MUSAE files")
    edges = read_numbers(files["edges.csv"], np.int64, skip=1).T
    known, rows = read_json(files["features.json"], dict[str, list[int]]), read_rows(files["target.csv"])
    try:
        y = np.zeros(1 + max(int(row["new_id"]) for row in rows), np.int64)  # some rows occur twice
        for row in rows:
            y[int(row["new_id"])] = row["mature"].strip().lower() == "true"
        pairs = np.array([(int(key), word) for key, words in known.items() for word in words], np.int64).T
    except (ValueError, KeyError, IndexError) as error:
        raise EvergraphError(f"{folder}: the MUSAE files of {name} are damaged ({first_line(error)})") from None
    shape = (y.size, int(pairs[1].max()) + 1)
    return {
        "x": sp.csr_matrix((np.ones(pairs.shape[1], np.float32), tuple(pairs)), shape=shape),
        "edges": edges,
        "y": y,
    }


def _scipy(graph: Graph) -> sp.csr_matrix:
    x = graph.x
    return sp.csr_matrix(x.to_scipy() if hasattr(x, "to_scipy") else x.numpy())
