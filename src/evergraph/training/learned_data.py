"""Finding the tasks that a learner has learned from given data, by their marks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.sparse import SparseMatrix
from evergraph.data import ClassName, Graph, Task, TaskStream, as_graph
from evergraph.data.outline import outline
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphError, EvergraphWarning
from evergraph.training.inputs import example_ids

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


@dataclass
class Learned:
    """Data that a task was learned from.

    Args:
        number: number of the task, from 0.
        given: the task as its data were given.
        unlabelled: examples forgotten since that stayed in the graph, as indices in `given`.
        removed: examples forgotten since that were removed from the graph too, likewise.
    """

    number: int
    given: Task
    unlabelled: Tensor
    removed: Tensor

    @property
    def forgotten(self) -> Tensor:
        """All examples forgotten since, as indices in `given`."""
        return torch.cat([self.unlabelled, self.removed])

    @property
    def own(self) -> Tensor:
        """The task's own examples, as indices in `given`; neighbours are not among them."""
        return torch.cat([self.given.train, self.given.val, self.given.test])

    def task(self) -> Task:
        """The task as the learner knows it now, without the examples forgotten since."""
        task = self.given
        if self.unlabelled.numel():
            task = task.without(self.unlabelled, keep_in_graph=True)
        return task.without(self.removed) if self.removed.numel() else task

    def numbers_now(self, examples: Tensor) -> Tensor:
        """Convert indices of examples in `given` to indices in the task as it is now."""
        if self.given.graph.level != "node":
            return examples
        gone = torch.zeros(self.given.graph.num_examples, dtype=torch.long)
        gone[self.removed] = 1
        return examples - gone.cumsum(0)[examples]

    def forgetting(self, examples: Tensor, keep_in_graph: bool) -> Learned:
        """The same data with further examples forgotten; those that stayed in the graph may leave it now."""
        if keep_in_graph:
            kept = torch.unique(torch.cat([self.unlabelled, examples]))
            return Learned(self.number, self.given, kept, self.removed)
        kept = self.unlabelled[~torch.isin(self.unlabelled, examples)]
        return Learned(self.number, self.given, kept, torch.unique(torch.cat([self.removed, examples])))

    def done(self, keep_in_graph: bool) -> Tensor:
        """Examples of which nothing is left to forget: those that stayed in the graph may have to leave it yet."""
        stay = keep_in_graph or self.given.graph.level == "graph"  # a graph among many has no neighbours
        return self.forgotten if stay else self.removed

    def note(self) -> dict[str, Any]:
        """Entries of the learner's record by which the same data are recognized again; no name of a forgotten class."""
        forgotten = {"unlabelled": self.unlabelled.tolist(), "removed": self.removed.tolist()}
        count = int(torch.isin(self.own, self.forgotten).sum())
        entries = {"given": self.given.mark(), "forgotten": forgotten, "forgotten_examples": count}
        sums = outline(self.given)
        given = {} if sums is None else {"given_outline": sums.whole()}
        return {**entries, **given, "given_classes": list(self.given.class_positions)}


def task_numbers(*numbers: int) -> str:
    """The numbers of learned tasks as messages tell them, from 1: `1 and 2`."""
    return " and ".join(str(number + 1) for number in numbers)


@dataclass
class LearnedBefore:
    """The part of a task that was learned before.

    Args:
        numbers: numbers of the tasks that it was learned in, from 0.
        total: number of its training examples; pairs that were drawn as having no link do not count, here and below.
        examples: how many of them those tasks had.
        forgotten: number of examples of the same data that were forgotten since.
        whole: whether it is one of those tasks itself, as its data were given.
        other_classes: classes of the task that none of those tasks had.
        altered: if the graph is that of one of those tasks in another order or form, with other labels, another
            split or more nodes: the number of nodes that it had. All examples count then, as others may be held out.
    """

    numbers: list[int]
    total: int
    examples: int
    forgotten: int
    whole: bool
    other_classes: list[ClassName]
    altered: int | None = None

    def how_altered(self, graph: Graph) -> str:
        """Say how the graph differs from the one that was learned."""
        gone = f" ({graph.level}s forgotten since: {self.forgotten})" if self.forgotten else ""
        task = f"task {task_numbers(*self.numbers)}{gone}"
        if self.altered == graph.num_nodes:
            how = "in another order or form, with other labels or with others held out"
            return f"{graph.name}: its {self.total} labelled nodes are those of {task}, {how}"
        too = f"the {self.examples} examples among these are labelled here too"
        return f"{graph.name} begins with the {self.altered} nodes of {task}, and {too}"

    def advice(self, graph: Graph) -> str:
        """Say what to do instead of learning the altered graph."""
        if self.altered == graph.num_nodes:
            return "if labels were corrected, forget these nodes first, then learn them alone"
        return "label new nodes only"


