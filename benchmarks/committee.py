"""Several GCNs as one model, whose output is the mean of theirs: what `benchmarks.deviation --members` trains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergraph.core.capabilities import Answer, capability
from evergraph.core.settings import BelowOne, PositiveInt
from evergraph.data.batching import Neighbourhoods
from evergraph.models.base import Form, unpadded
from evergraph.models.gcn import GCN, OUTPUTS
from evergraph.models.weights import draw


class Committee(GCN):
    """The mean of k GCNs of two layers that differ in their start: (1/k) Σ_m Ã [σ(Ã [X 1] V_m) 1] W_m.

    The members' units stand side by side in one hidden layer, divided by k before the second layer:
    Ã [σ(Ã [X 1] [V_1 … V_k]) / k 1] W, where W stacks the rows of W_1 … W_k above one shared bias. So it is a GCN of
    k · `hidden` units, but each is drawn as in a network of `hidden`, and a step of Adam, which is blind to the scale
    of gradients, moves the outputs as far as it would move one member's.

    Args:
        hidden: width of a member's hidden layer.
        members: k.
        dropout: share of hidden units dropped while training.
    """

    def __init__(self, hidden: PositiveInt = 512, members: PositiveInt = 8, dropout: BelowOne = 0.0) -> None:
        super().__init__(hidden, num_layers=2, dropout=dropout)
        self.members = members

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Every member's weights as those of a GCN by itself."""
        self.stack([in_channels, self.members * self.hidden, out_channels])

    def reset_parameters(self) -> None:
        """Glorot-uniform weights for a member's widths, zero biases."""
        first, last = self.weights
        with torch.no_grad():
            for columns in first.split(self.hidden, dim=1):
                draw(columns)
            nn.init.zeros_(last[-1])
            for rows in last[:-1].split(self.hidden):
                nn.init.xavier_uniform_(rows)

    def activate(self, hidden: Tensor, layer: int) -> Tensor:
        """A k-th of what a GCN's next layer reads."""
        return super().activate(hidden, layer) / self.members

    def grow(self, out_channels: int) -> None:
        """The streams measured here say at once how many classes there will be."""
        raise NotImplementedError

    @capability(rests_on=(*OUTPUTS, "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """On one batch or rows of it."""
        return unpadded(batcher, form, by_weights=True)
