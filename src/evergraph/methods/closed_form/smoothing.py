"""The share of the neighbours' probabilities in a prediction: 0, or the one with most validation hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evergraph.core.dense_algebra import product
from evergraph.core.sparse import SparseMatrix
from evergraph.methods.base import Context
from evergraph.methods.closed_form.hits import changes_between, clearly_more

STEPS = 3  # number of shares to try, up to the largest
SURE = 1.0  # standard errors by which smoothing has to correct more nodes than it breaks


def shares_up_to(largest: float) -> list[float]:
    """Return the shares to try, from the smallest to the largest; none if the largest is 0."""
    return [largest * step / STEPS for step in range(1, STEPS + 1)] if largest else []


def with_changes(
    counts: Sequence[int],
    context: Context,
    head: Tensor,
    largest: float,
    smooth: Callable[[SparseMatrix, Tensor, float], Tensor],
    units: Tensor | None = None,
) -> list[int]:
    """Return `counts` plus the task's validation nodes that smoothing with each share corrects, and breaks.

    Args:
        counts: counts so far, two per share: nodes corrected, and nodes broken; empty for none.
        context: the task.
        head: the head whose predictions are smoothed.
        largest: the largest share to try.
        smooth: returns the log of smoothed probabilities for edges, scores and a share.
        units: the units that compete; None for all.
    """
    whole, shares = context.batcher, shares_up_to(largest)
    pairs = [list(counts[2 * number : 2 * number + 2]) or [0, 0] for number in range(len(shares))]
    if whole.num_hops or not shares:  # only graphs whose features fit into memory are smoothed
        return list(counts)
    assert isinstance(whole.x, Tensor)
    scores = product(whole.x, head.to(whole.x.dtype))
    adjacency = context.task.graph.adjacency.to(scores.dtype).to(scores.device)
    nodes = context.task.val.to(context.device)
    truth = whole.y[nodes]
    competing = torch.arange(scores.size(1), device=scores.device) if units is None else units

    def hits(found: Tensor) -> Tensor:
        return competing[found[nodes][:, competing].argmax(1)] == truth

    before = hits(scores)
    found = list[int]()
    for share, pair in zip(shares, pairs):
        changes = changes_between(before, hits(smooth(adjacency, scores, share)))
        found += [old + new for old, new in zip(pair, changes)]
    return found


def best_share(counts: Sequence[int], largest: float) -> float:
    """Return the share with the largest net gain of nodes, the smallest if tied; 0 if the gain may be chance."""
    gains = [right - wrong for right, wrong in zip(counts[::2], counts[1::2])]
    if not gains or not largest:
        return 0.0
    best = gains.index(max(gains))
    return shares_up_to(largest)[best] if clearly_more(counts[2 * best : 2 * best + 2], SURE) else 0.0
