"""Curvature of a random function is not what anybody wants: find out before measuring."""

from __future__ import annotations

import torch

from evergraph.data.batches import Batch
from evergraph.errors import EvergraphError
from evergraph.models.base import GraphModel


def require_deterministic(model: GraphModel, batch: Batch) -> None:
    """Refuse a model whose forward pass, in its present mode, draws random numbers (dropout and its kin)."""
    devices = [batch.y.device] if batch.y.is_cuda else []
    with torch.random.fork_rng(devices), torch.no_grad():
        states = [torch.get_rng_state()] + [torch.cuda.get_rng_state(device) for device in devices]
        model(batch)
        after = [torch.get_rng_state()] + [torch.cuda.get_rng_state(device) for device in devices]
        if not all(torch.equal(a, b) for a, b in zip(states, after)):
            raise EvergraphError(
                f"{type(model).__name__} draws random numbers (dropout?) while curvature is measured; "
                "set dropout=0 or use a method without online curvature"
            )
