"""Check user-given arrays and convert them to the package's types: features, edges, weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from evergraph.core.features import Features
from evergraph.core.sparse import SparseMatrix
from evergraph.errors import EvergraphError, first_line, shown, tell

SMALLEST = 1e-18  # if all features are smaller, or one larger than its inverse, their squares are lost in float32
LARGEST = 1 / SMALLEST  # for features and edge weights
EXACT = 2**24  # float32 represents whole numbers up to this one; beyond, neighbouring ones coincide
FAINT = 1e-3  # sum of a typical node's edge weights below which its neighbours hardly count beside the node itself
UNEVEN = 100.0  # a column larger than this times the typical size outweighs the others


def as_array(values: Any, what: str = "") -> np.ndarray:
    """Convert values on any device to a NumPy array of native types; `what` names them in messages."""
    try:
        return native(values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values))
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        called = f"{what}: " if what else ""
        raise EvergraphError(f"{called}{shown(values)} is not an array ({first_line(error)})") from None


def native(array: np.ndarray) -> np.ndarray:
    """Convert an array to native byte order, and long doubles, which torch does not support, to doubles."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def read_features(x: Any, name: str, feature_names: Sequence[str] | None = None) -> Features:
    """Check that features are finite, one row per node; convert all but float64 to float32. Sparse stays sparse."""
    if isinstance(x, Tensor) and x.dtype != torch.float64 and x.is_floating_point():
        x = x.float()  # NumPy does not support all of torch's short floats
    if isinstance(x, Tensor) and x.layout != torch.strided:
        coo = x.detach().cpu().to_sparse_coo().coalesce()
        x = sp.coo_matrix((coo.values().numpy(), coo.indices().numpy()), shape=tuple(coo.shape))
    sparse = sp.issparse(x)
    # of a tensor, torch goes on to count the edits in place (`evergraph.core.edits`); of its NumPy array it does not
    given = x.detach() if isinstance(x, Tensor) and not x.is_inference() else None
    if not sparse:
        x = as_array(x)
    elif x.dtype.kind == "f" and x.dtype.itemsize > 8:  # as in `native`
        x = x.astype(np.float64)
    if x.ndim != 2 or 0 in x.shape:
        raise EvergraphError(f"{name}: features have shape {tuple(x.shape)}; they must be (nodes, features), not empty")
    if feature_names is not None and len(feature_names) != x.shape[1]:
        raise EvergraphError(f"{name}: {len(feature_names)} feature_names for {x.shape[1]} features; give one for each")
    if x.dtype.kind not in "fiub":
        raise EvergraphError(f"{name}: features are of type {x.dtype}; they must be real numbers")
    dtype = torch.float64 if x.dtype == np.float64 else torch.float32
    features: Features
    if sparse:
        features = SparseMatrix.from_scipy(x, dtype)
    else:
        features = (torch.as_tensor(x) if given is None else given.cpu()).to(dtype)
    values = features.values if isinstance(features, SparseMatrix) else features
    if not bool(torch.isfinite(values).all()):
        wrong = int((~torch.isfinite(values)).sum())
        raise EvergraphError(
            f"{name}: features contain NaN or infinite values ({wrong:,} of them); clean or impute them first, "
            "e.g. with numpy.nan_to_num"
        )
    largest = float(values.abs().max()) if values.numel() else 0.0
    if largest > LARGEST or 0 < largest < SMALLEST:
        raise EvergraphError(
            f"{name}: features of up to {largest:.0e}; squares of such numbers overflow or vanish in single "
            "precision: divide the columns by constants of your own, the same for every task"
        )
    if x.dtype.kind in "iu" and values.numel() and float(values.max()) > 1:
        tell(f"{name}: features are whole numbers, read as amounts; give codes of categories a column of 0 and 1 each")
        if not sparse:
            tell_of_lost_digits(x, feature_names, name)
    return features


def tell_of_lost_digits(x: np.ndarray, feature_names: Sequence[str] | None, name: str) -> None:
    """Warn about columns too coarse in single precision: timestamps and long ids differ only in their last digits."""
    lost = []
    for column in np.nonzero(np.nanmax(np.abs(x), axis=0, initial=0) > EXACT)[0].tolist():
        values = np.unique(x[:, column])
        if 2 * np.unique(values.astype(np.float32)).size <= values.size:
            lost.append(str(column) if feature_names is None else repr(feature_names[column]))
    if lost:
        tell(
            f"{name}: in single precision most values of column {', '.join(lost[:4])} can no longer be told apart; "
            "subtract a constant from it, the same for every task"
        )


