"""Features propagated to the depth of a model: what the model sees of a node, without the node's neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.features import Features, sparse_product, take_rows
from evergraph.data.graph import Graph
from evergraph.errors import tell
from evergraph.methods.base import Context
from evergraph.models.base import GraphModel
from evergraph.models.gcn import gcn_operator


def depth(context: Context) -> int:
    """Return the number of propagation steps between the model's inputs and outputs."""
    layers: int | None = getattr(context.model, "num_layers", None)
    if layers is not None:
        return layers
    return context.problem.batcher(context.model, context.task.graph, show_edges=True).num_hops


def propagated(graph: Graph, nodes: Tensor, steps: int, dtype: torch.dtype) -> Features:
    """Return the nodes' rows of Ã^steps X, with GCN's Ã = D^(-1/2) (A + I) D^(-1/2); sparse if X is sparse."""
    x = graph.x.to(dtype)
    if not steps:
        return take_rows(x, nodes)
    operator = gcn_operator(graph).to(dtype)
    for _ in range(steps - 1):
        x = sparse_product(operator, x)
    return sparse_product(operator.rows(nodes), x)


def tell_if_summed(model: GraphModel, missing: str, instead: str) -> None:
    """Warn if a model reads nodes without their neighbours at another scale than in their graph."""
    if capable(model.encoder, "sums_neighbours") is not None:
        name = type(model.encoder).__name__
        tell(f"{name} sums over neighbours, and {missing}: it reads them at another scale; {instead}")
