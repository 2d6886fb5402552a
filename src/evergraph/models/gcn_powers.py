"""Sums of powers of single-node gradients of a two-layer GCN, from its equations: no single-node gradient is formed.

With a cotangent c at node v, the gradients of z_v·c are

    ∂/∂W₂ = b_v cᵀ                          b_v = Σ_u Ã_vu [σ(h_u) 1]
    ∂/∂W₁ = G_v diag(W₂ c)                  G_v = Σ_u Ã_vu x̃_u σ'(h_u)ᵀ,  x̃ = Ã[X 1]

so Σ_k |∂/∂W₁|^p over several cotangents is |G_v|^p with its columns weighted by Σ_k |W₂ c_k|^p: the number
of cotangents (of classes, for the exact Fisher) adds no cost. G_v has a row only for the features that
occur within two hops of v.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import sparse as sp
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.features import Features, take_rows, with_ones
from evergraph.core.params import Params
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch
from evergraph.models.fixed_products import fixed_product

if TYPE_CHECKING:
    from evergraph.models.gcn import GCN

DENSE_BYTES = 2**25  # bytes of products of dense features held at once
SPARSE_BYTES = 2**26  # bytes of rows read at once for products of sparse features


@torch.no_grad()
def two_layer_powers(model: GCN, batch: Batch, cotangents: Callable[[Batch, Tensor], Tensor], power: int) -> Params:
    """Return Σ over seeds v and cotangents k of |∂(z_v·c_vk)/∂W|^power for both weight matrices.

    Args:
        model: a GCN with two layers.
        batch: exact neighbourhoods of the seeds.
        cotangents: maps the batch and its logits to `(num_seeds, num_vectors, num_outputs)`.
        power: 1 or 2.
    """
    first, second = model.weights[0], model.weights[1]
    operator = batch.layer(batch.num_hops - 1)
    x, hidden = _propagated_inputs(batch, first)
    mean = operator @ with_ones(F.relu(hidden))  # b_v
    vectors = cotangents(batch, mean @ second)
    weights = (vectors @ second[:-1].T).abs_()
    columns = weights.square_().sum(1).sqrt_() if power == 2 else weights.sum(1)  # weights of the columns of G_v
    seed = operator.row_of_entry()
    # one row per edge u → v: Ã_vu σ'(h_u), columns weighted
    rows = (hidden > 0)[operator.indices] * columns[seed] * operator.values.unsqueeze(1)
    product = _sparse_powers if isinstance(x, SparseMatrix) else _dense_powers
    return {
        "weights.0": product(x, operator, rows, power),  # type: ignore[arg-type]
        "weights.1": mean.abs().pow(power).T @ vectors.abs().pow(power).sum(1),
    }


def _propagated_inputs(batch: Batch, weight: Tensor) -> tuple[Features, Tensor]:
    """Return x̃ = Ã[X 1] and h = x̃ W₁ at the seeds and their neighbours; h is reused if the weights are unchanged."""
    assert batch.source is not None
    nodes = batch.nodes[: batch.sizes[1]]
    x = batch.x if batch.num_hops == 1 else take_rows(batch.source.propagated(), nodes)
    if isinstance(x, SparseMatrix) and x.device.type != "cpu":
        x = x.dense()  # its powers are summed up by products, not by a sort on the host
    known = fixed_product(batch.source, weight, propagate=batch.num_hops == 2)
    return x, x @ weight if known is None else known[nodes]


def _sparse_powers(x: SparseMatrix, operator: SparseMatrix, rows: Tensor, power: int) -> Tensor:
    """Return Σ_v |G_v|^power, G_v = Σ x_u ⊗ rows_e over the edges e = (u → v); seeds in groups that fit the cache."""
    total = rows.new_zeros(x.num_columns, rows.size(1))
    entries = x.counts()[operator.indices].cumsum(0)[operator.indptr[1:] - 1]  # cumulative, at the end of each seed
    group = entries * rows.size(1) * rows.element_size() // SPARSE_BYTES
    for first, last in _runs(group):
        start, end = int(operator.indptr[first]), int(operator.indptr[last])
        counts = operator.counts()[first:last]
        total += _powers_of_group(x.rows(operator.indices[start:end]), counts, rows[start:end], power)
    return total


def _runs(group: Tensor) -> Iterator[tuple[int, int]]:
    """Return the first index and one past the last index of each run of equal numbers."""
    ends = torch.unique_consecutive(group, return_counts=True)[1].cumsum(0).tolist()
    return zip([0, *ends[:-1]], ends)


def _powers_of_group(spread: SparseMatrix, counts: Tensor, rows: Tensor, power: int) -> Tensor:
    """Like `_sparse_powers` for one group of seeds.

    `spread` holds the features of each edge's source, `counts` the number of edges of each seed.
    """
    seeds, features = counts.numel(), spread.num_columns
    seed = torch.repeat_interleave(torch.arange(seeds), counts)[spread.row_of_entry()]
    # sorted by feature, then by seed: a counting sort over the columns feature · seeds + seed
    column = (spread.indices * seeds + seed).numpy()
    parts = (spread.values.numpy(), column, spread.indptr.numpy())
    sorted_ = sp.csr_matrix(parts, shape=(spread.num_rows, features * seeds)).tocsc()
    filled = np.flatnonzero(np.diff(sorted_.indptr))
    indptr = np.append(sorted_.indptr[filled], sorted_.indptr[-1])
    gradients = SparseMatrix(
        torch.from_numpy(indptr), torch.from_numpy(sorted_.indices), torch.from_numpy(sorted_.data), rows.size(0)
    ).multiply(rows)
    gradients = gradients.square_() if power == 2 else gradients.abs_()
    # rows of one feature are adjacent
    start = torch.from_numpy(np.searchsorted(filled, np.arange(features) * seeds))
    return F.embedding_bag(torch.arange(filled.size), gradients, start, mode="sum")


def _dense_powers(x: Tensor, operator: SparseMatrix, rows: Tensor, power: int) -> Tensor:
    """Like `_sparse_powers` for dense features: one small product per seed, padded to a common number of edges."""
    counts = operator.counts()
    total = x.new_zeros(x.size(1), rows.size(1))
    at_once = max(1, DENSE_BYTES // (total.numel() * total.element_size()))
    order = torch.argsort(counts)  # seeds of similar degree together: little padding
    for chosen in torch.split(order, at_once):
        width = int(counts[chosen].max())
        entry = operator.indptr[chosen].unsqueeze(1) + torch.arange(width, device=x.device)
        present = entry < operator.indptr[chosen + 1].unsqueeze(1)
        entry = torch.where(present, entry, 0)
        weighted = rows[entry] * present.unsqueeze(2)
        gradients = x[operator.indices[entry]].transpose(1, 2) @ weighted
        total += (gradients.square_() if power == 2 else gradients.abs_()).sum(0)
    return total
