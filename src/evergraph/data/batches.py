"""Mini-batches over seed nodes: exact neighbourhoods by default, sampled ones on request.

The nodes of a batch are ordered by their distance from the seeds, seeds first. So one CSR matrix
serves every layer: layer after layer, a shorter prefix of its rows is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.errors import EvergraphError
from evergraph.sparse import Features, SparseMatrix, as_dense, sparse_product, take_rows

FIXED_BYTES = 2**29  # the most that a product with fixed weights may take to be kept for a whole task


@dataclass(eq=False)
class Batch:
    """Some seed nodes and all that a model needs to compute their logits.

    Args:
        x: the model's inputs at the batch's nodes.
        operator: row v holds the weights with which v reads its neighbours.
        sizes: `sizes[k]` nodes lie within k hops of the seeds; `sizes[0]` is the number of seeds.
        nodes: the batch's nodes in the graph, seeds first.
        y: the seeds' labels, as output units.
        source: where the batch was cut from; None for a batch that was put together in another way.
    """

    x: Features
    operator: SparseMatrix
    sizes: tuple[int, ...]
    nodes: Tensor
    y: Tensor
    source: Neighbourhoods | None = None

    @property
    def num_seeds(self) -> int:
        """Number of nodes whose logits are wanted."""
        return self.sizes[0]

    @property
    def num_hops(self) -> int:
        """Message-passing layers that the batch serves."""
        return len(self.sizes) - 1

    def layer(self, number: int) -> SparseMatrix:
        """The operator of message-passing layer `number` (0 is the first): from its nodes to the next layer's."""
        hops = self.num_hops - number
        return self.operator.top(self.sizes[hops - 1], self.sizes[hops])

    @property
    def edge_index(self) -> Tensor:
        """PyG's edge list over the batch's nodes."""
        return torch.stack([self.operator.indices, self.operator.row_of_entry()])

    @property
    def dense_x(self) -> Tensor:
        """The inputs as an ordinary tensor."""
        return as_dense(self.x)


class Neighbourhoods:
    """Cuts batches out of one graph.

    Args:
        x: the model's inputs at all nodes.
        operator: the model's propagation matrix over all nodes.
        y: labels as output units.
        num_hops: message-passing layers to serve.
        fan_out: neighbours to sample at each hop, from the seeds outwards; None takes all of them.
    """

    def __init__(
        self,
        x: Features,
        operator: SparseMatrix,
        y: Tensor,
        num_hops: int,
        fan_out: Sequence[int] | None = None,
    ) -> None:
        if fan_out is not None and len(fan_out) < num_hops:
            raise EvergraphError(
                f"fan_out={list(fan_out)} names {len(fan_out)} hops, the model reads {num_hops}; give one number a hop"
            )
        self.x, self.operator, self.y = x, operator, y
        self.num_hops, self.fan_out = num_hops, fan_out
        self._propagated: Features | None = None
        self._fixed: tuple[Tensor, int, bool, Tensor] | tuple[()] = ()
        self._position = torch.full((y.numel(),), -1, dtype=torch.long, device=y.device)

    def batch(self, seeds: Tensor, generator: torch.Generator | None = None) -> Batch:
        """The batch of the given seed nodes."""
        position, nodes, sizes = self._position, [seeds], [seeds.numel()]
        pointers, columns, weights = [torch.zeros(1, dtype=torch.long, device=seeds.device)], [], []
        position[seeds] = torch.arange(seeds.numel(), device=seeds.device)
        frontier, entries_before = seeds, 0
        for hop in range(self.num_hops):
            indptr, entries = self.operator.entries_of(frontier)
            values = self.operator.values[entries]
            if self.fan_out is not None:
                indptr, kept, scale = _sample(
                    indptr, self.operator.indices[entries], frontier, self.fan_out[hop], generator
                )
                entries, values = entries[kept], values[kept] * scale.to(values.dtype)
            neighbours = self.operator.indices[entries]
            frontier = torch.unique(neighbours[position[neighbours] < 0])
            position[frontier] = torch.arange(sizes[-1], sizes[-1] + frontier.numel(), device=seeds.device)
            pointers.append(indptr[1:] + entries_before)
            entries_before += entries.numel()
            columns.append(neighbours)
            weights.append(values)
            nodes.append(frontier)
            sizes.append(sizes[-1] + frontier.numel())
        all_nodes = torch.cat(nodes)
        if self.num_hops:
            operator = SparseMatrix(torch.cat(pointers), position[torch.cat(columns)], torch.cat(weights), sizes[-1])
        else:
            empty = seeds.new_zeros(0)
            operator = SparseMatrix(seeds.new_zeros(sizes[0] + 1), empty, self.operator.values[:0], sizes[0])
        position[all_nodes] = -1
        return Batch(take_rows(self.x, all_nodes), operator, tuple(sizes), all_nodes, self.y[seeds], self)

    def propagated(self) -> Features:
        """Ã X at all nodes, computed once."""
        if self._propagated is None:
            self._propagated = sparse_product(self.operator, self.x)
        return self._propagated

    def fixed_product(self, weight: Tensor, propagate: bool) -> Tensor | None:
        """X W (or Ã X W) at all nodes for a W that stays as it is: computed once, None where it is too large to keep.

        The weight is known by its storage and its version, so a changed one is noticed.
        """
        if not self._fixed or self._fixed[0] is not weight or self._fixed[1:3] != (weight._version, propagate):
            if weight.element_size() * self.y.numel() * weight.size(1) > FIXED_BYTES:
                return None
            product = self.x @ weight.detach()
            self._fixed = (weight, weight._version, propagate, self.operator @ product if propagate else product)
        return self._fixed[3]

    def exact(self) -> Neighbourhoods:
        """The same graph with all neighbours."""
        return self if self.fan_out is None else Neighbourhoods(self.x, self.operator, self.y, self.num_hops)

    def batches(
        self, seeds: Tensor, batch_size: int | None, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """The seeds in consecutive batches; `None` makes one batch of all of them."""
        for piece in torch.split(seeds, batch_size or max(seeds.numel(), 1)):
            yield self.batch(piece, generator)


def _sample(
    indptr: Tensor, neighbours: Tensor, rows: Tensor, fan_out: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """At most `fan_out` neighbours of each row, drawn without replacement; a self-loop is always kept.

    Returns the new row pointers, the positions kept, and the factor on each kept weight that makes the
    weighted sum over the sample an unbiased estimate of the sum over all neighbours.
    """
    counts = indptr[1:] - indptr[:-1]
    row = torch.repeat_interleave(torch.arange(rows.numel(), device=rows.device), counts)
    loop = neighbours == rows[row]
    key = torch.rand(neighbours.numel(), generator=generator, dtype=torch.float64).to(rows.device)
    key = torch.where(loop, -1.0, key)  # a self-loop sorts before all others
    order = torch.argsort(row + (key + 1) / 2)
    rank = torch.arange(neighbours.numel(), device=rows.device) - indptr[row]
    loops = torch.zeros_like(counts).index_add_(0, row, loop.long())
    kept_mask = rank < fan_out + loops[row]
    kept = order[kept_mask]
    kept_row = row[kept_mask]
    others = (counts - loops).double()
    factor = (others / fan_out).clamp(min=1)
    scale = torch.where(loop[kept], 1.0, factor[kept_row])
    new_counts = torch.minimum(counts, fan_out + loops)
    new_indptr = torch.zeros_like(indptr)
    torch.cumsum(new_counts, 0, out=new_indptr[1:])
    return new_indptr, kept, scale
