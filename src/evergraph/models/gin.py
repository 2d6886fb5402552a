"""The graph isomorphism network (Xu, Hu, Leskovec and Jegelka, ICLR 2019)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from evergraph.core.capabilities import Answer, capability
from evergraph.core.features import Features, sparse_product, with_ones, with_self_loops
from evergraph.core.recording import linear
from evergraph.core.settings import BelowOne, Depth, PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.models.base import MODELS, OUTPUTS, Form, unpadded
from evergraph.models.weights import StackedWeights


@MODELS.register(name="gin")
class GIN(StackedWeights):
    """X^{l+1} = σ(σ(Σ_{u ∈ N(v) ∪ v} X^l_u W₁) W₂), and outputs [X^L 1] W: GIN-0, which sums over neighbours.

    Biases are the last rows of the weight matrices. Deviations from its paper: no batch normalization (its outputs
    would depend on the other examples of a batch), and the head reads only the last layer.

    Args:
        hidden: width of the hidden layers.
        num_layers: number of message-passing layers, each with two weight matrices.
        dropout: share of hidden units dropped before the head while training.
    """

    reads_edge_weights = True
    pooling = "sum"  # default for graphs as examples

    def __init__(self, hidden: PositiveInt = 64, num_layers: Depth = 2, dropout: BelowOne = 0.0) -> None:
        super().__init__()
        self.hidden, self.num_layers, self.dropout = hidden, num_layers, dropout
        self.weights = nn.ParameterList()

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Glorot-uniform weights, zero biases."""
        self.stack([in_channels, *[self.hidden] * (2 * self.num_layers), out_channels])

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return A + I: the sum over a node and its neighbours."""
        return with_self_loops(graph.adjacency)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return (A + I) X and a column of ones, computed once per graph; a batch then needs one hop less."""
        if propagate is False:
            return graph.x, self.num_layers
        return with_ones(sparse_product(operator, graph.x)), self.num_layers - 1

    def logits(self, batch: Batch) -> Tensor:
        """Apply the layer equations, from the batch's outermost nodes inwards."""
        return linear(self.features(batch), self.weights[-1])

    @capability(rests_on=OUTPUTS)
    def features(self, batch: Batch) -> Tensor:
        """Return [X^L 1] at the seeds: the input of the last weight matrix."""
        skipped = self.num_layers - batch.num_hops  # 1 if the inputs are already propagated
        hidden: Features = batch.x
        for number in range(self.num_layers):
            summed = hidden if number < skipped else with_ones(sparse_product(batch.layer(number - skipped), hidden))
            inner = F.relu(linear(summed, self.weights[2 * number]))
            hidden = F.relu(linear(with_ones(inner), self.weights[2 * number + 1]))
        assert isinstance(hidden, Tensor)
        return with_ones(F.dropout(hidden, self.dropout, self.training))

    @capability(rests_on=OUTPUTS)
    def output_weight(self) -> Tensor:
        """The last weight matrix."""
        return self.weights[-1]

    @capability(rests_on=(*OUTPUTS, "features", "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured on one batch or rows of it."""
        return unpadded(batcher, form, by_weights=True)

    @capability(rests_on=(*OUTPUTS, "features", "operator", "inputs"))
    def sums_neighbours(self) -> bool:
        """A node with many neighbours is read as a longer row than one with few."""
        return True

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return f"gin {self.num_layers}"
