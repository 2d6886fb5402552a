"""How much of a task's training each class has, and outputs adjusted by it (Menon et al., ICLR 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.methods.base import Context

SMALLEST_SHARE = 1e-12  # stands for the share of a class without examples, whose logarithm there is not


def class_shares(context: Context) -> Tensor:
    """π: each output unit's share of all that a task's steps train on, its own examples and replayed ones."""
    dtype, size = next(context.model.parameters()).dtype, context.model.out_channels
    weight = torch.bincount(context.batcher.y[context.train], minlength=size or 0).to(dtype)
    replayed = context.method.replayed_weight(context) if context.method is not None else None
    if replayed is not None:
        weight = weight + replayed
    return weight / weight.sum()


def adjusted(context: Context, outputs: Tensor, strength: float) -> Tensor:
    """z + strength · log π; the shares are found once per task."""
    if not strength:
        return outputs
    if class_shares not in context.cache:
        context.cache[class_shares] = class_shares(context).clamp(min=SMALLEST_SHARE).log()
    return outputs + strength * context.cache[class_shares]
