"""Edges between tasks in a graph whose nodes' tasks are unknown: how many there are, and which they may be.

Training sees only the edges within a task. A graph to predict on may have others, and they bring to a node what
training never saw there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core.sparse import SparseMatrix


def judge_edges(
    adjacency: SparseMatrix, tasks: Tensor, rounds: int = 30, joining: Tensor | None = None
) -> tuple[SparseMatrix, float]:
    """Multiply every edge by the probability that its ends belong to one task; also return the share for which not.

    Row v of `tasks` is q_v, the predicted distribution of node v over the K tasks. For the edge uv let
    a = q_u · q_v, and let ε be the unknown share of edges between tasks. Such an edge joins any two different tasks
    with equal probability, any other edge joins a task with itself, so

        w = (1 − ε) a / ((1 − ε) a + ε (1 − a) / (K − 1)),        ε = mean of 1 − w over the edges,

    which is solved by iterating (expectation maximization: the likelihood of ε never falls). Two nodes with
    uninformative predictions have a = 1/K and w = 1 − ε: uncertainty alone removes no edge. In a graph of one task, ε
    is the share of edges whose ends are predicted to be in different tasks. Edges into nodes that join the graph one
    by one (`joining`, a mask) are weighted, but ε is estimated from the other edges, so that one such node does not
    affect the edges of another.
    """
    share, row = 0.1, adjacency.row_of_entry()
    counted = torch.ones_like(row, dtype=torch.bool) if joining is None else ~joining[row]
    if not bool(counted.any()):
        return adjacency, 0.0
    alike = (tasks[row] * tasks[adjacency.indices]).sum(1).clamp(1e-6, 1 - 1e-6)
    for _ in range(rounds):
        same = (1 - share) * alike
        weight = same / (same + share * (1 - alike) / (tasks.size(1) - 1))
        share = float(1 - weight[counted].mean())
    return adjacency.with_values(adjacency.values * weight), share
