"""Edges between tasks in a graph whose tasks are not known: how many there are, and which they may be.

Training sees the edges within a task alone. A graph to predict on may hold others, and what they carry to a node is
nothing that training ever saw there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core.sparse import SparseMatrix


def judge_edges(
    adjacency: SparseMatrix, tasks: Tensor, rounds: int = 30, joining: Tensor | None = None
) -> tuple[SparseMatrix, float]:
    """Every edge times the probability that its ends are of one task, and the share of edges for which they are not.

    Row v of `tasks` is q_v, the distribution over the K tasks that is predicted for node v. For the edge uv let
    a = q_u · q_v, and let ε be the unknown share of edges between tasks. Such an edge joins any two different tasks
    alike, any other one joins a task with itself, so

        w = (1 − ε) a / ((1 − ε) a + ε (1 − a) / (K − 1)),        ε = mean of 1 − w over the edges,

    which is solved by iterating (expectation maximization: the likelihood of ε never falls). Two nodes that say
    nothing have a = 1/K and w = 1 − ε: doubt alone removes no edge. In a graph of one task ε is the share of edges
    whose ends are predicted in different tasks. The edges into nodes that join the graph one by one (`joining`, a
    mask) are weighed, but ε is that of the other edges: one such node says nothing about the edges of another.
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
