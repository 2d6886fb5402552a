"""Handwritten digits with a neighbour graph: the stream that needs no download."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from scipy import sparse as sp

from evergraph.core.settings import PositiveInt, checked
from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.graph import Graph, make_graph


@checked
def digits(neighbours: PositiveInt = 8) -> Graph:
    """scikit-learn's 1,797 handwritten digits, each joined to its nearest neighbours in pixel space."""
    x, edges, y = _arrays(neighbours)
    return make_graph(x.copy(), edges.copy(), y.copy(), undirected=True, name="digits")


@functools.cache
def _arrays(neighbours: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pixels, edges and labels, read and compared once however many runs of a process want them."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    data = load_digits()
    x = (data.data / 16.0).astype(np.float32)
    edges = sp.coo_matrix(kneighbors_graph(x, neighbours))
    return x, np.stack([edges.col, edges.row]), data.target


DATASETS.register(
    Dataset(
        "digits",
        lambda data_root: digits(),
        about="scikit-learn's handwritten digits, 8-nearest-neighbour graph; no download",
    )
)
