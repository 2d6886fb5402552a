"""Kinds of examples (nodes, graphs among many, links): how such data is made and restricted to some examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergraph.core.features import block_diagonal, take_rows
from evergraph.core.sparse import SparseMatrix
from evergraph.data.arrays import as_array, make_adjacency, read_edges
from evergraph.data.attributes import read_attributes, read_splits
from evergraph.data.graph import Graph, make_graph
from evergraph.data.targets import ClassName, targets_and_names
from evergraph.errors import EvergraphError, tell

LINK = "link"  # name of the label of a pair in link prediction


def problem_of(graph: Graph) -> str:
    """Return the default problem for a graph's examples and targets."""
    if graph.positives_only or _without_labels(graph):
        return "link-prediction"
    if graph.has_classes:
        return f"{graph.level}-classification"
    known = graph.y[~graph.y.isnan()]
    return f"{graph.level}-labelling" if bool(((known == 0) | (known == 1)).all()) else f"{graph.level}-regression"


def as_existing_links(graph: Graph) -> Graph:
    """Return links without labels as links that exist, for link prediction, with a note; other graphs unchanged."""
    if not _without_labels(graph):
        return graph
    tell(
        f"{graph.name}: no link has a label, so what is learned is whether there is a link (link-prediction); pairs "
        "without one are drawn"
    )
    return graph.altered(y=torch.ones(graph.num_examples, 1), class_names=[LINK], positives_only=True)


def _without_labels(graph: Graph) -> bool:
    """Whether examples are links and nothing is known of them but that they exist."""
    return graph.level == "link" and graph.has_classes and not bool((graph.y >= 0).any())


def with_numbers(graph: Graph) -> Graph:
    """Return the graph with classes that are whole numbers turned into numbers to predict.

    Where labels were read as classes, -1 became "no label", which a note says.
    """
    if not graph.has_classes:
        return graph
    if text := [name for name in graph.class_names if isinstance(name, str)]:
        raise EvergraphError(
            f"{graph.name}: its examples have classes ({text[0]!r}, …), which are no numbers to predict"
        )
    if unknown := int((~graph.labelled).sum()):
        tell(
            f"{graph.name}: {unknown:,} of {graph.num_examples:,} {graph.level}s have no label and so no number; its "
            "labels were read as classes, where -1 is none: if it is a number, make the graph with columns=True, or "
            "give the file itself in place of a converted folder"
        )
    numbers = torch.tensor([*graph.class_names, torch.nan])[graph.y]  # the last entry is for -1, no label
    return graph.altered(y=numbers.unsqueeze(1), class_names=[0])


def make_graphs(
    x: Any,
    edge_index: Any,
    graph_of_node: Any,
    y: Any = None,
    *,
    edge_weight: Any = None,
    class_names: Sequence[ClassName] | Mapping[Any, Any] | None = None,
    undirected: bool | None = None,
    name: str = "graphs",
    attributes: Mapping[str, Any] | None = None,
    splits: Any = None,
    columns: bool = False,
    num_graphs: int | None = None,
    feature_names: Sequence[str] | None = None,
) -> Graph:
    """Join many small graphs side by side into one whose examples are the graphs.

    Args:
        x: features of all nodes, graph after graph.
        edge_index: `(2, num_edges)` over all nodes; an edge between two graphs is refused.
        graph_of_node: number of each node's graph, from 0, ascending.
        y: one target per graph, as `make_graph` takes them per node.
        edge_weight: as for `make_graph`; so are `class_names`, `undirected`, `name`, `attributes`, `splits`, `columns`
            and `feature_names`.
        num_graphs: number of graphs, needed if the last ones have no nodes.
    """
    owner = as_array(graph_of_node).reshape(-1).astype(np.int64)
    count = max(num_graphs or 0, int(owner.max(initial=-1)) + 1)
    nodes = make_graph(
        x, edge_index, edge_weight=edge_weight, undirected=undirected, name=name, feature_names=feature_names
    )
    if owner.size != nodes.num_nodes or (np.diff(owner) < 0).any() or owner.min(initial=0) < 0:
        raise EvergraphError(f"{name}: graph_of_node must give every node its graph's number, 0, 1, 2, … in this order")
    source, target = nodes.edge_index.numpy()
    if (owner[source] != owner[target]).any():
        raise EvergraphError(f"{name}: an edge joins nodes of two graphs; graphs are examples of their own")
    indptr = torch.as_tensor(np.searchsorted(owner, np.arange(count + 1)))
    members = SparseMatrix(indptr, torch.arange(owner.size), torch.ones(owner.size), owner.size)
    targets, names = targets_and_names(y, count, class_names, name, columns, "graph")
    return nodes.altered(
        y=targets,
        class_names=names,
        level="graph",
        members=members,
        attributes=read_attributes(attributes or {}, count, name),
        splits=read_splits(splits, count, name),
    )


