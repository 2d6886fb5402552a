"""How processes that work on one learner together divide examples and sum their results."""

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
    """The part of a task's context that handles several processes. A single process has all examples as its share."""

    if TYPE_CHECKING:
        task: Task
        batcher: Neighbourhoods
        batch_size: int | None

        @property
        def train(self) -> Tensor: ...  # noqa: D102

    def own(self, examples: Tensor) -> Tensor:
        """Return this process's share of the examples: all of them if the graph is partitioned and they are its own."""
        return examples if self.task.graph.rows is not None else examples[workers().share(examples.numel())]

    def total(self, counts: Tensor) -> Tensor:
        """Return the sum over all processes of what each has counted over its own examples."""
        return workers().sum([counts])[0]

    def count(self, examples: Tensor) -> int:
        """Return the number of examples over all processes."""
        return int(self.total(torch.tensor([self.own(examples).numel()])))

    def divided_sum(self, measure: Callable[[Callable[[int], Iterator[Batch]]], Params]) -> Params:
        """Return a sum over the training examples: each process measures its own share, and all get the total.

        Args:
            measure: takes a function like `batches` over a share of the examples and returns the share's sum by
                parameter. It must not draw random numbers.
        """
        group = workers()
        own = self.own(self.train)

        def batches(batch_size: int | None = None) -> Iterator[Batch]:
            return self.batcher.exact().batches(own, batch_size or self.batch_size) if own.numel() else iter(())

        part = measure(batches)
        return dict(zip(part, group.sum(list(part.values()))))
