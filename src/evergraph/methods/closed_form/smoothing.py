"""How much of its neighbours' probabilities a prediction takes in: nothing, or the share with most validation hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from evergraph.core.dense_algebra import product
from evergraph.core.sparse import SparseMatrix
from evergraph.methods.base import Context
from evergraph.methods.closed_form.hits import count_changes

STEPS = 3  # shares that are tried, up to the largest
SURE = 1.0  # standard errors by which smoothing has to put more nodes right than wrong


def shares_up_to(largest: float) -> list[float]:
    """The shares that are tried, from the smallest to the largest; none where the largest is 0."""
    return [largest * step / STEPS for step in range(1, STEPS + 1)] if largest else []


def with_changes(
    counts: Sequence[int],
    context: Context,
    head: Tensor,
    largest: float,
    smooth: Callable[[SparseMatrix, Tensor, float], Tensor],
) -> list[int]:
    """The counts, and the task's validation nodes that each share puts right, and wrong, of a head's predictions.

    Args:
        counts: so far: share after share the nodes put right, and those put wrong; empty for none.
        context: the task.
        head: the head.
        largest: the largest share that is tried.
        smooth: from edges, scores and a share to the logarithm of smoothed probabilities.
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
    before = scores[nodes].argmax(1) == truth
    for share, pair in zip(shares, pairs):
        count_changes(pair, before, smooth(adjacency, scores, share)[nodes].argmax(1) == truth)
    return [count for pair in pairs for count in pair]


def best_share(counts: Sequence[int], largest: float) -> float:
    """The share that puts most more nodes right than wrong, the smallest of equals; 0 where that may be chance."""
    gains = [right - wrong for right, wrong in zip(counts[::2], counts[1::2])]
    if not gains or not largest:
        return 0.0
    best = gains.index(max(gains))
    sure = gains[best] > SURE * sum(counts[2 * best : 2 * best + 2]) ** 0.5
    return shares_up_to(largest)[best] if sure else 0.0
