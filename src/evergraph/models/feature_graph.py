"""Feature graph networks (Wang, Qiu, Gao and Scherer, CVPR 2022): a node is a graph whose nodes are its features."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evergraph.core.capabilities import Answer, capability
from evergraph.core.features import Features, with_ones, with_self_loops
from evergraph.core.recording import linear
from evergraph.core.settings import PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.base import MODELS, OUTPUTS, Form, GraphModel, unpadded
from evergraph.models.weights import draw, grown_with_bias


@MODELS.register(name="feature-graph")
class FeatureGraphNetwork(GraphModel):
    """Node classification as classification of feature graphs: a node's features are vertices, tied by its neighbours.

    A node x with neighbours N(x), including itself, has in every channel the feature adjacency
    A = norm(sgnroot(Σ_{y∈N(x)} x yᵀ + y xᵀ)), sgnroot(a) = sign(a) √|a|, with columns divided by their sums of absolute
    values, so that each feature distributes itself over the others. A layer maps x to σ(W vec(A x)) and each neighbour
    y to σ(W vec(A y)), with σ the softsign of values that are first normalized to mean 0 and variance 1 over the layer.
    Both use the node's own adjacency. After two layers a linear head reads the node. So an example needs one hop of
    neighbours' features and nothing else of the graph, and can be stored as it is.

    Args:
        hidden: width after the first layer, over all channels.
        channels: number of channels after the first layer; `hidden` is divided among them.
        out_hidden: width after the second layer.
        vertices: largest number of vertices of the first feature graph. If there are more features than that, a
            learned linear layer first maps them to this number: the adjacency of 6,805 words would have 46 million
            entries for every node.
    """

    def __init__(
        self,
        hidden: PositiveInt = 64,
        channels: PositiveInt = 4,
        out_hidden: PositiveInt = 32,
        vertices: PositiveInt = 64,
    ) -> None:
        super().__init__()
        self.hidden, self.channels, self.out_hidden, self.vertices = hidden, channels, out_hidden, vertices
        if hidden % channels:
            raise EvergraphError(f"feature-graph: hidden={hidden} cannot be divided among channels={channels}")
        self.stem: nn.Parameter | None = None

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Glorot-uniform weights, zero biases."""
        self.in_channels, self.out_channels = in_channels, out_channels
        width = min(in_channels, self.vertices)
        if in_channels > self.vertices:
            self.stem = nn.Parameter(torch.empty(in_channels, width))
        self.first = nn.Parameter(torch.empty(width, self.hidden))
        self.second = nn.Parameter(torch.empty(self.hidden, self.out_hidden))
        self.head = nn.Parameter(torch.empty(self.out_hidden + 1, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform weights, a stem that preserves lengths, and a zero bias in the head."""
        if self.stem is not None:
            nn.init.normal_(self.stem, std=self.stem.size(1) ** -0.5)
        nn.init.xavier_uniform_(self.first)
        nn.init.xavier_uniform_(self.second)
        draw(self.head)

    def grow(self, out_channels: int) -> None:
        """Add output units; a new unit's bias starts at zero."""
        self.head = grown_with_bias(self.head, out_channels)
        self.out_channels = out_channels

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return A + I."""
        return with_self_loops(graph.adjacency)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return the features themselves, and one hop."""
        return graph.x, 1

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return "feature graph"

    def logits(self, batch: Batch) -> Tensor:
        """Apply two layers of feature graphs and a linear head."""
        return linear(self.features(batch), self.head)

    @capability(rests_on=(*OUTPUTS, "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured with exact neighbourhoods, on one batch or rows of it."""
        return unpadded(batcher, form)

    @capability(rests_on=OUTPUTS)
    def features(self, batch: Batch) -> Tensor:
        """Return the input of the head at the seeds: the second layer, and a one."""
        x = batch.x @ self.stem if self.stem is not None else batch.dense_x
        near = batch.layer(0)
        with_zeros = F.pad(x[: near.num_columns], (0, 0, 0, 1))  # a padding neighbour adds nothing
        groups = near.padded_rows()  # grouped by degree, which may be two or two thousand
        parts = [self._second_layer(x[nodes], with_zeros[neighbours]) for nodes, neighbours in groups]
        nodes, hidden = torch.cat([nodes for nodes, _ in groups]), torch.cat(parts)
        return with_ones(torch.zeros_like(hidden).index_copy(0, nodes, hidden))

    def _second_layer(self, x: Tensor, neighbours: Tensor) -> Tensor:
        """Apply both layers at nodes `(nodes, features)` with their neighbours `(nodes, neighbours, features)`."""
        shape = (self.channels, self.hidden // self.channels)
        own, around = x.unsqueeze(1), neighbours.unsqueeze(2)
        adjacency = feature_adjacency(own, around)
        own = _activated(_broadcast(adjacency, own) @ self.first).unflatten(-1, shape)
        around = _activated(_broadcast(adjacency, around) @ self.first).unflatten(-1, shape)
        return _activated(_broadcast(feature_adjacency(own, around), own) @ self.second)

    @capability(rests_on=OUTPUTS)
    def output_weight(self) -> Tensor:
        """The head."""
        return self.head


def feature_adjacency(own: Tensor, around: Tensor) -> Tensor:
    """Return norm(sgnroot(Σ x yᵀ + y xᵀ)) for every node and channel: `(nodes, channels, features, features)`.

    Args:
        own: `(nodes, channels, features)`: x.
        around: `(nodes, neighbours, channels, features)`: y.
    """
    outer = own.unsqueeze(-1) * around.sum(1).unsqueeze(-2)  # Σ x yᵀ = x (Σ y)ᵀ
    both = outer + outer.transpose(-1, -2)
    root = both.sign() * both.abs().clamp(min=1e-8).sqrt()  # the clamp keeps the gradient at zero finite
    return root / (root.abs().sum(-2, keepdim=True) + 1e-7)


def _activated(x: Tensor) -> Tensor:
    """Apply softsign to each row normalized to mean 0 and variance 1; a row of zeros stays zero."""
    return F.softsign(F.layer_norm(x, x.shape[-1:]))


def _broadcast(adjacency: Tensor, x: Tensor) -> Tensor:
    """Return vec(A x), channel after channel, for nodes `(nodes, channels, features)` or for all their neighbours."""
    if x.dim() == 3:
        return (adjacency @ x.unsqueeze(-1)).flatten(1)
    return torch.einsum("ncab,nkcb->nkca", adjacency, x).flatten(2)
