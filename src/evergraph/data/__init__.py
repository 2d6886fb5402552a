"""Graphs, streams of tasks, datasets, and mini-batches."""

from evergraph.data.attributes import Attribute
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.datasets import DATASETS, Dataset
from evergraph.data.datasets.official import OfficialGraph
from evergraph.data.examples import link_ends, make_graphs, make_links, with_links
from evergraph.data.files import as_graph
from evergraph.data.from_networkx import from_networkx
from evergraph.data.from_tables import from_tables
from evergraph.data.graph import Graph, from_pyg, make_graph
from evergraph.data.leak import leak_score, neighbourhood_means
from evergraph.data.scenarios import SCENARIOS, Scenario
from evergraph.data.sources import DEFAULT_STREAM, dataset_of, find_graph, source_name, stream
from evergraph.data.streams import TaskStream
from evergraph.data.targets import ClassName
from evergraph.data.tasks import Part, Task, union
from evergraph.data.test_graphs import TEST_GRAPHS, TestGraph

__all__ = [
    "DATASETS",
    "DEFAULT_STREAM",
    "SCENARIOS",
    "TEST_GRAPHS",
    "Attribute",
    "Batch",
    "ClassName",
    "Dataset",
    "Graph",
    "Neighbourhoods",
    "OfficialGraph",
    "Part",
    "Scenario",
    "Task",
    "TaskStream",
    "TestGraph",
    "as_graph",
    "dataset_of",
    "find_graph",
    "from_networkx",
    "from_pyg",
    "from_tables",
    "leak_score",
    "link_ends",
    "make_graph",
    "make_graphs",
    "make_links",
    "neighbourhood_means",
    "source_name",
    "stream",
    "union",
    "with_links",
]
