"""Streams of tasks: examples that arrive one task after another."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from evergraph import registry
from evergraph.core.edits import Contents
from evergraph.core.settings import BelowOne, Checked, NonNegativeInt, PositiveInt, Seed
from evergraph.data.arrangement import Order, given_split, tasks_of_classes, trained_classes
from evergraph.data.class_parts import pseudo_classes
from evergraph.data.division import (
    divided_by_attribute,
    divided_by_classes,
    divided_by_columns,
)
from evergraph.data.examples import as_existing_links, narrowed, problem_of, without_held_out_edges
from evergraph.data.files import as_graph, content_mark
from evergraph.data.graph import Graph
from evergraph.data.negatives import with_negatives
from evergraph.data.scenarios import SCENARIOS, blurred, find_attribute
from evergraph.data.task_labels import TaskLabels
from evergraph.data.tasks import Part, Task, along_training_links, union
from evergraph.data.test_graphs import TEST_GRAPHS
from evergraph.errors import EvergraphError, counted


def about_numbers(problem: Any) -> bool:
    """Whether `problem` is the name of a problem that predicts numbers."""
    return isinstance(problem, str) and problem != "" and bool(registry.problems[problem].kind == "numbers")


class TaskStream(metaclass=Checked):
    """A sequence of tasks over the examples of one graph: nodes, graphs or links.

    Tasks are cut from `graph` when they are asked for. If it has been edited in place since, they are cut again; which
    examples and classes a task has, and the split, stay as they were when the stream was made.

    Args:
        graph: the whole graph.
        classes_per_task: number of classes that arrive together; the last task takes the rest.
        min_class_size: classes with fewer examples are left out, along with their nodes, as are unlabelled nodes.
        order: `labelled`, `random` (by `seed`; `random:7` by another), `size` (largest first), or a list of class
            names; a list of lists gives the tasks themselves. A class in several tasks has its examples divided evenly
            among them, so that it returns with new examples.
        seed: seed of the 60/20/20 split, of the random order and of the drawn pairs without a link.
        edges_between_tasks: keep the edges to nodes of earlier tasks in a task's graph. If False, each task's
            graph contains only its own nodes, as in the paper.
        test_graph: `task` tests each task's examples on that task's own graph (as the paper does; it reveals
            which task a node is from); `seen` on one graph of all tasks seen so far; `node`, where examples are
            nodes, tests each node on the graph of the training nodes seen so far, which it joins alone.
        task_incremental: shorthand for `scenario="task"`.
        problem: registered name of what is learned; inferred from the examples by default. If it predicts numbers,
            whole numbers are not read as classes.
        scenario: what defines a task and what is known at test time: `class`, `task`, `domain` or `time`. By default
            `class`; with `by`, `domain`.
        by: attribute that defines the tasks (a year, a country), or a feature with a name, which is then no feature.
        bins: number of intervals with equally many examples that the attribute is cut into; 0 makes each value a task.
            By default the scenario's.
        blur: share of each task's training examples that arrive with other tasks instead.
        split: `given` uses the split (masks) that comes with the data, if any; `random` is always 60/20/20.
    """

    def __init__(
        self,
        graph: Graph | Any,
        classes_per_task: PositiveInt = 2,
        *,
        min_class_size: NonNegativeInt = 0,
        order: Order = "labelled",
        seed: Seed = 0,
        edges_between_tasks: bool = False,
        test_graph: str = "task",
        task_incremental: bool = False,
        problem: str | None = None,
        scenario: str | None = None,
        by: str | None = None,
        bins: NonNegativeInt | None = None,
        blur: BelowOne = 0.0,
        split: Literal["given", "random"] = "given",
    ) -> None:
        graph = as_existing_links(as_graph(graph, numbers=about_numbers(problem)))
        TEST_GRAPHS[test_graph].check(graph)  # raises for an unknown name, too
        self.graph_mark, self.name = "", graph.name
        self.seed, self.order = seed, order
        self.classes_per_task, self.min_class_size = classes_per_task, min_class_size
        self.edges_between_tasks, self.test_graph = edges_between_tasks, test_graph
        self.scenario = SCENARIOS[scenario or ("task" if task_incremental else "domain" if by else "class")]
        self.problem, self.blur, self.by = problem or problem_of(graph), blur, by
        registry.problems[self.problem]  # raises for an unknown name
        if task_incremental and not self.scenario.task_known:
            raise EvergraphError(f"task_incremental does not go with scenario {self.scenario.name}; leave one out")
        if by and not self.scenario.by_attribute:
            raise EvergraphError(f"by={by!r} does not go with scenario {self.scenario.name}; use domain or time")
        if bins is not None and not self.scenario.by_attribute:
            raise EvergraphError(
                f"bins={bins} cuts an attribute, and scenario {self.scenario.name} has none; "
                'name one with by="year" (--by year)'
            )
        if blur and self.scenario.task_known:
            raise EvergraphError("blur does not go with scenario task: examples then come without their task's classes")
        part = given_split(graph, seed) if split == "given" else None
        self._extent, self._test_part = "", 2
        if self.scenario.by_attribute:
            graph, self.by, attribute = find_attribute(graph, by, self.scenario.name)
            wanted = self.scenario.bins if bins is None else bins
            division = divided_by_attribute(graph, self.by, attribute, wanted, min_class_size, part, seed)
        elif graph.has_classes:
            division = divided_by_classes(graph, order, classes_per_task, min_class_size, part, seed)
        else:
            graph, division = divided_by_columns(graph, order, classes_per_task, min_class_size, part, seed)
        if graph.has_classes:
            trains = (division.task_of >= 0) & (division.part == 0)
            trained_classes(graph, division.classes, torch.bincount(graph.y[trains], minlength=graph.num_classes))
        self._split, task_of, part = division.split, division.task_of, division.part
        if blur:
            task_of = blurred(task_of, part, blur, seed)
        if graph.positives_only:
            graph, task_of, part = with_negatives(graph, task_of, part, seed)
        graph = without_held_out_edges(graph, torch.nonzero((task_of >= 0) & (part > 0)).reshape(-1))
        self._take(graph, division.classes, task_of, part, division.names)

    def _take(
        self, graph: Graph, classes: Sequence[int], task_of: Tensor, part: Tensor, names: list[str] | None
    ) -> None:
        """Set up the stream from these classes and examples; examples without a task are left out."""
        y = graph.y if graph.has_classes else graph.y[:, list(classes)]
        if graph.has_classes:  # relabel classes by their order of arrival
            rank = torch.full((graph.num_classes + 1,), -1)
            rank[list(classes)] = torch.arange(len(classes))
            y = torch.where(task_of >= 0, rank[graph.y], -1)  # -1 (no label) indexes the last entry, also -1
        # a graph on disk is not copied, so nodes without a task stay
        every = torch.arange(graph.num_examples)
        kept = every if graph.on_disk else torch.nonzero(task_of >= 0).reshape(-1)
        whole = narrowed(graph, kept) if kept.numel() < graph.num_examples else graph
        class_names = [graph.class_names[position] for position in classes]
        self.graph = whole.altered(y=y[kept], class_names=class_names, on_disk=graph.on_disk)
        self._labels = TaskLabels(self.graph, task_of[kept], part[kept], self.scenario.by_attribute)
        self._task_of, self._part = self._labels.task_of, self._labels.usable_part(self.graph)
        self.tasks_classes = self._labels.classes
        self._names = names
        numbering = content_mark(self.graph).encode() + self._task_of.numpy().tobytes()
        self._token = hashlib.sha256(numbering).hexdigest()  # of the same graph, divided alike, in other processes too
        self._start()

    def _start(self) -> None:
        """Begin without any task, for the graph's present contents."""
        self._tasks: dict[int, Task] = {}
        self._seen: dict[bool, tuple[int, Task, Tensor]] = {}  # keyed by `alone`
        self._cut_from = Contents(self.graph.tensors())

    def _notice_edits(self) -> None:
        """Drop what was made of contents of the graph that have been edited since; raise if labels no longer fit."""
        if self._cut_from.are_those_of(self.graph.tensors()):
            return
        self._labels.check(self.graph)
        self._part, self._graph_mark = self._labels.usable_part(self.graph), ""
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and copied: tasks are made from the graph again."""
        self._notice_edits()
        return {key: value for key, value in self.__dict__.items() if key not in ("_tasks", "_seen", "_cut_from")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    @property
    def graph_mark(self) -> str:
        """Hash of the whole graph, set by `eg.stream`; empty if it is not known, or the graph was edited since."""
        self._notice_edits()
        return self._graph_mark

    @graph_mark.setter
    def graph_mark(self, mark: str) -> None:
        self._graph_mark = mark

    @property
    def task_names(self) -> list[str]:
        """Name of each task: its classes, or the attribute's value."""
        if self._names is not None:
            return self._names[: len(self)]
        names = self.graph.class_names
        return [", ".join(str(names[position]) for position in classes) for classes in self.tasks_classes]

    @property
    def task_incremental(self) -> bool:
        """Whether the task is known at test time."""
        return self.scenario.task_known

    def first(self, tasks: int) -> TaskStream:
        """Return the stream of the first `tasks` tasks, with the same classes and split and nothing of later tasks."""
        if not 1 <= tasks <= len(self):
            raise EvergraphError(
                f"{self.name}: first_tasks={tasks} is impossible with {len(self)} tasks; choose 1 to {len(self)}"
            )
        known = (self._task_of >= 0) & (self._task_of < tasks)
        met = sorted({position for classes in self.tasks_classes[:tasks] for position in classes})
        limited = copy.copy(self)
        limited._extent = f"the first {tasks} of {len(self)} tasks"
        limited._take(self.graph, met, torch.where(known, self._task_of, -1), self._labels.part, self._names)
        return limited

    def within_task(self, index: int = 0) -> TaskStream:
        """Return a small stream of one task's training and validation nodes; its test nodes are not even in the graph.

        It has two to five tasks of at least two classes each: a network with a single class has nothing to tell it
        from. If the task has fewer than eight classes, they are cut into parts that count as classes
        (`parts_of_classes`) until there are eight. Tests run on the validation nodes.
        """
        classes = self.tasks_classes[index]
        shared = self.scenario.by_attribute or not self.graph.has_classes
        if shared or len(classes) < 2:
            reason = "its classes do not arrive in turn" if shared else f"task {index + 1} has one class"
            raise EvergraphError(
                f"{self.name}: {reason}, so it cannot be cut into a pseudo-stream; "
                "it takes tasks of at least two classes"
            )
        known = (self._task_of == range(len(self))[index]) & (self._part >= 0) & (self._part < 2)
        limited = copy.copy(self)
        limited._test_part = 1
        limited._extent = f"the classes of task {index}, without its test examples"
        limited._split = "75/25 per class for training and validation; tests on validation examples"
        limited._take(self.graph, classes, torch.where(known, 0, -1), self._part, None)
        cut, groups = pseudo_classes(limited.graph, limited._part, self.name)
        limited.classes_per_task = len(groups[0])
        task_of = tasks_of_classes(cut, groups, limited._part, self.seed)
        limited._take(cut, range(cut.num_classes), task_of, limited._part, None)
        return limited

    @property
    def num_classes(self) -> int:
        """Number of classes of all tasks together."""
        return self.graph.num_classes

    @property
    def num_features(self) -> int:
        """Number of features of a node."""
        return self.graph.num_features

    def __len__(self) -> int:
        return len(self.tasks_classes)

    def __getitem__(self, index: int) -> Task:
        if not isinstance(index, Integral):
            raise EvergraphError(f"task {index!r} of a stream of {len(self)}; tasks are numbered from 0")
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {index} of a stream of {len(self)}")
        index = int(index) % len(self)
        self._notice_edits()
        if index not in self._tasks:
            if self.graph.on_disk:  # keep one task in memory, and only the arrays of one still in use elsewhere
                for task in self._tasks.values():
                    task.graph.cache.clear()
                    task.graph.private_cache.clear()
                self._tasks.clear()
            first = 0 if self.edges_between_tasks else index
            task = self._gather(index, first, joined=True, members=[index])
            task.so_far = functools.partial(self.so_far, index)
            self._tasks[index] = task
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def check_tests(self) -> None:
        """Raise an error if a task has no test examples."""
        counts = torch.bincount(self._task_of[(self._part == self._test_part) & (self._task_of >= 0)])
        sizes = [*counts.tolist(), *[0] * len(self)][: len(self)]
        if 0 in sizes:
            index = sizes.index(0)
            raise EvergraphError(
                f"{self.name}: task {index + 1} ({self.task_names[index]}) has no test {self.graph.level}s; make tasks "
                "larger (fewer --bins, more --classes-per-task), or give a split that has some in every task"
            )

    def so_far(self, index: int) -> Task:
        """Return tasks 0 … `index` as a single task, on the graph that tests run on; used by joint training.

        With test graph `task` these are the tasks' own graphs side by side; with a test graph that joins tasks (or
        with `edges_between_tasks`) it is one graph with the edges between them.
        """
        self._notice_edits()
        index = range(len(self))[index]
        joined = TEST_GRAPHS[self.test_graph].joins_tasks or self.edges_between_tasks
        if self.graph.level == "link" and not joined:  # tasks have the same nodes, each with its own links as edges
            return union([self[task] for task in range(index + 1)])
        return self._gather(index, 0, joined=joined, members=range(index + 1))

    def seen(self, index: int, *, alone: bool = False) -> Task:
        """Return all tasks up to `index` as a single task, on one graph with the edges between tasks.

        With `alone`, where examples are nodes, only edges that leave training nodes are kept. So every other node reads
        the training nodes it is joined to, as if it had joined their graph by itself: no node reads it, and training
        nodes keep the degrees and hidden states of their own graph.
        """
        return self._gather_seen(index, alone)[0]

    def seen_part(self, after: int, index: int, part: Part, *, alone: bool = False) -> Tensor:
        """Return the examples of one part of task `index`, in the graph of all tasks up to `after`."""
        seen, task_of = self._gather_seen(after, alone)
        examples: Tensor = getattr(seen, part)
        return examples[task_of[examples] == index]

    def _gather_seen(self, index: int, alone: bool) -> tuple[Task, Tensor]:
        self._notice_edits()
        if alone not in self._seen or self._seen[alone][0] != index:
            if self.graph.on_disk:
                self._seen.clear()  # one such graph in memory at a time
            task_of = self._task_of[(self._task_of >= 0) & (self._task_of <= index)]
            seen = self._gather(index, 0, joined=True, members=range(index + 1), alone=alone)
            self._seen[alone] = (index, seen, task_of)
        return self._seen[alone][1:]

    def tests(self, after: int, index: int, test_graph: str | None = None, part: Part = "test") -> tuple[Graph, Tensor]:
        """Return the graph and the examples on which task `index` is tested after learning task `after`.

        `test_graph` overrides the stream's own test graph; `part="val"` selects validation examples.
        """
        rule = TEST_GRAPHS[test_graph or self.test_graph]
        rule.check(self.graph)
        return rule.select(self, after, index, part)

    def candidates(self, after: int, index: int) -> list[int]:
        """Return the classes that predictions on task `index` choose from after learning task `after`."""
        if self.scenario.task_known:
            return self.tasks_classes[index]
        return sorted({position for classes in self.tasks_classes[: after + 1] for position in classes})

    def protocol(self) -> dict[str, Any]:
        """Return all settings of the stream that results depend on."""
        sizes = [len(classes) for classes in self.tasks_classes]
        equal = all(size == self.classes_per_task for size in sizes[:-1]) and sizes[-1] <= self.classes_per_task
        order = self.order if isinstance(self.order, str) else [str(name) for name in self.graph.class_names]
        return {
            "stream": self.name,
            "tasks": len(self),
            "classes_per_task": self.classes_per_task if equal else sizes,
            "min_class_size": self.min_class_size,
            "order": order,
            "edges_between_tasks": self.edges_between_tasks,
            "test_graph": self.test_graph,
            "problem": self.problem,
            "scenario": f"{self.scenario.name}-incremental",
            "split": self._split,
            **({"edges": "directed"} if self.graph.directed else {}),
            **({"by": self.by} if self.scenario.by_attribute else {}),
            **({"blur": self.blur} if self.blur else {}),
            **({"extent": self._extent} if self._extent else {}),
        }

    def _gather(self, index: int, first: int, *, joined: bool, members: Sequence[int], alone: bool = False) -> Task:
        """Return the task with the examples of tasks `first … index`, trained and tested on those of `members`."""
        examples = torch.nonzero((self._task_of >= first) & (self._task_of <= index)).reshape(-1)
        groups = None if joined else self._task_of
        if alone:
            graph = self.graph.subgraph(examples, groups, joining=self._part != 0)
        else:
            graph = narrowed(self.graph, examples, groups)
        part, task_of = self._part[examples], self._task_of[examples]
        trained, held_out = (torch.nonzero(chosen).reshape(-1) for chosen in (part == 0, part > 0))
        edges, graph = along_training_links(graph, trained, held_out)
        mine = torch.isin(task_of, torch.tensor(list(members)))
        parts = (0, 1, self._test_part)
        train, val, test = (torch.nonzero(mine & (part == number)).reshape(-1) for number in parts)
        classes = sorted({position for task in members for position in self.tasks_classes[task]})
        task = Task(index, classes, graph, train, val, test, self.num_classes, link_edges=edges)
        task.origin, task.joined = (self._token, examples), self.edges_between_tasks
        task.new_nodes = self._new_nodes(index, graph, task_of)
        return task

    def _new_nodes(self, index: int, graph: Graph, task_of: Tensor) -> int | None:
        """Return the number of nodes that earlier tasks did not have, given the task of each example; None for all."""
        if graph.level == "link":  # tasks have the same nodes
            return graph.num_nodes if not index else 0
        return int((task_of == index).sum()) if self.edges_between_tasks and graph.level == "node" else None

    def __repr__(self) -> str:
        sizes = {"task": len(self), "class": self.num_classes, self.graph.level: self.graph.num_examples}
        return f"TaskStream({self.name!r}, {', '.join(counted(number, noun) for noun, number in sizes.items())})"
