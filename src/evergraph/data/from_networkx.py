"""Make a graph from a NetworkX graph, which is read as a node table and an edge list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evergraph.data.edge_lists import WEIGHTS
from evergraph.data.from_tables import IDS, LABELS, Missing, from_tables
from evergraph.data.graph import Graph
from evergraph.data.tables import check_vectors
from evergraph.data.targets import ClassName
from evergraph.errors import EvergraphError, shown, tell


def is_networkx(data: Any) -> bool:
    """Whether an object is a NetworkX graph; does not import NetworkX."""
    return any(kind.__module__.split(".")[0] == "networkx" for kind in type(data).__mro__)


def from_networkx(
    graph: Any,
    *,
    label: str | None = None,
    weight: str | None = None,
    features: Sequence[str] | None = None,
    missing: Missing = "refuse",
    class_names: Sequence[ClassName] | Mapping[Any, Any] | None = None,
    undirected: bool | None = None,
    name: str = "graph",
    numbers: bool = False,
) -> Graph:
    """Make a `Graph` from a NetworkX graph, with node attributes as the columns of a node table (see `from_tables`).

    Node names are the ids. An attribute may be a number or a vector of the same length at every node (`x`).

    Args:
        graph: a `Graph` or `DiGraph`; parallel edges of multigraphs count once, or with the sum of their weights.
        label: node attribute with the class; by default `label`, `class` or `y`.
        weight: edge attribute with the weight; by default `weight`, if any edge has one.
        features: node attributes to use as features; by default all numeric ones.
        missing: what to do where a feature is missing at a node.
        class_names: as in `make_graph`.
        undirected: as in `make_graph`; the edges of an undirected graph have no direction to keep.
        name: name of the graph in messages.
        numbers: as in `from_tables`.
    """
    if not is_networkx(graph):
        raise EvergraphError(f"{name}: {shown(graph)} is not a NetworkX graph")
    names = list(graph.nodes)
    if not names:
        raise EvergraphError(f"{name}: the NetworkX graph has no nodes")
    keys = list(dict.fromkeys(key for _, known in graph.nodes(data=True) for key in known))
    columns: dict[str, Any] = {
        str(key): [known.get(key) for _, known in graph.nodes(data=True)] for key in keys if str(key) not in IDS
    }
    if not [key for key in columns if key != label and (label or key not in LABELS)]:
        kind = type(graph).__name__
        raise EvergraphError(
            f"{name}: the nodes of this NetworkX {kind} have no attributes to take as features; "
            "set some, e.g. nx.set_node_attributes(graph, values, 'x')"
        )
    for key, values in columns.items():
        check_vectors(values, f"{name}: attribute {key!r}", "at every node", lambda row: f"at node {names[row]!r}")
    pairs = list(graph.edges(data=True))
    listed: dict[str, Any] = {side: [str(edge[end]) for edge in pairs] for end, side in enumerate(("source", "target"))}
    weighs = weight or next((usual for usual in WEIGHTS if any(usual in known for *_, known in pairs)), None)
    if weighs is not None:
        listed["weight"] = [known.get(weighs, 1.0) for *_, known in pairs]
        if weight is not None and not any(weight in known for *_, known in pairs):
            raise EvergraphError(f"{name}: no edge has an attribute {weight!r} to weigh it by")
    elif others := list(dict.fromkeys(str(key) for *_, known in pairs for key in known)):
        tell(f"{name}: all edges weigh the same; edge attribute {others[0]!r} is not read (weight={others[0]!r} would)")
    numbered = all(isinstance(node, int) for node in names)
    return from_tables(
        {"id": names if numbered else [str(node) for node in names], **columns},
        listed if pairs else None,
        label=label,
        features=features,
        missing=missing,
        class_names=class_names,
        undirected=undirected if graph.is_directed() else True,
        name=name,
        numbers=numbers,
    )
