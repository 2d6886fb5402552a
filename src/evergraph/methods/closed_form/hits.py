"""Hits of heads on validation nodes, and the nodes that a change of heads corrects and breaks.

A hit is a correctly classified node. A change corrects a node that was misclassified before it, and breaks a node that
is misclassified after it, but was not before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergraph.core.dense_algebra import product
from evergraph.methods.base import Context
from evergraph.methods.closed_form.head import linear_head
from evergraph.models.base import NODES_AT_ONCE


def rows_of(block_of_row: Tensor, blocks: Sequence[bool]) -> Tensor:
    """Return the rows of the head that belong to the chosen blocks, and that of the column of ones."""
    chosen = torch.tensor([*blocks, True])  # the column of ones has block -1, which indexes the last entry
    return torch.nonzero(chosen[block_of_row]).reshape(-1)


def validation_hits(context: Context, heads: list[Tensor], units: Tensor | None = None) -> Tensor:
    """Return a mask of hits, one row per head, at this process's validation nodes; only `units` compete, if given."""
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


def changes_between(before: Tensor, after: Tensor) -> list[int]:
    """Return how many nodes a change corrects, and how many it breaks; `before` and `after` mask hits."""
    return [int((after & ~before).sum()), int((before & ~after).sum())]


def with_changes_between(context: Context, counts: list[int], before: Tensor, after: Tensor) -> list[int]:
    """Return `counts` plus how many nodes a change corrects, and how many it breaks, over all processes."""
    changes = context.total(torch.tensor(changes_between(before, after))).tolist()
    return [old + new for old, new in zip(counts, changes)]


def clearly_more(counts: Sequence[int], errors: float) -> bool:
    """Return whether more nodes are corrected than broken, by more than so many standard errors."""
    return counts[0] - counts[1] > errors * sum(counts) ** 0.5
