"""Read graphs from files: npz in the GNN-benchmark layout, saved PyG objects. Nothing in a file is executed."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from evergraph.core.sparse import SparseMatrix
from evergraph.data import masked_layout
from evergraph.data.arrays import native
from evergraph.data.attributes import masks_as_splits, read_attributes
from evergraph.data.collated import saved_objects
from evergraph.data.conversion import from_objects
from evergraph.data.examples import with_numbers
from evergraph.data.from_networkx import from_networkx, is_networkx
from evergraph.data.from_tables import is_table, read_tables
from evergraph.data.graph import Graph, make_graph
from evergraph.data.mapped import is_mapped, is_parts, read_mapped
from evergraph.data.masked_layout import from_masked
from evergraph.errors import EvergraphError, first_line, tell
from evergraph.persistence.checkpoint import INDEX
from evergraph.persistence.reading import DAMAGE, MissingFileError, exists, regular_file

GRAPH_FILES = {".npz", ".pt", ".pth"}
ADJACENCY = ("adj_indices", "adj_indptr")
ATTRIBUTES = ("attr_data", "attr_indices", "attr_indptr", "attr_shape")
MASKS = ("train_mask", "val_mask", "test_mask")
PLAIN = ("x", "edge_index", "y", "edge_weight", "class_names", "feature_names", *MASKS)
BENCHMARK = (*ADJACENCY, "adj_data", *ATTRIBUTES, "attr_matrix", "labels", "class_names", "feature_names", *MASKS)
MASKED = (*masked_layout.MEMBERS, "class_names", "feature_names")
DENSE_ABOVE = 0.3  # share of stored entries above which a feature matrix is kept dense, which is then smaller


def as_graph(graph: Graph | str | Path | Any, *, undirected: bool | None = None, numbers: bool = False) -> Graph:
    """Return the graph itself, or a `Graph` made from PyG objects (`from_objects`), from NetworkX, or from a file.

    With `numbers`, whole numbers are targets to predict as numbers; else they are classes.
    """
    if isinstance(graph, Graph):
        check_directions(graph.name, graph.directed, undirected)
        return with_numbers(graph) if numbers else graph
    if isinstance(graph, (str, Path)):
        return read_graph_file(graph, undirected=undirected, numbers=numbers)
    if is_networkx(graph):
        return from_networkx(graph, undirected=undirected, numbers=numbers)
    return from_objects(graph, undirected=undirected, numbers=numbers)


def check_directions(name: str | Path, directed: bool, undirected: bool | None) -> None:
    """Raise if a graph that is made already is asked for in other directions than it has."""
    if directed == undirected:
        has = "its edges in their directions" if directed else "its edges in both directions"
        asked = "undirected=True (--undirected)" if undirected else "undirected=False (--directed)"
        raise EvergraphError(f"{name} was made with {has}; leave out {asked}, or make or convert it again with that")


def read_graph_file(path: str | Path, *, undirected: bool | None = None, numbers: bool = False) -> Graph:
    """Read a graph from a `.npz` or `.pt` (saved PyG `Data`) file, a node table, or a converted graph's folder.

    A node table names its edge list: `people.csv:edges=follows.csv` (`evergraph.data.from_tables`).

    Edges are read in both directions unless `undirected=False`; a converted graph keeps the directions it was
    converted with. With `numbers`, whole numbers are targets to predict as numbers.
    """
    if is_table(path):
        return read_tables(path, undirected=undirected, numbers=numbers)
    path = Path(path)
    if is_parts(path):
        raise EvergraphError(
            f"{path} is a graph in parts, for `evergraph learn` and `predict`; convert without --parts"
        )
    if is_mapped(path):
        mapped = read_mapped(path)
        check_directions(path, mapped.directed, undirected)
        return with_numbers(mapped) if numbers else mapped
    if exists(path / INDEX):
        raise EvergraphError(f"{path} is the folder of a learner (--checkpoint), not a graph")
    if path.suffix.lower() not in GRAPH_FILES:
        raise EvergraphError(
            f"{path}: cannot tell what this is; evergraph reads .npz and .pt files (saved PyG Data), and tables: "
            "nodes.csv:edges=edges.csv"
        )
    try:
        regular_file(path)
    except MissingFileError as error:
        raise EvergraphError(f"{error}; give a stream's name or the path of an .npz or .pt file") from None
    read = read_npz if path.suffix.lower() == ".npz" else read_saved_data
    return read(path, undirected=undirected, numbers=numbers)


def read_npz(
    path: str | Path,
    *,
    name: str | None = None,
    named_classes: bool = True,
    undirected: bool | None = None,
    numbers: bool = False,
) -> Graph:
    """Read a graph from an npz file with PyG's names, in the GNN-benchmark or the heterophilous-graphs layout.

    PyG's names: `x` and `edge_index`; `y`, `edge_weight`, `train_mask`, … as in a `Data` object, and `feature_names`.
    The GNN-benchmark layout: `adj_*` and `attr_*` as CSR parts (or a dense `attr_matrix`), `labels`; `adj_data` holds
    the edge weights. The heterophilous-graphs layout: `node_features`, `edges` (a row each), `node_labels`, and
    `train_masks`, … with a row per split. A file without `y` or `labels` has no labelled nodes. Only the members needed
    are read, which a warning says of the others, and pickled ones are refused, so that a file cannot run code. Any
    other array with an entry per node becomes an attribute that a stream can be made from (`by="year"`).

    Args:
        path: the file.
        name: name of the graph; the file's name by default.
        named_classes: take the classes' names from `class_names`, if the file has them; False for a published file,
            about which there is no warning either.
        undirected: as in `make_graph`.
        numbers: as in `as_graph`.
    """
    path = regular_file(path)
    if not zipfile.is_zipfile(path):
        raise EvergraphError(f"{path}: damaged or not an npz file; write one with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            held = set(file.files)
            members = _layout(held)
            left_out = () if named_classes else ("class_names",)
            parts = {key: native(file[key]) for key in file.files if key in members and key not in left_out}
            unread = [key for key in file.files if key not in (*members, "adj_shape")]
            other = _one_per_node(file, unread, parts) if named_classes else {}
    except DAMAGE as error:
        if "allow_pickle" in str(error):
            raise EvergraphError(f"{path}: holds pickled objects, which are refused; save plain arrays") from None
        raise EvergraphError(f"{path}: damaged or not an npz file ({first_line(error)})") from None
    if unread and named_classes:
        tasks = f"; tasks can be made by (--by): {', '.join(other)}" if other else ""
        tell(f"not read: {', '.join(unread)}; the arrays read are {', '.join(members)}{tasks}", str(path))
    make = {PLAIN: _from_plain, BENCHMARK: _from_benchmark, MASKED: _from_masked}[members]
    graph = make(parts, path, name or path.stem, undirected, numbers)
    return graph.altered(attributes=read_attributes(other, graph.num_nodes, graph.name))


def _layout(held: set[str]) -> tuple[str, ...]:
    """The names of arrays that a file with these ones has."""
    if {"x", "edge_index"} & held:
        return PLAIN
    if {*ADJACENCY, *ATTRIBUTES, "attr_matrix"} & held:
        return BENCHMARK
    return MASKED if "node_features" in held else PLAIN


def _from_masked(parts: dict[str, np.ndarray], path: Path, name: str, undirected: bool | None, numbers: bool) -> Graph:
    """Make a graph from arrays in the heterophilous-graphs collection's layout."""
    return from_masked(
        parts,
        path,
        name=name,
        class_names=None if numbers else _listed(parts, "class_names"),
        feature_names=_listed(parts, "feature_names"),
        undirected=undirected,
        numbers=numbers,
    )


