"""Graphs from files: npz in the GNN-benchmark layout, saved PyG objects. Nothing in a file is executed."""

from __future__ import annotations

import hashlib
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from evergraph.core.sparse import SparseMatrix
from evergraph.data.conversion import as_graph
from evergraph.data.graph import Graph, from_pyg, make_graph
from evergraph.data.mapped import is_mapped, read_mapped
from evergraph.errors import EvergraphError, first_line

GRAPH_FILES = {".npz", ".pt", ".pth"}
ADJACENCY = ("adj_indices", "adj_indptr")
ATTRIBUTES = ("attr_data", "attr_indices", "attr_indptr", "attr_shape")
DENSE_ABOVE = 0.3  # share of stored entries above which a feature matrix is kept dense: it is smaller then
# what zipfile, zlib and numpy raise on files that are cut short, altered or something else altogether
DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, OSError, EOFError, ValueError, KeyError,
    TypeError, SyntaxError, NotImplementedError, RuntimeError, MemoryError, OverflowError,
)  # fmt: skip


def read_graph_file(path: str | Path) -> Graph:
    """The graph in a `.npz` (GNN-benchmark layout) or `.pt` (saved PyG `Data`) file, or a converted graph's folder."""
    path = Path(path)
    if is_mapped(path):
        return read_mapped(path)
    if path.suffix not in GRAPH_FILES:
        raise EvergraphError(f"{path}: cannot tell what this is; evergraph reads .npz and .pt files (saved PyG Data)")
    if not path.is_file():
        raise EvergraphError(f"no file {path}; give a stream's name or the path of an .npz or .pt file")
    return read_npz(path) if path.suffix == ".npz" else read_saved_data(path)


def read_npz(path: str | Path, *, name: str | None = None, named_classes: bool = True) -> Graph:
    """A graph in the GNN-benchmark layout: `adj_*` and `attr_*` as CSR parts (or a dense `attr_matrix`), `labels`.

    Edges are made undirected, as the collection's graphs are meant. A file without `labels` has no labelled
    nodes. Only the members needed are read, and pickled ones are refused, so that a file cannot run code.

    Args:
        path: the file.
        name: what to call the graph; the file's name by default.
        named_classes: take the classes' names from `class_names`, where the file has them.
    """
    path = Path(path)
    wanted = {*ADJACENCY, *ATTRIBUTES, "attr_matrix", "labels"} | ({"class_names"} if named_classes else set())
    try:
        with np.load(path, allow_pickle=False) as file:
            parts = {key: file[key] for key in file.files if key in wanted}
    except DAMAGE as error:
        if "allow_pickle" in str(error):
            raise EvergraphError(f"{path}: holds pickled objects, which are refused; save plain arrays") from None
        raise EvergraphError(f"{path}: damaged or not an npz file ({first_line(error)})") from None
    needed = [*ADJACENCY, *(() if "attr_matrix" in parts else ATTRIBUTES)]
    if missing := [key for key in needed if key not in parts]:
        raise EvergraphError(f"{path}: no {', '.join(missing)} inside; expected the GNN-benchmark npz layout")
    try:
        x = parts["attr_matrix"] if "attr_matrix" in parts else _attributes(parts)
        target = np.repeat(np.arange(parts["adj_indptr"].size - 1), np.diff(parts["adj_indptr"]))
        edges = np.stack([parts["adj_indices"], target])
    except (ValueError, IndexError, TypeError) as error:
        raise EvergraphError(f"{path}: inconsistent arrays ({first_line(error)})") from None
    if parts["adj_indptr"].size - 1 != x.shape[0]:
        raise EvergraphError(
            f"{path}: the adjacency has {parts['adj_indptr'].size - 1} rows, the features have {x.shape[0]}; "
            "both need one row per node"
        )
    names = parts["class_names"].tolist() if "class_names" in parts else None
    labels = parts.get("labels")
    return make_graph(x, edges, labels, class_names=names, undirected=True, name=name or path.stem)


def _attributes(parts: dict[str, np.ndarray]) -> Any:
    """The feature matrix from its CSR parts; dense where it is sparse in name only (embeddings)."""
    data, indices, indptr, shape = (parts[key] for key in ATTRIBUTES)
    matrix = sp.csr_matrix((data, indices, indptr), shape=tuple(shape))
    matrix.check_format()
    return matrix.toarray() if matrix.nnz > DENSE_ABOVE * shape[0] * shape[1] else matrix


def read_saved_data(path: str | Path) -> Graph:
    """A graph saved with `torch.save(data, path)`, read with torch's loader that executes nothing."""
    from torch_geometric.data import Data

    path = Path(path)
    try:
        with torch.serialization.safe_globals(_parts_of_data()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the errors below say it
            data = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # on damaged bytes the loader raises whatever it stumbles over
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise EvergraphError(
                f"{path}: holds {found[1]}, refused because it could execute code; save a PyG Data object of tensors"
            ) from None
        raise EvergraphError(f"{path}: damaged, or not a PyG Data object written by torch.save") from None
    if isinstance(data, tuple) and data:  # PyG's InMemoryDataset.save writes (data, slices, class)
        data = data[0]
    if isinstance(data, list) or getattr(data, "edge_label_index", None) is not None:  # graphs or links as examples
        graph = as_graph(data)
        graph.name = path.stem
        return graph
    return from_pyg(Data.from_dict(data) if isinstance(data, dict) else data, name=path.stem)


def _parts_of_data() -> list[Any]:
    """The classes a saved `Data` consists of: plain containers. PyG itself lists only some of them as safe."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.feature_store import _FieldStatus
    from torch_geometric.data.graph_store import EdgeLayout
    from torch_geometric.data.storage import BaseStorage, GlobalStorage

    return [Data, DataEdgeAttr, DataTensorAttr, EdgeLayout, _FieldStatus, BaseStorage, GlobalStorage]


def fingerprint(graph: Graph) -> str:
    """SHA-256 of what a graph is, whatever file it came in: edges, pattern of sparse features, labels."""
    digest = hashlib.sha256()
    features = [graph.x.indptr, graph.x.indices] if isinstance(graph.x, SparseMatrix) else []
    for part in (graph.adjacency.indptr, graph.adjacency.indices, *features, graph.y):
        digest.update(part.to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()
