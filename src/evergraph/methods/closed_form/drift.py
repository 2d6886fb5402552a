"""An encoder that moves: sums over its features, carried over to the features that it has now."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from evergraph.core.params import Params
from evergraph.data.batching import Batch
from evergraph.methods.base import Context
from evergraph.methods.closed_form.head import linear_head
from evergraph.models.base import NODES_AT_ONCE

Parts = dict[str, Tensor]


def follow_drift(context: Context, encoder_before: Params, gram: Parts, cross: Parts) -> tuple[Parts, Parts]:
    """TᵀGT and TᵀB, with φ_before T ≈ φ_after in least squares on the current task's nodes."""
    features, _ = linear_head(context.model)
    old = {f"model.{name}": value for name, value in encoder_before.items()}
    before_before = torch.zeros_like(gram["train"])
    before_after = torch.zeros_like(before_before)
    for batch in context.batches(NODES_AT_ONCE):
        after = features(batch).double()
        before = functional_call(_Features(context.model), old, (batch,)).double()
        before_before.addmm_(before.T, before)
        before_after.addmm_(before.T, after)
    # damped towards the identity: directions that the task does not show are taken not to drift
    damping = 1e-3 * float(before_before.diagonal().mean())
    before_before.diagonal().add_(damping)
    before_after.diagonal().add_(damping)
    change = torch.cholesky_solve(before_after, torch.linalg.cholesky(before_before))
    moved = {part: change.T @ sums @ change for part, sums in gram.items()}
    return moved, {part: change.T @ sums for part, sums in cross.items()}


class _Features(torch.nn.Module):
    """A model's features as a module's forward, for calls with other parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        features: Tensor = self.model.features(batch)  # type: ignore[operator]
        return features
