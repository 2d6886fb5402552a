"""Handwritten digits with a neighbour graph: the stream that needs no download."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from evergraph.core.settings import PositiveInt, checked
from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.graph import Graph, make_graph
from evergraph.errors import EvergraphError


@checked
def digits(neighbours: PositiveInt = 8) -> Graph:
    """scikit-learn's 1,797 handwritten digits, each joined to its nearest neighbours in pixel space."""
    x, edges, y = _arrays(neighbours)
    return make_graph(x.copy(), edges.copy(), y.copy(), undirected=True, name="digits")


@functools.cache
def _arrays(neighbours: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return pixels, edges and labels, computed once per process."""
    from sklearn.datasets import load_digits

    data = load_digits()
    if neighbours >= len(data.data):
        raise EvergraphError(f"digits: neighbours={neighbours} must be below {len(data.data)}, the number of digits")
    nearest = nearest_rows(data.data, neighbours)
    edges = np.stack([nearest.reshape(-1), np.repeat(np.arange(len(nearest)), neighbours)])
    return (data.data / 16.0).astype(np.float32), edges, data.target


def nearest_rows(x: np.ndarray[Any, Any], neighbours: int) -> np.ndarray[Any, Any]:
    """Return the nearest rows of each row of whole numbers, in ascending order; of equally distant ones the first.

    Distances of whole numbers are exact, so the graph is the same on every machine, with any number of threads.
    """
    squares = np.square(x).sum(1)
    distance = squares[:, None] + squares - 2 * (x @ x.T)
    np.fill_diagonal(distance, np.inf)
    rank = distance * len(x) + np.arange(len(x))
    return np.sort(np.argpartition(rank, neighbours - 1, axis=1)[:, :neighbours], axis=1)


DATASETS.register(
    Dataset(
        "digits",
        lambda data_root: digits(),
        about="scikit-learn's handwritten digits, 8-nearest-neighbour graph; no download",
    )
)
