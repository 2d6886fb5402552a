"""Graphs from files: npz in the GNN-benchmark layout, saved PyG objects. Nothing in a file is executed."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from evergraph.data.graph import Graph, from_pyg, make_graph
from evergraph.errors import EvergraphError, first_line
from evergraph.sparse import SparseMatrix


def read_graph_file(path: str | Path) -> Graph:
    """The graph in a `.npz` (GNN-benchmark layout) or `.pt` (saved PyG `Data`) file."""
    path = Path(path)
    if not path.exists():
        raise EvergraphError(f"no file {path}; give a stream name or the path of an .npz or .pt file")
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix in {".pt", ".pth"}:
        return read_saved_data(path)
    raise EvergraphError(f"{path}: cannot tell what this file is; evergraph reads .npz and .pt (saved PyG Data)")


def read_npz(path: str | Path, *, name: str | None = None) -> Graph:
    """A graph in the GNN-benchmark layout: CSR parts `adj_*` and `attr_*` (or a dense `attr_matrix`), `labels`.

    Pickled members are refused, so a file cannot run code. `class_names` is read where present.
    Edges are made undirected, as the collection's graphs are meant.
    """
    path = Path(path)
    label = name or path.stem
    try:
        with np.load(path, allow_pickle=False) as file:
            parts = {key: file[key] for key in file.files if key.split("_")[0] in {"adj", "attr", "labels", "class"}}
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, KeyError) as error:
        if "allow_pickle" in str(error):
            raise EvergraphError(f"{path}: holds pickled objects, which are refused; save plain arrays") from None
        raise EvergraphError(f"{path}: damaged or not an npz file ({first_line(error)})") from None
    missing = [key for key in ("adj_indptr", "adj_indices", "labels") if key not in parts]
    if "attr_matrix" not in parts:
        missing += [key for key in ("attr_data", "attr_indices", "attr_indptr", "attr_shape") if key not in parts]
    if missing:
        raise EvergraphError(f"{path}: no {', '.join(missing)} inside; expected the GNN-benchmark npz layout")
    num_nodes = parts["adj_indptr"].size - 1
    try:
        x: Any = parts.get("attr_matrix")
        if x is None:
            x = sp.csr_matrix(
                (parts["attr_data"], parts["attr_indices"], parts["attr_indptr"]), shape=parts["attr_shape"]
            )
            x.check_format()
            if x.nnz > 0.3 * np.prod(x.shape):  # a dense matrix in sparse clothing, e.g. embeddings
                x = x.toarray()
        target = np.repeat(np.arange(num_nodes), np.diff(parts["adj_indptr"]))
        edges = np.stack([parts["adj_indices"].astype(np.int64), target])
    except (ValueError, IndexError) as error:
        raise EvergraphError(f"{path}: inconsistent arrays ({first_line(error)})") from None
    names = parts["class_names"].tolist() if "class_names" in parts else None
    return make_graph(x, edges, parts["labels"], class_names=names, undirected=True, name=label)


def read_saved_data(path: str | Path) -> Graph:
    """A graph saved with `torch.save(data, path)`, read with torch's loader that executes nothing."""
    import torch_geometric.data  # registers Data with torch's safe loader

    path = Path(path)
    try:
        data = torch.load(path, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        raise EvergraphError(
            f"{path}: damaged, or holds objects that could execute code; save a plain PyG Data object "
            f"({first_line(error)})"
        ) from None
    if isinstance(data, tuple) and data:  # PyG's InMemoryDataset.save writes (data, slices, class)
        data = data[0]
    if isinstance(data, dict):
        data = torch_geometric.data.Data.from_dict(data)
    return from_pyg(data, name=path.stem)


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(graph: Graph) -> str:
    """SHA-256 of what a graph is, whatever file it came in: edges, pattern of the features, labels."""
    digest = hashlib.sha256()
    features = [graph.x.indptr, graph.x.indices] if isinstance(graph.x, SparseMatrix) else []
    for part in (graph.adjacency.indptr, graph.adjacency.indices, *features, graph.y):
        digest.update(part.to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()
