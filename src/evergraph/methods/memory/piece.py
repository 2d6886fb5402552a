"""A piece of memory: some examples of earlier tasks, with everything a model needs to compute their outputs.

One form serves all replay methods: nodes without edges, nodes with a few of their neighbours, propagated features in
place of the nodes' own, synthetic nodes, whole small graphs, and links with their ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergraph.core.features import Features, take_rows
from evergraph.core.sparse import SparseMatrix
from evergraph.data.graph import Graph
from evergraph.methods.state import count_bytes

SHORT = torch.int32  # stored node and unit indices: half the bytes, and still room for two billion nodes

WHOLE_NUMBERS = ("seeds", "edge_index", "owner", "labels", "sizes", "ends")
OTHERS = ("key", "edge_weight", "rows")


@dataclass(eq=False)
class Piece:
    """Examples and their surroundings, with the examples in order of priority: the last are dropped first.

    Args:
        x: features of all nodes.
        units: target of each example, as an output unit; if examples have a row of targets (`rows`), the number of the
            group that the example is counted in.
        seeds: node of each example; None if the examples are the first nodes, in order.
        edge_index: sources above targets; None if there are no edges.
        owner: for each node, the example that brought it; None if every node is an example. A node is dropped with its
            owner, unless it is an example itself.
        labels: target of each node, -1 for none, if nodes that came with an example are trained on too; None if only
            the examples are.
        key: a random number for each example, if examples are dropped at random; None if they are dropped in order.
        edge_weight: weight of each edge; None if all are 1.
        rows: labels or numbers of each example, one column per output unit, if it has no single class; else None.
        sizes: number of nodes of each example, whose nodes are consecutive, if examples are graphs; else None.
        ends: `(2, examples)`, the nodes that each example joins, if examples are links; else None.
    """

    x: Features
    units: Tensor
    seeds: Tensor | None = None
    edge_index: Tensor | None = None
    owner: Tensor | None = None
    labels: Tensor | None = None
    key: Tensor | None = None
    edge_weight: Tensor | None = None
    rows: Tensor | None = None
    sizes: Tensor | None = None
    ends: Tensor | None = None

    @property
    def level(self) -> str:
        """What an example is: `node`, `graph` or `link`."""
        return "graph" if self.sizes is not None else "link" if self.ends is not None else "node"

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return self.units.numel()

    @property
    def num_nodes(self) -> int:
        """Number of nodes, including those that are not examples."""
        return self.x.size(0)

    @property
    def num_bytes(self) -> int:
        """Size of the packed piece in bytes."""
        return count_bytes(self.pack())

    def nodes_of_examples(self) -> Tensor:
        """Return the node of each example."""
        return torch.arange(self.num_examples) if self.seeds is None else self.seeds.long()

    def targets(self) -> tuple[Tensor, Tensor]:
        """Return the examples to train on (nodes, graphs or links), and their units."""
        if self.level != "node":
            return torch.arange(self.num_examples), self.units
        if self.labels is None:
            return self.nodes_of_examples(), self.units
        nodes = torch.nonzero(self.labels >= 0).reshape(-1)
        return nodes, self.labels[nodes].long()

    def take(self, examples: Tensor) -> Piece:
        """Return some examples, given in ascending order, with the nodes they brought and the edges between those."""
        if examples.numel() == self.num_examples:
            return self
        key, rows = (None if part is None else part[examples] for part in (self.key, self.rows))
        if self.level == "node" and self.owner is None and self.seeds is None and self.edge_index is None:
            return Piece(take_rows(self.x, examples), self.units[examples], key=key, rows=rows)
        chosen = torch.zeros(self.num_examples, dtype=torch.bool)
        chosen[examples] = True
        seeds = self.nodes_of_examples()[examples] if self.level == "node" else examples[:0]
        stays = self._nodes_read(chosen)
        if self.owner is not None:
            stays = chosen[self.owner.long()]
        stays[seeds] = True
        position = stays.long().cumsum(0) - 1
        edges, weights = self.edge_index, self.edge_weight
        if edges is not None:
            within = edges.long()
            remain = stays[within].all(0)
            edges = position[within[:, remain]].to(SHORT)
            weights = None if weights is None else weights[remain]
        owner = None
        if self.owner is not None:
            place = chosen.long().cumsum(0) - 1
            # a seed whose owner was dropped becomes its own owner
            place_of_seed = torch.full((self.num_nodes,), -1, dtype=torch.long)
            place_of_seed[seeds] = torch.arange(examples.numel())
            old = self.owner.long()
            owner = torch.where(chosen[old], place[old], place_of_seed)[stays].to(SHORT)
        nodes = torch.nonzero(stays).reshape(-1)
        placed = None if self.seeds is None else position[seeds].to(SHORT)
        labels = None if self.labels is None else self.labels[nodes]
        sizes = None if self.sizes is None else self.sizes[examples]
        ends = None if self.ends is None else position[self.ends[:, examples].long()].to(SHORT)
        x, units = take_rows(self.x, nodes), self.units[examples]
        return Piece(x, units, placed, edges, owner, labels, key, weights, rows, sizes, ends)

    def _nodes_read(self, chosen: Tensor) -> Tensor:
        """Return a mask of the nodes of the chosen graphs or links; all False if examples are nodes."""
        if self.sizes is not None:
            return torch.repeat_interleave(chosen, self.sizes.long())
        read = torch.zeros(self.num_nodes, dtype=torch.bool)
        if self.ends is not None:
            read[self.ends[:, chosen].long()] = True
        return read

    def members(self) -> SparseMatrix | None:
        """Return the nodes that each graph or link reads, in the form of `Graph.members`; None at node level."""
        if self.sizes is not None:
            indptr = torch.cat([torch.zeros(1, dtype=torch.long), self.sizes.long().cumsum(0)])
            nodes = torch.arange(self.num_nodes)
        elif self.ends is not None:
            indptr, nodes = torch.arange(self.num_examples + 1) * 2, self.ends.long().T.reshape(-1)
        else:
            return None
        return SparseMatrix(indptr, nodes, torch.ones(nodes.numel()), self.num_nodes)

    def graph(self, own_neighbours: bool = False) -> Graph:
        """Return the nodes and edges as a graph; its targets are unset, since a piece stores output units.

        With `own_neighbours`, nodes that were kept without their edges are neighbours of themselves.
        """
        number = self.num_nodes
        if self.edge_index is not None:
            edges = self.edge_index.long()
        elif own_neighbours and self.level != "graph":  # a graph is kept with its edges, if it has any
            edges = torch.arange(number).repeat(2, 1)
        else:
            edges = torch.zeros(2, 0, dtype=torch.long)
        order = torch.argsort(edges[1] * number + edges[0])
        counts = torch.bincount(edges[1], minlength=number)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        weights = torch.ones(order.numel()) if self.edge_weight is None else self.edge_weight[order]
        adjacency = SparseMatrix(indptr, edges[0][order], weights, number)
        y = torch.full((number if self.level == "node" else self.num_examples,), -1)
        return Graph(self.x, adjacency, y, [0], "memory", level=self.level, members=self.members())

    def pack(self) -> dict[str, Any]:
        """Return the piece in stored form: tensors by name, int32 for integers, infinity for unknown targets."""
        kept: dict[str, Any] = {"units": self.units.to(SHORT)}
        if isinstance(self.x, SparseMatrix):
            kept["x_indptr"], kept["x_indices"] = self.x.indptr.to(SHORT), self.x.indices.to(SHORT)
            kept["x_values"], kept["num_features"] = self.x.values, self.x.num_columns
        else:
            kept["x"] = self.x
        for name in WHOLE_NUMBERS:
            value: Tensor | None = getattr(self, name)
            if value is not None:
                kept[name] = value.to(SHORT)
        rest = {name: getattr(self, name) for name in OTHERS}
        if self.rows is not None:  # a NaN in a method's state would mean that it diverged
            rest["rows"] = self.rows.masked_fill(self.rows.isnan(), torch.inf)
        return {**kept, **{name: value for name, value in rest.items() if value is not None}}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Piece:
        """Rebuild a piece from the result of `pack`, on the CPU."""
        kept: dict[str, Any] = {
            name: value.cpu() if isinstance(value, Tensor) else value for name, value in packed.items()
        }
        x: Features
        if "x" in kept:
            x = kept["x"]
        else:
            indptr, indices = kept["x_indptr"].long(), kept["x_indices"].long()
            x = SparseMatrix(indptr, indices, kept["x_values"], kept["num_features"])
        rest = {name: kept.get(name) for name in (*WHOLE_NUMBERS, *OTHERS)}
        if "rows" in kept:
            rest["rows"] = kept["rows"].masked_fill(kept["rows"].isinf(), torch.nan)
        return cls(x, kept["units"].long(), **rest)


def smaller_form(x: Features) -> Features:
    """Return the features in the form that takes fewer bytes, dense or sparse."""
    entries = x.nnz if isinstance(x, SparseMatrix) else int(torch.count_nonzero(x))
    size = x.values.element_size() if isinstance(x, SparseMatrix) else x.element_size()
    sparse = entries * (size + 4) + (x.size(0) + 1) * 4
    if sparse < x.size(0) * x.size(1) * size:
        return x if isinstance(x, SparseMatrix) else SparseMatrix.from_dense(x)
    return x.dense() if isinstance(x, SparseMatrix) else x