def outweighing_column(x: Tensor) -> int | None:
    """Return the column that outweighs the others, by the root mean square of its non-zero entries; None for none."""
    counts = x.count_nonzero(0)
    sizes = torch.linalg.vector_norm(x, dim=0, dtype=torch.float64) / counts.clamp(min=1).sqrt()
    typical, largest = float(sizes[counts > 0].median()) if bool(counts.any()) else 0.0, int(sizes.argmax())
    return largest if float(sizes[largest]) > UNEVEN * typical > 0 else None


def read_edges(edge_index: Any, num_nodes: int, name: str, argument: str = "edge_index") -> np.ndarray:
    """Check and convert pairs of node numbers; `argument` is their name in messages."""
    edges = as_array(edge_index)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise EvergraphError(f"{name}: {argument} has shape {tuple(edges.shape)}; it must be (2, number of edges)")
    if edges.size and edges.dtype.kind not in "iu":
        raise EvergraphError(f"{name}: {argument} is of type {edges.dtype}; node numbers are integers")
    if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
        wrong = edges.max() if edges.max() >= num_nodes else edges.min()
        one = "an edge" if argument == "edge_index" else f"one of {argument}"
        raise EvergraphError(f"{name}: {one} names node {int(wrong)}, but nodes run from 0 to {num_nodes - 1}")
    return edges


def read_weights(edge_weight: Any, num_edges: int, name: str) -> np.ndarray | None:
    """Check and convert edge weights: one finite, non-negative number per edge; None if edges have none."""
    if edge_weight is None:
        return None
    weights = as_array(edge_weight)
    if weights.dtype.kind not in "fiub":
        raise EvergraphError(f"{name}: edge_weight is of type {weights.dtype}; weights are numbers")
    if weights.size != num_edges or weights.shape not in {(num_edges,), (num_edges, 1)}:
        raise EvergraphError(
            f"{name}: edge_weight has shape {tuple(weights.shape)} for {num_edges} edges; give one weight per edge"
        )
    weights = weights.reshape(-1)
    if weights.size and not (np.isfinite(weights).all() and weights.min() >= 0):
        wrong = weights[~(np.isfinite(weights) & (weights >= 0))][0]
        raise EvergraphError(f"{name}: an edge has the weight {wrong:g}; weights are finite and at least 0")
    largest = float(weights.max(initial=0))
    if largest > LARGEST or 0 < largest < SMALLEST:
        raise EvergraphError(
            f"{name}: edge weights of up to {largest:.0e}; sums of such numbers overflow or vanish in single "
            "precision: multiply all weights by one constant"
        )
    return weights.astype(np.float32)


def make_adjacency(
    edges: np.ndarray,
    num_nodes: int,
    undirected: bool | None,
    *,
    weights: np.ndarray | None = None,
    name: str = "graph",
) -> SparseMatrix:
    """Return the in-neighbour lists of a clean graph: each edge once, sorted, no self-loops."""
    source, target = (np.asarray(side, dtype=np.int64) for side in edges)
    keep = source != target
    values = np.ones(int(keep.sum()), dtype=np.float32) if weights is None else weights[keep]
    matrix = sp.csr_matrix((values, (target[keep], source[keep])), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    if weights is None:
        matrix.data[:] = 1.0
    matrix.eliminate_zeros()
    if source.size and not keep.any():
        tell(f"{name}: every edge joins a node to itself; such edges are dropped, and none is left")
    elif source.size and not matrix.nnz:
        tell(f"{name}: every edge has the weight 0; such edges are dropped, and none is left")
    if undirected is not False:
        both = matrix.maximum(matrix.T.tocsr()).tocsr()
        if undirected is None and both.nnz > matrix.nnz:
            tell(
                f"{both.nnz - matrix.nnz:,} of {both.nnz:,} edges were given in one direction and are read in "
                "both; undirected=False (--directed) keeps the directions, True (--undirected) confirms both",
                name,
            )
        matrix = both
    matrix.sort_indices()
    if weights is not None:
        _tell_of_faint_edges(matrix, name)
    return SparseMatrix.from_scipy(matrix)


def _tell_of_faint_edges(matrix: sp.csr_matrix, name: str) -> None:
    """Warn if the edge weights of a typical node are negligible compared with its own weight, which is 1."""
    sums = np.asarray(matrix.sum(1)).reshape(-1)
    typical = float(np.median(sums[sums > 0])) if matrix.nnz else 1.0
    if typical < FAINT:
        tell(
            f"{name}: the edge weights of a typical node add up to {typical:.1g}, and a node itself weighs 1 in GCN "
            "and the closed form: neighbours hardly count; multiply all weights by one constant"
        )