def make_links(
    x: Any,
    links: Any,
    y: Any = None,
    *,
    edge_index: Any = None,
    class_names: Sequence[ClassName] | None = None,
    name: str = "links",
    attributes: Mapping[str, Any] | None = None,
    splits: Any = None,
    columns: bool = False,
    negatives: bool = False,
    feature_names: Sequence[str] | None = None,
) -> Graph:
    """Make a graph whose examples are pairs of nodes.

    Messages pass along `edge_index`, if given, and along the links that a task trains on, in both directions; never
    along a link that is to be predicted.

    Args:
        x: features of the nodes.
        links: `(2, num_links)`: pairs of nodes, from source to target; a pair may occur several times.
        y: one target per link; None if they are links to predict for, or all that is known is that they exist.
        edge_index: edges that are known from the start and are not examples.
        class_names: as for `make_graph`; so are `name`, `attributes`, `splits`, `columns` and `feature_names`.
        negatives: the links are existing ones; pairs without a link are drawn as negative examples. A task of links
            without targets takes them for such, too.
    """
    edges = np.zeros((2, 0), np.int64) if edge_index is None else edge_index
    nodes = make_graph(x, edges, undirected=True, name=name, feature_names=feature_names)
    pairs = read_edges(links, nodes.num_nodes, name, "links")
    count = pairs.shape[1]
    if negatives:
        y, columns, class_names = np.ones((count, 1), np.float32), True, class_names or [LINK]
    targets, names = targets_and_names(y, count, class_names, name, columns, "link")
    return nodes.altered(
        y=targets,
        class_names=names,
        level="link",
        members=pairs_as_members(torch.as_tensor(pairs.astype(np.int64)), nodes.num_nodes),
        attributes=read_attributes(attributes or {}, count, name),
        splits=read_splits(splits, count, name),
        positives_only=negatives,
    )


def pairs_as_members(links: Tensor, num_nodes: int) -> SparseMatrix:
    """Return a matrix with two entries per row: source, then target."""
    count = links.size(1)
    return SparseMatrix(torch.arange(count + 1) * 2, links.T.reshape(-1), torch.ones(2 * count), num_nodes)


def with_links(graph: Graph, links: Any) -> Graph:
    """Return the same nodes with other links, without targets, to predict for.

    The graph's own links then count as known, so messages pass along them as along the links that a task trains on, but
    not along those to predict, in either direction. A task's graph already has its known links as edges.
    """
    links = torch.as_tensor(read_edges(links, graph.num_nodes, graph.name, "links")).long()
    if graph.level == "link" and not graph.along_links:
        graph = with_other_links(graph, links)
    y = graph.y.new_full((links.size(1), *graph.y.shape[1:]), -1 if graph.has_classes else torch.nan)
    members = pairs_as_members(links, graph.num_nodes)
    return graph.altered(y=y, members=members, level="link", attributes={}, splits=None)


def with_other_links(graph: Graph, asked: Tensor) -> Graph:
    """Add the graph's own links as edges; no edge joins a pair asked for, `(2, number)`, in either direction."""
    assert graph.members is not None
    own = _pair_numbers(graph.members.indices.view(-1, 2).T, graph)
    others = (~torch.isin(own, _both_ways(asked, graph))).nonzero().flatten()
    return with_training_edges(without_edges_between(graph, asked), others)


def link_ends(graph: Graph, links: Tensor) -> Tensor | None:
    """Return the source and the target of each of these links, `(links, 2)`; None if examples are not links."""
    if graph.level != "link" or graph.members is None:
        return None
    return graph.members.indices.view(-1, 2)[links]


