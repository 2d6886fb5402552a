"""GCN and GraphSAGE with layer normalization (Ba, Kiros and Hinton, 2016) before each activation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evergraph.core.capabilities import Answer, capability
from evergraph.core.settings import BelowOne, Depth, PositiveInt
from evergraph.data.batching import Neighbourhoods
from evergraph.models.base import MODELS, Form, GraphModel, unpadded
from evergraph.models.gcn import GCN, LAYERS
from evergraph.models.sage import GraphSAGE

NORMALIZED_OUTPUTS = (*LAYERS, "operator", "inputs")


class _Normalized(GraphModel):
    """Normalizes the output of a hidden layer, node by node, before its activation."""

    def __init__(self, hidden: PositiveInt = 256, num_layers: Depth = 2, dropout: BelowOne = 0.0, **more: Any) -> None:
        super().__init__(hidden, num_layers, dropout, **more)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(num_layers - 1))

    def reset_parameters(self) -> None:
        """Reset scales to one and shifts to zero, and redraw the weights as in the plain model."""
        for norm in self.norms:
            norm.reset_parameters()  # type: ignore[operator]
        super().reset_parameters()

    def activate(self, hidden: Tensor, layer: int) -> Tensor:
        """Normalize, then activate as in the plain model."""
        active: Tensor = super().activate(self.norms[layer - 1](hidden), layer)  # type: ignore[misc]
        return active

    @capability(rests_on=NORMALIZED_OUTPUTS)
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured on one batch or rows of it."""
        return unpadded(batcher, form, by_weights=True)


@MODELS.register(name="gcn-layer-norm")
class LayerNormGCN(_Normalized, GCN):
    """`gcn` with layer normalization: X^l = [σ(LN(H^l)) 1].

    Args:
        hidden: width of the hidden layers.
        num_layers: number of layers.
        dropout: share of hidden units dropped while training.
        propagate_inputs: as for `gcn`.
    """

    def __init__(
        self,
        hidden: PositiveInt = 256,
        num_layers: Depth = 2,
        dropout: BelowOne = 0.0,
        propagate_inputs: bool | None = None,
    ) -> None:
        super().__init__(hidden, num_layers, dropout, propagate_inputs=propagate_inputs)


@MODELS.register(name="sage-layer-norm")
class LayerNormGraphSAGE(_Normalized, GraphSAGE):
    """`sage` with layer normalization: X^l = σ(LN(H^l)).

    Args:
        hidden: width of the hidden layers.
        num_layers: number of layers.
        dropout: share of hidden units dropped while training.
    """

    def __init__(self, hidden: PositiveInt = 256, num_layers: Depth = 2, dropout: BelowOne = 0.0) -> None:
        super().__init__(hidden, num_layers, dropout)
