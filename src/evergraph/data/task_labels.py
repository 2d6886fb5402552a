"""Which classes a stream's tasks have, by the labels of their examples, and which edits of these labels fit them."""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.data.division import validated_where_known
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError


class TaskLabels:
    """The examples of a graph divided into tasks and parts: what remains as it is when labels are edited.

    Args:
        graph: the graph.
        task_of: task of each example; -1 if it has none.
        part: part of each example, as divided (`Division.part`).
        every_column: without classes, each task has all columns; otherwise those known for any of its examples.
    """

    def __init__(self, graph: Graph, task_of: Tensor, part: Tensor, every_column: bool) -> None:
        self.task_of, self.part, self._every_column = task_of, part, every_column
        self.classes = self._trained(graph)
        self._labelled, self._present = graph.labelled, self._pairs(graph)

    def usable_part(self, graph: Graph) -> Tensor:
        """Return the part of each example; validation examples of classes not trained yet have none."""
        return validated_where_known(graph, self.task_of, self.part) if graph.has_classes else self.part

    def check(self, graph: Graph) -> None:
        """Raise unless edited labels fit the tasks.

        The same examples are labelled, each with a class that its task has had among its examples, and every task has
        training examples of the same classes as before.
        """
        mine = self.task_of >= 0
        same = torch.equal(graph.labelled[mine], self._labelled[mine]) and self._trained(graph) == self.classes
        if not same or not bool(torch.isin(self._pairs(graph), self._present).all()):
            raise EvergraphError(
                f"{graph.name}: labels were edited, and no longer fit the tasks that the stream was divided into "
                "when it was made; make a new stream"
            )

    def _trained(self, graph: Graph) -> list[list[int]]:
        """Positions of each task's classes with training examples; without classes, of its columns."""
        found = []
        for task in range(int(self.task_of.max()) + 1):
            chosen = self.task_of == task
            if graph.has_classes:
                y = graph.y[chosen & (self.part == 0)]
                found.append(torch.unique(y[y >= 0]).tolist())
            else:
                known = (~graph.y[chosen].isnan()).any(0) | self._every_column
                found.append(torch.nonzero(known).reshape(-1).tolist())
        return found

    def _pairs(self, graph: Graph) -> Tensor:
        """Each task and a class among its examples, whatever their part, as one number; none without classes."""
        if not graph.has_classes:
            return torch.empty(0, dtype=torch.long)
        mine = (self.task_of >= 0) & graph.labelled
        return torch.unique(self.task_of[mine] * graph.num_classes + graph.y[mine])
