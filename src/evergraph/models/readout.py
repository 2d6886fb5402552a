"""Read-outs: graph-level and link-level models, built on any node-level model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evergraph.core.capabilities import Answer, capability, capable
from evergraph.core.features import Features, with_ones
from evergraph.core.recording import linear
from evergraph.core.settings import PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.base import Form, GraphModel, unpadded
from evergraph.models.input_scaling import InputScaling
from evergraph.models.receptive_field import measure_width
from evergraph.models.weights import draw, grown_with_bias

POOLED_WIDTH = 1280  # default number of random features of a graph: more cost a lot and gained nothing where tried
FIXED_WIDTH = 640  # default number of random features at each end of a link


class Readout(GraphModel):
    """Base class of models of examples that read the node outputs of another model.

    Args:
        node_model: computes one row per node.
    """

    def __init__(self, node_model: GraphModel) -> None:
        super().__init__()
        if node_model.level != "node":
            raise EvergraphError(f"{type(self).__name__} reads a model of nodes, not {type(node_model).__name__}")
        self.node_model = node_model
        self.reads_edge_weights = node_model.reads_edge_weights

    @property
    def encoder(self) -> GraphModel:
        """The node-level model."""
        return self.node_model

    def hyperparameters(self) -> dict[str, Any]:
        """Return those of the node-level model, and the read-out's own."""
        return {**self.node_model.hyperparameters(), **self.readout()}

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return the node-level model's operator."""
        return self.node_model.operator(graph)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return the node-level model's inputs."""
        return self.node_model.inputs(graph, operator, propagate)

    @capability(rests_on=("operator", "inputs"), through="node_model")
    def scale_inputs(self, graph: Graph) -> None:
        """Delegate to the node-level model."""
        claim = capable(self.node_model, "scale_inputs")
        assert claim is not None
        claim(graph)

    @capability(rests_on=("operator", "inputs"), through="node_model")
    def scale_new_columns(self, graph: Graph) -> None:
        """Delegate to the node-level model."""
        claim = capable(self.node_model, "scale_new_columns")
        assert claim is not None
        claim(graph)

    @capability(rests_on=("operator", "inputs"), through="node_model")
    def set_scaling(self, settings: Mapping[str, Any], anew: bool = False) -> None:
        """Delegate to the node-level model."""
        claim = capable(self.node_model, "set_scaling")
        assert claim is not None
        claim(settings, anew)

    @capability(rests_on=("operator", "inputs"), through="node_model")
    def input_scaling(self) -> InputScaling:
        """Delegate to the node-level model."""
        claim = capable(self.node_model, "input_scaling")
        assert claim is not None
        found: InputScaling = claim()
        return found

    @capability(rests_on=("operator", "inputs"), through="node_model")
    def input_key(self) -> str:
        """Delegate to the node-level model."""
        claim = capable(self.node_model, "input_key")
        assert claim is not None
        return str(claim())


class Pooled(Readout):
    """Graph-level model: the mean (or sum) of the nodes' outputs.

    The last layer of a node-level model is linear, so this is a linear head on pooled features: pooling comes before
    the head, as is usual in networks for graphs. Random features number 1,280 unless their number is given.

    Args:
        node_model: the node-level model.
        pooling: `mean` or `sum`; by default what the node-level model prefers (GIN sums).
    """

    level = "graph"

    def __init__(self, node_model: GraphModel, pooling: Literal["mean", "sum"] | None = None) -> None:
        super().__init__(node_model)
        self.pooling = pooling or str(getattr(node_model, "pooling", "mean"))

    def readout(self) -> dict[str, Any]:
        """The pooling."""
        return {"pooling": self.pooling}

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Delegate to the node-level model."""
        self.in_channels, self.out_channels = in_channels, out_channels
        of_width = capable(self.node_model, "of_width")
        if of_width is not None and self.node_model.hyperparameters()["hidden"] is None:
            self.node_model = of_width(POOLED_WIDTH)
        self.node_model.setup(in_channels, out_channels)

    def reset_parameters(self) -> None:
        """Delegate to the node-level model."""
        self.node_model.reset_parameters()

    def grow(self, out_channels: int) -> None:
        """Delegate to the node-level model."""
        self.node_model.grow(out_channels)
        self.out_channels = out_channels

    def logits(self, batch: Batch) -> Tensor:
        """Return the outputs of the batch's graphs."""
        return self._pool(batch, self.node_model(batch.whole()))

    def _pool(self, batch: Batch, rows: Tensor) -> Tensor:
        assert batch.members is not None, "a batch of graphs"
        members = batch.members.to(rows.dtype)
        if self.pooling == "mean":
            sizes = members.counts().clamp(min=1).to(rows.dtype)
            members = members.with_values(members.values / sizes[members.row_of_entry()])
        return members @ rows

    @capability(rests_on=("forward", "logits", "operator", "inputs"), through="node_model")
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured if the node-level model's can; batches of graphs are not padded."""
        claim = capable(self.node_model, "steps_can_be_captured")
        assert claim is not None
        return unpadded(batcher, form, by_weights=True) and claim(batcher, form)

    @capability(rests_on=("forward", "logits"), through="node_model")
    def features(self, batch: Batch) -> Tensor:
        """Return the pooled features: the input of the last weight matrix."""
        claim = capable(self.node_model, "features")
        assert claim is not None
        return self._pool(batch, claim(batch))

    @capability(rests_on=("forward", "logits"), through="node_model")
    def output_weight(self) -> Tensor:
        """The last weight matrix."""
        claim = capable(self.node_model, "output_weight")
        assert claim is not None
        weight: Tensor = claim()
        return weight


