"""The graph convolutional network of Kipf and Welling (ICLR 2017), written as in the paper's equations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evergraph.core.activated_layer import activated_layer, fused_layer_suits
from evergraph.core.capabilities import Answer, No, capability, capable
from evergraph.core.features import Features, sparse_product, with_ones, with_self_loops
from evergraph.core.params import Direction, Params
from evergraph.core.propagated_layer import propagated_layer, propagated_layer_suits
from evergraph.core.recording import linear, noted, recording
from evergraph.core.settings import BelowOne, Depth, PositiveInt
from evergraph.core.shortcuts import fast
from evergraph.core.sparse import SparseMatrix
from evergraph.core.tangent_products import anchored_product, pair_product
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.base import MODELS, OUTPUTS, SAMPLED, Form, unpadded
from evergraph.models.fixed_products import fixed_rows
from evergraph.models.gcn_powers import two_layer_powers
from evergraph.models.weights import StackedWeights


def gcn_operator(graph: Graph) -> SparseMatrix:
    """Return Ã = D^(-1/2) (A + I) D^(-1/2) with D the in-degrees of A + I."""
    looped = with_self_loops(graph.adjacency.to(torch.float64))
    scale = looped.row_sums().rsqrt()
    for ends in (looped.indices, looped.row_of_entry()):  # in place: on a large graph these take most of the memory
        looped.values.mul_(scale.index_select(0, ends))
    return looped


GATHERED = 32  # multiplications in a dense product that a GPU does while it reads one number for a sparse product
LAYERS = (*OUTPUTS, "activate")  # methods that capabilities based on the layer equations rest on


@MODELS.register(name="gcn")
class GCN(StackedWeights):
    """H^{l+1} = Ã X^l W̃^l, X^l = [σ(H^l) 1], X^0 = [X 1]: the bias is the last row of each weight matrix.

    Args:
        hidden: width of the hidden layers.
        num_layers: number of layers.
        dropout: share of hidden units dropped while training (the paper drops none).
        propagate_inputs: compute Ã[X 1] once per graph instead of at every step. The results are equal;
            it saves time if features are dense (a two-layer batch then needs one hop) and costs time if they
            are very sparse. `None` decides by the number of entries that a batch would read either way.
    """

    reads_edge_weights = True

    def __init__(
        self,
        hidden: PositiveInt = 256,
        num_layers: Depth = 2,
        dropout: BelowOne = 0.0,
        propagate_inputs: bool | None = None,
    ) -> None:
        super().__init__()
        self.hidden, self.num_layers, self.dropout = hidden, num_layers, dropout
        self.propagate_inputs = propagate_inputs
        self.weights = nn.ParameterList()

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Glorot-uniform weights, zero biases."""
        self.stack([in_channels, *[self.hidden] * (self.num_layers - 1), out_channels])

    @capability(rests_on=(*LAYERS, "setup", "grow"))
    def widen(self, units: int) -> int:
        """Add units to every hidden layer; return the previous width.

        Old units do not read new ones, and outputs do not depend on them at first.
        """
        if self.num_layers < 2:
            raise EvergraphError("a GCN of one layer has no hidden units to add to; use num_layers=2 or more")
        for number, weight in enumerate(self.weights):
            rows, columns = units * (number > 0), units * (number < self.num_layers - 1)
            wide = weight.new_zeros(weight.size(0) + rows, weight.size(1) + columns)
            wide[: weight.size(0) - 1, : weight.size(1)] = weight.detach()[:-1]
            wide[-1, : weight.size(1)] = weight.detach()[-1]  # the bias stays the last row
            if columns:
                fresh = wide.new_empty(wide.size(0) - 1, wide.size(1))
                wide[:-1, weight.size(1) :] = nn.init.xavier_uniform_(fresh)[:, weight.size(1) :]
            self.weights[number] = nn.Parameter(wide, requires_grad=weight.requires_grad)
        self.hidden += units
        return self.hidden - units

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return Ã."""
        return gcn_operator(graph)

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return f"gcn {self.num_layers} {self.propagate_inputs}"

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return [X 1], or Ã[X 1] if that saves work at every step."""
        x: Features = with_ones(graph.x)
        if propagate is None:
            propagate = self.propagate_inputs
        if propagate is None:
            propagate = not isinstance(x, SparseMatrix) or propagation_pays(x, operator, self.num_layers)
        return (sparse_product(operator, x), self.num_layers - 1) if propagate else (x, self.num_layers)

    def logits(self, batch: Batch) -> Tensor:
        """Apply the layer equations, from the batch's outermost nodes inwards."""
        weight, propagated = self.weights[0], self.num_layers > batch.num_hops
        x = batch.read_x
        hidden = linear(x, weight) if propagated else convolve(batch.read_layer(0), x, weight)
        return self.after_first_layer(batch, hidden)

    @capability(rests_on=LAYERS)
    def after_first_layer(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the logits of the seeds, given the first layer's output."""
        skipped = self.num_layers - batch.num_hops  # 1 if the inputs are already propagated
        for number, weight in enumerate(list(self.weights)[1:], start=1):
            hidden, operator = noted(hidden), batch.read_layer(number - skipped)
            if self._fuses(operator, hidden, weight):
                hidden = activated_layer(hidden, weight, operator)[0]
            elif self._gathers_first(operator, hidden, weight):
                hidden = propagated_layer(hidden, weight, operator)[0]
            else:
                hidden = convolve(operator, with_ones(self.activate(hidden, number)), weight)
        return hidden

    def _fuses(self, operator: Features, hidden: Tensor, weight: Tensor) -> bool:
        """Whether a layer has a dedicated kernel on a GPU."""
        if not fused_layer_suits(hidden, weight) or not self._is_as_written():
            return False
        return not _propagate_first(operator, weight)

    def _gathers_first(self, operator: Features, hidden: Tensor, weight: Tensor) -> bool:
        """Whether a layer has a dedicated kernel on a CPU."""
        if not propagated_layer_suits(hidden, operator) or not self._is_as_written():
            return False
        return _propagate_first(operator, weight)

    def _is_as_written(self) -> bool:
        """Whether layers are exactly the equations: no dropout, no recording, no other activation in a subclass."""
        return not (self.dropout and self.training) and not recording() and capable(self, "last_layer") is not None

    def activate(self, hidden: Tensor, layer: int) -> Tensor:
        """Apply σ to the output of layer `layer` − 1, which layer `layer` reads."""
        return F.dropout(F.relu(hidden), self.dropout, self.training)

    @capability(rests_on=LAYERS)
    def features(self, batch: Batch) -> Tensor:
        """Return Ã[σ(H) 1] at the seeds: the input of the last weight matrix."""
        return self.rows_of_the_last_product(batch)

    @capability(rests_on=LAYERS)
    def output_weight(self) -> Tensor:
        """The last weight matrix."""
        return self.weights[-1]

    @capability(rests_on=LAYERS)
    def attention(self, batch: Batch) -> list[Tensor]:
        """Return e_vu = (z_u)ᵀ tanh(z_v), z = XW, of each layer's edges u → v (as TWP defines it for GCN)."""
        hidden: Features = batch.x
        scores = []
        for number, weight in enumerate(self.weights):
            if number:
                assert isinstance(hidden, Tensor)
                hidden = with_ones(F.relu(hidden))
            operator = batch.layer(number)
            z = hidden @ weight
            scores.append((z[operator.indices] * z[operator.row_of_entry()].tanh()).sum(1, keepdim=True))
            hidden = operator @ z
        return scores

    @capability(rests_on=(*LAYERS, "operator", "inputs"))
    def self_edges(self) -> bool:
        """A self-loop acts like a neighbour with the same features and neighbours."""
        return True

    @capability(rests_on=LAYERS)
    def first_layer(self, batch: Batch) -> list[Features]:
        """Return the left factors of the first weight matrix in the first layer: Ã and [X 1], or Ã[X 1].

        Forward passes record the outputs of hidden layers (`evergraph.core.recording.noted`).
        """
        return [batch.x] if self.num_layers > batch.num_hops else [batch.layer(0), batch.x]

    @capability(rests_on=LAYERS)
    def last_layer(self, batch: Batch) -> SparseMatrix | None:
        """Return P if the outputs are P [σ(H) 1] W for the first layer's output H and the last weight W; else None."""
        return batch.layer(batch.num_hops - 1) if self.num_layers == 2 and not self.dropout else None

    @capability(rests_on=("forward", "logits", "operator", "inputs"))
    def multiplies_sparse_inputs(self) -> bool:
        """Inputs are used only in the product X W₁."""
        return True

    @capability(rests_on=LAYERS)
    def joint_forward(self, batch: Batch, direction: Direction) -> tuple[Tensor, Tensor]:
        """Return the logits and their tangent along `direction`; each sparse product serves both."""
        hidden, moved = self._first_layer(batch, direction)
        if capable(direction, "first_layer_alone") is not None and self.num_layers > 1:
            outputs = self.after_first_layer(batch, noted(hidden, direction, moved))
            return outputs, torch.zeros_like(outputs)
        against = capable(direction, "against")
        skipped = self.num_layers - batch.num_hops
        for number, weight in enumerate(list(self.weights)[1:], start=1):
            hidden = noted(hidden, direction, moved)
            operator, name = batch.read_layer(number - skipped), f"weights.{number}"
            if self._fuses(operator, hidden, weight):
                back = -direction[name] if against is None else against(name)
                hidden, change = activated_layer(hidden, weight, operator, moved, back)
                assert change is not None
                moved = change
                continue
            if self._gathers_first(operator, hidden, weight):
                hidden, change = propagated_layer(hidden, weight, operator, moved, direction[name])
                assert change is not None
                moved = change
                continue
            moved = F.pad(moved * (hidden.detach() > 0), (0, 1))  # the column of ones has tangent zero
            hidden = with_ones(F.relu(hidden))
            first = _propagate_first(operator, weight)
            if first:
                hidden, moved = pair_product(operator, hidden, moved)
            moved = moved @ weight.detach() + hidden.detach() @ direction[name]
            hidden = hidden @ weight
            if not first:
                hidden, moved = pair_product(operator, hidden, moved)
        return hidden, moved

    @capability(rests_on=(*LAYERS, "operator", "inputs"))
    def example_powers(self, batch: Batch, cotangents: Callable[[Batch, Tensor], Tensor], power: int) -> Params | None:
        """Return Σ over seeds and cotangents of |∂(z_v·c)/∂W|^power if the layer equations are simple; else None."""
        exact = batch.source is not None and batch.source.fan_out is None and batch.members is None
        if not (fast("structure") and exact and self.num_layers == 2):
            return None
        return two_layer_powers(self, batch, cotangents, power)

    @capability(rests_on=(*LAYERS, "joint_forward", "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured on one batch or rows of it, and on padded batches with one hop of dense inputs."""
        if form != "padded":
            return unpadded(batcher, form, by_weights=True)
        if not (batcher.num_hops == 1 and isinstance(batcher.x, Tensor) and batcher.members is None):
            return No("batches with more than one hop, sparse inputs or groups of nodes are not padded")
        if self.dropout:
            return No("a padded batch has a row for each edge, and dropout is by node")
        return batcher.fan_out is None or SAMPLED

    @capability(rests_on=(*LAYERS, "joint_forward", "operator", "inputs"))
    def steps_can_be_stacked(self) -> Answer:
        """Steps consist of products with weights, which can be stacked; without dropout no random numbers are drawn."""
        return not self.dropout or No("dropout draws other numbers for several at once than for each alone")

    @capability(rests_on=(*LAYERS, "joint_forward", "after_first_layer"))
    def leaves_out_rows(self) -> bool:
        """Passes skip nodes that the chosen examples do not read (`Batch.needed`)."""
        return True

    @capability(rests_on=LAYERS)
    def standing_product(self, batch: Batch, direction: Direction) -> Tensor | None:
        """Return the first layer with the direction's sum of anchors as weights; None if it has none."""
        parts = capable(direction, "parts") if fast("anchors") else None
        if parts is None:
            return None
        product = batch.x @ parts("weights.0")[1]
        return product if self.num_layers > batch.num_hops else batch.layer(0) @ product

    def _first_layer(self, batch: Batch, direction: Direction) -> tuple[Tensor, Tensor]:
        """Return the first layer's output and its tangent.

        Along D = count·θ − total one product serves both: given X D, X θ = (X D + X total) / count, and the
        product with the sum of anchors, the same at every step, is computed once per task.
        """
        weight, propagated = self.weights[0], self.num_layers > batch.num_hops
        parts, against = capable(direction, "parts") if fast("anchors") else None, capable(direction, "against")
        if parts and against and batch.source is not None and (propagated or batch.source.fan_out is None):
            count, total = parts("weights.0")
            operator = None if propagated else batch.read_layer(0)
            rows = batch.x.size(0) if operator is None else operator.size(0)
            at_total = fixed_rows(batch, total, rows, propagate=not propagated)
            if at_total is not None:
                return anchored_product(batch.read_x, weight, count, against("weights.0"), at_total, operator)
        hidden, moved = pair_product(batch.read_x, weight, direction["weights.0"])
        return (hidden, moved) if propagated else pair_product(batch.read_layer(0), hidden, moved)


def _propagate_first(operator: Features, weight: Tensor) -> bool:
    """Whether (ÃX)W costs fewer multiplications than Ã(XW); a GPU does dense ones on tensor cores."""
    before, after = weight.shape
    rows, columns = operator.shape
    entries = rows * columns
    if isinstance(operator, SparseMatrix):
        entries = operator.nnz * (GATHERED if weight.is_cuda else 1)
    return (columns - rows) * before * after > entries * (before - after)


def propagation_pays(x: SparseMatrix, operator: SparseMatrix, num_layers: int, batch_size: int = 128) -> bool:
    """Whether a batch reads fewer entries of ÃX at L−1 hops than of X (and Ã) at L hops, judged by a probe batch."""
    nodes = torch.linspace(0, x.num_rows - 1, min(batch_size, x.num_rows), device=x.device).long()
    for _ in range(num_layers):
        inner = nodes
        nodes = torch.unique(torch.cat([inner, operator.rows(inner).indices]))
    plain = int(x.counts()[nodes].sum()) + int(operator.counts()[inner].sum())
    some = inner[:: max(1, inner.numel() // 64)]
    fill = sparse_product(operator.rows(some), x)
    assert isinstance(fill, SparseMatrix)
    return fill.nnz * inner.numel() / some.numel() < plain


def convolve(operator: SparseMatrix, x: Features, weight: Tensor) -> Tensor:
    """Return Ã X W, multiplied in the cheaper order."""
    if recording():
        return linear(sparse_product(operator, x), weight)
    if isinstance(x, SparseMatrix) or not _propagate_first(operator, weight):
        return operator @ (x @ weight)
    return (operator @ x) @ weight
