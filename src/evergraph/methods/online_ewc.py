"""Online EWC (Schwarz et al., ICML 2018): one decaying Fisher diagonal, one anchor."""

from __future__ import annotations

from dataclasses import dataclass

from evergraph.core.params import Params
from evergraph.core.settings import Fraction
from evergraph.methods.base import METHODS
from evergraph.methods.ewc import EWC


@METHODS.register
@dataclass(repr=False)
class OnlineEWC(EWC):
    """Penalty strength/2 Σ_i F_i (θ_i − θ_{t−1,i})² with F ← γF + F_t after each task.

    Args:
        strength: λ; 1e4 in the paper.
        labels: as for `ewc`; so are `fisher` and `reduction`.
        decay: γ; 1 keeps the sum of all Fishers, 0.95 is its authors' choice.
    """

    name = "online-ewc"
    step_settings = step_factors = ("strength",)
    family = "Fisher, diagonal"
    reference = "Schwarz et al.: Progress & Compress, ICML 2018"

    decay: Fraction = 0.95

    def merge(self, importance: Params, anchor: Params) -> None:
        """Decay the old Fisher, add the new one, and move the anchor to the current parameters."""
        self.move(importance, anchor, self.decay)
