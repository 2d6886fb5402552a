"""Which tasks of a learner some data are: found by their marks, as they were learned."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.sparse import SparseMatrix
from evergraph.data import ClassName, Graph, Task, TaskStream, as_graph
from evergraph.errors import EvergraphError, EvergraphWarning
from evergraph.training.inputs import example_ids

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
        own = torch.cat([self.given.train, self.given.val, self.given.test])  # its neighbours are counted elsewhere
        count = int(torch.isin(own, torch.cat([self.unlabelled, self.removed])).sum())
        return {"given": self.given.mark(), "forgotten": forgotten, "forgotten_examples": count}


@dataclass
class LearnedBefore:
    """What of a task was learned before.

    Args:
        numbers: of the tasks in which it was, from 0.
        examples: how many of its training examples these had.
        forgotten: examples of the same data that were forgotten since.
        whole: it is one of these tasks itself, as its data were given.
        other_classes: those of its classes that none of them had.
    """

    numbers: list[int]
    examples: int
    forgotten: int
    whole: bool
    other_classes: list[ClassName]


def learned_before(learner: Learner, task: Task, graph: Graph | None = None) -> LearnedBefore | None:
    """What of a task was learned before, whatever was forgotten since; None where nothing was.

    Args:
        learner: who learned.
        task: what is to be learned.
        graph: the graph that the task is made of by `Task.of`: other tasks made of it are found too.
    """
    mark = task.mark()
    for number, record in enumerate(learner.records):
        if mark in (record["mark"], record.get("given")):
            return LearnedBefore([number], task.train.numel(), len(_forgotten(record)), True, [])
    if graph is None or graph.level == "link" or graph.rows is not None or not graph.has_classes:
        return None  # among links, the edges of one task are not those of another
    found = [learned for learned in _matches(learner, graph) if torch.isin(task.train, learned.given.train).any()]
    if not found:
        return None
    known = torch.cat([learned.given.train for learned in found])
    forgotten = {example for learned in found for example in _forgotten(learner.records[learned.number])}
    met = {name for learned in found for name in learned.given.class_names}
    others = [name for name in task.class_names if name not in met]
    examples = int(torch.isin(task.train, known).sum())
    return LearnedBefore([learned.number for learned in found], examples, len(forgotten), False, others)


def trained_on(learner: Learner, task: Task) -> int:
    """How many test examples of a task were learned from: its graph was learned with others, or none, held out."""
    if task.graph.level == "link" or task.graph.rows is not None or learner.learned_as(task) is not None:
        return 0
    known = [torch.cat([learned.given.train, learned.given.val]) for learned in _matches(learner, task.graph)]
    return int(torch.isin(task.test, torch.cat(known)).sum()) if known else 0


def _forgotten(record: dict[str, Any]) -> set[int]:
    """The numbers of examples that were forgotten, in the data as they were given."""
    return {number for numbers in record.get("forgotten", {}).values() for number in numbers}


Identities = tuple[Any, Tensor]
"""What examples are told apart by, and a number for each: two with the same number by the same are one example."""


def identities(tasks: Sequence[Task]) -> list[Identities]:
    """Which examples of several tasks are the same.

    They are told by their ids, where all examples of a graph have one each; among tasks of one stream, by their numbers
    in the stream's graph; among tasks of one graph, by their numbers in it.
    """
    known: dict[str, int] = {}
    graphs: list[Graph] = []
    found: list[Identities] = []
    for task in tasks:
        if (ids := unique_ids(task.graph)) is not None:
            found.append(("id", torch.tensor([known.setdefault(name, len(known)) for name in ids])))
        elif task.origin is not None:
            found.append(task.origin)
        else:
            place = next((i for i, graph in enumerate(graphs) if _same_graph(graph, task.graph)), len(graphs))
            graphs += [task.graph] if place == len(graphs) else []
            found.append((place, torch.arange(task.graph.num_examples)))
    return found


def unique_ids(graph: Graph) -> list[str] | None:
    """What the examples are called; None where they have no names, or some share one."""
    ids = example_ids(graph)
    names = None if ids is None else [str(name) for name in ids]
    return names if names is not None and len(set(names)) == len(names) else None


def _same_graph(one: Graph, other: Graph) -> bool:
    """Whether two graphs have the same nodes, edges and examples."""
    if one is other:
        return True
    if one.level != other.level or one.num_examples != other.num_examples or one.x.shape != other.x.shape:
        return False
    pairs = [(one.y, other.y), *zip(_arrays(one), _arrays(other))]
    return len(_arrays(one)) == len(_arrays(other)) and all(torch.equal(*pair) for pair in pairs)


def _arrays(graph: Graph) -> list[Tensor]:
    """Of links their ends, since training links are among a task's edges; else edges; and the features."""
    x = list(graph.x.parts()) if isinstance(graph.x, SparseMatrix) else [graph.x]
    matrix = graph.members if graph.level == "link" and graph.members is not None else graph.adjacency
    return [*matrix.parts(), *x]


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
            if "given" not in record and _sizes(task) != record.get("examples", _sizes(task)):
                continue  # found out without a look at all of the data
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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EvergraphWarning)  # what is to be said of it was, as it was learned
                task = Task.of(graph, classes, hold_out=hold_out, seed=learner.seed, index=number)
        except EvergraphError:  # it has no examples of these classes: not the one
            return
        yield task


def _sizes(task: Task) -> dict[str, int]:
    return {"training": task.train.numel(), "validation": task.val.numel(), "test": task.test.numel()}
