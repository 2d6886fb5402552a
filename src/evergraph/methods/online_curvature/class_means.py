"""Class means, at which the Fisher matrix of earlier tasks can be evaluated when their nodes are gone.

Only a sum of features and a number of nodes are kept per class, whatever the number of nodes. This is small compared
with the first weight matrix as long as there are fewer classes than hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.features import Features, as_dense, sparse_product
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch
from evergraph.data.graph import Graph
from evergraph.models.base import GraphModel
from evergraph.problems.base import Problem


def class_sums(x: Features, units: Tensor, nodes: Tensor) -> Tensor:
    """Return [Σ x_v, number of nodes] over the nodes v of each output unit, one row per unit up to the largest."""
    order = units[nodes].argsort(stable=True)
    counts = torch.bincount(units[nodes])
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    pick = SparseMatrix(start, nodes[order], torch.ones(nodes.numel(), dtype=x.dtype), x.size(0))
    return torch.cat([as_dense(sparse_product(pick, x)), counts.unsqueeze(1).to(x.dtype)], dim=1)


def add_sums(before: Tensor | None, new: Tensor) -> Tensor:
    """Add the sums over two sets of nodes, which may differ in their number of classes."""
    if before is None:
        return new
    total = new.new_zeros(max(before.size(0), new.size(0)), new.size(1))
    for part in (before.to(new.device), new):  # a loaded state is on the learner's device
        total[: part.size(0)] += part
    return total


def mean_batch(problem: Problem, model: GraphModel, sums: Tensor, device: torch.device) -> tuple[Batch, Tensor]:
    """Return a batch with one seed, the mean features, for each row of sums with nodes; and the numbers of nodes.

    Each mean has a twin as its only neighbour, like a node among similar nodes: layers with self-loops see the mean
    itself, and layers that read only neighbours find the same features there. If the model reads a node that is its
    own neighbour in the same way, the mean is its own twin.
    """
    present = sums[sums[:, -1] > 0]
    counts = present[:, -1]
    number = counts.numel()
    copies = 1 if capable(model, "self_edges") else 2
    means = (present[:, :-1] / counts.unsqueeze(1)).repeat(copies, 1)
    nodes = torch.arange(copies * number)
    ends = torch.arange(copies * number + 1)
    adjacency = SparseMatrix(ends, nodes.roll(number), torch.ones(copies * number), copies * number)
    graph = Graph(means, adjacency, torch.zeros_like(nodes), [0], "stand-ins")
    seeds = torch.arange(number, device=device)
    return problem.batcher(model, graph, device=device).batch(seeds), counts.to(device)
