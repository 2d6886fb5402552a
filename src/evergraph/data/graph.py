"""The graph every part of the package agrees on, and the checks that keep bad ones out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from evergraph.errors import EvergraphError, shown, tell

ClassName = str | int
MOST_CLASSES = 1_000_000  # a larger label is a mistake (a node number, a hash), not a class


@dataclass(eq=False)
class Graph:
    """Nodes with features, joined by edges, and the *examples* that are learned and predicted.

    An example reads some nodes: itself where examples are nodes, the nodes of one small graph where they are graphs
    (which then stand side by side as one large graph without edges between them), its two ends where they are links.

    Args:
        x: features, `(num_nodes, num_features)`, dense or sparse.
        adjacency: row v holds v's in-neighbours with the edges' weights; 1 where there are none.
        y: targets of the examples. Classes: one position in `class_names` each, -1 where an example has none. Several
            labels or numbers: a row each, a column for each of `class_names`, NaN where it is not known.
        class_names: the user's own names of the classes (or of the columns of `y`).
        name: what to call the graph in messages.
        cache: what models that read it alike have computed of it.
        on_disk: features and edges are mapped files, not to be copied as a whole (`evergraph.data.mapped`).
        private_cache: what single models have computed of it; gone with them.
        mark: hash of its content, where that is known without reading all of it.
        directed: the directions of its edges were kept on request.
        level: what an example is: `node`, `graph` or `link`.
        members: row e holds the nodes that example e reads; None where examples are the nodes.
        attributes: what else is known of the examples, by name.
        splits: 0, 1, 2 for training, validation and test examples, -1 for neither; a column for each published split.
        positives_only: the links are those that exist; examples of links that do not are drawn when tasks are made.
        joining: nodes that join the others one by one, as a mask; None where there are none. No edge leaves them, and
            what is predicted at one of them may not depend on another.
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
    directed: bool = False
    level: str = "node"
    members: SparseMatrix | None = None
    attributes: dict[str, Attribute] = field(default_factory=dict, repr=False)
    splits: Tensor | None = field(default=None, repr=False)
    positives_only: bool = False
    joining: Tensor | None = field(default=None, repr=False)

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
        kept = {f.name: getattr(self, f.name) for f in fields(self) if "cache" not in f.name and f.name != "mark"}
        return Graph(**{**kept, **changes})

    def to(self, device: torch.device | str) -> Graph:
        """On another device."""
        if self.y.device == torch.device(device):
            return self
        members, joining = (None if part is None else part.to(device) for part in (self.members, self.joining))
        moved = {"x": self.x.to(device), "adjacency": self.adjacency.to(device), "y": self.y.to(device)}
        return self.altered(**moved, members=members, joining=joining, on_disk=False)

    def subgraph(self, nodes: Tensor, groups: Tensor | None = None, joining: Tensor | None = None) -> Graph:
        """The graph induced on `nodes`, renumbered in their order; where examples are nodes, they go with them.

        With `groups` (one integer per node of this graph) only edges inside a group are kept; with `joining` (a mask
        over the nodes of this graph) only edges that leave nodes outside it.
        """
        position = torch.full((self.num_nodes,), -1, dtype=torch.long)
        position[nodes] = torch.arange(nodes.numel())
        rows = self.adjacency.rows(nodes)
        source, target = rows.indices, rows.row_of_entry()
        keep = position[source] >= 0
        if groups is not None:
            keep &= groups[source] == groups[nodes[target]]
        if joining is not None:
            keep &= ~joining[source]
        indptr = torch.zeros(nodes.numel() + 1, dtype=torch.long)
        torch.cumsum(torch.bincount(target[keep], minlength=nodes.numel()), 0, out=indptr[1:])
        adjacency = SparseMatrix(indptr, position[source[keep]], rows.values[keep], nodes.numel())
        alone = self.joining if joining is None else joining
        alone = None if alone is None else alone[nodes]
        induced = self.altered(x=take_rows(self.x, nodes), adjacency=adjacency, joining=alone, on_disk=False)
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
    edge_weight: Any = None,
    class_names: Sequence[ClassName] | Mapping[Any, Any] | None = None,
    undirected: bool | None = None,
    name: str = "graph",
    attributes: Mapping[str, Any] | None = None,
    splits: Any = None,
    columns: bool = False,
) -> Graph:
    """A checked `Graph` from arrays, whose examples are its nodes.

    Self-loops are dropped (models add their own), and so are duplicate edges; with weights, those of duplicates
    are added up. An edge of weight 0 is none.

    Args:
        x: features, one row per node: a tensor or an array, dense or sparse.
        edge_index: `(2, num_edges)`, sources above targets.
        y: labels as positions in `class_names`, -1 for «no label»; None where no node has one. A matrix with a row per
            node holds several labels (0 or 1) or numbers of each, NaN where one is not known.
        edge_weight: a number of at least 0 for each edge, with which models propagate.
        class_names: the user's own names, as a list, or as a dictionary from labels to names or from names to labels;
            without them the classes are called 0, 1, 2, …
        undirected: True reads every edge in both directions (with the larger weight, where both are given), False
            keeps the directions; None reads both and says so where only one was given.
        name: what to call the graph in messages.
        attributes: what else is known of each node, by name: numbers, or names as strings.
        splits: 0, 1, 2 for training, validation and test nodes, -1 for neither; a column for each split.
        columns: `y` holds labels or numbers even if it is one column of whole numbers, which else are classes.
    """
    features = _features(x, name)
    num_nodes = features.size(0)
    edges = _edges(edge_index, num_nodes, name)
    weights = _weights(edge_weight, edges.shape[1], name)
    targets, names = targets_and_names(y, num_nodes, class_names, name, columns)
    adjacency = make_adjacency(edges, num_nodes, undirected, weights=weights, name=name)
    return Graph(features, adjacency, targets, names, name, directed=undirected is False).altered(
        attributes=read_attributes(attributes or {}, num_nodes, name), splits=read_splits(splits, num_nodes, name)
    )