def learned_before(learner: Learner, task: Task, graph: Graph | None = None) -> LearnedBefore | None:
    """Return the part of a task that was learned before, whatever was forgotten since; None if nothing was.

    Args:
        learner: the learner.
        task: the task to be learned.
        graph: the graph that the task was made from by `Task.of`: other tasks made from it are found too.
    """
    marks = {same.mark() for same in _as_named(learner, task)}
    train = task.train if graph is None else _own(task.train, graph)
    for number, record in enumerate(learner.records):
        if marks & {record["mark"], record.get("given")}:
            return LearnedBefore([number], train.numel(), train.numel(), len(_forgotten(record)), True, [])
    if graph is None or graph.rows is not None:
        return learned_altered(learner, task)
    found = [learned for learned in _matches(learner, graph) if torch.isin(train, learned.given.train).any()]
    if not found:
        return learned_altered(learner, task)
    known = torch.cat([learned.given.train for learned in found])
    forgotten = {example for learned in found for example in _forgotten(learner.records[learned.number])}
    met = {name for learned in found for name in learned.given.class_names}
    others = [name for name in task.class_names if name not in met]
    numbers, examples = [learned.number for learned in found], int(torch.isin(train, known).sum())
    return LearnedBefore(numbers, train.numel(), examples, len(forgotten), False, others)


def learned_altered(learner: Learner, task: Task) -> LearnedBefore | None:
    """Return the task whose nodes, edges and examples are a task's too: in another order, labelled or split otherwise,
    or among more.
    """
    outlines = [
        (number, record[kind])
        for number, record in enumerate(learner.records)
        for kind in ("outline", "given_outline")
        if kind in record
    ]
    sums = outline(task) if outlines and learner.problem.kind == "classes" else None
    if sums is None:
        return None
    names = set(as_known(task.class_names, learner.classes_))
    for number, known in outlines:
        if sums.begins_with(known) and names & set(learner.history[number]["classes"]):
            nodes, examples = known[:2]
            forgotten = len(_forgotten(learner.records[number]))
            total = task.train.numel() + task.val.numel() + task.test.numel()
            return LearnedBefore([number], total, examples, forgotten, False, [], nodes)
    return None


def _own(examples: Tensor, graph: Graph) -> Tensor:
    """Those of a task's examples that its graph has; pairs drawn as having no link come after all links."""
    return examples[examples < graph.num_examples]


def learned_from(learner: Learner, task: Task) -> Learned | None:
    """Find this very task among those learned, whatever was forgotten since; None if it was not learned."""
    return next(_matches(learner, task), None)


def without_forgotten(learner: Learner, task: Task) -> Task:
    """Return the task as the learner knows it: if it was learned, without the examples forgotten since."""
    learned = learned_from(learner, task)
    return task if learned is None else learned.task()


def tasks_learned_from(learner: Learner, graph: Graph) -> list[Task]:
    """Tasks that `learn` made from a graph, as the learner knows them; empty if it did not learn from the graph."""
    return [learned.task() for learned in _matches(learner, graph)]


def classes_given(learner: Learner, number: int, graph: Graph) -> list[ClassName]:
    """Classes of a task as its data were given, including those forgotten since: `graph` tells how these are called."""
    given = learner.records[number].get("given_classes")
    if given is None:
        return list(learner.history[number]["classes"])
    names = dict(enumerate(graph.class_names))
    pairs = [place if isinstance(place, list) else [names.get(place)] for place in given]  # names in older versions
    return [name for name, *_ in pairs if name is not None]


def trained_on(learner: Learner, task: Task) -> int:
    """Number of a task's test examples that were learned from: its graph was learned with another split, or none.

    Pairs that were drawn as having no link differ from split to split and do not count.
    """
    if task.graph.rows is not None:
        return 0
    graph = _made_from(task)
    known = torch.zeros(graph.num_examples, dtype=torch.bool)
    for learned in _matches(learner, graph):
        own = _own(torch.cat([learned.given.train, learned.given.val]), graph)
        known[own[~torch.isin(own, learned.forgotten)]] = True
    return int(known[_own(task.test, graph)].sum())


def _made_from(task: Task) -> Graph:
    """The graph that `Task.of` made a task from: where examples are links, no training link is an edge of it, and no
    drawn pair an example.
    """
    if task.link_edges is None:
        return task.graph
    graph = task.graph.altered(adjacency=task.link_edges[0], along_links=False)
    return graph.with_examples(torch.nonzero(graph.y[:, 0] > 0).reshape(-1)) if graph.positives_only else graph


def _forgotten(record: dict[str, Any]) -> set[int]:
    """Indices of the forgotten examples, in the data as they were given."""
    return {number for numbers in record.get("forgotten", {}).values() for number in numbers}


Identities = tuple[Any, Tensor]
"""What identifies examples, and a number for each: where both agree, two examples are the same."""


