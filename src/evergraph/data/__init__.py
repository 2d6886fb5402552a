"""Graphs, streams of tasks, and the mini-batches cut from them."""

from evergraph.data.batches import Batch, Neighbourhoods
from evergraph.data.graph import Graph, from_pyg, make_graph
from evergraph.data.stream import PRESETS, JointStream, Task, TaskStream, stream

__all__ = [
    "PRESETS",
    "Batch",
    "Graph",
    "JointStream",
    "Neighbourhoods",
    "Task",
    "TaskStream",
    "from_pyg",
    "make_graph",
    "stream",
]
