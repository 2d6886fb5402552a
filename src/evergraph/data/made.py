"""Graphs that need no download: handwritten digits with a neighbour graph, and a generated block model."""

from __future__ import annotations

import numpy as np
from scipy import sparse as sp

from evergraph.data.graph import Graph, make_graph
from evergraph.errors import EvergraphError


def digits(neighbours: int = 8) -> Graph:
    """scikit-learn's 1,797 handwritten digits, each joined to its nearest neighbours in pixel space."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    data = load_digits()
    x = (data.data / 16.0).astype(np.float32)
    edges = sp.coo_matrix(kneighbors_graph(x, neighbours))
    return make_graph(x, np.stack([edges.col, edges.row]), data.target, undirected=True, name="digits")


def sbm(
    nodes: int = 2000,
    classes: int = 10,
    degree: float = 10.0,
    homophily: float = 0.8,
    features: int = 32,
    signal: float = 1.0,
    seed: int = 0,
) -> Graph:
    """A generated graph: classes of random sizes, edges mostly inside a class, noisy class features.

    Args:
        nodes: number of nodes.
        classes: number of classes; sizes vary by a factor of about two.
        degree: mean number of neighbours of a node.
        homophily: share of edges whose ends have one class (the rest join two classes).
        features: number of features; each is the class mean plus unit Gaussian noise.
        signal: norm of the class means.
        seed: the same seed gives the same graph, bit for bit.
    """
    if nodes < classes or classes < 1 or degree < 0 or features < 1 or not 0 <= homophily <= 1:
        raise EvergraphError(
            f"sbm: nodes={nodes}, classes={classes}, degree={degree}, homophily={homophily}, features={features} "
            "is impossible; nodes ≥ classes ≥ 1, degree ≥ 0, features ≥ 1 and homophily between 0 and 1"
        )
    random = np.random.default_rng(seed)
    share = random.uniform(1.0, 2.0, classes)
    y = np.sort(random.choice(classes, nodes, p=share / share.sum()))
    y[:classes] = np.arange(classes)  # every class exists
    y = np.sort(y)
    start = np.searchsorted(y, np.arange(classes + 1))
    size = np.diff(start)
    num_edges = int(nodes * degree / 2)
    source = random.integers(0, nodes, num_edges)
    own = y[source]
    inside = start[own] + (random.random(num_edges) * size[own]).astype(np.int64)
    # uniform over the nodes outside the own class: skip the own block
    outside = (random.random(num_edges) * np.maximum(nodes - size[own], 1)).astype(np.int64)
    outside = (np.where(outside >= start[own], outside + size[own], outside)) % nodes
    target = np.where(random.random(num_edges) < homophily, inside, outside)
    means = random.standard_normal((classes, features), dtype=np.float32)
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = random.standard_normal((nodes, features), dtype=np.float32)
    x += means[y]
    mixed = random.permutation(nodes)  # node numbers say nothing about the class
    return make_graph(
        x[np.argsort(mixed)],
        np.stack([mixed[source], mixed[target]]),
        y[np.argsort(mixed)],
        undirected=True,
        name="sbm",
    )
