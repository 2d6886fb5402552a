"""Base class of replay methods, which train on the memory again in the same backward pass as on the new task."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.settings import NonNegative, NonNegativeInt
from evergraph.methods.base import STEP_HOOKS, Context, Replay, Step, search_over
from evergraph.methods.memory.memory_method import MemoryMethod
from evergraph.methods.memory.replayed import Replayed, Weighting


@dataclass(repr=False)
class ReplayMethod(MemoryMethod):
    """Train on the new task and, in the same backward pass, on the memory of the old ones.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples kept per class if `memory` is empty.
        strength: factor on the loss of the replayed examples; 0 is fine-tuning.
        weighting: weight of replayed examples relative to the task's: `classes`, every old class counts as much as one
            of the task's on average; `nodes`, an example counts as many training nodes as it represents; `sets`, the
            memory as a whole counts as much as the task; `examples`, each counts 1.
        replay_size: examples drawn from the memory at each step; 0 uses all of them.
    """

    besides = "the graph of the memory"
    search_space = search_over(strength=(0.1, 1000.0), weighting=["classes", "nodes", "sets"])

    strength: NonNegative = 1.0
    weighting: Weighting = "classes"
    replay_size: NonNegativeInt = 0

    def replay(self, step: Step) -> list[Replay]:
        """Return the memory or a draw from it; as for the task's examples, each one's weight counts once per epoch."""
        context = step.context
        replayed = self.replayed(context)
        if replayed is None or not self.strength:
            return []
        batch, weights = replayed.batch, self.weights(context, replayed)
        scale = self.strength * step.batch.num_examples / context.num_train
        if 0 < self.replay_size < weights.numel():
            scale *= weights.numel() / self.replay_size
            batch, chosen = replayed.drawn(self.replay_size, context.generator)
            weights = weights[chosen]
        if context.reduction == "mean":
            scale /= step.batch.num_examples
        return [Replay(batch, weights=scale * weights, problem=replayed.problem)]

    def weights(self, context: Context, replayed: Replayed) -> Tensor:
        """Return the weight of each example under `weighting`, computed once per task."""
        key = (replayed, self.weighting)
        if key not in context.cache:
            context.cache[key] = replayed.weights(context, self.weighting)
        found: Tensor = context.cache[key]
        return found

    def replayed_weight(self, context: Context) -> Tensor | None:
        """Return the total weight of each class's examples; None if there are none or they have no classes."""
        replayed = self.replayed(context)
        if replayed is None or not self.strength or context.problem.kind != "classes":
            return None
        weights = self.strength * self.weights(context, replayed)
        total = weights.new_zeros(context.model.out_channels or 0)
        return total.index_add(0, replayed.units, weights)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: the memory is one batch, and its rows are drawn by the device's own random numbers."""
        return True
