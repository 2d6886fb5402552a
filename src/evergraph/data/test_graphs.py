"""Test graphs: on which graph a task's examples are tested, and what that graph gives away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from evergraph import registry
from evergraph.data.graph import Graph
from evergraph.data.tasks import Part, Task

if TYPE_CHECKING:
    from evergraph.data.streams import TaskStream

TEST_GRAPHS: registry.Registry[TestGraph] = registry.test_graphs


@dataclass(frozen=True)
class TestGraph:
    """A rule that says where tests run.

    Args:
        name: what `--test-graph` takes.
        about: one line for people.
        select: the graph and the nodes of it, for (stream, tasks learned so far, task tested, part).
        joins_tasks: whether its graph has the edges between tasks.
        one_task: whether all nodes asked for in one graph are of one task, so that they can be pooled to find it.
        alone: whether a node is tested without other test nodes.
    """

    __test__: ClassVar[bool] = False  # no test class, whatever its name looks like to pytest

    name: str
    about: str
    select: Callable[[TaskStream, int, int, Part], tuple[Graph, Tensor]]
    joins_tasks: bool
    one_task: bool = False
    alone: bool = False


def _task(stream: TaskStream, after: int, index: int, part: Part) -> tuple[Graph, Tensor]:
    return stream[index].graph, getattr(stream[index], part)


def _seen(stream: TaskStream, after: int, index: int, part: Part) -> tuple[Graph, Tensor]:
    return _nodes_of(stream, stream.seen(after), index, part)


def _node(stream: TaskStream, after: int, index: int, part: Part) -> tuple[Graph, Tensor]:
    return _nodes_of(stream, stream.seen(after, alone=True), index, part)


def _nodes_of(stream: TaskStream, seen: Task, index: int, part: Part) -> tuple[Graph, Tensor]:
    """The graph of all tasks seen, and the nodes of one of them."""
    nodes = getattr(seen, part)
    return seen.graph, nodes[torch.isin(seen.graph.y[nodes], torch.tensor(stream.tasks_classes[index]))]


TEST_GRAPHS.register(
    TestGraph(
        "task",
        "each task's own graph, as in the paper; it gives away which task a node is from",
        _task,
        joins_tasks=False,
        one_task=True,
    )
)
TEST_GRAPHS.register(TestGraph("seen", "one graph of all classes seen so far", _seen, joins_tasks=True))
TEST_GRAPHS.register(
    TestGraph(
        "node",
        "the training nodes of all classes seen so far, which each test node joins alone",
        _node,
        joins_tasks=True,
        alone=True,
    )
)
