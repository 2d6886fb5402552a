"""The graph attention network (Veličković et al., ICLR 2018)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evergraph.core.capabilities import Answer, capability
from evergraph.core.features import Features, with_ones
from evergraph.core.recording import linear
from evergraph.core.settings import BelowOne, Depth, PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.base import MODELS, OUTPUTS, Form, GraphModel, grown, unpadded
from evergraph.models.gcn import gcn_operator
from evergraph.models.weights import draw, grown_with_bias


@MODELS.register(name="gat")
class GAT(GraphModel):
    """Attention e_vu = LeakyReLU(a·Wx_u + b·Wx_v), softmax over v's neighbours and v itself.

    Hidden layers concatenate their heads; the last layer has one head.

    Args:
        hidden: width of a hidden layer, all heads together.
        num_layers: number of layers.
        heads: number of attention heads of a hidden layer; must divide `hidden`.
        dropout: share of hidden units dropped while training.
    """

    def __init__(
        self, hidden: PositiveInt = 256, num_layers: Depth = 2, heads: PositiveInt = 8, dropout: BelowOne = 0.0
    ) -> None:
        super().__init__()
        if hidden % heads:
            raise EvergraphError(f"GAT: {heads} heads do not divide hidden={hidden}; choose a multiple of {heads}")
        self.hidden, self.num_layers, self.heads, self.dropout = hidden, num_layers, heads, dropout
        self.weights, self.sources, self.targets = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Glorot-uniform weights, zero biases."""
        self.in_channels, self.out_channels = in_channels, out_channels
        widths = [in_channels, *[self.hidden] * (self.num_layers - 1), out_channels]
        for number, (before, after) in enumerate(itertools.pairwise(widths)):
            heads = self.heads if number < self.num_layers - 1 else 1
            self.weights.append(nn.Parameter(torch.empty(before + 1, after)))
            self.sources.append(nn.Parameter(torch.empty(heads, after // heads)))
            self.targets.append(nn.Parameter(torch.empty(heads, after // heads)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform weights, zero biases."""
        for weight, source, target in zip(self.weights, self.sources, self.targets):
            draw(weight)
            nn.init.xavier_uniform_(source)
            nn.init.xavier_uniform_(target)

    def grow(self, out_channels: int) -> None:
        """Add output units to the last layer; attention ignores them at first, so old outputs stay the same."""
        self.weights[-1] = grown_with_bias(self.weights[-1], out_channels)
        for group in (self.sources, self.targets):
            group[-1] = grown(group[-1], out_channels)
            with torch.no_grad():
                group[-1][:, self.out_channels :] = 0
        self.out_channels = out_channels

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return a matrix with the pattern of A + I; attention gives the weights."""
        return gcn_operator(graph)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return [X 1]: the bias is the last row of the weight matrix."""
        return with_ones(graph.x), self.num_layers

    def logits(self, batch: Batch) -> Tensor:
        """Apply the layer equations, from the batch's outermost nodes inwards."""
        return self.attend(batch)[0]

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return f"gat {self.num_layers}"

    @capability(rests_on=(*OUTPUTS, "attend"))
    def attention(self, batch: Batch) -> list[Tensor]:
        """Return each layer's attention scores before the softmax."""
        return self.attend(batch)[1]

    @capability(rests_on=(*OUTPUTS, "attend", "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured with exact neighbourhoods, on one batch or rows of it."""
        return unpadded(batcher, form)

    @capability(rests_on=(*OUTPUTS, "attend", "operator", "inputs"))
    def multiplies_sparse_inputs(self) -> bool:
        """Inputs are used only in the product X W₁."""
        return True

    def attend(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Return the logits, and each layer's attention scores e before the softmax, `(edges, heads)`."""
        hidden: Features = batch.x
        scores = []
        for number in range(self.num_layers):
            if number:
                assert isinstance(hidden, Tensor)
                hidden = with_ones(F.dropout(F.elu(hidden), self.dropout, self.training))
            operator = batch.layer(number)
            source, target = operator.indices, operator.row_of_entry()
            a, b = self.sources[number], self.targets[number]
            z = linear(hidden, self.weights[number]).unflatten(1, a.shape)  # (nodes, heads, width)
            score = F.leaky_relu((z * a).sum(-1)[source] + (z * b).sum(-1)[target], 0.2)
            scores.append(score)
            weight = edge_softmax(score, target, operator.num_rows)
            message = z[source] * weight.unsqueeze(-1)
            hidden = message.new_zeros(operator.num_rows, *a.shape).index_add(0, target, message).flatten(1)
        assert isinstance(hidden, Tensor)
        return hidden, scores


def edge_softmax(score: Tensor, target: Tensor, num_targets: int) -> Tensor:
    """Return the softmax of the edge scores over the edges that enter each target node."""
    index = target.unsqueeze(-1).expand_as(score)
    largest = score.detach().new_full((num_targets, score.size(1)), -torch.inf)
    largest = largest.scatter_reduce(0, index, score.detach(), "amax")
    weight = (score - largest[target]).exp()
    total = weight.new_zeros(num_targets, score.size(1)).index_add(0, target, weight)
    return weight / total[target]
