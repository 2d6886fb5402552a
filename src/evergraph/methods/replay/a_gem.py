"""Averaged gradient episodic memory (Chaudhry et al., ICLR 2019): GEM with one constraint."""

from __future__ import annotations

from dataclasses import dataclass

from evergraph.core.capabilities import capability
from evergraph.core.settings import NonNegativeInt
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, Step, search_over
from evergraph.methods.memory import MemoryMethod
from evergraph.methods.replay.gem import add_to_gradient, flat_gradient, memory_gradients


@METHODS.register
@dataclass(repr=False)
class AGEM(MemoryMethod):
    """g̃ = g − min(⟨g, m⟩, 0)/⟨m, m⟩ · m: a step must not raise the mean loss on the memory, whose gradient is m.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples kept per class if `memory` is empty.
        replay_size: examples drawn from the memory at each step for m; 0 uses all of them.
    """

    name = "a-gem"
    besides = "the graph of the memory"
    reference = "Chaudhry et al.: Efficient Lifelong Learning with A-GEM, ICLR 2019"
    search_space = search_over(replay_size=[0, 32, 128])
    levels, kinds = Method.levels, Method.kinds
    hold = ()

    replay_size: NonNegativeInt = 0

    def edit_grads(self, step: Step) -> None:
        """Remove the component that raises the loss on the memory, without waiting for the device."""
        context, replayed = step.context, self.replayed(step.context)
        if replayed is None:
            return
        batch = replayed.batch
        if 0 < self.replay_size < batch.num_examples:
            batch, _ = replayed.drawn(self.replay_size, context.generator)
        memory = memory_gradients(context, replayed.problem, batch, replayed.tasks.new_zeros(batch.num_examples), 1)[0]
        product = flat_gradient(context.params) @ memory
        add_to_gradient(context.params, -product.clamp(max=0) / (memory @ memory).clamp(min=1e-30) * memory)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: the memory is one batch, and its rows are drawn by the device's own random numbers."""
        return True
