"""Streams of tasks: a graph cut by classes into tasks that arrive one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from evergraph.data.arrange import Order, group_classes, split_nodes
from evergraph.data.files import GRAPH_FILES, read_graph_file
from evergraph.data.graph import ClassName, Graph, from_pyg
from evergraph.data.made import digits, sbm
from evergraph.data.official import OFFICIAL, read_official
from evergraph.errors import EvergraphError, one_of, unknown

TestGraph = Literal["task", "seen"]
Part = Literal["test", "val"]


@dataclass(eq=False)
class Task:
    """What arrives at one step: a graph, its new classes, and nodes to train on, to choose by, to test on.

    Args:
        index: position in the stream, from 0.
        classes: the task's classes, as positions in `graph.class_names`.
        graph: the task's graph; `graph.y` holds positions in `graph.class_names`.
        train: nodes to train on; `val` and `test` likewise.
        num_classes: classes of the whole stream, so that the output layer can have its final size.
    """

    index: int
    classes: list[int]
    graph: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    num_classes: int

    @property
    def class_names(self) -> list[ClassName]:
        """The user's names of the task's classes."""
        return [self.graph.class_names[position] for position in self.classes]

    def __repr__(self) -> str:
        sizes = f"train={self.train.numel()}, val={self.val.numel()}, test={self.test.numel()}"
        return f"Task({self.index}, classes={self.class_names}, nodes={self.graph.num_nodes}, {sizes})"

    @classmethod
    def of(
        cls,
        graph: Graph | Any,
        classes: Sequence[ClassName] | None = None,
        *,
        hold_out: bool = True,
        seed: int = 0,
        index: int = 0,
    ) -> Task:
        """A task made of the labelled nodes of a graph; all its nodes and edges are there to read from.

        Args:
            graph: a `Graph` or a PyG `Data` object.
            classes: learn the nodes of these classes alone, by name; all classes with nodes by default.
            hold_out: split 60/20/20 within each class; otherwise train on every node, and test on none.
            seed: of the split.
            index: the task's number, for messages.
        """
        graph = graph if isinstance(graph, Graph) else from_pyg(graph)
        present = torch.unique(graph.y[graph.y >= 0]).tolist()
        if not present:
            raise EvergraphError(f"{graph.name}: no node has a label; there is nothing to learn")
        if classes is not None:
            position_of = {str(graph.class_names[position]): position for position in present}
            for name in classes:
                if str(name) not in position_of:
                    raise unknown(f"class with labelled nodes in {graph.name}", str(name), position_of)
            present = list(dict.fromkeys(position_of[str(name)] for name in classes))
        if hold_out:
            train, val, test = split_nodes(graph, present, seed)
        else:
            train = torch.nonzero(torch.isin(graph.y, torch.tensor(present))).reshape(-1)
            val = test = train[:0]
        return cls(index, present, graph, train, val, test, graph.num_classes)


class TaskStream:
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
    """

    def __init__(
        self,
        graph: Graph,
        classes_per_task: int = 2,
        *,
        min_class_size: int = 0,
        order: Order = "labelled",
        seed: int = 0,
        edges_between_tasks: bool = False,
        test_graph: TestGraph = "task",
        task_incremental: bool = False,
    ) -> None:
        one_of("test graph", test_graph, ("task", "seen"))
        self.name = graph.name
        self.seed, self.order = seed, order
        self.classes_per_task, self.min_class_size = classes_per_task, min_class_size
        self.edges_between_tasks, self.test_graph = edges_between_tasks, test_graph
        self.task_incremental = task_incremental
        groups = group_classes(graph, order, classes_per_task, min_class_size, seed)
        sizes = torch.tensor([len(group) for group in groups])
        arranged = [position for group in groups for position in group]
        # one graph of these classes alone, whose labels are positions in the order of arrival
        rank = torch.full((graph.num_classes + 1,), -1)
        rank[arranged] = torch.arange(len(arranged))
        y = rank[graph.y]  # an unlabelled node's -1 meets the last entry, also -1
        # a graph on disk is not copied: nodes without a class stay, and belong to no task
        nodes = torch.arange(graph.num_nodes) if graph.on_disk else torch.nonzero(y >= 0).reshape(-1)
        whole = graph.subgraph(nodes) if nodes.numel() < graph.num_nodes else graph
        names = [graph.class_names[position] for position in arranged]
        self.graph = Graph(whole.x, whole.adjacency, y[nodes], names, graph.name, on_disk=graph.on_disk)
        # 0, 1, 2 for training, validation and test nodes
        part = torch.full((graph.num_nodes,), -1)
        for number, chosen in enumerate(split_nodes(graph, arranged, seed)):
            part[chosen] = number
        self._part = part[nodes]
        self.tasks_classes = [piece.tolist() for piece in torch.arange(len(arranged)).split(sizes.tolist())]
        task_of_class = torch.repeat_interleave(torch.arange(len(groups)), sizes)
        self._task_of_node = torch.where(self.graph.y >= 0, task_of_class[self.graph.y], -1)
        self._tasks: dict[int, Task] = {}
        self._seen: tuple[int, Task] | None = None

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
            self._tasks[index] = self._cut(index, first, joined=True, own=[index])
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def joint(self) -> JointStream:
        """The same stream with all data kept: task t holds the nodes and classes of tasks 0 … t."""
        return JointStream(self)

    def seen(self, index: int) -> Task:
        """All tasks up to `index` as one, on one graph with the edges between tasks."""
        if self._seen is None or self._seen[0] != index:
            self._seen = (index, self._cut(index, 0, joined=True, own=range(index + 1)))
        return self._seen[1]

    def tests(
        self, after: int, index: int, test_graph: TestGraph | None = None, part: Part = "test"
    ) -> tuple[Graph, Tensor]:
        """The graph and the nodes on which task `index` is tested after learning task `after`.

        `test_graph` asks for another test graph than the stream's own, `part="val"` for validation nodes.
        """
        if (test_graph or self.test_graph) == "task":
            return self[index].graph, getattr(self[index], part)
        seen = self.seen(after)
        nodes = getattr(seen, part)
        return seen.graph, nodes[torch.isin(seen.graph.y[nodes], torch.tensor(self.tasks_classes[index]))]

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
            "scenario": "task-incremental" if self.task_incremental else "class-incremental",
            "split": "60/20/20 per class",
        }

    def _cut(self, index: int, first: int, *, joined: bool, own: Sequence[int] | range) -> Task:
        """The task made of the nodes of tasks `first … index`; trained and tested on those of tasks `own`."""
        nodes = torch.nonzero((self._task_of_node >= first) & (self._task_of_node <= index)).reshape(-1)
        graph = self.graph.subgraph(nodes, None if joined else self._task_of_node)
        mine = torch.isin(self._task_of_node[nodes], torch.tensor(list(own)))
        part = self._part[nodes]
        train, val, test = (torch.nonzero(mine & (part == number)).reshape(-1) for number in range(3))
        classes = [position for task in own for position in self.tasks_classes[task]]
        return Task(index, classes, graph, train, val, test, self.num_classes)

    def __repr__(self) -> str:
        return f"TaskStream({self.name!r}, {len(self)} tasks, {self.num_classes} classes, {self.graph.num_nodes} nodes)"


