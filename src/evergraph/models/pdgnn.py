"""A network whose propagation has no parameters (Zhang et al., KDD 2024), so that one vector per node suffices."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from evergraph.core.capabilities import Answer, capability
from evergraph.core.features import Features, sparse_product, with_ones
from evergraph.core.recording import linear
from evergraph.core.settings import BelowOne, NonNegativeInt, PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.models.base import MODELS, OUTPUTS, Form, unpadded
from evergraph.models.gcn import gcn_operator
from evergraph.models.weights import StackedWeights

DENSE_FROM = 0.25  # share of non-zero entries above which propagated features are stored as a dense matrix


@MODELS.register(name="pdgnn")
class PDGNN(StackedWeights):
    """Logits = MLP(Ã^K X), Ã = D^(-1/2) (A + I) D^(-1/2): a parameter-decoupled graph network.

    Ã^K X is computed once per graph. Propagation leaves a node without neighbours unchanged, so a node stored with
    Ã^K X as its features has exactly the outputs that it had in its graph; `tem` relies on this.

    Args:
        hidden: width of the hidden layers.
        steps: K, the number of propagation steps.
        mlp_layers: number of layers of the MLP.
        dropout: share of hidden units dropped while training.
    """

    def __init__(
        self,
        hidden: PositiveInt = 256,
        steps: NonNegativeInt = 2,
        mlp_layers: PositiveInt = 2,
        dropout: BelowOne = 0.0,
    ) -> None:
        super().__init__()
        self.hidden, self.steps, self.mlp_layers, self.dropout = hidden, steps, mlp_layers, dropout
        self.weights = nn.ParameterList()

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Glorot-uniform weights, zero biases."""
        self.stack([in_channels, *[self.hidden] * (self.mlp_layers - 1), out_channels])

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return Ã."""
        return gcn_operator(graph)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return Ã^K X and no hops; X and K hops if `propagate=False`."""
        if propagate is False:
            return graph.x, self.steps
        x: Features = graph.x
        for _ in range(self.steps):
            x = sparse_product(operator, x)
        if isinstance(x, SparseMatrix) and x.nnz > DENSE_FROM * x.num_rows * x.num_columns:
            x = x.dense()
        return x, 0

    def logits(self, batch: Batch) -> Tensor:
        """Apply the remaining steps of propagation, then the MLP."""
        x: Features = batch.x
        for number in range(batch.num_hops):
            x = sparse_product(batch.layer(number), x)
        hidden = linear(with_ones(x), self.weights[0])
        for weight in list(self.weights)[1:]:
            hidden = linear(with_ones(F.dropout(F.relu(hidden), self.dropout, self.training)), weight)
        return hidden

    @capability(rests_on=(*OUTPUTS, "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured on one batch or rows of it."""
        return unpadded(batcher, form, by_weights=True)

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return f"pdgnn {self.steps}"

    @capability(rests_on=OUTPUTS)
    def features(self, batch: Batch) -> Tensor:
        """Return the input of the last weight matrix."""
        return self.rows_of_the_last_product(batch)

    @capability(rests_on=OUTPUTS)
    def output_weight(self) -> Tensor:
        """The last weight matrix."""
        return self.weights[-1]
