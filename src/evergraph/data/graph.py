"""The graph every part of the package agrees on, and the checks that keep bad ones out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from evergraph.core.sparse import Features, SparseMatrix, take_rows
from evergraph.errors import EvergraphError, first_line, shown

ClassName = str | int
MOST_CLASSES = 1_000_000  # a larger label is a mistake (a node number, a hash), not a class


@dataclass(eq=False)
class Graph:
    """A graph with node features and class labels.

    Args:
        x: features, `(num_nodes, num_features)`, dense or sparse.
        adjacency: row v holds v's in-neighbours; every entry is 1.
        y: labels as positions in `class_names`; -1 where a node has none.
        class_names: the user's own names of the classes.
        name: what to call the graph in messages.
        cache: what models that read it alike have computed of it.
        on_disk: features and edges are mapped files, not to be copied as a whole (`evergraph.data.mapped`).
        private_cache: what single models have computed of it; gone with them.
        mark: hash of its content, where that is known without reading all of it.
    """

    x: Features
    adjacency: SparseMatrix
    y: Tensor
    class_names: list[ClassName]
    name: str = "graph"
    cache: dict[str, Any] = field(default_factory=dict, repr=False)
    on_disk: bool = False
    private_cache: WeakKeyDictionary[Any, dict[str, Any]] = field(default_factory=WeakKeyDictionary, repr=False)
    mark: str = field(default="", repr=False)

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

        With `groups` (one integer per node of this graph) only edges inside a group are kept.
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
    y: Any = None,
    *,
    class_names: Sequence[ClassName] | None = None,
    undirected: bool = False,
    name: str = "graph",
) -> Graph:
    """A checked `Graph` from arrays.

    Duplicate edges and self-loops are dropped (models add their own).

    Args:
        x: features, one row per node: a tensor or an array, dense or sparse.
        edge_index: `(2, num_edges)`, sources above targets.
        y: labels as positions in `class_names`, -1 for «no label»; None where no node has one.
        class_names: the user's own names; without them the classes are called 0, 1, 2, …
        undirected: add the reverse of every edge.
        name: what to call the graph in messages.
    """
    features = _features(x, name)
    num_nodes = features.size(0)
    labels = _labels(y, num_nodes, name)
    names = _class_names(class_names, labels, name)
    edges = _edges(edge_index, num_nodes, name)
    return Graph(features, _adjacency(edges, num_nodes, undirected), labels, names, name)


def from_pyg(data: Any, *, name: str = "graph") -> Graph:
    """A `Graph` from a PyG `Data` object.

    Its edges are taken as they are, in their direction; edge weights and attributes are not read. A
    `class_names` attribute names the classes; otherwise the labels name themselves. Without `y` no node
    has a label: enough to predict, not to learn.
    """
    missing = [key for key in ("x", "edge_index") if getattr(data, key, None) is None]
    if missing:
        raise EvergraphError(f"{name}: the PyG object has no {' and no '.join(missing)}; evergraph needs both")
    names = getattr(data, "class_names", None)
    return make_graph(data.x, data.edge_index, getattr(data, "y", None), class_names=names, name=name)


def as_graph(graph: Graph | Any) -> Graph:
    """The graph itself, or a `Graph` made of a PyG `Data` object."""
    return graph if isinstance(graph, Graph) else from_pyg(graph)


def _array(values: Any) -> np.ndarray:
    """As a numpy array of this machine's types, from wherever it is."""
    try:
        return native(values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values))
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise EvergraphError(f"{shown(values)} is not an array ({first_line(error)})") from None