def targets_and_names(
    y: Any,
    count: int,
    class_names: Sequence[ClassName] | Mapping[Any, Any] | None,
    name: str,
    columns: bool = False,
) -> tuple[Tensor, list[ClassName]]:
    """Targets of examples and the names of their classes or columns, checked."""
    values = None if y is None else as_array(y)
    if values is None or not (columns or _several(values)):
        labels = _labels(values, count, name)
        return labels, _class_names(class_names, labels, name)
    values = values.reshape(-1, 1) if values.ndim == 1 else values
    fits = values.ndim == 2 and values.shape[0] == count and values.dtype.kind in "fiub"
    if not fits or np.isinf(values.astype(np.float32)).any():
        raise EvergraphError(
            f"{name}: targets of shape {values.shape} and type {values.dtype} for {count} examples; "
            "give a row of finite numbers for each, NaN where one is not known"
        )
    labels = torch.as_tensor(values.astype(np.float32))
    names: list[ClassName] = list(range(labels.size(1))) if class_names is None else _names(class_names, name)
    if len(names) != labels.size(1):
        raise EvergraphError(f"{name}: {labels.size(1)} columns of targets but {len(names)} names; give one for each")
    return labels, names


def _several(values: np.ndarray) -> bool:
    """Whether targets have columns; one column of whole numbers holds classes."""
    if values.ndim != 2 or values.shape[1] != 1:
        return values.ndim == 2
    return values.dtype.kind == "f" and bool((values[np.isfinite(values)] % 1).any())


