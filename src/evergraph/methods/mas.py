"""Memory aware synapses (Aljundi et al., ECCV 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from evergraph.core.params import Params, copy_params
from evergraph.core.settings import NonNegative
from evergraph.curvature import measuring, sum_of_powers
from evergraph.data.batching import Batch
from evergraph.methods.base import METHODS, Context, search_over
from evergraph.methods.quadratic import Quadratic, mean_squared_gradient
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class MAS(Quadratic):
    """Importance Ω_i = mean over nodes of |∂‖z_v‖²/∂θ_i|: how much the output changes with a parameter.

    As in its paper, importances add up over tasks and the anchor is the last task's parameters. ‖z_v‖²
    is taken over the label scope. The other options are CGLB's.

    Args:
        strength: λ; 1e4 in the paper, against a summed loss.
        importance: `per-node` as above; `squared-batch` is the mean over batches of squared gradients of the batch's
            mean z², over all its nodes and all output units.
        over_tasks: `sum`, or `mean`: each task's importance weighted by its number of training nodes.
    """

    name = "mas"
    step_settings = step_factors = ("strength",)
    family = "importance"
    reference = "Aljundi et al.: Memory Aware Synapses, ECCV 2018"
    search_space = search_over(strength=(1e-1, 1e10))

    strength: NonNegative = 0.1
    importance: Literal["per-node", "squared-batch"] = "per-node"
    over_tasks: Literal["sum", "mean"] = "sum"
    num_nodes_: int = state(int)

    def measure(self, context: Context) -> Params:
        """Return the task's importance over its training nodes."""
        with measuring(context.model, next(context.batches(1))):
            if self.importance == "squared-batch":
                squares = (context.model(batch).square().mean() for batch in context.batches())
                return mean_squared_gradient(context, squares)
            return self._per_node(context)

    def _per_node(self, context: Context) -> Params:
        """Return the mean absolute value of single-node gradients, over the label scope."""

        def cotangents(batch: Batch, outputs: Tensor) -> Tensor:
            return 2 * context.problem.in_scope(outputs).unsqueeze(1)

        total = context.divided_sum(lambda batches: sum_of_powers(context.model, batches, cotangents, power=1))
        return {name: value / context.num_train for name, value in total.items()}

    def end_task(self, context: Context) -> None:
        """Add the importance, or average it with the past; move the anchor."""
        importance, kept = self.measure(context), 1.0
        self.num_nodes_ += context.num_train
        if self.over_tasks == "mean":
            share = context.num_train / self.num_nodes_
            importance, kept = {name: share * value for name, value in importance.items()}, 1 - share
        self.move(importance, copy_params(context.model), kept)