def identities(tasks: Sequence[Task]) -> list[Identities]:
    """Number the examples of several tasks, so that the same example has the same number in all of them.

    Examples are identified by their ids, if all examples of a graph have distinct ones; among tasks of one stream, by
    their indices in the stream's graph; among tasks of one graph, by their indices in it.
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
    """Ids of the examples, as strings; None if they have no ids, or some share one."""
    ids = example_ids(graph)
    names = None if ids is None else [str(name) for name in ids]
    return names if names is not None and len(set(names)) == len(names) else None


def _same_graph(one: Graph, other: Graph) -> bool:
    """Whether two graphs have the same nodes, edges and examples; nodes may be labelled in batches."""
    if one is other:
        return True
    if one.level != other.level or one.num_examples != other.num_examples or one.x.shape != other.x.shape:
        return False
    pairs = list(zip(_arrays(one), _arrays(other)))
    if one.level != "node":
        pairs.append((one.y, other.y))
    return len(_arrays(one)) == len(_arrays(other)) and all(torch.equal(*pair) for pair in pairs)


def _arrays(graph: Graph) -> list[Tensor]:
    """The edges and features of a graph; the ends of links instead of edges, since these include training links."""
    x = list(graph.x.parts()) if isinstance(graph.x, SparseMatrix) else [graph.x]
    matrix = graph.members if graph.level == "link" and graph.members is not None else graph.adjacency
    return [*matrix.parts(), *x]


def find_learned(learner: Learner, data: Any) -> list[list[Learned]]:
    """Find the tasks learned from each piece of data: a task, a graph or a path, or those in a list or a stream."""
    whole = isinstance(data, TaskStream)
    found = []
    for piece in _pieces(learner, data):
        known = list(_matches(learner, piece))
        if known:
            found.append(known)
        elif not whole:  # tasks of a stream that were not learned are skipped
            name = _graph_of(learner, piece).name
            raise EvergraphError(
                f"{name} is not data that this learner learned from, it has changed since, or all of it was forgotten; "
                "give the task, graph or file as it was learned"
            )
    if not found:
        raise EvergraphError("none of these data were learned; give the tasks, graphs or files as they were learned")
    return found


def _pieces(learner: Learner, data: Any) -> list[Any]:
    """Split data into pieces. A list of PyG objects is one piece if each of them is an example."""
    if isinstance(data, TaskStream):
        return [data[i] for i in range(len(data))]
    if not isinstance(data, (list, tuple)):
        return [data]
    of_its_own = (Task, Graph, str, Path, list, tuple)
    examples = learner.problem.level == "graph" and not any(isinstance(piece, of_its_own) for piece in data)
    return [data] if examples else list(data)


def first_graph(learner: Learner, data: Any) -> Graph:
    """The graph that examples are named in: the first one of a list or a stream."""
    return _graph_of(learner, _pieces(learner, data)[0])


def _graph_of(learner: Learner, piece: Any) -> Graph:
    """The graph of a task, or the one that an object or a path stands for, read as the learner's problem reads it."""
    return piece.graph if isinstance(piece, Task) else as_graph(piece, numbers=learner.problem.kind == "numbers")


def _matches(learner: Learner, piece: Any) -> Iterator[Learned]:
    nothing = torch.empty(0, dtype=torch.long)
    named = list(_as_named(learner, piece if isinstance(piece, Task) else _graph_of(learner, piece)))
    for number, record in enumerate(learner.records):
        for task in (task for data in named for task in _as_learned(learner, data, number)):
            if "given" not in record and _sizes(task) != record.get("examples", _sizes(task)):
                continue  # ruled out without reading all of the data
            if task.mark() == record["mark"]:
                yield Learned(number, task, nothing, nothing)
            elif task.mark() == record.get("given"):
                forgotten = {key: torch.tensor(value, dtype=torch.long) for key, value in record["forgotten"].items()}
                yield Learned(number, task, **forgotten)


def _as_named(learner: Learner, data: Any) -> Iterator[Any]:
    """Yield a task or graph as it is and, if the learner calls its truth values 0 and 1, with these as class names."""
    yield data
    graph = data.graph if isinstance(data, Task) else data
    names = as_known(graph.class_names, learner.classes_)
    if list(map(str, names)) != list(map(str, graph.class_names)):
        renamed = graph.altered(class_names=names)
        yield replace(data, graph=renamed) if isinstance(data, Task) else renamed


def _as_learned(learner: Learner, data: Task | Graph, number: int) -> Iterator[Task]:
    """Yield a task itself, or those that `learn` may have made from a graph, with and without examples held out."""
    if isinstance(data, Task):
        yield data
        return
    graph = data
    names = classes_given(learner, number, graph)
    if graph.has_classes and not set(names) <= set(as_known(graph.class_names, names)):
        return
    classes = names if graph.has_classes else None
    for hold_out in (True, False):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EvergraphWarning)  # already shown when it was learned
                task = Task.of(graph, classes, hold_out=hold_out, seed=learner.seed, index=number)
        except EvergraphError:  # it has no examples of these classes, so it is another graph
            return
        yield task


def _sizes(task: Task) -> dict[str, int]:
    return {"training": task.train.numel(), "validation": task.val.numel(), "test": task.test.numel()}
