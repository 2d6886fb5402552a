"""Logit adjustment (Menon et al., ICLR 2021): a loss that does not favour the classes with the most examples."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.settings import NonNegative
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, search_over
from evergraph.methods.class_shares import adjusted


@METHODS.register
@dataclass(repr=False)
class LogitAdjustment(Method):
    """Train on logits z_c + strength · log(π_c), with π_c the share of class c in all that the task trains on.

    Predictions use z alone. With strength 1 the loss is consistent for the mean accuracy over classes: frequent
    classes need no larger bias. Replayed examples count in π with their weights, whichever method replays them, so it
    composes: `reservoir+logit-adjustment` does not favour the new task. A class without examples has so small a share
    that it is effectively outside the softmax: used alone with the label scope `seen`, this trains like the label scope
    `current`.

    Args:
        strength: τ; 0 is no adjustment.
    """

    name = "logit-adjustment"
    family = "loss"
    reference = "Menon et al.: Long-tail Learning via Logit Adjustment, ICLR 2021; in DeLoMe, ECAI 2024"
    access = Access()
    kinds = ("classes",)
    training = MappingProxyType({"label_scope": "seen"})
    search_space = search_over(strength=[0.0, 0.5, 1.0, 1.5])
    hold = ()  # a larger strength does not preserve more of the old tasks

    strength: NonNegative = 1.0

    def loss_outputs(self, context: Context, outputs: Tensor) -> Tensor:
        """Add a constant to each output unit."""
        return adjusted(context, outputs, self.strength)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: a step only adds a constant."""
        return True