class JointStream:
    """A stream whose task t is the union of tasks 0 … t: what joint training learns from.

    Its graphs are the ones tests run on: with test graph `task` the tasks' own graphs side by side, with
    `seen` (or edges kept between tasks) one graph with the edges between them.
    """

    def __init__(self, stream: TaskStream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, index: int) -> Task:
        stream = self.stream
        joined = stream.test_graph == "seen" or stream.edges_between_tasks
        index = range(len(stream))[index]
        return stream._cut(index, 0, joined=joined, own=range(index + 1))

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True)
class Preset:
    """A named stream: a graph and how it is cut."""

    source: str
    classes_per_task: int
    min_class_size: int = 0
    about: str = ""


PRESETS: dict[str, Preset] = {
    "digits": Preset("digits", 2, about="scikit-learn's handwritten digits, 8-nearest-neighbour graph; no download"),
    "coauthor-cs": Preset("coauthor-cs", 3),
    "coauthor-physics": Preset("coauthor-physics", 2),
    "amazon-computers": Preset("amazon-computers", 2),
    "amazon-photo": Preset("amazon-photo", 2),
    "corafull": Preset("corafull", 9, min_class_size=151),
    "corafull-knn": Preset("corafull-knn", 9, min_class_size=151),
    "arxiv": Preset("ogbn-arxiv", 6, min_class_size=411),
    "ogbn-arxiv": Preset("ogbn-arxiv", 6, min_class_size=411),
    "sbm": Preset("sbm", 2, about="generated: sbm:nodes=2000,classes=10,degree=10,homophily=0.8,features=32,seed=0"),
}
DEFAULT_STREAM = "digits"


