"""Several GCNs as one model, whose output is the mean of theirs; trained by `benchmarks.deviation --members`."""

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
    """The mean of k two-layer GCNs that differ in their initialization: (1/k) Σ_m Ã [σ(Ã [X 1] V_m) 1] W_m.

    The members' units are concatenated in one hidden layer and divided by k before the second layer:
    Ã [σ(Ã [X 1] [V_1 … V_k]) / k 1] W, where W stacks the rows of W_1 … W_k above one shared bias. This is a GCN of
    k · `hidden` units, but each unit is initialized as in a network of `hidden`, and a step of Adam, which is invariant
    to the scale of gradients, moves the outputs as far as it would move one member's.

    Args:
        hidden: width of a member's hidden layer.
        members: number of GCNs, k.
        dropout: fraction of hidden units dropped while training.
    """

    def __init__(self, hidden: PositiveInt = 512, members: PositiveInt = 8, dropout: BelowOne = 0.0) -> None:
        super().__init__(hidden, num_layers=2, dropout=dropout)
        self.members = members

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Create the stacked weights of all members."""
        self.stack([in_channels, self.members * self.hidden, out_channels])

    def reset_parameters(self) -> None:
        """Initialize Glorot-uniform weights for a member's widths, and zero biases."""
        first, last = self.weights
        with torch.no_grad():
            for columns in first.split(self.hidden, dim=1):
                draw(columns)
            nn.init.zeros_(last[-1])
            for rows in last[:-1].split(self.hidden):
                nn.init.xavier_uniform_(rows)

    def activate(self, hidden: Tensor, layer: int) -> Tensor:
        """The activations of a GCN, divided by k."""
        return super().activate(hidden, layer) / self.members

    def grow(self, out_channels: int) -> None:
        """Not needed: the streams measured here announce all classes at the start."""
        raise NotImplementedError

    @capability(rests_on=(*OUTPUTS, "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Yes on one batch or rows of it, no on padded batches."""
        return unpadded(batcher, form, by_weights=True)
