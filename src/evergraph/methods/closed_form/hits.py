"""What validation nodes say of heads: which each puts right, and what a change puts right and wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergraph.core.dense_algebra import product
from evergraph.methods.base import Context
from evergraph.methods.closed_form.head import linear_head
from evergraph.models.base import NODES_AT_ONCE


def rows_of(block_of_row: Tensor, blocks: Sequence[bool]) -> Tensor:
    """The rows of the head that belong to the chosen blocks, and the one of the column of ones."""
    chosen = torch.tensor([*blocks, True])  # -1, the column of ones, meets the last entry
    return torch.nonzero(chosen[block_of_row]).reshape(-1)


def validation_hits(context: Context, heads: list[Tensor], units: Tensor | None = None) -> Tensor:
    """Row i: which of the task's validation nodes, this process's own, head i puts right; among `units`, if given."""
    features, _ = linear_head(context.model)
    hits, width = [torch.zeros(len(heads), 0, dtype=torch.bool)], heads[0].size(1)
    outside = torch.ones(width, dtype=torch.bool, device=heads[0].device)
    outside[slice(None) if units is None else units] = False
    nodes = context.own(context.task.val).to(context.device)
    for batch in context.batcher.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ():
        rows = features(batch)
        scores = product(rows, torch.cat(heads, dim=1).to(rows.dtype))
        found = [part.masked_fill(outside, -torch.inf).argmax(1) for part in scores.split(width, dim=1)]
        hits.append((torch.stack(found) == batch.y).cpu())
    return torch.cat(hits, dim=1)


def count_changes(counts: list[int], before: Tensor, after: Tensor) -> None:
    """Add to `counts` how many nodes a change puts right, and how many wrong."""
    counts[0] += int((after & ~before).sum())
    counts[1] += int((before & ~after).sum())


def clearly_more(counts: list[int]) -> bool:
    """Whether more nodes are put right than wrong, by two standard errors."""
    return counts[0] - counts[1] > 2 * sum(counts) ** 0.5
