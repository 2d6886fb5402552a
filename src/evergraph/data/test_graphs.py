"""Test graphs: which graph a task's examples are tested on, and what that graph reveals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from evergraph import registry
from evergraph.core.settings import Checked
from evergraph.data.graph import Graph
from evergraph.data.tasks import Part
from evergraph.errors import EvergraphError

if TYPE_CHECKING:
    from evergraph.data.streams import TaskStream

TEST_GRAPHS: registry.Registry[TestGraph] = registry.test_graphs


@dataclass(frozen=True)
class TestGraph(metaclass=Checked):
    """A rule that selects the graph that tests run on.

    Args:
        name: the value of `--test-graph`.
        about: one-line description.
        select: returns the graph and its test examples, given (stream, last task learned, task tested, part).
        joins_tasks: whether its graph has the edges between tasks.
        one_task: whether all examples tested on one graph belong to one task, so that pooling them reveals it.
        alone: whether a node is tested without other test nodes; only where examples are nodes.
    """

    __test__: ClassVar[bool] = False  # keeps pytest from collecting this class

    name: str
    about: str
    select: Callable[[TaskStream, int, int, Part], tuple[Graph, Tensor]]
    joins_tasks: bool
    one_task: bool = False
    alone: bool = False

    def check(self, graph: Graph) -> None:
        """Raise an error if a graph's examples cannot be tested this way."""
        if self.alone and graph.level != "node":
            raise EvergraphError(
                f"{graph.name}: test graph {self.name} is for examples that are nodes, and these are {graph.level}s; "
                f"use one of {', '.join(name for name in TEST_GRAPHS if not TEST_GRAPHS[name].alone)}"
            )


TEST_GRAPHS.accept(instances_of=TestGraph)


def _task(stream: TaskStream, after: int, index: int, part: Part) -> tuple[Graph, Tensor]:
    return stream[index].graph, getattr(stream[index], part)


def _seen(stream: TaskStream, after: int, index: int, part: Part) -> tuple[Graph, Tensor]:
    return stream.seen(after).graph, stream.seen_part(after, index, part)


def _node(stream: TaskStream, after: int, index: int, part: Part) -> tuple[Graph, Tensor]:
    return stream.seen(after, alone=True).graph, stream.seen_part(after, index, part, alone=True)


TEST_GRAPHS.register(
    TestGraph(
        "task",
        "each task's own graph, as in most papers, which reveals the task of a node",
        _task,
        joins_tasks=False,
        one_task=True,
    )
)
TEST_GRAPHS.register(TestGraph("seen", "one graph of all tasks seen so far", _seen, joins_tasks=True))
TEST_GRAPHS.register(
    TestGraph(
        "node",
        "each test node joins the training nodes of all tasks seen so far, alone",
        _node,
        joins_tasks=True,
        alone=True,
    )
)
