"""A generated stochastic block model of any size."""

from __future__ import annotations

import numpy as np

from evergraph.core.settings import Fraction, NonNegative, PositiveInt, Seed, checked
from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.graph import Graph, make_graph
from evergraph.errors import EvergraphError


@checked
def sbm(
    nodes: PositiveInt = 2000,
    classes: PositiveInt = 10,
    degree: NonNegative = 10.0,
    homophily: Fraction = 0.8,
    features: PositiveInt = 32,
    signal: float = 1.0,
    seed: Seed = 0,
) -> Graph:
    """Generate a graph with classes of random sizes, edges mostly within a class, and noisy class features.

    Args:
        nodes: number of nodes.
        classes: number of classes; sizes vary by a factor of about two.
        degree: mean number of neighbours of a node (a little less, since duplicates and self-loops are dropped).
        homophily: share of edges whose ends have the same class (the rest join two classes).
        features: number of features; each is the class mean plus unit Gaussian noise.
        signal: norm of the class means.
        seed: the same seed gives the same graph, bit for bit.
    """
    if not (nodes >= classes and degree < nodes):
        raise EvergraphError(
            f"sbm: nodes={nodes}, classes={classes}, degree={degree:g} is impossible; it takes nodes ≥ classes and "
            "degree < nodes"
        )
    random = np.random.default_rng(seed)
    share = random.uniform(1.0, 2.0, classes)
    y = random.choice(classes, nodes, p=share / share.sum())
    y[:classes] = np.arange(classes)  # every class has a node
    y.sort()  # a class is a range of nodes until they are shuffled below
    start = np.searchsorted(y, np.arange(classes))
    size = np.bincount(y, minlength=classes)
    num_edges = int(nodes * degree / 2)
    source = random.integers(0, nodes, num_edges)
    class_of_source = y[source]
    inside = start[class_of_source] + _below(size[class_of_source], random)
    outside = _below(nodes - size[class_of_source], random)
    outside += np.where(outside >= start[class_of_source], size[class_of_source], 0)  # skip the source's class
    within = random.random(num_edges) < (homophily if classes > 1 else 1.0)
    target = np.where(within, inside, outside)
    means = random.standard_normal((classes, features), dtype=np.float32)
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = random.standard_normal((nodes, features), dtype=np.float32)
    x += means[y]
    new = random.permutation(nodes)  # so that node numbers say nothing about the class
    old = np.argsort(new)
    return make_graph(x[old], np.stack([new[source], new[target]]), y[old], undirected=True, name="sbm")


def _below(limits: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw random integers, each at least 0 and below its own limit."""
    return (random.random(limits.size) * limits).astype(np.int64)


DATASETS.register(
    Dataset(
        "sbm",
        lambda data_root, **settings: sbm(**settings),
        about="generated: sbm:nodes=2000,classes=10,degree=10,homophily=0.8,features=32,seed=0",
        settings_like=sbm,
    )
)
