"""Test graphs: on which graph a task's examples are tested, and what that graph gives away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from evergraph import registry
from evergraph.data.graph import Graph
from evergraph.data.tasks import Part

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
    """

    __test__: ClassVar[bool] = False  # no test class, whatever its name looks like to pytest

    name: str
    about: str
    select: Callable[[TaskStream, int, int, Part], tuple[Graph, Tensor]]
    joins_tasks: bool


def _task(stream: TaskStream, after: int, index: int, part: Part) -> tuple[Graph, Tensor]:
    return stream[index].graph, getattr(stream[index], part)


def _seen(stream: TaskStream, after: int, index: int, part: Part) -> tuple[Graph, Tensor]:
    return stream.seen(after).graph, stream.seen_part(after, index, part)


TEST_GRAPHS.register(
    TestGraph("task", "each task's own graph, as in the paper; it gives away which task a node is from", _task, False)
)
TEST_GRAPHS.register(TestGraph("seen", "one graph of all classes seen so far", _seen, True))