def native(array: np.ndarray) -> np.ndarray:
    """An array in this machine's byte order; long doubles, which torch does not know, as doubles."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _features(x: Any, name: str) -> Features:
    """Finite numbers, one row per node; float64 stays, all else becomes float32; sparse stays sparse."""
    if isinstance(x, Tensor) and x.dtype != torch.float64 and x.is_floating_point():
        x = x.float()  # numpy does not know all of torch's short floats
    if isinstance(x, Tensor) and x.layout != torch.strided:
        coo = x.detach().cpu().to_sparse_coo().coalesce()
        x = sp.coo_matrix((coo.values().numpy(), coo.indices().numpy()), shape=tuple(coo.shape))
    sparse = sp.issparse(x)
    if not sparse:
        x = _array(x)
    if x.ndim != 2 or 0 in x.shape:
        raise EvergraphError(f"{name}: features have shape {tuple(x.shape)}; they must be (nodes, features), not empty")
    if x.dtype.kind not in "fiub":
        raise EvergraphError(f"{name}: features are of type {x.dtype}; they must be real numbers")
    dtype = torch.float64 if x.dtype == np.float64 else torch.float32
    features: Features = SparseMatrix.from_scipy(x, dtype) if sparse else torch.as_tensor(x).to(dtype)
    values = features.values if isinstance(features, SparseMatrix) else features
    if not bool(torch.isfinite(values).all()):
        raise EvergraphError(f"{name}: features contain NaN or infinite values; clean or impute them first")
    return features


def _labels(y: Any, num_nodes: int, name: str) -> Tensor:
    """One integer per node, -1 or more."""
    if y is None:
        return torch.full((num_nodes,), -1)
    values = _array(y).reshape(-1)
    if values.size != num_nodes:
        raise EvergraphError(f"{name}: {num_nodes} rows of features but {values.size} labels; give one label per node")
    if values.dtype.kind not in "fiub" or (values.dtype.kind == "f" and not (values == np.floor(values)).all()):
        raise EvergraphError(f"{name}: labels are not whole numbers; give positions in class_names, -1 for no label")
    if values.dtype.kind in "fu" and values.size and values.max() >= 2**63:
        raise EvergraphError(f"{name}: label {values.max():g} is out of range; labels are 0, 1, 2, … or -1 for none")
    labels = torch.as_tensor(values.astype(np.int64))
    if int(labels.min()) < -1:
        raise EvergraphError(f"{name}: label {int(labels.min())} is out of range; labels are 0, 1, 2, … or -1 for none")
    return labels


def _class_names(class_names: Sequence[ClassName] | None, labels: Tensor, name: str) -> list[ClassName]:
    """One name per class, no two alike; the labels' own numbers where no names are given."""
    largest = int(labels.max())
    if class_names is None:
        if largest >= MOST_CLASSES:
            raise EvergraphError(
                f"{name}: label {largest} is out of range; number the classes 0, 1, 2, … without large gaps"
            )
        return list(range(largest + 1))
    if isinstance(class_names, (str, bytes)) or not isinstance(class_names, Iterable):
        raise EvergraphError(f"{name}: class_names={shown(class_names)} is not a list of names")
    if isinstance(class_names, (np.ndarray, Tensor)):
        class_names = _array(class_names).reshape(-1).tolist()
    names: list[ClassName] = [entry.item() if isinstance(entry, np.generic) else entry for entry in class_names]
    if odd := [entry for entry in names if isinstance(entry, bool) or not isinstance(entry, (str, int))]:
        raise EvergraphError(f"{name}: a class is called {shown(odd[0])}; names are text or whole numbers")
    if largest >= len(names):
        raise EvergraphError(
            f"{name}: label {largest} is out of range: there are {len(names)} class names; "
            f"labels must be 0 to {len(names) - 1}, or -1 for none"
        )
    twice = [text for text, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise EvergraphError(f"{name}: two classes are called {twice[0]!r}; give every class a name of its own")
    return names


def _edges(edge_index: Any, num_nodes: int, name: str) -> np.ndarray:
    """Pairs of node numbers within range."""
    edges = _array(edge_index)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise EvergraphError(f"{name}: edge_index has shape {tuple(edges.shape)}; it must be (2, number of edges)")
    if edges.size and edges.dtype.kind not in "iu":
        raise EvergraphError(f"{name}: edge_index is of type {edges.dtype}; node numbers are integers")
    if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
        wrong = edges.max() if edges.max() >= num_nodes else edges.min()
        raise EvergraphError(f"{name}: an edge names node {int(wrong)}, but nodes run from 0 to {num_nodes - 1}")
    return edges


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
