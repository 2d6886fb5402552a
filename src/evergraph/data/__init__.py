"""Graphs, streams of tasks, datasets, and the mini-batches cut from them."""

from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.datasets import DATASETS, Dataset
from evergraph.data.datasets.official import OfficialGraph
from evergraph.data.files import as_graph
from evergraph.data.graph import ClassName, Graph, from_pyg, make_graph
from evergraph.data.streams import DEFAULT_STREAM, TaskStream, find_graph, stream
from evergraph.data.tasks import Part, Task, union
from evergraph.data.test_graphs import TEST_GRAPHS, TestGraph

__all__ = [
    "DATASETS",
    "DEFAULT_STREAM",
    "TEST_GRAPHS",
    "Batch",
    "ClassName",
    "Dataset",
    "Graph",
    "Neighbourhoods",
    "OfficialGraph",
    "Part",
    "Task",
    "TaskStream",
    "TestGraph",
    "as_graph",
    "find_graph",
    "from_pyg",
    "make_graph",
    "stream",
    "union",
]
