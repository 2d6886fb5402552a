"""PyG objects whose edges are a transposed sparse adjacency, `adj_t`, as `ToSparseTensor` makes them."""

from __future__ import annotations

import copy
from typing import Any


def with_edge_index(data: Any) -> Any:
    """Return a PyG object with `edge_index`, made of `adj_t` if that is all it has; any other object as it is.

    Values other than 1 become `edge_weight`.
    """
    if getattr(data, "adj_t", None) is None or getattr(data, "edge_index", None) is not None:
        return data
    from torch_geometric.utils import to_edge_index

    ends, values = to_edge_index(data.adj_t)  # a row for each target
    made = copy.copy(data)
    made.edge_index = ends.flip(0)
    if values is not None and values.dim() == 1 and bool((values != 1).any()):
        made.edge_weight = values
    del made.adj_t
    return made