class Paired(Readout):
    """Link-level model: [h_u ∘ h_v, h_u, h_v, 1] W, h being the node-level model's rows at source u and target v.

    With random features, h are the features themselves, for a head in closed form.

    Args:
        node_model: the node-level model.
        width: size of h; by default the width of the hidden layers (with random features at most 640). A module of
            your own keeps its width.
    """

    level = "link"

    def __init__(self, node_model: GraphModel, width: PositiveInt | None = None) -> None:
        super().__init__(node_model)
        self.width = width
        self.head: nn.Parameter

    def readout(self) -> dict[str, Any]:
        """The width."""
        return {"width": self.width}

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Set up the node-level model, and a Glorot-uniform head with zero biases on top."""
        self.in_channels, self.out_channels = in_channels, out_channels
        if (of_width := capable(self.node_model, "of_width")) is not None:
            given = self.node_model.hyperparameters()["hidden"]
            self.node_model = of_width(self.width or min(given or FIXED_WIDTH, FIXED_WIDTH))
            self.width = int(self.node_model.hyperparameters()["hidden"])
        module = getattr(self.node_model, "module", None)
        if self.width is None:
            self.width = int(getattr(self.node_model, "hidden", 64)) if module is None else None
        self.width = measure_width(module, in_channels) if self.width is None else self.width
        self.node_model.setup(in_channels, self.width)
        own = capable(self.node_model, "output_weight") if of_width is not None else None
        width = self.width if own is None else own().size(0) - 1  # blocks of one width may be fewer features
        self.head = nn.Parameter(torch.empty(3 * width + 1, out_channels))
        draw(self.head)

    def reset_parameters(self) -> None:
        """Redraw all parameters."""
        self.node_model.reset_parameters()
        draw(self.head)

    def grow(self, out_channels: int) -> None:
        """Add output units; a new unit's bias starts at zero."""
        self.head = grown_with_bias(self.head, out_channels)
        self.out_channels = out_channels

    def logits(self, batch: Batch) -> Tensor:
        """Return the outputs of the batch's links."""
        return linear(self.features(batch), self.head, of_examples=True)

    @capability(rests_on=("forward", "logits", "operator", "inputs"), through="node_model")
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured if the node-level model's can; batches of links are not padded."""
        claim = capable(self.node_model, "steps_can_be_captured")
        assert claim is not None
        return unpadded(batcher, form, by_weights=True) and claim(batcher, form)

    @capability(rests_on=("forward", "logits"))
    def features(self, batch: Batch) -> Tensor:
        """Return [h_u ∘ h_v, h_u, h_v, 1]: the input of the head."""
        assert batch.members is not None, "a batch of links"
        if capable(self.node_model, "of_width") is not None:
            features = capable(self.node_model, "features")
            assert features is not None
            h = features(batch)[:, :-1]  # without the column of ones
        else:
            h = self.node_model(batch.whole())
        source, target = (h[ends] for ends in batch.members.indices.view(-1, 2).T)
        return with_ones(torch.cat([source * target, source, target], dim=1))

    @capability(rests_on=("forward", "logits"))
    def output_weight(self) -> Tensor:
        """The head."""
        return self.head
