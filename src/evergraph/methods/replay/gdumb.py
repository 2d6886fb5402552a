"""GDumb (Prabhu, Torr and Dokania, ECCV 2020): a balanced memory, and a model trained from scratch on it alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from evergraph.data.tasks import Task
from evergraph.methods.base import METHODS, Context, Method
from evergraph.methods.memory import MemoryMethod


@METHODS.register
@dataclass(repr=False)
class GDumb(MemoryMethod):
    """Keep a balanced random sample of all examples met, and at each task train a new model on it alone.

    It learns nothing from the stream beyond the memory: a baseline for methods with an equal memory.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples kept per class if `memory` is empty.
    """

    name = "gdumb"
    reference = "Prabhu, Torr and Dokania: GDumb, ECCV 2020"
    no_validation = "gdumb trains on its memory alone"
    levels, kinds = Method.levels, Method.kinds
    training = MappingProxyType({**MemoryMethod.training, "epochs": 100, "lr": 5e-3})  # there is nothing to forget

    def start_task(self, context: Context) -> None:
        """Add the task's examples to the memory, and reset the parameters."""
        super().end_task(context)
        context.model.start_over()

    def training_data(self, context: Context) -> Task | None:
        """Return the memory as the only training data."""
        return self.memory_task(context)

    def end_task(self, context: Context) -> None:
        """Do nothing: the memory is already filled."""
