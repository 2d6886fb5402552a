"""Make streams from a dataset's name, the path of a file, or a graph in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evergraph.core.settings import NonNegativeInt, PositiveInt, checked
from evergraph.data.datasets import DATASETS, Dataset
from evergraph.data.datasets.base import find_data_root
from evergraph.data.files import GRAPH_FILES, as_graph, content_mark
from evergraph.data.from_tables import is_table
from evergraph.data.graph import Graph
from evergraph.data.streams import TaskStream, about_numbers
from evergraph.data.tables import TABLE_FILES, no_table
from evergraph.errors import EvergraphError, unknown
from evergraph.persistence.reading import exists

DEFAULT_STREAM = "digits"


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
    """Make a stream from a dataset's name, a file, or a graph in memory.

    Args:
        source: a dataset (`evergraph streams` lists them), `sbm:KEY=VALUE,…`, the path of an .npz or .pt
            file or of a node table (`nodes.csv:edges=edges.csv`), a PyG `Data` object, a NetworkX graph or a `Graph`.
        classes_per_task: number of classes per task; by default the dataset's (2 for a graph of your own).
        min_class_size: size of the smallest class kept; by default the dataset's.
        data_root: folder of the datasets; else `EVERGRAPH_DATA`, else a cache in the home folder.
        first_tasks: number of first tasks to keep (`TaskStream.first`); 0 for all.
        pseudo_stream: make a small stream of the first task's classes instead (`TaskStream.within_task`).
        undirected: how a graph of your own is read: False keeps the directions of its edges, True reads each edge
            in both directions; None does so too, and warns if only one direction was given.
        options: other arguments of `TaskStream`: `order`, `seed`, `test_graph`, `edges_between_tasks`, `scenario`,
            `by`, `bins`, `blur`, `split`.
    """
    graph, dataset = find_graph(source, data_root, undirected, about_numbers(options.get("problem")))
    preset = {"scenario": dataset.scenario, **dataset.stream}
    arranged = [options.get(key) for key in ("scenario", "by", "task_incremental")]
    given = (value if isinstance(value, (str, bool)) else value is not None for value in arranged)
    if any(given):  # overrides the preset's arrangement
        preset = {key: value for key, value in preset.items() if key not in ("scenario", "by", "bins")}
    tasks = TaskStream(
        graph,
        dataset.classes_per_task if classes_per_task is None else classes_per_task,
        min_class_size=dataset.min_class_size if min_class_size is None else min_class_size,
        **{"problem": dataset.problem or None, **preset, **options},
    )
    tasks = tasks.first(first_tasks) if first_tasks else tasks
    tasks = tasks.within_task(0) if pseudo_stream else tasks
    tasks.graph_mark = content_mark(graph)
    return tasks


def dataset_of(source: str | Path) -> Dataset | None:
    """The registered dataset that a source names, with or without settings (`sbm:nodes=500`); None for a file."""
    return DATASETS.get(str(source).partition(":")[0])


def source_name(source: str) -> str:
    """The name of a dataset without its settings, or of a file or folder: `people` for `data/people.csv:edges=…`."""
    if (dataset := dataset_of(source)) is not None:
        return dataset.name
    path = Path(source.partition(":")[0] if is_table(source) else source)
    return path.stem if path.suffix in {*GRAPH_FILES, *TABLE_FILES} else path.name


def find_graph(
    source: str | Path | Graph | Any,
    data_root: str | Path | None = None,
    undirected: bool | None = None,
    numbers: bool = False,
) -> tuple[Graph, Dataset]:
    """Return the graph for a name, a path or an object, and the dataset with its default stream settings.

    With `numbers`, whole numbers in a graph of your own are targets to predict as numbers; else they are classes.
    """
    if data_root is not None:
        find_data_root(data_root)  # raises for a missing folder even if nothing is read from it
    unnamed = Dataset("graph", lambda data_root: as_graph(source), problem="")
    if not isinstance(source, (str, Path)):
        return as_graph(source, undirected=undirected, numbers=numbers), unnamed
    if (dataset := dataset_of(source)) is not None:
        if undirected is False:
            raise EvergraphError(
                f"{dataset.name} is an undirected graph; keep directions (--directed) of graphs of your own"
            )
        return dataset.graph(data_root, str(source).partition(":")[2]), dataset
    nodes, _, settings = str(source).partition(",")
    if ":" not in nodes and is_table(nodes) and "=" in settings and not exists(source):
        raise EvergraphError(f"{nodes}: settings of a table follow a colon; write {nodes}:{settings}")
    path, _, settings = str(source).partition(":")
    if "edges=" in settings and not is_table(path):
        raise no_table(path)
    if Path(source).suffix.lower() in GRAPH_FILES or is_table(source) or exists(source):
        return as_graph(source, undirected=undirected, numbers=numbers), unnamed
    raise unknown("stream", str(source), [*DATASETS, "a path to an .npz or .pt file", "nodes.csv:edges=edges.csv"])
