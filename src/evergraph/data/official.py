"""The public benchmark graphs: where their official files are, how they are fetched, checked and read."""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evergraph.data.download import check_listed, downloaded, keep
from evergraph.data.files import fingerprint, read_npz
from evergraph.data.graph import Graph, make_graph
from evergraph.errors import EvergraphError, first_line

GNN_BENCHMARK = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"


@dataclass(frozen=True)
class OfficialGraph:
    """One published graph.

    Args:
        path: the file under the data root, in PyG's folder layout (for OGB: the folder).
        counts: nodes, features and classes it must have; checked on every read.
        about: one line for people.
        url: where the official file is; empty where there is none.
        sha256: hash of the official file; a download that differs is not kept.
        fingerprint: hash of the edges, feature pattern and labels, whatever file they came in (copies may be
            compressed anew); checked on every read where it is known.
    """

    path: str
    counts: tuple[int, int, int]
    about: str
    url: str = ""
    sha256: str = ""
    fingerprint: str = ""


OFFICIAL: dict[str, OfficialGraph] = {
    "coauthor-cs": OfficialGraph(
        path="CS/raw/ms_academic_cs.npz",
        counts=(18333, 6805, 15),
        about="Coauthor-CS: authors, joined by papers written together; fields of study",
        url=f"{GNN_BENCHMARK}/ms_academic_cs.npz",
        sha256="933c745734e78908c7eb77172a673fee0503f30e26e5a99b36814d88534c42e3",
        fingerprint="ba32ada7ee52517649fb67d71e22f54a05bfb118840d6ecca36e4ba141fb47db",
    ),
    "coauthor-physics": OfficialGraph(
        path="Physics/raw/ms_academic_phy.npz",
        counts=(34493, 8415, 5),
        about="Coauthor-Physics: authors, joined by papers written together; fields of study",
        url=f"{GNN_BENCHMARK}/ms_academic_phy.npz",
        sha256="e4d68468eba5fb8f6b280ffd406bd53e6e4295ba1dd2967d6fe99b978e4b3375",
    ),
    "amazon-computers": OfficialGraph(
        path="Computers/raw/amazon_electronics_computers.npz",
        counts=(13752, 767, 10),
        about="Amazon-Computers: products often bought together; product categories",
        url=f"{GNN_BENCHMARK}/amazon_electronics_computers.npz",
        sha256="736ba1d9fd85eac2da83a5ad25c463f04b0031a6ca01563f90a7099d9e8ffb2c",
        fingerprint="d884cad9ffc1e2e86757ca1c20db60eaa1877e514c0d3cd8685eb9c2308c2ba1",
    ),
    "amazon-photo": OfficialGraph(
        path="Photo/raw/amazon_electronics_photo.npz",
        counts=(7650, 745, 8),
        about="Amazon-Photo: products often bought together; product categories",
        url=f"{GNN_BENCHMARK}/amazon_electronics_photo.npz",
        sha256="bdb1feb8e6ff42ee44024b04479145029c563fd42fc31bff80af20887ba0439a",
    ),
    "corafull": OfficialGraph(
        path="cora/raw/cora.npz",
        counts=(19793, 8710, 70),
        about="CoraFull: papers, joined by citations; topics",
        url="https://github.com/abojchevski/graph2gauss/raw/master/data/cora.npz",
        sha256="c8dfb0918b15f669255dc240f1d4671ea368c1aa20a1adfddaea0c6781bf85a5",
    ),
    "corafull-knn": OfficialGraph(
        path="CoraFullKNN/raw/cora_full_knn.npz",
        counts=(19793, 128, 70),
        about="CoraFull's edges and labels with 128 spectral features; from a data root only",
    ),
    "ogbn-arxiv": OfficialGraph(
        path="ogbn_arxiv/raw",
        counts=(169343, 128, 40),
        about="ogbn-arxiv: computer-science papers, joined by citations; subject areas",
        url="http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",
        sha256="49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
    ),
}


def data_root(root: str | Path | None) -> Path:
    """The folder of the data: the argument, else `EVERGRAPH_DATA`, else a cache in the home folder."""
    chosen = root or os.environ.get("EVERGRAPH_DATA")
    if chosen and not Path(chosen).is_dir():
        raise EvergraphError(f"data root {chosen} is not a folder; create it or name another")
    return Path(chosen) if chosen else Path.home() / ".cache" / "evergraph"


def read_official(name: str, root: str | Path | None = None) -> Graph:
    """The named graph, from the data root or, where it is not there, from its official address.

    Its classes are called 0, 1, 2, …, as in all tables of results: some copies carry names, some do not.
    """
    official = OFFICIAL[name]
    base = data_root(root)
    path = base / official.path
    if path.exists():
        check_listed(base, path)
        return _read(name, official, path)
    if not official.url:
        raise EvergraphError(f"{name}: no file {path}; set --data-root or EVERGRAPH_DATA to the folder that has it")
    with downloaded(official.url, official.sha256, base) as loaded:
        graph = _read(name, official, loaded)  # before it is kept: a file that cannot be read never is
        keep(loaded, base, path)
    return graph


def _read(name: str, official: OfficialGraph, path: Path) -> Graph:
    """The graph in a file or folder, if it is the one it should be."""
    graph = read_ogb_folder(path, name=name) if path.is_dir() else read_npz(path, name=name, named_classes=False)
    counts = (graph.num_nodes, graph.num_features, graph.num_classes)
    if counts != official.counts:
        raise EvergraphError(
            f"{path}: {counts} nodes, features, classes, but {name} has {official.counts}; "
            "remove the file to fetch the official one, or pass its path to use it as a graph of your own"
        )
    if official.fingerprint and fingerprint(graph) != official.fingerprint:
        raise EvergraphError(f"{path}: its contents do not have {name}'s hash; remove the file to fetch it again")
    return graph


def read_ogb_folder(folder: str | Path, *, name: str = "ogb") -> Graph:
    """A graph in OGB's raw layout: edge, node-feat and node-label as csv.gz. Edges are made undirected."""
    columns = {"edge": np.int64, "node-feat": np.float32, "node-label": np.float64}
    edges, x, y = (_read_csv_gz(Path(folder) / f"{key}.csv.gz", kind) for key, kind in columns.items())
    labels = np.where(np.isnan(y), -1, y)
    return make_graph(x, edges.T, labels, undirected=True, name=name)


def _read_csv_gz(path: Path, kind: type) -> np.ndarray:
    if not path.exists():
        raise EvergraphError(f"{path} is missing; the folder must hold OGB's raw csv.gz files")
    try:
        with gzip.open(path, "rt") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=kind, ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise EvergraphError(f"{path}: damaged ({first_line(error)})") from None
