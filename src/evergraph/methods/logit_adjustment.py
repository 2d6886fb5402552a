"""Logit adjustment (Menon et al., ICLR 2021): a loss that does not favour the classes with the most examples."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, search_over

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


@METHODS.register
@dataclass(repr=False)
class LogitAdjustment(Method):
    """The training loss reads z_c + strength · log(π_c), π_c the share of class c in all that the task trains on.

    Predictions read z alone. With strength 1 the loss is consistent for the mean accuracy over classes: frequent
    classes need not be told apart by a larger bias. Replayed examples count in π with their weights, whichever method
    replays them, so that it composes: `reservoir+logit-adjustment` does not favour the new task. A class without
    examples has so small a share that it is as good as outside the softmax: alone, and with the label scope `seen`,
    this trains like the label scope `current`.

    Args:
        strength: τ; 0 is no adjustment.
    """

    name = "logit-adjustment"
    family = "loss"
    reference = "Menon et al.: Long-tail Learning via Logit Adjustment, ICLR 2021; in DeLoMe, ECAI 2024"
    access = Access()
    training = MappingProxyType({"label_scope": "seen"})
    search_space = search_over(strength=[0.0, 0.5, 1.0, 1.5])

    strength: float = 1.0

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise EvergraphError(f"logit-adjustment: strength={self.strength} must be at least 0")

    def loss_outputs(self, context: Context, outputs: Tensor) -> Tensor:
        """A constant for each output unit is added."""
        return adjusted(context, outputs, self.strength)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """One addition."""
        return True
