"""Memory aware synapses (Aljundi et al., ECCV 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evergraph.core.params import Params
from evergraph.curvature import measuring, sum_of_powers
from evergraph.data.batching import Batch
from evergraph.methods.base import METHODS, Context
from evergraph.methods.quadratic import Quadratic


@METHODS.register
@dataclass(repr=False)
class MAS(Quadratic):
    """Importance Ω_i = mean over nodes of |∂‖z_v‖²/∂θ_i|: how much the output moves with a parameter.

    As in its paper, importances add up over tasks and the anchor is the last task's parameters. ‖z_v‖²
    is taken over the label scope.

    Args:
        strength: λ; 1e4 in the paper.
    """

    name = "mas"
    family = "importance"
    reference = "Aljundi et al.: Memory Aware Synapses, ECCV 2018"

    strength: float = 1e4

    def measure(self, context: Context) -> Params:
        """The mean of single-node gradients' absolute values, over the task's training nodes and label scope."""

        def cotangents(batch: Batch, outputs: Tensor) -> Tensor:
            return 2 * context.problem.in_scope(outputs).unsqueeze(1)

        with measuring(context.model, next(context.batches(1))):
            total = sum_of_powers(context.model, context.batches, cotangents, power=1)
        return {name: value / context.num_train for name, value in total.items()}

    def merge(self, importance: Params, anchor: Params) -> None:
        """Add the importance, move the anchor."""
        self.move(importance, anchor)
