"""Plain experience replay with a reservoir: the baseline that every replay method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from evergraph.methods.base import METHODS, Method
from evergraph.methods.memory import ReplayMethod, Weighting


@METHODS.register
@dataclass(repr=False)
class Reservoir(ReplayMethod):
    """Replay a uniform random sample of all training examples met; nodes are kept as features and labels only.

    Each example is assigned a random number when it is met, and those with the smallest numbers are kept. For a memory
    of fixed size this is a reservoir (Vitter, 1985; Li, 1994): every example met is equally likely to be in it.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: if `memory` is empty, this many examples times the number of classes are kept.
        strength: factor on the loss of the replayed examples; 0 is fine-tuning.
        weighting: weight of replayed examples relative to the task's: `sets`, the memory as a whole counts as much as
            the task, as with equal batches of both; `classes`, every old class counts as much as one of the task's on
            average; `nodes`, an example counts as many training nodes as it represents; `examples`, each counts 1.
        replay_size: examples drawn from the memory at each step; 0 uses all of them.
    """

    name = "reservoir"
    reference = "Chaudhry et al.: On Tiny Episodic Memories in Continual Learning, 2019; Vitter: reservoirs, 1985"
    levels, kinds = Method.levels, Method.kinds

    by_chance = True

    weighting: Weighting = "sets"
