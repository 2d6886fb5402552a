"""The graph type that the whole package uses, and functions that build one from checked inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from evergraph.core.edits import Contents
from evergraph.core.features import Features, take_rows
from evergraph.core.mapped_pages import release_pages
from evergraph.core.sparse import SparseMatrix
from evergraph.data.arrays import as_array, make_adjacency, read_edges, read_features, read_weights
from evergraph.data.attributes import (
    Attribute,
    extra_values,
    masks_as_splits,
    read_attributes,
    read_splits,
    tell_of_edge_features,
)
from evergraph.data.tables import is_frame
from evergraph.data.targets import ClassName, targets_and_names
from evergraph.errors import EvergraphError, counted

if TYPE_CHECKING:
    from evergraph.data.parts import Rows

NEEDED = "evergraph needs x (a row of features for each node) and edge_index (the edges)"


@dataclass(eq=False, repr=False)
class Graph:
    """Nodes with features, joined by edges, and the *examples* that are learned and predicted.

    An example reads some nodes: itself where examples are nodes, the nodes of one small graph where they are graphs
    (the graphs are then joined side by side into one, without edges between them), its two ends where they are links.

    Fields can be replaced and their tensors edited in place, and the next prediction reads the new contents; but an
    edit of `x` or of the edges through NumPy or `.data`, which torch does not count, may go unnoticed.

    Args:
        x: features, `(num_nodes, num_features)`, dense or sparse.
        adjacency: row v holds v's in-neighbours with the edge weights; 1 if edges have no weights.
        y: targets of the examples. Classes: one position in `class_names` each, -1 if unlabelled. Several
            labels or numbers: one row each, with a column for each of `class_names`, NaN where unknown.
        class_names: user-given names of the classes (or of the columns of `y`).
        name: name of the graph in messages.
        on_disk: features and edges are mapped files, not to be copied as a whole (`evergraph.data.mapped`).
        mark: hash of its content, if known without reading all of it; dropped when an edit is noticed.
        directed: the directions of its edges were kept on request.
        level: what an example is: `node`, `graph` or `link`.
        members: row e holds the nodes that example e reads; None where examples are the nodes.
        attributes: other values known for the examples, by name.
        splits: 0, 1, 2 for training, validation and test examples, -1 for none; one column per published split.
        positives_only: all links exist; negative examples are drawn when tasks are made.
        along_links: the known ones among its links are also edges.
        joining: mask of nodes that join the others one by one; None if there are none. No edge leaves them, and
            the prediction at one of them must not depend on another.
        feature_names: names of the columns of `x`; None if they have no names.
        rows: for a graph in parts (`evergraph.data.parts`): which nodes belong to this process. The graph then holds
            only these, without edges.
        reopen: if features and edges are mapped files: reads the graph from these files again. A pickle and a copy
            hold no features and no edges then.
    """

    x: Features
    adjacency: SparseMatrix
    y: Tensor
    class_names: list[ClassName]
    name: str = "graph"
    on_disk: bool = False
    mark: str = ""
    directed: bool = False
    level: str = "node"
    members: SparseMatrix | None = None
    attributes: dict[str, Attribute] = field(default_factory=dict)
    splits: Tensor | None = None
    positives_only: bool = False
    along_links: bool = False
    joining: Tensor | None = None
    feature_names: list[str] | None = None
    rows: Rows | None = None
    reopen: Callable[[], Graph] | None = None

    def __post_init__(self) -> None:
        self._start_caches()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without anything computed from them, for `pickle` and `copy`."""
        self.notice_edits()
        state = {known.name: getattr(self, known.name) for known in fields(self)}
        if self.rows is not None:
            raise EvergraphError(f"{self.name} is in parts, one for each process; read its folder in each of them")
        if self.on_disk and self.reopen is None:
            raise EvergraphError(
                f"{self.name}: its features or edges are no longer those on disk, and are too large to copy; "
                "read its folder and change them there"
            )
        if self.reopen is not None:
            return {**state, "x": None, "adjacency": None}
        bare = {name: part.bare() for name, part in state.items() if isinstance(part, SparseMatrix)}
        return {**state, **bare}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.reopen is not None:
            found = self.reopen()
            self.x, self.adjacency = found.x, found.adjacency
        self._start_caches()

    def _start_caches(self) -> None:
        """Begin with empty caches for the graph's present contents."""
        self._cache: dict[str, Any] = {}
        self._private_cache: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._contents, self._targets = Contents(self._read()), Contents([self.y])

    def _read(self) -> Iterator[Tensor]:
        """The tensors that cached results are computed from."""
        for part in (self.x, self.adjacency, self.members, self.joining):
            if isinstance(part, SparseMatrix):
                yield from part.parts()
            elif part is not None:
                yield part

    def tensors(self) -> list[Tensor]:
        """The tensors that hold its features, its edges, the nodes of its examples, and the targets."""
        return [*self._read(), self.y]

    def notice_edits(self) -> None:
        """Drop everything computed from contents that have been edited in place, or replaced, since."""
        if not self._targets.are_those_of([self.y]):
            self.mark, self._targets = "", Contents([self.y])
        if self._contents.are_those_of(self._read()):
            return
        self.adjacency, self.mark, self.reopen = self.adjacency.bare(), "", None
        self.x = self.x.bare() if isinstance(self.x, SparseMatrix) else self.x
        self.members = None if self.members is None else self.members.bare()
        self._start_caches()  # new objects: another thread may be reading the old ones

    @property
    def cache(self) -> dict[str, Any]:
        """Results computed from the graph and shared by models that read it alike."""
        self.notice_edits()
        return self._cache

    @property
    def private_cache(self) -> WeakKeyDictionary[Any, dict[str, Any]]:
        """Results computed from the graph by single models; freed with the models."""
        self.notice_edits()
        return self._private_cache

    def __repr__(self) -> str:
        sizes = {self.level: self.num_examples, "node": self.num_nodes, "edge": self.num_edges}
        sizes |= {"feature": self.num_features, "class" if self.has_classes else "column": self.num_classes}
        return f"Graph({self.name!r}, {', '.join(counted(number, noun) for noun, number in sizes.items())})"

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
        """Whether an example has one class of several; otherwise it has a row of labels or numbers."""
        return self.y.dim() == 1

    @property
    def labelled(self) -> Tensor:
        """Mask of the examples that have a target."""
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
        """Number of classes (or of columns of `y`)."""
        return len(self.class_names)

    @property
    def edge_index(self) -> Tensor:
        """PyG's `(2, num_edges)`: sources above targets."""
        return torch.stack([self.adjacency.indices, self.adjacency.row_of_entry()])

    def class_sizes(self) -> Tensor:
        """Number of labelled examples of each class (or of each column of `y`)."""
        if not self.has_classes:
            return (~self.y.isnan()).sum(0)
        return torch.bincount(self.y[self.y >= 0], minlength=self.num_classes)

    def altered(self, **changes: Any) -> Graph:
        """Return the same graph with some fields changed, without its caches and `mark`."""
        self.notice_edits()  # an edited graph passes on neither its edges' old transpose nor the files it came from
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "mark"}
        if not {"x", "adjacency"}.isdisjoint(changes):
            kept["reopen"] = None
        return Graph(**{**kept, **changes})

    def to(self, device: torch.device | str) -> Graph:
        """Return the graph on another device."""
        if self.y.device == torch.device(device):
            return self
        members, joining = (None if part is None else part.to(device) for part in (self.members, self.joining))
        moved = {"x": self.x.to(device), "adjacency": self.adjacency.to(device), "y": self.y.to(device)}
        return self.altered(**moved, members=members, joining=joining, on_disk=False)

    def subgraph(self, nodes: Tensor, groups: Tensor | None = None, joining: Tensor | None = None) -> Graph:
        """Return the graph induced on `nodes`, renumbered in their order; with their examples if examples are nodes.

        With `groups` (one integer per node of this graph) only edges within a group are kept; with `joining` (a mask
        over the nodes of this graph) only edges that leave nodes outside it.
        """
        position = torch.full((self.num_nodes,), -1, dtype=torch.long)
        position[nodes] = torch.arange(nodes.numel())
        counts, columns, weights = [], [], []
        # some rows at a time, so that temporary arrays with an entry per edge stay small
        for some in _some_rows(self.adjacency, nodes):
            rows = self.adjacency.rows(some)
            source, target = rows.indices, rows.row_of_entry()
            place = position.index_select(0, source)
            keep = place >= 0
            if groups is not None:
                keep &= groups.index_select(0, source) == groups[some].index_select(0, target)
            if joining is not None:
                keep &= ~joining.index_select(0, source)
            counts.append(torch.bincount(target[keep], minlength=some.numel()))
            columns.append(place[keep])
            weights.append(rows.values[keep])
        indptr = torch.cat([torch.zeros(1, dtype=torch.long), torch.cat(counts).cumsum(0)])
        adjacency = SparseMatrix(indptr, torch.cat(columns), torch.cat(weights), nodes.numel())
        alone = self.joining if joining is None else joining
        alone = None if alone is None else alone[nodes]
        induced = self.altered(x=take_rows(self.x, nodes), adjacency=adjacency, joining=alone, on_disk=False)
        if self.on_disk:
            for part in (*((self.x,) if isinstance(self.x, Tensor) else self.x.parts()), *self.adjacency.parts()):
                release_pages(part)
        return induced.with_examples(nodes) if self.members is None else induced

    def with_examples(self, examples: Tensor, **changes: Any) -> Graph:
        """Return the same nodes and edges with only some of the examples."""
        attributes = {key: Attribute(known.values[examples], known.names) for key, known in self.attributes.items()}
        splits = None if self.splits is None else self.splits[examples]
        members = None if self.members is None else self.members.rows(examples)
        kept = {"y": self.y[examples], "attributes": attributes, "splits": splits, "members": members}
        return self.altered(**{**kept, **changes})