def from_pyg(data: Any, *, undirected: bool | None = None, name: str = "graph") -> Graph:
    """A `Graph` from a PyG `Data` object.

    Edges are read in both directions unless `undirected=False`, as they are from files. `edge_weight` weighs them;
    `edge_attr` is not read. A `class_names` attribute names the classes; otherwise the labels name themselves.
    Without `y` no node has a label: enough to predict, not to learn. A `y` of several columns holds labels or numbers.
    Its `train_mask`, `val_mask` and `test_mask` become the split, and any other one-dimensional tensor with a number
    for each node an attribute that a stream can be made from (`eg.stream(data, by="year")`).
    """
    kind = type(data).__name__
    if hasattr(data, "node_types") and hasattr(data, "to_homogeneous"):
        types = ", ".join(map(str, data.node_types))
        raise EvergraphError(
            f"{name}: a {kind} has nodes of several types ({types}); give a Data object, e.g. data.to_homogeneous()"
        )
    if type(data).__module__.split(".")[0] == "networkx":
        raise EvergraphError(
            f"{name}: a NetworkX {kind} has no matrix of features; convert it first, e.g. with "
            "torch_geometric.utils.from_networkx(graph, group_node_attrs=[…])"
        )
    if not (hasattr(data, "x") or hasattr(data, "edge_index")):
        raise EvergraphError(
            f"{name}: {kind} is not a graph; give a PyG Data object, a Graph (eg.make_graph) or the path of a file"
        )
    missing = [key for key in ("x", "edge_index") if getattr(data, key, None) is None]
    if missing:
        raise EvergraphError(f"{name}: the PyG object has no {' and no '.join(missing)}; evergraph needs both")
    if getattr(data, "edge_attr", None) is not None and getattr(data, "edge_weight", None) is None:
        tell(f"{name}: edge_attr is not used; put one weight per edge into edge_weight to propagate with it")
    count = as_array(data.x).shape[0] if isinstance(data.x, (list, tuple)) else data.x.shape[0]
    return make_graph(
        data.x,
        data.edge_index,
        getattr(data, "y", None),
        edge_weight=getattr(data, "edge_weight", None),
        class_names=getattr(data, "class_names", None),
        undirected=undirected,
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
    if values.dtype.kind in "fu" and values.size and values.max() >= 2**63:
        raise EvergraphError(f"{name}: label {values.max():g} is out of range; labels are 0, 1, 2, … or -1 for none")
    labels = torch.as_tensor(values.astype(np.int64))
    if int(labels.min()) < -1:
        raise EvergraphError(f"{name}: label {int(labels.min())} is out of range; labels are 0, 1, 2, … or -1 for none")
    return labels


def _listed(class_names: Mapping[Any, Any], name: str) -> list[Any]:
    """Names by label, from {label: name} or {name: label}; a label without a name keeps its number."""
    pairs = list(class_names.items())
    for turn in (lambda pair: pair, lambda pair: pair[::-1]):
        by_label = dict(map(turn, pairs)) if all(_whole(turn(pair)[0]) for pair in pairs) else None
        if by_label is not None and len(by_label) == len(pairs) and pairs:
            number = {int(label): entry for label, entry in by_label.items()}
            if min(number) >= 0 and max(number) < MOST_CLASSES:
                return [number.get(label, label) for label in range(max(number) + 1)]
    raise EvergraphError(
        f"{name}: class_names {str(class_names)[:60]} is not a list, {{label: name}} or {{name: label}}; "
        "labels are 0, 1, 2, …"
    )


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _class_names(
    class_names: Sequence[ClassName] | Mapping[Any, Any] | None, labels: Tensor, name: str
) -> list[ClassName]:
    """One name per class, no two alike; the labels' own numbers where no names are given."""
    largest = int(labels.max())
    if class_names is None:
        if largest >= MOST_CLASSES:
            raise EvergraphError(
                f"{name}: label {largest} is out of range; number the classes 0, 1, 2, … without large gaps"
            )
        return list(range(largest + 1))
    names = _names(class_names, name)
    if largest >= len(names):
        raise EvergraphError(
            f"{name}: label {largest} is out of range: there are {len(names)} class names; "
            f"labels must be 0 to {len(names) - 1}, or -1 for none"
        )
    return names


def _names(class_names: Any, name: str) -> list[ClassName]:
    """Names of classes or columns as a list, no two alike."""
    if isinstance(class_names, Mapping):
        class_names = _listed(class_names, name)
    if isinstance(class_names, (str, bytes)) or not isinstance(class_names, Iterable):
        raise EvergraphError(f"{name}: class_names={shown(class_names)} is not a list of names")
    if isinstance(class_names, (np.ndarray, Tensor)):
        class_names = as_array(class_names).reshape(-1).tolist()
    names: list[ClassName] = [entry.item() if isinstance(entry, np.generic) else entry for entry in class_names]
    if odd := [entry for entry in names if isinstance(entry, bool) or not isinstance(entry, (str, int))]:
        raise EvergraphError(f"{name}: a class is called {shown(odd[0])}; names are text or whole numbers")
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


def _weights(edge_weight: Any, num_edges: int, name: str) -> np.ndarray | None:
    """One finite number of at least 0 per edge; None where edges have none."""
    if edge_weight is None:
        return None
    weights = as_array(edge_weight)
    if weights.dtype.kind not in "fiub":
        raise EvergraphError(f"{name}: edge_weight is of type {weights.dtype}; weights are numbers")
    if weights.size != num_edges or weights.shape not in {(num_edges,), (num_edges, 1)}:
        raise EvergraphError(
            f"{name}: edge_weight has shape {tuple(weights.shape)} for {num_edges} edges; give one weight per edge"
        )
    weights = weights.reshape(-1).astype(np.float32)
    if weights.size and not (np.isfinite(weights).all() and weights.min() >= 0):
        wrong = weights[~(np.isfinite(weights) & (weights >= 0))][0]
        raise EvergraphError(f"{name}: an edge has the weight {wrong:g}; weights are finite and at least 0")
    return weights


def make_adjacency(
    edges: np.ndarray,
    num_nodes: int,
    undirected: bool | None,
    *,
    weights: np.ndarray | None = None,
    name: str = "graph",
) -> SparseMatrix:
    """In-neighbour lists of a clean graph: each edge once, sorted, no self-loops."""
    source, target = (np.asarray(side, dtype=np.int64) for side in edges)
    keep = source != target
    values = np.ones(int(keep.sum()), dtype=np.float32) if weights is None else weights[keep]
    matrix = sp.csr_matrix((values, (target[keep], source[keep])), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    if weights is None:
        matrix.data[:] = 1.0
    matrix.eliminate_zeros()
    if undirected is not False:
        both = matrix.maximum(matrix.T.tocsr()).tocsr()
        if undirected is None and both.nnz > matrix.nnz:
            tell(
                f"{name}: {both.nnz - matrix.nnz:,} of {both.nnz:,} edges were given in one direction and are read in "
                "both; undirected=False (--directed) keeps the directions"
            )
        matrix = both
    matrix.sort_indices()
    return SparseMatrix.from_scipy(matrix)
