"""Public benchmark graphs: where their official files are, and how they are downloaded, checked and read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evergraph.data.datasets.base import find_data_root
from evergraph.data.download import Published, check_listed, downloaded, downloaded_files, keep
from evergraph.data.files import fingerprint, read_npz
from evergraph.data.graph import Graph, make_graph
from evergraph.errors import EvergraphError, first_line
from evergraph.persistence.reading import regular_file

GNN_BENCHMARK = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"


@dataclass(frozen=True)
class OfficialGraph:
    """One published graph.

    Args:
        name: name in messages.
        path: the file under the data root, in PyG's folder layout (for OGB: the folder).
        counts: expected numbers of nodes (graphs, where examples are graphs), features and classes; checked on every
            read.
        url: address of the official file; empty if there is none.
        sha256: hash of the official file; a download that differs is not kept. Empty if unknown.
        files: official files by their names in the folder, if there are several.
        fingerprint: hash of the edges, feature pattern and labels, whatever file they came in (copies may be
            recompressed); checked on every read if known.
        read: reads the graph from the file or folder; by default chosen by the layout, npz or OGB.
    """

    name: str
    path: str
    counts: tuple[int, int, int]
    url: str = ""
    sha256: str = ""
    fingerprint: str = ""
    read: Callable[[Path], Graph] | None = None
    files: Mapping[str, Published] = field(default_factory=dict)

    @property
    def downloadable(self) -> bool:
        """Whether it has a public address."""
        return bool(self.url or self.files)

    @property
    def checked_by(self) -> str:
        """What a download is compared with: the `hash` of the file, its `content`, or the `first download`."""
        if self.sha256 or (self.files and all(file.sha256 for file in self.files.values())):
            return "hash"
        return "content" if self.fingerprint else "first download"

    def load(self, data_root: str | Path | None = None) -> Graph:
        """Load the graph from the data root or, if it is not there, from its official address.

        Its classes are named 0, 1, 2, …, as in all tables of results: some copies carry names, some do not.
        """
        base = find_data_root(data_root)
        path = base / self.path
        if path.exists():
            check_listed(base, path)
            return self._read(path)
        if not self.downloadable:
            raise EvergraphError(
                f"{self.name}: no file {path}; set --data-root or EVERGRAPH_DATA to the folder that has it"
            )
        known_content = bool(self.fingerprint)
        with (
            downloaded_files(self.files, base)
            if self.files
            else downloaded(self.url, self.sha256, base, known_content=known_content)
        ) as loaded:
            graph = self._read(loaded)  # read first, so that an unreadable file is never kept
            keep(loaded, base, path)
        return graph

    def _read(self, path: Path) -> Graph:
        """Read the graph in a file or folder, and check that it is the expected one."""
        if self.read is not None:
            graph = self.read(path)
            graph.name = self.name
        elif path.is_dir():
            graph = read_ogb_folder(path, name=self.name)
        else:
            graph = read_npz(path, name=self.name, named_classes=False, undirected=True)
        kind, number = ("graphs", graph.num_examples) if graph.level == "graph" else ("nodes", graph.num_nodes)
        counts = (number, graph.num_features, graph.num_classes)
        if counts != self.counts:
            raise EvergraphError(
                f"{path}: {counts} {kind}, features, classes, but {self.name} has {self.counts}; "
                "remove the file to fetch the official one, or pass its path to use it as a graph of your own"
            )
        if self.fingerprint and fingerprint(graph) != self.fingerprint:
            raise EvergraphError(
                f"{path}: its contents do not have {self.name}'s hash; remove the file to fetch it again"
            )
        return graph


def read_ogb_folder(folder: str | Path, *, name: str = "ogb") -> Graph:
    """Read a graph in OGB's raw layout: edge, node-feat and node-label as csv.gz. Edges are made undirected.

    If the folder has `node_year.csv.gz`, the nodes have the attribute `year`.
    """
    columns = {"edge": np.int64, "node-feat": np.float32, "node-label": np.float64}
    edges, x, y = (read_csv_gz(Path(folder) / f"{key}.csv.gz", kind) for key, kind in columns.items())
    labels = np.where(np.isnan(y), -1, y)
    year = Path(folder) / "node_year.csv.gz"
    attributes = {"year": read_csv_gz(year, np.int64)} if year.exists() else {}
    return make_graph(x, edges.T, labels, undirected=True, name=name, attributes=attributes)


def read_csv_gz(path: Path, kind: type) -> np.ndarray:
    """Read a gzipped table of numbers, one row per line."""
    if not path.exists():
        raise EvergraphError(f"{path} is missing; the folder must hold OGB's raw csv.gz files")
    try:
        with gzip.open(regular_file(path), "rt", encoding="utf-8") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=kind, ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise EvergraphError(f"{path}: damaged ({first_line(error)})") from None
