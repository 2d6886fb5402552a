"""Baselines for the figures: PyG's layers and plain ways to sample neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.setting import SETTINGS, Steps
from evergraph.core.features import as_dense
from evergraph.data.graph import Graph
from evergraph.models.gcn import GCN
from evergraph.problems import NodeClassification


class PyGNetwork(nn.Module):
    """Two GCNConv layers with a ReLU between them, as in PyG's examples."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int) -> None:
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.first, self.second = GCNConv(in_channels, hidden), GCNConv(hidden, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of all nodes."""
        out: Tensor = self.second(F.relu(self.first(x, edge_index)), edge_index)
        return out


def pyg_step(steps: Steps) -> Callable[[], object]:
    """Make a training step of PyG's GCN on the subgraph of each batch of `steps`; inputs are prepared before timing.

    The subgraph has all nodes within two hops of the seeds and the edges between them, with dense features.
    """
    context, model, problem = steps.context, steps.context.model, steps.context.problem
    assert isinstance(model, GCN)
    assert model.in_channels is not None
    assert model.out_channels is not None
    device = context.device
    network = PyGNetwork(model.in_channels, model.hidden, model.out_channels).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=SETTINGS.lr, weight_decay=SETTINGS.weight_decay)
    ready = [_subgraph(context.task.graph, piece.cpu(), device) for piece in steps.pieces[:8]]
    assert isinstance(problem, NodeClassification)
    assert problem.scope is not None
    scope = problem.scope
    position = torch.full((model.out_channels,), -1, device=device)  # of each class in the label scope
    position[scope] = torch.arange(scope.numel(), device=device)
    turn = 0

    def step() -> Tensor:
        nonlocal turn
        x, edge_index, y = ready[turn % len(ready)]
        turn += 1
        optimizer.zero_grad()
        logits = network(x, edge_index)[: y.numel()]
        loss = F.cross_entropy(logits[:, scope], position[y], reduction="sum")
        loss.backward()
        optimizer.step()
        return loss

    return step


def _subgraph(graph: Graph, seeds: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    nodes = seeds
    for _ in range(2):
        found = torch.unique(graph.adjacency.rows(nodes).indices)
        nodes = torch.cat([nodes, found[~torch.isin(found, nodes)]])
    part = graph.subgraph(nodes)
    return as_dense(part.x).to(device), part.edge_index.to(device), graph.y[seeds].to(device)


def scipy_neighbours(graph: Graph, seeds: Tensor, fan_out: Sequence[int]) -> int:
    """Sample in a loop over the rows of a scipy matrix; return the number of nodes gathered."""
    matrix = graph.adjacency.to_scipy()
    random = np.random.default_rng(0)
    gathered = frontier = seeds.numpy()
    for number in fan_out:
        found = []
        for node in frontier:
            row = matrix.indices[matrix.indptr[node] : matrix.indptr[node + 1]]
            found.append(random.choice(row, number, replace=False) if row.size > number else row)
        frontier = np.setdiff1d(np.concatenate(found), gathered)
        gathered = np.concatenate([gathered, frontier])
    return int(gathered.size)


def has_pyg_sampler() -> bool:
    """Whether one of PyG's compiled extras, which its sampler needs, is installed."""
    import torch_geometric.typing as parts

    return bool(parts.WITH_PYG_LIB or parts.WITH_TORCH_SPARSE)


def pyg_neighbours(graph: Graph, seeds: Tensor, fan_out: Sequence[int]) -> int:
    """Sample with PyG or, without its compiled extras, take all neighbours by `k_hop_subgraph`; return their number."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.utils import k_hop_subgraph

    if "edge_index" not in graph.cache:
        graph.cache["edge_index"] = graph.edge_index
    edges = graph.cache["edge_index"]
    if not has_pyg_sampler():
        return int(k_hop_subgraph(seeds, len(fan_out), edges, num_nodes=graph.num_nodes)[0].numel())
    data = Data(edge_index=edges, num_nodes=graph.num_nodes)
    loader = NeighborLoader(data, list(fan_out), input_nodes=seeds, batch_size=seeds.numel())
    return int(next(iter(loader)).num_nodes)
