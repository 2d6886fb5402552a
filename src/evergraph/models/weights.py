"""Weight matrices whose last row is the bias: how they are initialized and grown, and models that stack them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from evergraph.core.recording import recorded_products
from evergraph.data.batching import Batch
from evergraph.models.base import GraphModel, grown


def draw(weight: Tensor) -> None:
    """Initialize with Glorot-uniform weights and a zero bias, in place."""
    nn.init.xavier_uniform_(weight[:-1])
    nn.init.zeros_(weight[-1])


def grown_with_bias(weight: Tensor, out_channels: int) -> nn.Parameter:
    """Like `grown`, with zero biases for the new units."""
    wide = grown(weight, out_channels)
    with torch.no_grad():
        wide[-1, weight.size(1) :] = 0
    return wide


class StackedWeights(GraphModel):
    """A model with one list of weight matrices, the last of which produces its outputs."""

    weights: nn.ParameterList

    def stack(self, widths: Sequence[int], inputs_per_unit: int = 1) -> None:
        """Create one weight matrix from each width to the next, and initialize them.

        Args:
            widths: layer widths, from the input channels to the output channels.
            inputs_per_unit: how many numbers a matrix reads for each unit of the layer before.
        """
        self.in_channels, self.out_channels = widths[0], widths[-1]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(inputs_per_unit * before + 1, after))
            for before, after in itertools.pairwise(widths)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform weights, zero biases."""
        for weight in self.weights:
            draw(weight)

    def grow(self, out_channels: int) -> None:
        """Add output units; a new unit's bias starts at zero."""
        self.weights[-1] = grown_with_bias(self.weights[-1], out_channels)
        self.out_channels = out_channels

    def rows_of_the_last_product(self, batch: Batch) -> Tensor:
        """Return the input of the last weight matrix in a forward pass."""
        with recorded_products() as products:
            self.logits(batch)
        rows = products[-1].rows
        assert isinstance(rows, Tensor)
        return rows
