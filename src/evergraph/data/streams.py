"""Streams of tasks: a graph cut by classes into tasks that arrive one after another."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evergraph import registry
from evergraph.core.settings import Checked, NonNegativeInt, PositiveInt, Seed, checked
from evergraph.data.arrangement import Order, group_classes, split_nodes
from evergraph.data.datasets import DATASETS, Dataset
from evergraph.data.datasets.official import find_data_root
from evergraph.data.files import GRAPH_FILES, as_graph, content_mark
from evergraph.data.graph import Graph
from evergraph.data.tasks import Part, Task
from evergraph.data.test_graphs import TEST_GRAPHS
from evergraph.errors import EvergraphError, unknown
from evergraph.persistence.reading import exists

DEFAULT_STREAM = "digits"
MOST_PSEUDO_TASKS = 5  # that one task's classes are cut into


class TaskStream(metaclass=Checked):
    """A sequence of tasks over one graph, each with classes of its own.

    Args:
        graph: the whole graph.
        classes_per_task: classes that arrive together; the last task takes what remains.
        min_class_size: classes with fewer nodes are left out, with their nodes, as unlabelled nodes are.
        order: `labelled`, `random` (by `seed`; `random:7` by another), `size` (large first), or the classes'
            names in the order wanted; a list of lists gives the tasks themselves.
        seed: of the 60/20/20 split and of the random order.
        edges_between_tasks: keep the edges to nodes of earlier tasks in a task's graph. Off: each task's
            graph is its own nodes alone, as in the paper.
        test_graph: `task` tests each task's nodes on that task's own graph (as the paper does; it gives
            away which task a node is from); `seen` on one graph of all classes seen so far.
        task_incremental: the task of a node is known at test time, and prediction is among its classes.
        problem: what is to be learned, by its registered name.
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
        problem: str = "node-classification",
    ) -> None:
        graph = as_graph(graph)
        TEST_GRAPHS[test_graph], registry.problems[problem]  # an unknown name is refused here
        self.graph_mark = ""  # what the whole graph is, where `stream` made this of it
        self.name = graph.name
        self.seed, self.order = seed, order
        self.classes_per_task, self.min_class_size = classes_per_task, min_class_size
        self.edges_between_tasks, self.test_graph = edges_between_tasks, test_graph
        self.task_incremental, self.problem = task_incremental, problem
        groups = group_classes(graph, order, classes_per_task, min_class_size, seed)
        # 0, 1, 2 for training, validation and test nodes
        part = torch.full((graph.num_nodes,), -1)
        for number, chosen in enumerate(split_nodes(graph, [position for group in groups for position in group], seed)):
            part[chosen] = number
        self._extent, self._split, self._test_part = "", "60/20/20 per class", 2
        self._take(graph, groups, part)

    def _take(self, graph: Graph, groups: Sequence[Sequence[int]], part: Tensor) -> None:
        """Make the stream of these groups of the graph's classes; nodes without a part are left out."""
        sizes = torch.tensor([len(group) for group in groups])
        arranged = [position for group in groups for position in group]
        # one graph of these classes alone, whose labels are positions in the order of arrival
        rank = torch.full((graph.num_classes + 1,), -1)
        rank[arranged] = torch.arange(len(arranged))
        y = torch.where(part >= 0, rank[graph.y], -1)  # an unlabelled node's -1 meets the last entry, also -1
        # a graph on disk is not copied: nodes without a class stay, and belong to no task
        nodes = torch.arange(graph.num_nodes) if graph.on_disk else torch.nonzero(y >= 0).reshape(-1)
        whole = graph.subgraph(nodes) if nodes.numel() < graph.num_nodes else graph
        names = [graph.class_names[position] for position in arranged]
        self.graph = Graph(whole.x, whole.adjacency, y[nodes], names, graph.name, on_disk=graph.on_disk)
        self.graph.directed = graph.directed
        self._part = part[nodes]
        self.tasks_classes = [piece.tolist() for piece in torch.arange(len(arranged)).split(sizes.tolist())]
        task_of_class = torch.repeat_interleave(torch.arange(len(groups)), sizes)
        self._task_of_node = torch.where(self.graph.y >= 0, task_of_class[self.graph.y], -1)
        self._tasks: dict[int, Task] = {}
        self._seen: tuple[int, Task] | None = None

    def first(self, tasks: int) -> TaskStream:
        """The first tasks alone, with the classes and the split that they have here; nothing of later tasks."""
        if not 1 <= tasks <= len(self):
            raise EvergraphError(
                f"{self.name}: first_tasks={tasks} is impossible with {len(self)} tasks; choose 1 to {len(self)}"
            )
        known = (self._task_of_node >= 0) & (self._task_of_node < tasks)
        narrowed = copy.copy(self)
        narrowed._extent = f"the first {tasks} of {len(self)} tasks"
        narrowed._take(self.graph, self.tasks_classes[:tasks], torch.where(known, self._part, -1))
        return narrowed

    def within_task(self, index: int = 0) -> TaskStream:
        """A small stream made of one task's training and validation nodes; its test nodes are not even in the graph.

        The task's classes arrive one by one if there are at most four, else in three to five tasks of equal size.
        Tests run on the validation nodes.
        """
        classes = self.tasks_classes[index]
        if len(classes) < 2:
            raise EvergraphError(
                f"{self.name}: task {index} has one class and cannot be cut into a pseudo-stream; "
                "it takes at least two classes per task"
            )
        size = math.ceil(len(classes) / MOST_PSEUDO_TASKS)
        known = (self._task_of_node == range(len(self))[index]) & (self._part < 2)
        narrowed = copy.copy(self)
        narrowed.classes_per_task, narrowed._test_part = size, 1
        narrowed._extent = f"the classes of task {index}, without its test nodes"
        narrowed._split = "75/25 per class for training and validation; tests on validation nodes"
        groups = [classes[start : start + size] for start in range(0, len(classes), size)]
        narrowed._take(self.graph, groups, torch.where(known, self._part, -1))
        return narrowed

    @property
    def num_classes(self) -> int:
        """Classes of all tasks together."""
        return self.graph.num_classes

    @property
    def num_features(self) -> int:
        """Features of a node."""
        return self.graph.num_features

    def __len__(self) -> int:
        return len(self.tasks_classes)

    def __getitem__(self, index: int) -> Task:
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {index} of a stream of {len(self)}")
        index %= len(self)
        if index not in self._tasks:
            if self.graph.on_disk:
                self._tasks.clear()  # one task in memory at a time
            first = 0 if self.edges_between_tasks else index
            task = self._gather(index, first, joined=True, members=[index])
            task.so_far = functools.partial(self.so_far, index)
            self._tasks[index] = task
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def so_far(self, index: int) -> Task:
        """Tasks 0 … `index` as one, on the graph that tests run on: what joint training learns from.

        With test graph `task` these are the tasks' own graphs side by side; with one that joins tasks (or with edges
        kept between tasks) it is one graph with the edges between them.
        """
        index = range(len(self))[index]
        joined = TEST_GRAPHS[self.test_graph].joins_tasks or self.edges_between_tasks
        return self._gather(index, 0, joined=joined, members=range(index + 1))

    def seen(self, index: int) -> Task:
        """All tasks up to `index` as one, on one graph with the edges between tasks."""
        if self._seen is None or self._seen[0] != index:
            self._seen = (index, self._gather(index, 0, joined=True, members=range(index + 1)))
        return self._seen[1]

    def tests(self, after: int, index: int, test_graph: str | None = None, part: Part = "test") -> tuple[Graph, Tensor]:
        """The graph and the nodes on which task `index` is tested after learning task `after`.

        `test_graph` asks for another test graph than the stream's own, `part="val"` for validation nodes.
        """
        return TEST_GRAPHS[test_graph or self.test_graph].select(self, after, index, part)

    def candidates(self, after: int, index: int) -> list[int]:
        """The classes that prediction on task `index` chooses from after learning task `after`."""
        return self.tasks_classes[index] if self.task_incremental else list(range(self.tasks_classes[after][-1] + 1))

    def protocol(self) -> dict[str, Any]:
        """Everything about the stream that a number depends on."""
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
            "scenario": "task-incremental" if self.task_incremental else "class-incremental",
            "split": self._split,
            **({"edges": "directed"} if self.graph.directed else {}),
            **({"extent": self._extent} if self._extent else {}),
        }

    def _gather(self, index: int, first: int, *, joined: bool, members: Sequence[int]) -> Task:
        """The task made of the nodes of tasks `first … index`; trained and tested on those of tasks `members`."""
        nodes = torch.nonzero((self._task_of_node >= first) & (self._task_of_node <= index)).reshape(-1)
        graph = self.graph.subgraph(nodes, None if joined else self._task_of_node)
        mine = torch.isin(self._task_of_node[nodes], torch.tensor(list(members)))
        part = self._part[nodes]
        parts = (0, 1, self._test_part)
        train, val, test = (torch.nonzero(mine & (part == number)).reshape(-1) for number in parts)
        classes = [position for task in members for position in self.tasks_classes[task]]
        return Task(index, classes, graph, train, val, test, self.num_classes)

    def __repr__(self) -> str:
        return f"TaskStream({self.name!r}, {len(self)} tasks, {self.num_classes} classes, {self.graph.num_nodes} nodes)"