def narrowed(graph: Graph, examples: Tensor, groups: Tensor | None = None) -> Graph:
    """Return the graph with only some of its examples, renumbered in their order.

    Nodes: the subgraph that they induce. Graphs: they and their nodes. Links: all nodes stay.

    Args:
        graph: the graph.
        examples: numbers of the examples, ascending.
        groups: one number per example; where examples are nodes, only edges within a group are kept.
    """
    if graph.level == "node":
        return graph.subgraph(examples, groups)
    some = graph.with_examples(examples, on_disk=False)
    if graph.level == "link":
        return some
    assert some.members is not None
    nodes = some.members.indices
    members = SparseMatrix(some.members.indptr, torch.arange(nodes.numel()), some.members.values, nodes.numel())
    return graph.subgraph(nodes).altered(
        y=some.y, members=members, attributes=some.attributes, splits=some.splits, class_names=some.class_names
    )


def repeated(graph: Graph, times: int) -> Graph:
    """Return the graph with all examples repeated, one whole set after another.

    Graphs and links read the same nodes every time; where examples are nodes, copies of the graph are side by side.
    """
    every = torch.arange(graph.num_examples).repeat(times)
    nodes: dict[str, Any] = {}
    if graph.level == "node":
        nodes = {"x": take_rows(graph.x, every), "adjacency": block_diagonal([graph.adjacency] * times)}
    return graph.with_examples(every, on_disk=False, **nodes)


def links_to_know(graph: Graph, train: Tensor, held_out: Tensor) -> Tensor:
    """Return the training links that may become edges: not those whose pair is also held out, in either direction.

    A pair may occur several times. Examples that are not links are returned unchanged.
    """
    if (own := link_ends(graph, train)) is None or (wanted := link_ends(graph, held_out)) is None:
        return train
    return train[~torch.isin(_pair_numbers(own.T, graph), _both_ways(wanted.T, graph))]


def without_edges_between(graph: Graph, pairs: Tensor) -> Graph:
    """Return the graph without its edges between these pairs of nodes, `(2, number)`, in either direction."""
    edges = graph.edge_index
    gone = torch.isin(_pair_numbers(edges, graph), _both_ways(pairs, graph))
    if not gone.any():
        return graph
    return graph.altered(adjacency=make_adjacency(edges[:, ~gone].numpy(), graph.num_nodes, undirected=False))


def without_held_out_edges(graph: Graph, held_out: Tensor) -> Graph:
    """Return the graph without its own edges between the ends of held-out links, and say how many there were.

    Examples that are not links have no such edges.
    """
    if (ends := link_ends(graph, held_out)) is None:
        return graph
    left = without_edges_between(graph, ends.T)
    if gone := graph.num_edges - left.num_edges:
        tell(
            f"{graph.name}: {gone:,} of the {graph.num_edges:,} edges in edge_index join the ends of validation and "
            "test links, which are to be predicted; no message passes along them"
        )
    return left


def with_training_edges(graph: Graph, train: Tensor) -> Graph:
    """Add the training links (those that exist) as edges if examples are links; return other graphs unchanged."""
    if graph.level != "link":
        return graph
    assert graph.members is not None
    exist = train if not graph.positives_only else train[graph.y[train, 0] > 0]
    ends = graph.members.rows(exist).indices.view(-1, 2).T
    edges = torch.cat([graph.edge_index, ends, ends.flip(0)], dim=1)
    known = make_adjacency(edges.numpy(), graph.num_nodes, undirected=False)
    return graph.altered(adjacency=known, along_links=True)


def _pair_numbers(ends: Tensor, graph: Graph) -> Tensor:
    """Return a number for each pair of nodes, source · nodes + target."""
    return ends[0] * graph.num_nodes + ends[1]


def _both_ways(ends: Tensor, graph: Graph) -> Tensor:
    """Return the numbers of pairs of nodes and of the same pairs in the other direction."""
    return torch.cat([_pair_numbers(ends, graph), _pair_numbers(ends.flip(0), graph)])


def unordered_pairs(ends: Tensor, graph: Graph) -> Tensor:
    """Return a number for each pair of nodes, the same in both directions."""
    return _pair_numbers(ends.sort(0).values, graph)


def first_of_pair(graph: Graph, links: Tensor) -> Tensor:
    """Return for each of these links the one with the lowest number between the same two nodes, in either direction."""
    assert graph.members is not None
    _, pair = torch.unique(unordered_pairs(graph.members.rows(links).indices.view(-1, 2).T, graph), return_inverse=True)
    first = torch.full((links.numel(),), graph.num_examples).scatter_reduce(0, pair, links, "amin")
    return first[pair]
