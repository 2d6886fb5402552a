"""Convert PyG objects to a `Graph`: a single one, a list of them, or links to classify or predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergraph.data.adjacency_of_pyg import with_edge_index
from evergraph.data.arrays import as_array, read_edges
from evergraph.data.attributes import extra_values, masks_as_splits, tell_of_edge_features
from evergraph.data.examples import make_graphs, make_links
from evergraph.data.graph import NEEDED, Graph, from_pyg
from evergraph.data.targets import has_fractions
from evergraph.errors import EvergraphError, tell


def from_objects(data: Any, *, undirected: bool | None = None, name: str | None = None, numbers: bool = False) -> Graph:
    """Make a `Graph` from PyG objects.

    The examples of a `Data` object are its nodes or, with `edge_label_index` (and `edge_label`), links, as in PyG's
    link loaders. The examples of a list of `Data` objects are graphs. With `numbers`, whole numbers are targets to
    predict as numbers.
    """
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        data = [with_edge_index(one) for one in data]
        return from_graphs(data, undirected=undirected, name=name or "graphs", numbers=numbers)
    data = with_edge_index(data)
    if getattr(data, "edge_label_index", None) is not None:
        if undirected is False:
            raise EvergraphError(
                f"{name or 'links'}: where examples are links, messages pass along edges and links in both directions; "
                "leave undirected=False (--directed) out"
            )
        return from_links(data, name=name or "links", numbers=numbers)
    return from_pyg(data, undirected=undirected, name=name or "graph", numbers=numbers)


def from_graphs(
    objects: Sequence[Any], *, undirected: bool | None = None, name: str = "graphs", numbers: bool = False
) -> Graph:
    """Make a `Graph` from many PyG `Data` objects, each an example.

    An object's target `y` is a class (text or a whole number) or, with shape `(1, k)`, a row of labels or numbers;
    None, NaN or an empty string where it is unknown.
    """
    if not objects:
        raise EvergraphError(f"{name}: the list of graphs is empty")
    features, edges, start = [], [], 0
    for number, one in enumerate(objects):
        missing = [key for key in ("x", "edge_index") if getattr(one, key, None) is None]
        if missing:
            raise EvergraphError(
                f"{name}: graph {number} of the list is of type {type(one).__name__}; it has no "
                f"{' and no '.join(missing)}; {NEEDED}"
            )
        features.append(as_array(one.x))
        if features[-1].ndim != 2 or features[-1].shape[1] != features[0].shape[1]:
            raise EvergraphError(
                f"{name}: the features of graph {number} have shape {features[-1].shape}; "
                "give every graph (nodes, features), and all graphs the same features"
            )
        edges.append(read_edges(one.edge_index, len(features[-1]), f"{name}: graph {number}") + start)
        start += len(features[-1])
    tell_of_edge_features(objects, name)
    weights = [weight for one in objects if (weight := getattr(one, "edge_weight", None)) is not None]
    if weights and len(weights) < len(objects):
        raise EvergraphError(
            f"{name}: {len(weights)} of {len(objects)} graphs have edge_weight; give it to all of them or to none"
        )
    sizes = [len(rows) for rows in features]
    y, columns = _targets([getattr(one, "y", None) for one in objects], sizes, name)
    return make_graphs(
        np.concatenate(features),
        np.concatenate(edges, axis=1),
        np.repeat(np.arange(len(objects)), sizes),
        y,
        edge_weight=np.concatenate([as_array(weight) for weight in weights]) if weights else None,
        class_names=getattr(objects[0], "class_names", None),
        undirected=undirected,
        name=name,
        attributes=_common_numbers(objects),
        columns=columns or numbers,
        num_graphs=len(objects),
        feature_names=_common_names(objects, name),
    )


def _targets(values: list[Any], sizes: list[int], name: str) -> tuple[np.ndarray | None, bool]:
    """Return one target per graph (a class or a row; missing where None), and whether targets are rows.

    `sizes` are the graphs' numbers of nodes, by which targets of the nodes are told from those of the graphs.
    """
    values = [value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value for value in values]
    known = [number for number, value in enumerate(values) if value is not None]
    if not known:
        return None, False
    if any(isinstance(value, str) for value in values):
        return np.array(values, dtype=object), False
    try:
        rows = [torch.as_tensor(values[number]) for number in known]
    except (TypeError, ValueError, RuntimeError):
        raise EvergraphError(f"{name}: y of a graph is neither text nor numbers; give one target per graph") from None
    nodes = [sizes[number] for number in known]
    if max(nodes) > 1 and all(row.dim() and len(row) == size for row, size in zip(rows, nodes)):
        raise EvergraphError(
            f"{name}: y of every graph has one label per node; such graphs are learned one at a time "
            "(learner.fit([…]), or a file each); several labels of a graph have the shape (1, number of labels)"
        )
    if len({row.numel() for row in rows}) > 1:
        raise EvergraphError(f"{name}: graphs have targets of different sizes; give each as many")
    if all(row.dtype == torch.bool and row.dim() < 2 and row.numel() == 1 for row in rows):
        return np.array([None if value is None else bool(value) for value in values], dtype=object), False
    targets = np.full((len(values), rows[0].numel()), np.nan)
    targets[known] = torch.stack([row.reshape(-1).double() for row in rows]).numpy()
    whole = targets.shape[1] == 1 and rows[0].dim() < 2 and not has_fractions(targets)
    return (targets.reshape(-1), False) if whole else (targets, True)


def _common_names(objects: Sequence[Any], name: str) -> list[str] | None:
    """Return the names of the features, if the graphs have any; all of them have the same, in the same order."""
    found = [getattr(one, "feature_names", None) for one in objects]
    named = [None if names is None else [str(column) for column in names] for names in found]
    if odd := [number for number, names in enumerate(named) if names != named[0]]:
        raise EvergraphError(
            f"{name}: graph {odd[0]} of the list has other feature_names than the first; give all of them the same"
        )
    return named[0]


def _common_numbers(objects: Sequence[Any]) -> dict[str, Any]:
    """Return the single values that every graph has, by name: a time, a domain."""
    known = {"x", "edge_index", "y", "edge_attr", "edge_weight", "class_names", "pos"}
    keys = [str(key) for key, _ in objects[0] if key not in known] if hasattr(objects[0], "keys") else []
    found = {}
    for key in keys:
        values = [getattr(one, key, None) for one in objects]
        if all(
            isinstance(value, (int, float, str)) or (isinstance(value, Tensor) and value.numel() == 1)
            for value in values
        ):
            found[key] = np.asarray([value.item() if isinstance(value, Tensor) else value for value in values])
    return found


def from_links(data: Any, *, name: str = "links", numbers: bool = False) -> Graph:
    """Make a `Graph` from a PyG `Data` object whose examples are the links `edge_label_index` (targets: `edge_label`).

    Every other tensor with a number for each link becomes an attribute (`edge_year` under the name `year`, and so on);
    `train_mask`, `val_mask` and `test_mask` over the links become their split. Targets with fractions are numbers to
    predict; whole ones are with `numbers`, else they are classes.
    """
    if getattr(data, "x", None) is None:
        raise EvergraphError(f"{name}: the PyG object has no x; evergraph needs features of the nodes")
    tell_of_edge_features([data], name, weighed=False)
    if getattr(data, "edge_weight", None) is not None:
        tell(f"{name}: edge_weight is not used where examples are links; every edge is read alike")
    count = as_array(data.edge_label_index).shape[-1]
    known = {key: value for key, value in extra_values(data, count).items() if not key.startswith("edge_label")}
    if count == as_array(data.x).shape[0]:  # node tensors would have the same length
        known = {key: value for key, value in known.items() if key.startswith("edge_")}
    masks = [getattr(data, f"{part}_mask", None) for part in ("train", "val", "test")]
    targets = getattr(data, "edge_label", None)
    over_links = any(mask is not None and len(mask) == count for mask in masks)
    return make_links(
        data.x,
        data.edge_label_index,
        targets,
        edge_index=getattr(data, "edge_index", None),
        class_names=getattr(data, "class_names", None),
        name=name,
        attributes={key.removeprefix("edge_"): value for key, value in known.items()},
        splits=masks_as_splits(data, count, name) if over_links else None,
        columns=targets is not None and (numbers or has_fractions(as_array(targets))),
        feature_names=getattr(data, "feature_names", None),
    )
