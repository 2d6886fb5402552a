"""A score as a sum of pieces that are linear in the features of nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.core.features import Features
from evergraph.core.sparse import SparseMatrix
from evergraph.models.feature_blocks import Block


@dataclass(frozen=True)
class Piece:
    """Σ_u reach_u (x̂_u · pull): the contribution of some nodes' features to a score.

    Args:
        depth: number of steps of propagation.
        nodes: the nodes u whose features contribute.
        reach: weight with which each node's features arrive.
        rows: the nodes' features x̂, as the model scales them.
        pull: weight of each feature in the score.
    """

    depth: int
    nodes: Tensor
    reach: Tensor
    rows: Features
    pull: Tensor

    def by_node(self) -> Tensor:
        """Contribution of each node, summed over features."""
        return self.reach * (self.rows @ self.pull.unsqueeze(1)).reshape(-1)

    def by_feature(self) -> Tensor:
        """Contribution of each feature, summed over nodes."""
        return arriving(self.rows, self.reach) * self.pull


def arriving(rows: Features, reach: Tensor) -> Tensor:
    """Return Σ_u reach_u x̂_u."""
    if not isinstance(rows, SparseMatrix):
        return reach @ rows
    total = torch.zeros(rows.num_columns, dtype=reach.dtype)
    return total.index_add_(0, rows.indices, rows.values * reach[rows.row_of_entry()])


def reach_of(operator: SparseMatrix, node: int, block: Block) -> tuple[Tensor, Tensor]:
    """Return row `node` of P^depth, with P the block's step over A + I: the nodes it reads, and their weights."""
    degree = operator.row_sums().double()
    nodes, amounts = torch.tensor([node]), torch.ones(1, dtype=torch.float64)
    for _ in range(block.depth):
        rows = operator.rows(nodes)
        place, found = rows.row_of_entry(), rows.indices
        target = nodes[place]
        if block.balance is not None:
            flow = degree[target] ** (block.balance - 1) * rows.values.double() * degree[found] ** -block.balance
        else:  # the mean over neighbours: A + I without the node itself
            others = (degree[target] - 1).clamp(min=0)
            flow = (rows.values.double() - (found == target).double()) / others.clamp(min=1e-6)
            flow = torch.where(others > 1e-6, flow, torch.zeros_like(flow))
        nodes, position = torch.unique(found, return_inverse=True)
        amounts = torch.zeros(nodes.numel(), dtype=torch.float64).index_add_(0, position, amounts[place] * flow)
    return nodes, amounts
