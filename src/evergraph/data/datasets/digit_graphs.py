"""Handwritten digits as graphs of their pixels: streams of graphs that need no download."""

from __future__ import annotations

from typing import Any

import numpy as np

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.examples import make_graphs
from evergraph.data.graph import Graph

SIDE = 8


def digit_graphs(numbers: bool = False) -> Graph:
    """scikit-learn's 1,797 handwritten digits, each a graph of its inked pixels, joined to up to 8 inked neighbours.

    A pixel's features are its ink, its position, and its row and column one-hot. Each graph has the attribute `domain`,
    its digit.

    Args:
        numbers: the target is not the digit but how far the drawing leans, to the right for even and to the left for
            odd digits: the covariance of row and column under its ink, standardized over all digits, with a sign that
            depends on the digit. What is right for one digit is wrong for the next.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    ink = data.images / 16.0
    inked = ink > 0
    graph, row, column = np.nonzero(inked)
    number = np.full(inked.shape, -1)
    number[inked] = np.arange(graph.size)
    edges = []
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        inside = (row + down < SIDE) & (column + right >= 0) & (column + right < SIDE)
        other = np.full(graph.size, -1)
        other[inside] = number[graph[inside], row[inside] + down, column[inside] + right]
        edges.append(np.stack([np.arange(graph.size), other])[:, other >= 0])
    place = np.eye(SIDE)
    parts = [ink[inked][:, None], np.stack([row, column], 1) / SIDE - 0.5, place[row], place[column]]
    x = np.concatenate(parts, axis=1)
    shared: dict[str, Any] = {"undirected": True, "attributes": {"domain": data.target.astype(str)}}
    if not numbers:
        return make_graphs(x.astype(np.float32), np.concatenate(edges, axis=1), graph, data.target, **shared)
    total = ink.sum((1, 2))
    rows, columns = (np.tensordot(ink, grid, 2) / total for grid in np.mgrid[:SIDE, :SIDE])
    down, right = (grid - mean[:, None, None] for grid, mean in zip(np.mgrid[:SIDE, :SIDE], (rows, columns)))
    slant = (ink * down * right).sum((1, 2)) / total
    slant = (slant - slant.mean()) / slant.std() * np.where(data.target % 2, -1, 1)
    return make_graphs(
        x.astype(np.float32), np.concatenate(edges, axis=1), graph, slant[:, None], columns=True,
        class_names=["slant"], **shared,
    )  # fmt: skip


DATASETS.register(
    Dataset(
        "digit-graphs",
        lambda data_root: digit_graphs(),
        about="scikit-learn's handwritten digits as graphs of pixels; no download",
        problem="graph-classification",
    )
)
DATASETS.register(
    Dataset(
        "digit-slants",
        lambda data_root: digit_graphs(numbers=True),
        about="the same graphs; how far each drawing leans, a digit a task; no download",
        problem="graph-regression",
        scenario="domain",
        stream={"by": "domain"},
    )
)
