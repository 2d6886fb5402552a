"""What validation nodes say of heads: which each puts right, and what a change puts right and wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergraph.methods.base import Context
from evergraph.methods.closed_form.head import linear_head
from evergraph.models.base import NODES_AT_ONCE


def rows_of(block_of_row: Tensor, blocks: Sequence[bool]) -> Tensor:
    """The rows of the head that belong to the chosen blocks, and the one of the column of ones."""
    chosen = torch.tensor([*blocks, True])  # -1, the column of ones, meets the last entry
    return torch.nonzero(chosen[block_of_row]).reshape(-1)


def validation_hits(context: Context, heads: list[Tensor]) -> Tensor:
    """Row i: which of the task's validation nodes, this process's own, head i puts right."""
    features, _ = linear_head(context.model)
    hits = [torch.zeros(len(heads), 0, dtype=torch.bool)]
    nodes = context.own(context.task.val).to(context.device)
    for batch in context.batcher.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ():
        scores = features(batch).double() @ torch.cat(heads, dim=1)
        hits.append(torch.stack([part.argmax(1) == batch.y for part in scores.split(heads[0].size(1), dim=1)]).cpu())
    return torch.cat(hits, dim=1)


def count_changes(counts: list[int], before: Tensor, after: Tensor) -> None:
    """Add to `counts` how many nodes a change puts right, and how many wrong."""
    counts[0] += int((after & ~before).sum())
    counts[1] += int((before & ~after).sum())