def stream(
    source: str | Path | Graph | Any = DEFAULT_STREAM,
    *,
    classes_per_task: int | None = None,
    min_class_size: int | None = None,
    data_root: str | Path | None = None,
    **options: Any,
) -> TaskStream:
    """A stream by name, from a file, or from a graph at hand.

    Args:
        source: a preset (`evergraph streams` lists them), `sbm:KEY=VALUE,…`, the path of an .npz or .pt
            file, a PyG `Data` object or a `Graph`.
        classes_per_task: classes per task; the preset's (2 for a graph of your own) where not given.
        min_class_size: smallest class kept; the preset's where not given.
        data_root: folder of the datasets; else `EVERGRAPH_DATA`, else a cache in the home folder.
        options: what else `TaskStream` takes: `order`, `seed`, `test_graph`, `edges_between_tasks`,
            `task_incremental`.
    """
    graph, preset = find_graph(source, data_root)
    return TaskStream(
        graph,
        preset.classes_per_task if classes_per_task is None else classes_per_task,
        min_class_size=preset.min_class_size if min_class_size is None else min_class_size,
        **options,
    )


def find_graph(source: str | Path | Graph | Any, data_root: str | Path | None = None) -> tuple[Graph, Preset]:
    """The graph that a stream's name, a path or an object stands for, and how it is cut where nothing else is said."""
    preset = Preset("", classes_per_task=2)
    if isinstance(source, Graph):
        graph = source
    elif not isinstance(source, (str, Path)):
        graph = from_pyg(source)
    else:
        name, colon, settings = str(source).partition(":")
        if name in PRESETS:
            if colon and name != "sbm":
                raise EvergraphError(f"{name} takes no settings, found {settings!r}; only sbm does: sbm:nodes=5000")
            preset = PRESETS[name]
            graph = _named_graph(preset.source, settings, data_root)
            graph.name = name
        elif Path(source).suffix in GRAPH_FILES or Path(source).exists():
            graph = read_graph_file(source)
        else:
            raise unknown("stream", str(source), [*PRESETS, "a path to an .npz or .pt file"])
    return graph, preset


def _named_graph(source: str, settings: str, data_root: str | Path | None) -> Graph:
    if source in OFFICIAL:
        return read_official(source, data_root)
    return digits() if source == "digits" else sbm(**_parse_sbm(settings))


def _parse_sbm(text: str) -> dict[str, Any]:
    """`nodes=100,degree=5` as keyword arguments of `sbm`."""
    kinds = {"nodes": int, "classes": int, "degree": float, "homophily": float, "features": int}
    kinds |= {"signal": float, "seed": int}
    found: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in kinds:
            raise unknown("sbm setting", key, kinds)
        try:
            found[key] = kinds[key](value)
        except ValueError:
            raise EvergraphError(f"sbm: {key}={value!r} is not a number") from None
    return found
