"""The graph every part of the package agrees on, and the checks that keep bad ones out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from evergraph.errors import EvergraphError
from evergraph.sparse import Features, SparseMatrix, take_rows

ClassName = str | int


@dataclass(eq=False)
class Graph:
    """A graph with node features and class labels.

    Args:
        x: features, `(num_nodes, num_features)`, dense or sparse.
        adjacency: row v holds v's in-neighbours; entries are edge weights (1 where there are none).
        y: labels as positions in `class_names`; -1 where a node has none.
        class_names: the user's own names of the classes.
        name: what to call the graph in messages.
    """

    x: Features
    adjacency: SparseMatrix
    y: Tensor
    class_names: list[ClassName]
    name: str = "graph"
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.y.numel()

    @property
    def num_features(self) -> int:
        """Number of features of a node."""
        return self.x.size(1)

    @property
    def num_edges(self) -> int:
        """Number of directed edges (an undirected edge counts twice)."""
        return self.adjacency.nnz

    @property
    def num_classes(self) -> int:
        """Number of classes named."""
        return len(self.class_names)

    @property
    def edge_index(self) -> Tensor:
        """PyG's `(2, num_edges)`: sources above targets."""
        return torch.stack([self.adjacency.indices, self.adjacency.row_of_entry()])

    def class_sizes(self) -> Tensor:
        """Number of labelled nodes of each class."""
        return torch.bincount(self.y[self.y >= 0], minlength=self.num_classes)

    def to(self, device: torch.device | str) -> Graph:
        """On another device."""
        if self.y.device == torch.device(device):
            return self
        return Graph(self.x.to(device), self.adjacency.to(device), self.y.to(device), self.class_names, self.name)

    def subgraph(self, nodes: Tensor, groups: Tensor | None = None) -> Graph:
        """The graph induced on `nodes`, renumbered in their order.

        With `groups` (one integer a node of this graph) only edges inside a group are kept.
        """
        position = torch.full((self.num_nodes,), -1, dtype=torch.long)
        position[nodes] = torch.arange(nodes.numel())
        rows = self.adjacency.rows(nodes)
        source, target = rows.indices, rows.row_of_entry()
        keep = position[source] >= 0
        if groups is not None:
            keep &= groups[source] == groups[nodes[target]]
        indptr = torch.zeros(nodes.numel() + 1, dtype=torch.long)
        torch.cumsum(torch.bincount(target[keep], minlength=nodes.numel()), 0, out=indptr[1:])
        adjacency = SparseMatrix(indptr, position[source[keep]], rows.values[keep], nodes.numel())
        return Graph(take_rows(self.x, nodes), adjacency, self.y[nodes], self.class_names, self.name)


def make_graph(
    x: Any,
    edge_index: Any,
    y: Any,
    *,
    class_names: Sequence[ClassName] | None = None,
    undirected: bool = False,
    name: str = "graph",
) -> Graph:
    """A checked `Graph` from arrays: features (dense or scipy sparse), a (2, E) edge list, labels.

    Duplicate edges and self-loops are dropped (models add their own). Labels are class positions,
    -1 for «no label»; without `class_names` the names are the integers themselves.
    """
    num_nodes = int(x.shape[0])
    if num_nodes == 0:
        raise EvergraphError(f"{name}: the graph has no nodes")
    y = torch.as_tensor(np.asarray(y)).long().reshape(-1)
    if y.numel() != num_nodes:
        raise EvergraphError(f"{name}: {num_nodes} rows of features but {y.numel()} labels; give one label a node")
    names: list[ClassName] = (
        list(class_names) if class_names is not None else list(range(int(y.max()) + 1 if y.numel() else 0))
    )
    if int(y.min()) < -1 or int(y.max()) >= len(names):
        raise EvergraphError(
            f"{name}: labels run from {int(y.min())} to {int(y.max())} but there are {len(names)} classes; "
            "labels must be 0 … classes-1, or -1 for none"
        )
    edges = np.asarray(edge_index)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise EvergraphError(f"{name}: edge_index has shape {tuple(edges.shape)}; it must be (2, number of edges)")
    if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
        raise EvergraphError(
            f"{name}: an edge names node {int(edges.max() if edges.max() >= num_nodes else edges.min())}, "
            f"but nodes run from 0 to {num_nodes - 1}"
        )
    return Graph(_features(x, name), _adjacency(edges, num_nodes, undirected), y, names, name)


def _features(x: Any, name: str) -> Features:
    if sp.issparse(x):
        sparse = SparseMatrix.from_scipy(x)
        _require_finite(sparse.values, name)
        return sparse
    dense = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    if dense.dim() != 2 or dense.size(1) == 0:
        raise EvergraphError(f"{name}: features have shape {tuple(dense.shape)}; they must be (nodes, features)")
    _require_finite(dense, name)
    return dense if dense.dtype == torch.float64 else dense.float()


def _require_finite(values: Tensor, name: str) -> None:
    if not bool(torch.isfinite(values).all()):
        raise EvergraphError(f"{name}: features contain NaN or infinite values; clean or impute them first")


def _adjacency(edges: np.ndarray, num_nodes: int, undirected: bool) -> SparseMatrix:
    """In-neighbour lists of a clean graph: each edge once, sorted, no self-loops."""
    source, target = (np.asarray(side, dtype=np.int64) for side in edges)
    if undirected:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    keep = source != target
    ones = np.ones(int(keep.sum()), dtype=np.float32)
    matrix = sp.csr_matrix((ones, (target[keep], source[keep])), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return SparseMatrix.from_scipy(matrix)


def from_pyg(data: Any, *, name: str = "graph") -> Graph:
    """A `Graph` from a PyG `Data` object; its edges are taken as they are, in their direction.

    A `class_names` attribute on the object names the classes; otherwise labels name themselves.
    """
    missing = [key for key in ("x", "edge_index", "y") if getattr(data, key, None) is None]
    if missing:
        raise EvergraphError(f"{name}: the PyG object has no {', '.join(missing)}; evergraph needs x, edge_index and y")
    x = data.x
    if x.layout != torch.strided:
        coo = x.to_sparse_coo().coalesce().cpu()
        x = sp.coo_matrix((coo.values().numpy(), coo.indices().numpy()), shape=tuple(coo.shape))
    else:
        x = x.cpu()
    names = getattr(data, "class_names", None)
    y = data.y.reshape(-1).cpu()
    if names is None and y.numel() and int(y.max()) >= 0:
        names = list(range(int(y.max()) + 1))
    return make_graph(x, data.edge_index.cpu(), y, class_names=names, name=name)
