"""Condense and train (Liu, Qiu and Huang, ICDM 2023): learn from a balanced memory of condensed graphs alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from evergraph.data.tasks import Task
from evergraph.methods.base import METHODS, Context
from evergraph.methods.condensation.condensed_memory import CondensedMemory
from evergraph.methods.memory.condensation import DistributionMatching


@METHODS.register
@dataclass(repr=False)
class CaT(CondensedMemory):
    """Condense each task before learning it, and train only on the condensed tasks, old and new.

    Synthetic nodes match the task's training nodes in distribution, class by class, under random encoders
    (`DistributionMatching`). New and old classes then have equally few nodes, so that no class outweighs another.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: synthetic nodes per class if `memory` is empty.
        networks: random encoders drawn for each task.
        updates: steps of the synthetic nodes under each encoder; 1 in its paper.
        width: hidden units of an encoder.
        condensation_lr: Adam's learning rate on the features of the synthetic nodes, in standard deviations of
            each feature.
        start: initial features of a synthetic node: those of a random training node, `propagated` to the depth of the
            model, or the node's own `features`, as in its paper.
        from_scratch: reset the parameters at every task.
    """

    name = "cat"
    reference = "Liu, Qiu and Huang: CaT: Balanced Continual Graph Learning with Graph Condensation, ICDM 2023"
    training = MappingProxyType(
        {"label_scope": "seen", "batch_size": 0, "epochs": 200, "lr": 5e-3, "weight_decay": 5e-4, "reduction": "mean"}
    )
    hold = ()
    matching = DistributionMatching

    from_scratch: bool = False

    @property
    def no_validation(self) -> str:  # type: ignore[override]
        """Why there are no validation examples: they are not condensed."""
        return f"{self.name} trains on its memory alone"

    def start_task(self, context: Context) -> None:
        """Condense the task into the memory."""
        super().end_task(context)
        if self.from_scratch:
            context.model.start_over()

    def training_data(self, context: Context) -> Task | None:
        """Return the memory as the only training data."""
        return self.memory_task(context)

    def end_task(self, context: Context) -> None:
        """Do nothing: the memory is already filled."""
