"""The public benchmark graphs: where their official files are, how they are fetched, checked and read."""

from __future__ import annotations

import gzip
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evergraph.data.files import file_hash, fingerprint, read_npz
from evergraph.data.graph import Graph, make_graph
from evergraph.errors import EvergraphError, first_line

GNN_BENCHMARK = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"


@dataclass(frozen=True)
class OfficialGraph:
    """One published graph.

    Args:
        path: the file under the data root, in PyG's folder layout (for OGB: the folder).
        url: where the official file is.
        counts: nodes, features and classes it must have; checked on every read.
        fingerprint: hash of its edges, feature pattern and labels, where a copy has been seen.
        about: one line for people.
    """

    path: str
    url: str
    counts: tuple[int, int, int]
    about: str
    fingerprint: str | None = None


OFFICIAL: dict[str, OfficialGraph] = {
    "coauthor-cs": OfficialGraph(
        "CS/raw/ms_academic_cs.npz",
        f"{GNN_BENCHMARK}/ms_academic_cs.npz",
        (18333, 6805, 15),
        "Coauthor-CS: authors, joined by papers written together; fields of study",
        "ba32ada7ee52517649fb67d71e22f54a05bfb118840d6ecca36e4ba141fb47db",
    ),
    "coauthor-physics": OfficialGraph(
        "Physics/raw/ms_academic_phy.npz",
        f"{GNN_BENCHMARK}/ms_academic_phy.npz",
        (34493, 8415, 5),
        "Coauthor-Physics: authors, joined by papers written together; fields of study",
    ),
    "amazon-computers": OfficialGraph(
        "Computers/raw/amazon_electronics_computers.npz",
        f"{GNN_BENCHMARK}/amazon_electronics_computers.npz",
        (13752, 767, 10),
        "Amazon-Computers: products often bought together; product categories",
        "d884cad9ffc1e2e86757ca1c20db60eaa1877e514c0d3cd8685eb9c2308c2ba1",
    ),
    "amazon-photo": OfficialGraph(
        "Photo/raw/amazon_electronics_photo.npz",
        f"{GNN_BENCHMARK}/amazon_electronics_photo.npz",
        (7650, 745, 8),
        "Amazon-Photo: products often bought together; product categories",
    ),
    "corafull": OfficialGraph(
        "cora/raw/cora.npz",
        "https://github.com/abojchevski/graph2gauss/raw/master/data/cora.npz",
        (19793, 8710, 70),
        "CoraFull: papers, joined by citations; topics",
    ),
    "corafull-knn": OfficialGraph(
        "CoraFullKNN/raw/cora_full_knn.npz",
        "",
        (19793, 128, 70),
        "CoraFull's edges and labels with 128 spectral features; from a data root only",
    ),
    "ogbn-arxiv": OfficialGraph(
        "ogbn_arxiv/raw",
        "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",
        (169343, 128, 40),
        "ogbn-arxiv: computer-science papers, joined by citations; subject areas",
    ),
}


def data_root(root: str | Path | None) -> Path:
    """The folder of the data: the argument, else `EVERGRAPH_DATA`, else a cache in the home folder."""
    chosen = root or os.environ.get("EVERGRAPH_DATA")
    if chosen and not Path(chosen).is_dir():
        raise EvergraphError(f"data root {chosen} is not a folder; create it or name another")
    return Path(chosen) if chosen else Path.home() / ".cache" / "evergraph"


def read_official(name: str, root: str | Path | None = None) -> Graph:
    """The named graph, from the data root or, where it is not there, from its official address."""
    official = OFFICIAL[name]
    base = data_root(root)
    path = base / official.path
    if not path.exists():
        _fetch(name, official, base)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        _check_listed_hash(base, file)
    graph = read_ogb_folder(path, name=name) if path.is_dir() else read_npz(path, name=name)
    counts = (graph.num_nodes, graph.num_features, graph.num_classes)
    if counts != official.counts:
        raise EvergraphError(
            f"{path}: {counts} nodes, features, classes; {name} has {official.counts}. "
            "Remove the file to fetch the official one, or pass its path to use it as a graph of your own"
        )
    if official.fingerprint is not None and fingerprint(graph) != official.fingerprint:
        raise EvergraphError(f"{path}: its contents do not have {name}'s hash; remove the file to fetch it again")
    return graph


def read_ogb_folder(folder: str | Path, *, name: str = "ogb") -> Graph:
    """A graph in OGB's raw layout: edge, node-feat and node-label as csv.gz. Edges are made undirected."""
    folder = Path(folder)
    columns = {"edge": np.int64, "node-feat": np.float32, "node-label": np.float64}
    tables = {key: _read_csv_gz(folder / f"{key}.csv.gz", kind) for key, kind in columns.items()}
    labels = tables["node-label"].reshape(-1)
    labels = np.where(np.isnan(labels), -1, labels).astype(np.int64)
    return make_graph(tables["node-feat"], tables["edge"].T, labels, undirected=True, name=name)


def _read_csv_gz(path: Path, kind: type) -> np.ndarray:
    if not path.exists():
        raise EvergraphError(f"{path} is missing; the folder must hold OGB's raw csv.gz files")
    try:
        with gzip.open(path, "rt") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=kind, ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise EvergraphError(f"{path}: damaged ({first_line(error)})") from None


def _check_listed_hash(base: Path, file: Path) -> None:
    """Compare with the data root's SHA256SUMS, where it lists the file."""
    listing = base / "SHA256SUMS"
    if not listing.exists():
        return
    for line in listing.read_text().splitlines():
        expected, _, listed = line.partition("  ")
        if listed.strip() == file.relative_to(base).as_posix() and file_hash(file) != expected:
            raise EvergraphError(f"{file}: its SHA-256 is not the one in {listing}; the file is damaged or was changed")


def _fetch(name: str, official: OfficialGraph, base: Path) -> None:
    """Download to a temporary file, move into place when whole, and write its hash to SHA256SUMS."""
    target = base / official.path
    if not official.url:
        raise EvergraphError(f"{name}: no file {target}; set --data-root or EVERGRAPH_DATA to the folder that has it")
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base) as scratch:
            loaded = Path(scratch) / "download"
            with urllib.request.urlopen(official.url, timeout=60) as source, open(loaded, "wb") as sink:
                while block := source.read(1 << 20):
                    sink.write(block)
            if official.url.endswith(".zip"):
                loaded = _unzip_raw(loaded, Path(scratch))
            target.parent.mkdir(parents=True, exist_ok=True)
            loaded.rename(target)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise EvergraphError(
            f"{name}: no file {target} and the download from {official.url} failed ({first_line(error)}); "
            "set --data-root or EVERGRAPH_DATA to a folder that has it"
        ) from None
    except (OSError, zipfile.BadZipFile) as error:
        raise EvergraphError(f"{name}: could not store the download under {base} ({first_line(error)})") from None
    files = sorted(target.iterdir()) if target.is_dir() else [target]
    with open(base / "SHA256SUMS", "a") as listing:
        listing.writelines(f"{file_hash(file)}  {file.relative_to(base).as_posix()}\n" for file in files)


def _unzip_raw(archive: Path, scratch: Path) -> Path:
    """The `raw` folder of an OGB archive, unpacked (file names only: no path of the archive is trusted)."""
    raw = scratch / "raw"
    raw.mkdir()
    with zipfile.ZipFile(archive) as files:
        for member in files.namelist():
            if "/raw/" in member and not member.endswith("/"):
                (raw / Path(member).name).write_bytes(files.read(member))
    return raw
