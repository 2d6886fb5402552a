"""Prototypes: several stand-ins per class, at the cluster centres of what a model sees of the class's nodes.

A model reads a node through its neighbours, and a prototype's only neighbour is its twin; so nodes are clustered and
averaged by features propagated to the depth of the model.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from evergraph.core.features import Features, take_rows
from evergraph.core.params import Params
from evergraph.core.sparse import SparseMatrix
from evergraph.methods.base import Context
from evergraph.methods.online_curvature.class_means import class_sums
from evergraph.methods.propagation import depth, propagated

FEW_ENTRIES = 0.05  # share of non-zero features up to which k-means is faster on a sparse matrix than on a dense one


def prototype_sums(context: Context, number: int) -> Params:
    """Return at most `number` prototypes of each class of the task; see `cluster_sums`."""
    dtype = next(context.model.parameters()).dtype
    x = propagated(context.task.graph, context.task.train, depth(context), dtype)
    return cluster_sums(x, context.batcher.y.cpu()[context.task.train], number, context.generator)


def add_prototypes(before: Params, new: Params) -> Params:
    """Concatenate the prototypes of two sets of nodes; a class may have some in both."""
    return {key: torch.cat([before[key].to(rows.device), rows]) if before else rows for key, rows in new.items()}


def cluster_sums(x: Features, units: Tensor, number: int, generator: torch.Generator) -> Params:
    """Group the rows of each unit into at most `number` clusters.

    Returns:
        `x`: [Σ x_v, number of nodes] over the nodes v of each cluster, one row per cluster; its prototype is their
        mean. `units`: the output unit of each cluster.
    """
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    cluster = torch.empty_like(units)
    units_of: list[int] = []
    for unit in units.unique().tolist():
        own = torch.nonzero(units == unit).reshape(-1)
        found = k_means(take_rows(x, own), number, seed)
        cluster[own] = found + len(units_of)
        units_of += [unit] * (int(found.max()) + 1)
    return {"x": class_sums(x, cluster, torch.arange(units.numel())), "units": torch.tensor(units_of)}


def k_means(x: Features, number: int, seed: int) -> Tensor:
    """Return the cluster of each row, numbered from 0 without gaps: `number`, or as many as distinct rows if fewer."""
    if x.size(0) <= number:
        return torch.arange(x.size(0))
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    if isinstance(x, SparseMatrix) and x.nnz > FEW_ENTRIES * x.num_rows * x.num_columns:
        x = x.dense()
    if isinstance(x, SparseMatrix):
        points = x.to(torch.float32).to_scipy()
        points.indices, points.indptr = points.indices.astype(np.int32), points.indptr.astype(np.int32)
    else:
        points = x.float().numpy()
    with threadpool_limits(1), warnings.catch_warnings():  # with several threads, sums would depend on their timing
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        found = KMeans(number, n_init=1, random_state=seed).fit_predict(points)
    return torch.from_numpy(found).unique(return_inverse=True)[1]
