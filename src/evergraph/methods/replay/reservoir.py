"""Plain experience replay with a reservoir: the floor that every replay method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from evergraph.methods.base import METHODS, Method
from evergraph.methods.memory import ReplayMethod, Weighting


@METHODS.register
@dataclass(repr=False)
class Reservoir(ReplayMethod):
    """A uniform random sample of all training examples met, trained on again; of nodes features and labels alone.

    Each example draws a random number when it is met, and those with the smallest numbers stay: for a memory of fixed
    size that is a reservoir (Vitter, 1985; Li, 1994), in which every example met is equally likely to be.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: where `memory` is empty, as many examples are kept as there are classes, times this.
        strength: factor on the loss of the replayed examples; 0 is fine-tuning.
        weighting: of replayed examples against the task's: `sets`, the memory as a whole counts as the task does, as
            with equal batches of both; `classes`, every old class counts as one of the task's does on average;
            `nodes`, an example counts as many as the training nodes it stands for; `examples`, each counts 1.
        replay_size: examples drawn from the memory at each step; 0 takes all of them.
    """

    name = "reservoir"
    reference = "Chaudhry et al.: On Tiny Episodic Memories in Continual Learning, 2019; Vitter: reservoirs, 1985"
    levels, kinds = Method.levels, Method.kinds

    by_chance = True

    weighting: Weighting = "sets"
