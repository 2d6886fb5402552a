"""Share of each class in a task's training, and outputs adjusted by it (Menon et al., ICLR 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.methods.base import Context

SMALLEST_SHARE = 1e-12  # in place of the share 0 of a class without examples, which has no logarithm


def class_shares(context: Context) -> Tensor:
    """Return π, each output unit's share of all that a task's steps train on: its own and replayed examples."""
    dtype, size = next(context.model.parameters()).dtype, context.model.out_channels
    weight = torch.bincount(context.batcher.y[context.train], minlength=size or 0).to(dtype)
    replayed = context.method.replayed_weight(context) if context.method is not None else None
    if replayed is not None:
        weight = weight + replayed
    return weight / weight.sum()


def adjusted(context: Context, outputs: Tensor, strength: float) -> Tensor:
    """Return z + strength · log π; the shares are computed once per task."""
    if not strength:
        return outputs
    if class_shares not in context.cache:
        context.cache[class_shares] = class_shares(context).clamp(min=SMALLEST_SHARE).log()
    return outputs + strength * context.cache[class_shares]