ENTRIES_AT_ONCE = 2**22


def _some_rows(matrix: SparseMatrix, rows: Tensor) -> Iterator[Tensor]:
    """Split rows of a matrix into pieces of about `ENTRIES_AT_ONCE` entries; a single piece if there are no entries."""
    total = int((matrix.indptr.index_select(0, rows + 1) - matrix.indptr.index_select(0, rows)).sum())
    return iter(rows.split(max(1, rows.numel() * ENTRIES_AT_ONCE // max(total, 1))))


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
    feature_names: Sequence[str] | None = None,
) -> Graph:
    """Make a checked `Graph` from arrays; its examples are its nodes.

    Self-loops are dropped (models add their own), and so are duplicate edges; the weights of duplicates are added up.
    Edges of weight 0 are dropped.

    Args:
        x: features, one row per node: a tensor or an array, dense or sparse.
        edge_index: `(2, num_edges)`, sources above targets.
        y: labels as positions in `class_names`, -1 or NaN for unlabelled nodes, or as text, empty for unlabelled nodes;
            None if no node is labelled. Truth values are the classes `False` and `True` unless there are `class_names`;
            None or NaN for unlabelled nodes. A matrix with one row per node holds several labels (0 or 1) or numbers of
            each, NaN where unknown.
        edge_weight: a non-negative number for each edge, with which models propagate.
        class_names: names of the classes, as a list, or as a dictionary from labels to names or from names to labels;
            by default the classes are named 0, 1, 2, … If the largest label is 100 or more and most numbers up to it
            are unused, as with years, only those that are used are classes, and `graph.y` holds their positions.
        undirected: True reads every edge in both directions (with the larger weight, if both are given), False
            keeps the directions; None reads both, and warns if only one was given.
        name: name of the graph in messages.
        attributes: other values known for each node, by name: numbers, or names as strings.
        splits: 0, 1, 2 for training, validation and test nodes, -1 for none; one column per split.
        columns: `y` holds labels or numbers even if it is one column of whole numbers, which otherwise are classes.
        feature_names: names of the columns of `x`; None if they have no names.
    """
    names_of_columns = None if feature_names is None else [str(column) for column in feature_names]
    features = read_features(x, name, names_of_columns)
    num_nodes = features.size(0)
    edges = read_edges(edge_index, num_nodes, name)
    weights = read_weights(edge_weight, edges.shape[1], name)
    targets, names = targets_and_names(y, num_nodes, class_names, name, columns)
    adjacency = make_adjacency(edges, num_nodes, undirected, weights=weights, name=name)
    return Graph(features, adjacency, targets, names, name, directed=undirected is False).altered(
        attributes=read_attributes(attributes or {}, num_nodes, name),
        splits=read_splits(splits, num_nodes, name),
        feature_names=names_of_columns,
    )


def from_pyg(data: Any, *, undirected: bool | None = None, name: str = "graph", numbers: bool = False) -> Graph:
    """Make a `Graph` from a PyG `Data` object.

    Edges are read in both directions unless `undirected=False`, as they are from files. `edge_weight` holds their
    weights; `edge_attr` is not read. A `class_names` attribute names the classes; otherwise the labels are the names.
    A `feature_names` attribute names the columns of `x`. Without `y` no node has a label: enough to predict, not to
    learn. A `y` of several columns holds labels or numbers. `train_mask`, `val_mask` and `test_mask` become the split,
    and any other one-dimensional tensor with a number for each node becomes an attribute that a stream can be made from
    (`eg.stream(data, by="year")`). With `numbers`, a `y` of whole numbers holds targets to predict as numbers; else
    they are classes.
    """
    kind = type(data).__name__
    if hasattr(data, "node_types") and hasattr(data, "to_homogeneous"):
        types = ", ".join(map(str, data.node_types))
        raise EvergraphError(
            f"{name}: a {kind} has nodes of several types ({types}); give a Data object, e.g. data.to_homogeneous()"
        )
    if is_frame(data) and not hasattr(data, "edge_index"):  # a Data object may hold anything, `columns` too
        made = "eg.from_tables(nodes, edges) makes one of a node table and an edge list"
        if isinstance(data, Mapping) and {"x", "edge_index"} <= set(data):
            made = "eg.make_graph(**arrays) makes one of its arrays"
        raise EvergraphError(f"{name}: a {kind} is not a graph; {made}")
    if not (hasattr(data, "x") or hasattr(data, "edge_index")):
        raise EvergraphError(
            f"{name}: {kind} is not a graph; give a PyG Data object, a Graph (eg.make_graph) or the path of a file"
        )
    missing = [key for key in ("x", "edge_index") if getattr(data, key, None) is None]
    if missing:
        raise EvergraphError(f"{name}: the PyG object has no {' and no '.join(missing)}; {NEEDED}")
    tell_of_edge_features([data], name)
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
        columns=numbers,
        feature_names=getattr(data, "feature_names", None),
    )
