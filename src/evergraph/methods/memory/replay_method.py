"""What replay methods share: they train on the memory again, in the same backward pass as on the new task."""

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
    """Training on the new task and, in the same backward pass, on the memory of the old ones.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples of each class that are kept where `memory` is empty.
        strength: factor on the loss of the replayed examples; 0 is fine-tuning.
        weighting: of replayed examples against the task's: `classes`, every old class counts as one of the task's
            classes does on average; `nodes`, an example counts as many as the training nodes it stands for; `sets`,
            the memory as a whole counts as the task does; `examples`, each counts 1.
        replay_size: examples drawn from the memory at each step; 0 takes all of them.
    """

    besides = "the graph of the memory"
    search_space = search_over(strength=(0.1, 1000.0), weighting=["classes", "nodes", "sets"])

    strength: NonNegative = 1.0
    weighting: Weighting = "classes"
    replay_size: NonNegativeInt = 0

    def replay(self, step: Step) -> list[Replay]:
        """The memory, or a draw from it; over an epoch each example has its weight once, as the task's have theirs."""
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
        """The weight of each example by the `weighting`, found once per task."""
        key = (replayed, self.weighting)
        if key not in context.cache:
            context.cache[key] = replayed.weights(context, self.weighting)
        found: Tensor = context.cache[key]
        return found

    def replayed_weight(self, context: Context) -> Tensor | None:
        """The weights of each class's examples, added up; None where they have no classes."""
        replayed = self.replayed(context)
        if replayed is None or not self.strength or context.problem.kind != "classes":
            return None
        weights = self.strength * self.weights(context, replayed)
        total = weights.new_zeros(context.model.out_channels or 0)
        return total.index_add(0, replayed.units, weights)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """The memory is one batch; a draw takes rows of it, by the device's own random numbers."""
        return True
