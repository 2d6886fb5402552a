"""What processes that work on one learner together divide among themselves, and what they add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.core.params import Params
from evergraph.core.workers import workers
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.tasks import Task


class Shared:
    """The part of a task's context that knows of other processes. With one process shares are the whole."""

    if TYPE_CHECKING:
        task: Task
        batcher: Neighbourhoods
        batch_size: int | None

        @property
        def train(self) -> Tensor: ...  # noqa: D102

    def own(self, examples: Tensor) -> Tensor:
        """Those of some examples that this process counts: its share, or all where the graph in parts has its own."""
        return examples if self.task.graph.rows is not None else examples[workers().share(examples.numel())]

    def total(self, counts: Tensor) -> Tensor:
        """The sum over all processes of what each has counted over its own examples."""
        return workers().sum([counts])[0]

    def count(self, examples: Tensor) -> int:
        """How many of some examples there are over all processes."""
        return int(self.total(torch.tensor([self.own(examples).numel()])))

    def divided_sum(self, measure: Callable[[Callable[[int], Iterator[Batch]]], Params]) -> Params:
        """A sum over the training examples that several processes share: each measures its own, all have the total.

        Args:
            measure: from a function like `batches`, over a share of the examples, to the share's sum by parameter. It
                draws no random numbers.
        """
        group = workers()
        own = self.own(self.train)

        def batches(batch_size: int | None = None) -> Iterator[Batch]:
            return self.batcher.exact().batches(own, batch_size or self.batch_size) if own.numel() else iter(())

        part = measure(batches)
        return dict(zip(part, group.sum(list(part.values()))))
