"""Graph files that several tests write."""

import numpy as np
import scipy.sparse as sp

import evergraph as eg


def npz_parts(graph: eg.Graph, x: np.ndarray | sp.csr_matrix) -> dict:
    """A graph in the GNN-benchmark layout, ready for `np.savez`."""
    adjacency = graph.adjacency.to_scipy()
    parts = {f"adj_{key}": getattr(adjacency, key) for key in ("data", "indices", "indptr", "shape")}
    if sp.issparse(x):
        parts |= {f"attr_{key}": getattr(x, key) for key in ("data", "indices", "indptr", "shape")}
    else:
        parts["attr_matrix"] = x
    return {**parts, "labels": graph.y.numpy()}