def _from_benchmark(
    parts: dict[str, np.ndarray], path: Path, name: str, undirected: bool | None, numbers: bool
) -> Graph:
    """Make a graph from arrays in the GNN-benchmark layout."""
    needed = [*ADJACENCY, *(() if "attr_matrix" in parts else ATTRIBUTES)]
    if missing := [key for key in needed if key not in parts]:
        raise EvergraphError(
            f"{path}: no {', '.join(missing)} inside, which the GNN-benchmark layout has; a file may also hold x, "
            "edge_index and y"
        )
    try:
        x = parts["attr_matrix"] if "attr_matrix" in parts else _attributes(parts)
        target = np.repeat(np.arange(parts["adj_indptr"].size - 1), np.diff(parts["adj_indptr"]))
        edges = np.stack([parts["adj_indices"], target])
    except (ValueError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise EvergraphError(f"{path}: inconsistent arrays ({first_line(error)})") from None
    if parts["adj_indptr"].size - 1 != x.shape[0]:
        raise EvergraphError(
            f"{path}: the adjacency has {parts['adj_indptr'].size - 1} rows, the features have {x.shape[0]}; "
            "both need one row per node"
        )
    return make_graph(
        x,
        edges,
        parts.get("labels"),
        edge_weight=parts.get("adj_data"),
        class_names=None if numbers else _listed(parts, "class_names"),
        undirected=undirected,
        name=name,
        splits=_splits(parts, x.shape[0], name),
        feature_names=_listed(parts, "feature_names"),
        columns=numbers,
    )


def _one_per_node(file: Any, keys: Sequence[str], parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of numbers, truth values, dates or text with an entry per node; others are not read."""
    x = parts.get("x", parts.get("node_features"))
    nodes = np.shape(x)[:1] if x is not None else (np.size(parts.get("adj_indptr", ())) - 1,)
    heads = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    found = {}
    for key in keys:
        if key == "id" or f"{key}.npy" not in file.zip.namelist():
            continue
        with file.zip.open(f"{key}.npy") as member:
            read_head = heads.get(np.lib.format.read_magic(member))
            shape, _, dtype = ((), False, np.dtype(object)) if read_head is None else read_head(member)
        if shape == nodes and dtype.kind in "fiubUM":
            found[key] = native(file[key])
    return found


def _splits(parts: dict[str, np.ndarray], count: int, name: str) -> Any:
    """Return the split given by the masks in a file."""
    return masks_as_splits(SimpleNamespace(**{key: parts[key] for key in MASKS if key in parts}), count, name)


def _listed(parts: dict[str, np.ndarray], key: str) -> list[Any] | None:
    return parts[key].reshape(-1).tolist() if key in parts else None


def _from_plain(parts: dict[str, np.ndarray], path: Path, name: str, undirected: bool | None, numbers: bool) -> Graph:
    """Make a graph from arrays with PyG's names."""
    if missing := [key for key in ("x", "edge_index") if key not in parts]:
        raise EvergraphError(
            f"{path}: no {' and no '.join(missing)} inside; a graph needs x and edge_index (and y to learn from), or "
            "the arrays of the GNN-benchmark layout (adj_indices, adj_indptr, …)"
        )
    x = parts["x"]
    return make_graph(
        x,
        parts["edge_index"],
        parts.get("y"),
        edge_weight=parts.get("edge_weight"),
        class_names=_listed(parts, "class_names"),
        undirected=undirected,
        name=name,
        splits=_splits(parts, len(x), name),
        feature_names=_listed(parts, "feature_names"),
        columns=numbers,
    )


def _attributes(parts: dict[str, np.ndarray]) -> Any:
    """Return the feature matrix from its CSR parts; dense if it is sparse in name only (embeddings)."""
    data, indices, indptr, shape = (parts[key] for key in ATTRIBUTES)
    matrix = sp.csr_matrix((data, indices, indptr), shape=tuple(shape))
    matrix.check_format()
    return matrix.toarray() if matrix.nnz > DENSE_ABOVE * shape[0] * shape[1] else matrix


def read_saved_data(path: str | Path, *, undirected: bool | None = None, numbers: bool = False) -> Graph:
    """Read what `torch.save` wrote, with torch's loader that executes nothing.

    It is a PyG `Data` object, a list of them, or what PyG's `InMemoryDataset.save` writes.
    """
    from torch_geometric.data import Data

    path = Path(path)
    try:
        with torch.serialization.safe_globals(_parts_of_data()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the errors below report it
            data = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # on damaged bytes the loader raises errors of any type
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise EvergraphError(
                f"{path}: holds {found[1]}, refused because it could execute code; save a PyG Data object of tensors"
            ) from None
        raise EvergraphError(f"{path}: damaged, or not a PyG Data object written by torch.save") from None
    if isinstance(data, tuple) and data:
        data = saved_objects(data, path)
    made = Data.from_dict(data) if isinstance(data, dict) else data
    return from_objects(made, undirected=undirected, name=path.stem, numbers=numbers)


def _parts_of_data() -> list[Any]:
    """Return the classes a saved `Data` consists of: plain containers. PyG itself lists only some of them as safe."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.feature_store import _FieldStatus
    from torch_geometric.data.graph_store import EdgeLayout
    from torch_geometric.data.storage import BaseStorage, GlobalStorage

    return [Data, DataEdgeAttr, DataTensorAttr, EdgeLayout, _FieldStatus, BaseStorage, GlobalStorage]


def content_mark(graph: Graph) -> str:
    """SHA-256 of everything that results depend on; for a graph on disk, based on the hashes that `convert` wrote."""
    graph.notice_edits()
    digest = hashlib.sha256(json.dumps([graph.class_names, graph.mark, list(graph.x.shape)]).encode())
    if not graph.mark:
        digest.update(fingerprint(graph).encode())
        values = graph.x.values if isinstance(graph.x, SparseMatrix) else graph.x
        members = [] if graph.members is None else [graph.members.indptr, graph.members.indices]
        known = [graph.attributes[key].values for key in sorted(graph.attributes)]
        splits = [] if graph.splits is None else [graph.splits]
        for part in (values, graph.adjacency.values, *members, *known, *splits):
            digest.update(np.ascontiguousarray(part.numpy()).data)
    return digest.hexdigest()


def file_mark(path: str | Path, *, undirected: bool | None = None, numbers: bool = False) -> str:
    """Return `content_mark` of the graph in a file or a converted graph's folder, cached until its files change.

    Tables, whose edges are in another file, are read every time.
    """
    if is_table(path) or not exists(path):
        # reading a missing path raises the right error
        return content_mark(read_graph_file(path, undirected=undirected, numbers=numbers))
    path = Path(path)
    found = [part.stat() for part in (sorted(path.iterdir()) if path.is_dir() else [path])]
    state = tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in found)
    return _mark_as_of(path, undirected, numbers, state)


@functools.lru_cache(maxsize=256)
def _mark_as_of(path: Path, undirected: bool | None, numbers: bool, state: tuple[tuple[int, ...], ...]) -> str:
    """Return the mark of a graph; the state of its files is part of the cache key."""
    return content_mark(read_graph_file(path, undirected=undirected, numbers=numbers))


def fingerprint(graph: Graph) -> str:
    """SHA-256 of a graph, whatever file it came in: edges, pattern of sparse features, labels, ends of links."""
    digest = hashlib.sha256()
    links = [graph.members.indices] if graph.level == "link" and graph.members is not None else []
    features = [graph.x.indptr, graph.x.indices] if isinstance(graph.x, SparseMatrix) else []
    targets = graph.y if graph.has_classes else graph.y.contiguous().view(torch.int32)  # the bits of a float
    for part in (graph.adjacency.indptr, graph.adjacency.indices, *features, targets, *links):
        digest.update(part.to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()
