"""The graph every part of the package agrees on, and the checks that keep bad ones out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from evergraph.core.sparse import Features, SparseMatrix, take_rows
from evergraph.data.attributes import (
    Attribute,
    as_array,
    extra_values,
    masks_as_splits,
    read_attributes,
    read_splits,
)
from evergraph.errors import EvergraphError

ClassName = str | int
MOST_CLASSES = 1_000_000  # a larger label is a mistake (a node number, a hash), not a class


@dataclass(eq=False)
class Graph:
    """Nodes with features, joined by edges, and the *examples* that are learned and predicted.

    An example reads some nodes: itself where examples are nodes, the nodes of one small graph where they are graphs
    (which then stand side by side as one large graph without edges between them), its two ends where they are links.

    Args:
        x: features, `(num_nodes, num_features)`, dense or sparse.
        adjacency: row v holds v's in-neighbours; every entry is 1.
        y: targets of the examples. Classes: one position in `class_names` each, -1 where an example has none. Several
            labels or numbers: a row each, a column for each of `class_names`, NaN where it is not known.
        class_names: the user's own names of the classes (or of the columns of `y`).
        name: what to call the graph in messages.
        cache: what models that read it alike have computed of it.
        on_disk: features and edges are mapped files, not to be copied as a whole (`evergraph.data.mapped`).
        private_cache: what single models have computed of it; gone with them.
        level: what an example is: `node`, `graph` or `link`.
        members: row e holds the nodes that example e reads; None where examples are the nodes.
        attributes: what else is known of the examples, by name.
        splits: 0, 1, 2 for training, validation and test examples, -1 for neither; a column for each published split.
        positives_only: the links are those that exist; examples of links that do not are drawn when tasks are made.
    """

    x: Features
    adjacency: SparseMatrix
    y: Tensor
    class_names: list[ClassName]
    name: str = "graph"
    cache: dict[str, Any] = field(default_factory=dict, repr=False)
    on_disk: bool = False
    private_cache: WeakKeyDictionary[Any, dict[str, Any]] = field(default_factory=WeakKeyDictionary, repr=False)
    level: str = "node"
    members: SparseMatrix | None = None
    attributes: dict[str, Attribute] = field(default_factory=dict, repr=False)
    splits: Tensor | None = field(default=None, repr=False)
    positives_only: bool = False

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.adjacency.num_rows

    @property
    def num_examples(self) -> int:
        """Number of nodes, graphs or links that can be learned or predicted."""
        return self.y.size(0)

    @property
    def has_classes(self) -> bool:
        """Whether an example has one class of several; otherwise a row of labels or numbers."""
        return self.y.dim() == 1

    @property
    def labelled(self) -> Tensor:
        """Which examples have a target."""
        return self.y >= 0 if self.has_classes else ~self.y.isnan().all(1)

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
        """Number of labelled examples of each class (of each column of `y`)."""
        if not self.has_classes:
            return (~self.y.isnan()).sum(0)
        return torch.bincount(self.y[self.y >= 0], minlength=self.num_classes)

    def altered(self, **changes: Any) -> Graph:
        """The same graph with some fields changed, and nothing computed of it yet."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if "cache" not in f.name}
        return Graph(**{**kept, **changes})

    def to(self, device: torch.device | str) -> Graph:
        """On another device."""
        if self.y.device == torch.device(device):
            return self
        members = None if self.members is None else self.members.to(device)
        return self.altered(
            x=self.x.to(device), adjacency=self.adjacency.to(device), y=self.y.to(device), members=members
        )

    def subgraph(self, nodes: Tensor, groups: Tensor | None = None) -> Graph:
        """The graph induced on `nodes`, renumbered in their order; where examples are nodes, they go with them.

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
        induced = self.altered(x=take_rows(self.x, nodes), adjacency=adjacency, on_disk=False)
        return induced.with_examples(nodes) if self.members is None else induced

    def with_examples(self, examples: Tensor, **changes: Any) -> Graph:
        """The same nodes and edges with some of the examples alone."""
        attributes = {key: Attribute(known.values[examples], known.names) for key, known in self.attributes.items()}
        splits = None if self.splits is None else self.splits[examples]
        members = None if self.members is None else self.members.rows(examples)
        kept = {"y": self.y[examples], "attributes": attributes, "splits": splits, "members": members}
        return self.altered(**{**kept, **changes})


def make_graph(
    x: Any,
    edge_index: Any,
    y: Any = None,
    *,
    class_names: Sequence[ClassName] | None = None,
    undirected: bool = False,
    name: str = "graph",
    attributes: Mapping[str, Any] | None = None,
    splits: Any = None,
    columns: bool = False,
) -> Graph:
    """A checked `Graph` from arrays, whose examples are its nodes.

    Duplicate edges and self-loops are dropped (models add their own).

    Args:
        x: features, one row per node: a tensor or an array, dense or sparse.
        edge_index: `(2, num_edges)`, sources above targets.
        y: labels as positions in `class_names`, -1 for «no label»; None where no node has one. A matrix with a row per
            node holds several labels (0 or 1) or numbers of each, NaN where one is not known.
        class_names: the user's own names; without them the classes are called 0, 1, 2, …
        undirected: add the reverse of every edge.
        name: what to call the graph in messages.
        attributes: what else is known of each node, by name: numbers, or names as strings.
        splits: 0, 1, 2 for training, validation and test nodes, -1 for neither; a column for each split.
        columns: `y` holds labels or numbers even if it is one column of whole numbers, which else are classes.
    """
    features = _features(x, name)
    num_nodes = features.size(0)
    edges = _edges(edge_index, num_nodes, name)
    adjacency = make_adjacency(edges, num_nodes, undirected)
    targets, names = targets_and_names(y, num_nodes, class_names, name, columns)
    return Graph(features, adjacency, targets, names, name).altered(
        attributes=read_attributes(attributes or {}, num_nodes, name), splits=read_splits(splits, num_nodes, name)
    )


def targets_and_names(
    y: Any, count: int, class_names: Sequence[ClassName] | None, name: str, columns: bool = False
) -> tuple[Tensor, list[ClassName]]:
    """Targets of examples and the names of their classes or columns, checked."""
    values = None if y is None else as_array(y)
    whole = values is None or values.dtype.kind != "f" or not (values[~np.isnan(values)] % 1).any()
    if not columns and (values is None or values.ndim != 2 or (values.shape[1] == 1 and whole)):
        labels = _labels(values, count, name)
        return labels, _class_names(class_names, labels, name)
    assert values is not None
    if values.ndim == 1:
        values = values.reshape(-1, 1)
    if values.shape[0] != count or values.dtype.kind not in "fiub" or np.isinf(values.astype(np.float64)).any():
        raise EvergraphError(
            f"{name}: targets of shape {values.shape} and type {values.dtype} for {count} examples; "
            "give a row of finite numbers for each, NaN where one is not known"
        )
    labels = torch.as_tensor(values.astype(np.float32))
    names: list[ClassName] = list(class_names) if class_names is not None else list(range(labels.size(1)))
    if len(names) != labels.size(1):
        raise EvergraphError(f"{name}: {labels.size(1)} columns of targets but {len(names)} names; give one for each")
    return labels, names


def from_pyg(data: Any, *, name: str = "graph") -> Graph:
    """A `Graph` from a PyG `Data` object.

    Its edges are taken as they are, in their direction; edge weights and attributes are not read. A
    `class_names` attribute names the classes; otherwise the labels name themselves. Without `y` no node
    has a label: enough to predict, not to learn. A `y` of several columns holds labels or numbers. Its
    `train_mask`, `val_mask` and `test_mask` become the split, and any other one-dimensional tensor with a number for
    each node an attribute that a stream can be made from (`eg.stream(data, by="year")`).
    """
    missing = [key for key in ("x", "edge_index") if getattr(data, key, None) is None]
    if missing:
        raise EvergraphError(f"{name}: the PyG object has no {' and no '.join(missing)}; evergraph needs both")
    names, count = getattr(data, "class_names", None), data.x.shape[0]
    return make_graph(
        data.x,
        data.edge_index,
        getattr(data, "y", None),
        class_names=names,
        name=name,
        attributes=extra_values(data, count),
        splits=masks_as_splits(data, count, name),
    )


def _features(x: Any, name: str) -> Features:
    """Finite numbers, one row per node; float64 stays, all else becomes float32; sparse stays sparse."""
    if isinstance(x, Tensor) and x.dtype != torch.float64 and x.is_floating_point():
        x = x.float()  # numpy does not know all of torch's short floats
    if isinstance(x, Tensor) and x.layout != torch.strided:
        coo = x.detach().cpu().to_sparse_coo().coalesce()
        x = sp.coo_matrix((coo.values().numpy(), coo.indices().numpy()), shape=tuple(coo.shape))
    sparse = sp.issparse(x)
    if not sparse:
        x = as_array(x)
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
    values = as_array(y).reshape(-1)
    if values.size != num_nodes:
        raise EvergraphError(f"{name}: {num_nodes} rows of features but {values.size} labels; give one label per node")
    if values.dtype.kind not in "fiub" or (values.dtype.kind == "f" and not (values == np.floor(values)).all()):
        raise EvergraphError(f"{name}: labels are not whole numbers; give positions in class_names, -1 for no label")
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
    names: list[ClassName] = [entry.item() if isinstance(entry, np.generic) else entry for entry in class_names]
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
    edges = as_array(edge_index)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise EvergraphError(f"{name}: edge_index has shape {tuple(edges.shape)}; it must be (2, number of edges)")
    if edges.size and edges.dtype.kind not in "iu":
        raise EvergraphError(f"{name}: edge_index is of type {edges.dtype}; node numbers are integers")
    if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
        wrong = edges.max() if edges.max() >= num_nodes else edges.min()
        raise EvergraphError(f"{name}: an edge names node {int(wrong)}, but nodes run from 0 to {num_nodes - 1}")
    return edges


def make_adjacency(edges: np.ndarray, num_nodes: int, undirected: bool) -> SparseMatrix:
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
