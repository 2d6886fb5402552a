"""A piece of memory: some examples of earlier tasks, with all that a model needs to compute their outputs.

One form serves all replay methods. Nodes without edges are a piece; so are nodes with a few of their neighbours,
propagated features in place of the nodes' own, nodes that were never real, whole small graphs, and links with their
ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergraph.core.sparse import Features, SparseMatrix, take_rows
from evergraph.data.graph import Graph
from evergraph.methods.state import count_bytes

SHORT = torch.int32  # of node and unit numbers as they are kept: half the bytes, and still two thousand million nodes

WHOLE_NUMBERS = ("seeds", "edge_index", "owner", "labels", "sizes", "ends")
OTHERS = ("key", "edge_weight", "rows")


@dataclass(eq=False)
class Piece:
    """Examples and their surroundings, the examples in the order in which they are wanted: the last go first.

    Args:
        x: features of all nodes.
        units: the target of each example, as an output unit; where an example has a row of targets (`rows`), the number
            of the group that it is counted in.
        seeds: the node that each example is; None where they are the first nodes, one after another.
        edge_index: sources above targets; None where there are no edges.
        owner: for each node the example that brought it; None where every node is an example. A node leaves with
            its owner, unless it is an example itself.
        labels: for each node its target, -1 for none, where nodes that came with an example are trained on too; None
            where the examples alone are.
        key: a random number for each example where chance decides which go first; None where their order does.
        edge_weight: of each edge; None where all are 1.
        rows: the labels or numbers of each example, a column per output unit, where it has no single class; else None.
        sizes: how many nodes each example has, one example's after another's, where examples are graphs; else None.
        ends: `(2, examples)`, the nodes that each example joins, where examples are links; else None.
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
        """Number of nodes, examples and others."""
        return self.x.size(0)

    @property
    def num_bytes(self) -> int:
        """What it takes to keep it."""
        return count_bytes(self.pack())

    def nodes_of_examples(self) -> Tensor:
        """The node of each example."""
        return torch.arange(self.num_examples) if self.seeds is None else self.seeds.long()

    def targets(self) -> tuple[Tensor, Tensor]:
        """The examples to train on (nodes, graphs or links), and their units."""
        if self.level != "node":
            return torch.arange(self.num_examples), self.units
        if self.labels is None:
            return self.nodes_of_examples(), self.units
        nodes = torch.nonzero(self.labels >= 0).reshape(-1)
        return nodes, self.labels[nodes].long()

    def take(self, examples: Tensor) -> Piece:
        """Some of the examples, in ascending order, with the nodes that they brought and the edges between those."""
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
            # a seed whose owner has left is its own
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
        """The nodes of the chosen graphs or links, as a mask; of nodes none."""
        if self.sizes is not None:
            return torch.repeat_interleave(chosen, self.sizes.long())
        read = torch.zeros(self.num_nodes, dtype=torch.bool)
        if self.ends is not None:
            read[self.ends[:, chosen].long()] = True
        return read

    def members(self) -> SparseMatrix | None:
        """The nodes that each graph or link reads, as `Graph.members` has them; None where examples are nodes."""
        if self.sizes is not None:
            indptr = torch.cat([torch.zeros(1, dtype=torch.long), self.sizes.long().cumsum(0)])
            nodes = torch.arange(self.num_nodes)
        elif self.ends is not None:
            indptr, nodes = torch.arange(self.num_examples + 1) * 2, self.ends.long().T.reshape(-1)
        else:
            return None
        return SparseMatrix(indptr, nodes, torch.ones(nodes.numel()), self.num_nodes)

    def graph(self) -> Graph:
        """The nodes and edges as a graph; its targets are left open, being output units."""
        number = self.num_nodes
        edges = torch.zeros(2, 0, dtype=torch.long) if self.edge_index is None else self.edge_index.long()
        order = torch.argsort(edges[1] * number + edges[0])
        counts = torch.bincount(edges[1], minlength=number)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        weights = torch.ones(order.numel()) if self.edge_weight is None else self.edge_weight[order]
        adjacency = SparseMatrix(indptr, edges[0][order], weights, number)
        y = torch.full((number if self.level == "node" else self.num_examples,), -1)
        return Graph(self.x, adjacency, y, [0], "memory", level=self.level, members=self.members())

    def pack(self) -> dict[str, Any]:
        """As a method's state keeps it: tensors by name, whole numbers in short form, unknown targets as infinity."""
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
        """The piece that `pack` took apart, on the CPU."""
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
    """Features in the form that takes fewer bytes, dense or sparse."""
    entries = x.nnz if isinstance(x, SparseMatrix) else int(torch.count_nonzero(x))
    size = x.values.element_size() if isinstance(x, SparseMatrix) else x.element_size()
    sparse = entries * (size + 4) + (x.size(0) + 1) * 4
    if sparse < x.size(0) * x.size(1) * size:
        return x if isinstance(x, SparseMatrix) else SparseMatrix.from_dense(x)
    return x.dense() if isinstance(x, SparseMatrix) else x