@checked
def stream(
    source: str | Path | Graph | Any = DEFAULT_STREAM,
    *,
    classes_per_task: PositiveInt | None = None,
    min_class_size: NonNegativeInt | None = None,
    data_root: str | Path | None = None,
    first_tasks: NonNegativeInt = 0,
    pseudo_stream: bool = False,
    undirected: bool | None = None,
    **options: Any,
) -> TaskStream:
    """A stream by name, from a file, or from a graph at hand.

    Args:
        source: a dataset (`evergraph streams` lists them), `sbm:KEY=VALUE,…`, the path of an .npz or .pt
            file, a PyG `Data` object or a `Graph`.
        classes_per_task: classes per task; the dataset's (2 for a graph of your own) where not given.
        min_class_size: smallest class kept; the dataset's where not given.
        data_root: folder of the datasets; else `EVERGRAPH_DATA`, else a cache in the home folder.
        first_tasks: the first so many tasks alone (`TaskStream.first`); 0 for all.
        pseudo_stream: a small stream of the first task's classes instead (`TaskStream.within_task`).
        undirected: how a graph of your own is read: False keeps the directions of its edges, True reads all of them
            in both; None does so too, and says it where only one direction was given.
        options: what else `TaskStream` takes: `order`, `seed`, `test_graph`, `edges_between_tasks`,
            `task_incremental`.
    """
    graph, dataset = find_graph(source, data_root, undirected)
    tasks = TaskStream(
        graph,
        dataset.classes_per_task if classes_per_task is None else classes_per_task,
        min_class_size=dataset.min_class_size if min_class_size is None else min_class_size,
        **{"problem": dataset.problem, **options},
    )
    tasks = tasks.first(first_tasks) if first_tasks else tasks
    tasks = tasks.within_task(0) if pseudo_stream else tasks
    tasks.graph_mark = content_mark(graph)
    return tasks


def find_graph(
    source: str | Path | Graph | Any, data_root: str | Path | None = None, undirected: bool | None = None
) -> tuple[Graph, Dataset]:
    """The graph that a name, a path or an object stands for, and how it is cut where nothing else is said."""
    if data_root is not None:
        find_data_root(data_root)  # a folder that is not there is refused even where nothing is read from it
    unnamed = Dataset("graph", lambda data_root: as_graph(source))
    if not isinstance(source, (str, Path)):
        return as_graph(source, undirected=undirected), unnamed
    name, _, settings = str(source).partition(":")
    if name in DATASETS:
        if undirected is False:
            raise EvergraphError(f"{name} is an undirected graph; keep directions (--directed) of graphs of your own")
        return DATASETS[name].graph(data_root, settings), DATASETS[name]
    if Path(source).suffix in GRAPH_FILES or exists(source):
        return as_graph(source, undirected=undirected), unnamed
    raise unknown("stream", str(source), [*DATASETS, "a path to an .npz or .pt file"])
