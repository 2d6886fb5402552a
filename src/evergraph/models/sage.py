"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, NeurIPS 2017)."""

from __future__ import annotations

import torch
from scipy import sparse as sp
from torch import Tensor

from evergraph.core.capabilities import Answer, capability
from evergraph.core.features import Features, with_ones
from evergraph.core.recording import linear
from evergraph.core.settings import BelowOne, Depth, PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.models.base import MODELS, Form, unpadded
from evergraph.models.gcn import GCN, LAYERS


def mean_operator(graph: Graph) -> SparseMatrix:
    """Return D⁻¹A: the mean over in-neighbours; zero for a node without any."""
    adjacency = graph.adjacency.to(torch.float64)
    return adjacency.with_values(adjacency.values / adjacency.row_sums()[adjacency.row_of_entry()])


@MODELS.register(name="sage")
class GraphSAGE(GCN):
    """H^{l+1}_v = [X^l_v, mean of X^l over v's neighbours, 1] W^l, X^l = σ(H^l).

    The first layer's inputs [X, mean X, 1] are computed once per graph, so a batch needs one hop less.

    Args:
        hidden: width of the hidden layers.
        num_layers: number of layers.
        dropout: share of hidden units dropped while training.
    """

    def __init__(self, hidden: PositiveInt = 256, num_layers: Depth = 2, dropout: BelowOne = 0.0) -> None:
        super().__init__(hidden, num_layers, dropout)

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Glorot-uniform weights, zero biases."""
        self.stack([in_channels, *[self.hidden] * (self.num_layers - 1), out_channels], inputs_per_unit=2)

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return D⁻¹A: the mean over in-neighbours."""
        return mean_operator(graph)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return [X, mean X, 1]."""
        if isinstance(graph.x, SparseMatrix):
            features = graph.x.to_scipy()
            both = SparseMatrix.from_scipy(sp.hstack([features, operator.to_scipy() @ features]), graph.x.dtype)
            return with_ones(both), self.num_layers - 1
        return with_ones(torch.cat([graph.x, operator @ graph.x], dim=1)), self.num_layers - 1

    def logits(self, batch: Batch) -> Tensor:
        """Apply the layer equation, from the batch's outermost nodes inwards."""
        hidden = linear(batch.x, self.weights[0])
        for number, weight in enumerate(list(self.weights)[1:]):  # a slice would be a new list of new parameters
            active = self.activate(hidden, number + 1)
            operator = batch.layer(number)
            read = torch.cat([active[: operator.num_rows], operator @ active], dim=1)
            hidden = linear(with_ones(read), weight)
        return hidden

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return f"sage {self.num_layers}"

    @capability(rests_on=(*LAYERS, "operator", "inputs"))
    def self_edges(self) -> bool:
        """A self-loop acts like a neighbour with the same features and neighbours."""
        return True

    @capability(rests_on=("forward", "logits", "operator", "inputs"))
    def reads_neighbours_apart(self) -> bool:
        """The mean over neighbours has weights of its own, which multiply zeros at a node without any."""
        return True

    @capability(rests_on=LAYERS)
    def features(self, batch: Batch) -> Tensor:
        """Return [σ(h_v), mean of σ(h) over v's neighbours, 1] at the seeds: the input of the last weight matrix."""
        return GCN.features(self, batch)

    @capability(rests_on=LAYERS)
    def output_weight(self) -> Tensor:
        """The last weight matrix."""
        return self.weights[-1]

    @capability(rests_on=(*LAYERS, "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured on one batch or rows of it."""
        return unpadded(batcher, form, by_weights=True)
