"""Finding the tasks that a learner has learned from given data, by their marks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.data import ClassName, Graph, Task, TaskStream, as_graph
from evergraph.data.outline import OUTLINE, outline
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphError, EvergraphWarning, tell
from evergraph.training.task_names import in_tasks

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
            examples = examples[~torch.isin(examples, self.removed)]
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


LEFT = "left_to_forget"
"""Entry of a task's record: what was forgotten in other data, and may be in this task's, which were not searched."""


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
        altered: if the nodes of those tasks are the graph's, in another order or form, with other labels, another
            split, other edges or more nodes: the number of these nodes. All examples count then, as others may be
            held out.
        same_edges: whether the edges between these nodes are those of the task, too.
    """

    numbers: list[int]
    total: int
    examples: int
    forgotten: int
    whole: bool
    other_classes: list[ClassName]
    altered: int | None = None
    same_edges: bool = True

    def how_altered(self, graph: Graph) -> str:
        """Say how the graph differs from the data that were learned."""
        gone = f" ({graph.level}s forgotten since: {self.forgotten})" if self.forgotten else ""
        tasks = f"{in_tasks(*self.numbers)}{gone}"
        if self.altered == graph.num_nodes:
            how = ", in another order or form, with other labels or with others held out"
            if not self.same_edges:
                how = ", with other edges, weights or directions" if len(self.numbers) == 1 else ""
            return f"{graph.name}: its {self.total} labelled nodes are those of {tasks}{how}"
        too = f"the {self.examples} examples among these are labelled here too"
        return f"{graph.name} begins with the {self.altered} nodes of {tasks}, and {too}"

    def advice(self, graph: Graph) -> str:
        """Say what to do instead of learning altered data."""
        if self.altered != graph.num_nodes:
            return "label new nodes only"
        what = "if labels were corrected" if self.same_edges else "to learn them in this form"
        return f"{what}, forget these nodes first, then learn them alone"


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
    """Return the tasks whose nodes and examples are a task's too: in another order, labelled, split or joined by edges
    otherwise, those of several tasks one after another, or among more.
    """
    outlines = [
        (number, record[kind])
        for number, record in enumerate(learner.records)
        for kind in ("outline", "given_outline")
        if len(record.get(kind, ())) == OUTLINE
    ]
    sums = outline(task) if outlines and learner.problem.kind == "classes" else None
    if sums is None:
        return None
    places, nodes = sums.made_of([known for _, known in outlines])
    same = [place for place, (_, known) in enumerate(outlines) if sums.begins_with(known)]
    same_edges = bool(same) and len(places) == 1
    places = same[:1] if same_edges else places
    if not places:
        return None
    numbers = sorted({outlines[place][0] for place in places})
    forgotten = sum(len(_forgotten(learner.records[number])) for number in numbers)
    total = task.train.numel() + task.val.numel() + task.test.numel()
    examples = int(sums.upto(nodes)[1])
    return LearnedBefore(numbers, total, examples, forgotten, False, [], nodes, same_edges)


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
    return _called(given, graph)


def _called(given: list[Any], graph: Graph) -> list[ClassName]:
    """The classes at the given positions, as a graph calls them."""
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


def find_learned(learner: Learner, data: Any, *, numbered: bool) -> list[list[Learned]]:
    """Find the tasks learned from each piece of data: a task, a graph or a path, or those in a list or a stream.

    Data that the learner does not know any more are left out, with a note, if it knows others. Those of which all was
    forgotten are known as long as something of them is left to forget in other tasks; their number is negative.

    Args:
        learner: the learner.
        data: the data.
        numbered: whether examples are named in the first piece, so that it must be known.
    """
    whole = isinstance(data, TaskStream)
    found, unknown = [], []
    for place, piece in enumerate(_pieces(learner, data)):
        known = list(_matches(learner, piece)) or _forgotten_data(learner, piece, -1 - place)
        if known:
            found.append(known)
        elif not whole:  # tasks of a stream that were not learned are skipped
            unknown.append(_graph_of(learner, piece).name)
            if numbered and not found:
                break
    if not any(learned.number >= 0 for known in found for learned in known) or (unknown and numbered and not found):
        if not unknown:
            raise EvergraphError(
                "none of these data were learned; give the tasks, graphs or files as they were learned"
            )
        lost = "not data that this learner learned from, it has changed since, or all of it was forgotten"
        raise EvergraphError(f"{unknown[0]} is {lost}; give the task, graph or file as it was learned")
    if unknown:
        tell(
            f"left out: {', '.join(unknown)}; this learner did not learn from it, it has changed since, or all of it "
            "was forgotten"
        )
    return found


def _forgotten_data(learner: Learner, piece: Any, number: int) -> list[Learned]:
    """Find data of which all was forgotten, by what is left to forget of them in other tasks."""
    for record in learner.records:
        for entry in record.get(LEFT, ()):
            task = _as_given(learner, piece, entry["given_classes"], entry["given"])
            if task is not None:
                every = torch.arange(task.graph.num_examples)
                return [Learned(number, task, every[:0], every)]
    return []


def _as_given(learner: Learner, piece: Any, classes: list[Any], mark: str) -> Task | None:
    """The task with a mark that data stand for; None if they do not."""
    for data in _as_named(learner, piece if isinstance(piece, Task) else _graph_of(learner, piece)):
        graph = data.graph if isinstance(data, Task) else data
        for task in _tasks_of(learner, data, _called(classes, graph), learner.num_tasks):
            if task.mark() == mark:
                return task
    return None


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
    """Yield a task itself, or those that `learn` may have made from a graph, if it is that of the numbered task."""
    graph = data.graph if isinstance(data, Task) else data
    return _tasks_of(learner, data, classes_given(learner, number, graph), number)


def _tasks_of(learner: Learner, data: Task | Graph, names: list[ClassName], number: int) -> Iterator[Task]:
    """Yield a task itself, or those of some classes of a graph, with and without examples held out."""
    if isinstance(data, Task):
        yield data
        return
    graph = data
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
