"""Arrays in the layout of the heterophilous-graphs collection: `node_features`, `node_labels`, `edges`, masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from evergraph.data.attributes import masks_as_splits
from evergraph.data.graph import Graph, make_graph
from evergraph.errors import EvergraphError

NEEDED = ("node_features", "edges")
MASKS = ("train_masks", "val_masks", "test_masks")
MEMBERS = (*NEEDED, "node_labels", *MASKS)
SPARSE_ABOVE = 0.7  # share of zeros


def from_masked(
    parts: Mapping[str, np.ndarray],
    path: Path,
    *,
    name: str = "graph",
    class_names: Sequence[Any] | None = None,
    feature_names: Sequence[str] | None = None,
    undirected: bool | None = None,
    numbers: bool = False,
) -> Graph:
    """Make a graph from such arrays: edges as rows of two ends, masks with a row for each split."""
    if missing := [key for key in NEEDED if key not in parts]:
        raise EvergraphError(f"{path}: no {' and no '.join(missing)} inside, which go with {', '.join(parts)}")
    x, edges, count = parts["node_features"], parts["edges"], len(parts["node_features"])
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise EvergraphError(f"{path}: edges have shape {edges.shape}; give the two ends of an edge in each row")
    masks = {key[:-1]: np.atleast_2d(parts[key]).T.astype(bool) for key in MASKS if key in parts}
    if odd := [mask.shape for mask in masks.values() if mask.shape != (count, next(iter(masks.values())).shape[1])]:
        raise EvergraphError(
            f"{path}: a mask has shape {odd[0][::-1]}; give all masks a row for each split, of {count} nodes"
        )
    sparse = sp.csr_matrix(x) if x.ndim == 2 and (x == 0).mean() > SPARSE_ABOVE else x
    return make_graph(
        sparse,
        edges.T,
        parts.get("node_labels"),
        class_names=class_names,
        undirected=undirected,
        name=name,
        splits=masks_as_splits(SimpleNamespace(**masks), count, str(path)),
        feature_names=feature_names,
        columns=numbers,
    )
