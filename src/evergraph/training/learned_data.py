"""Which tasks of a learner some data are: found by their marks, as they were learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.data import Graph, Task, TaskStream, as_graph
from evergraph.errors import EvergraphError

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


@dataclass
class Learned:
    """Data that a task was learned from.

    Args:
        number: of the task, from 0.
        given: the task as its data were given.
        unlabelled: examples forgotten since that stayed in the graph, as numbers in `given`.
        removed: those that left the graph too.
    """

    number: int
    given: Task
    unlabelled: Tensor
    removed: Tensor

    def task(self) -> Task:
        """What the learner knows of it now: without what was forgotten since."""
        task = self.given
        if self.unlabelled.numel():
            task = task.without(self.unlabelled, keep_in_graph=True)
        return task.without(self.removed) if self.removed.numel() else task

    def numbers_now(self, examples: Tensor) -> Tensor:
        """Numbers of examples of `given` in the task as it is now."""
        if self.given.graph.level != "node":
            return examples
        gone = torch.zeros(self.given.graph.num_examples, dtype=torch.long)
        gone[self.removed] = 1
        return examples - gone.cumsum(0)[examples]

    def forgetting(self, examples: Tensor, keep_in_graph: bool) -> Learned:
        """The same with further examples forgotten."""
        kept = torch.unique(torch.cat([self.unlabelled, examples])) if keep_in_graph else self.unlabelled
        gone = self.removed if keep_in_graph else torch.unique(torch.cat([self.removed, examples]))
        return Learned(self.number, self.given, kept, gone)

    def note(self) -> dict[str, Any]:
        """What the learner's record says of it, so that the same data are known again."""
        forgotten = {"unlabelled": self.unlabelled.tolist(), "removed": self.removed.tolist()}
        count = len({*forgotten["unlabelled"], *forgotten["removed"]})
        return {"given": self.given.mark(), "forgotten": forgotten, "forgotten_examples": count}


def find_learned(learner: Learner, data: Any) -> list[list[Learned]]:
    """For each piece of data (a task, a graph, a path; of a list or a stream) the tasks that were learned from it."""
    whole = isinstance(data, TaskStream)
    found = []
    for piece in _pieces(learner, data):
        known = list(_matches(learner, piece))
        if known:
            found.append(known)
        elif not whole:  # of a stream, tasks that were not learned are left aside
            name = piece.graph.name if isinstance(piece, Task) else as_graph(piece).name
            raise EvergraphError(
                f"{name} is not data that this learner learned from, or it has changed since; give the task, graph or "
                "file as it was learned"
            )
    if not found:
        raise EvergraphError("none of these data were learned; give the tasks, graphs or files as they were learned")
    return found


def _pieces(learner: Learner, data: Any) -> list[Any]:
    """Data one by one. PyG objects in a list are one piece where each of them is an example."""
    if isinstance(data, TaskStream):
        return [data[i] for i in range(len(data))]
    if not isinstance(data, (list, tuple)):
        return [data]
    of_its_own = (Task, Graph, str, Path, list, tuple)
    examples = learner.problem.level == "graph" and not any(isinstance(piece, of_its_own) for piece in data)
    return [data] if examples else list(data)


def first_graph(learner: Learner, data: Any) -> Graph:
    """The graph that examples are named in: the first one's, of a list or a stream."""
    first = _pieces(learner, data)[0]
    return first.graph if isinstance(first, Task) else as_graph(first)


def _matches(learner: Learner, piece: Any) -> Iterator[Learned]:
    nothing = torch.empty(0, dtype=torch.long)
    graph = None if isinstance(piece, Task) else as_graph(piece)
    for number, record in enumerate(learner.records):
        for task in [piece] if graph is None else _as_learned(learner, graph, number):
            if task.mark() == record["mark"]:
                yield Learned(number, task, nothing, nothing)
            elif task.mark() == record.get("given"):
                forgotten = {key: torch.tensor(value, dtype=torch.long) for key, value in record["forgotten"].items()}
                yield Learned(number, task, **forgotten)


def _as_learned(learner: Learner, graph: Graph, number: int) -> Iterator[Task]:
    """The tasks that `learn` may have made of a graph, with and without examples held out."""
    names = [name for name, _ in learner.records[number].get("given_classes", ())] or learner.history[number]["classes"]
    if graph.has_classes and not set(names) <= set(graph.class_names):
        return
    classes = names if graph.has_classes else None
    for hold_out in (True, False):
        try:
            yield Task.of(graph, classes, hold_out=hold_out, seed=learner.seed, index=number)
        except EvergraphError:  # it has no examples of these classes: not the one
            return
