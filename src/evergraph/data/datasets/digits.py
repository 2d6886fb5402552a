"""Handwritten digits with a neighbour graph: the stream that needs no download."""

from __future__ import annotations

import numpy as np
from scipy import sparse as sp

from evergraph.core.settings import PositiveInt, checked
from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.graph import Graph, make_graph


@checked
def digits(neighbours: PositiveInt = 8) -> Graph:
    """scikit-learn's 1,797 handwritten digits, each joined to its nearest neighbours in pixel space."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    data = load_digits()
    x = (data.data / 16.0).astype(np.float32)
    edges = sp.coo_matrix(kneighbors_graph(x, neighbours))
    return make_graph(x, np.stack([edges.col, edges.row]), data.target, undirected=True, name="digits")


DATASETS.register(
    Dataset(
        "digits",
        lambda data_root: digits(),
        about="scikit-learn's handwritten digits, 8-nearest-neighbour graph; no download",
    )
)
