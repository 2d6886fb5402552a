"""Gradients of single nodes, in tables of one shape, so that a step that reads them can be captured.

With sparse inputs a node's gradient at the first weight matrix of a two-layer network is XᵀΔ, where Δ has a row for
each of the node's neighbours: some ten rows of a hidden layer's width, in place of a matrix as large as the weights. A
table has as many rows for every gradient as the node with the most neighbours needs; those beyond a node's own are
zero. Gradients of all other parameters, which are small, are written out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.params import Direction, Params
from evergraph.core.shortcuts import fast
from evergraph.core.sparse import SparseMatrix
from evergraph.methods.base import Step
from evergraph.models.fixed_products import first_layer_product

NODES = "nodes"  # beside the rows of each gradient's Δ, under the first weight's name: which rows of the layer they are
LARGEST = 2**28  # numbers in a table


def rows_pay(step: Step, capacity: int) -> bool:
    """Whether to keep gradients as rows of the first layer: one batch for all steps, sparse inputs, two layers."""
    batch = step.batch
    known = batch.lasting and isinstance(batch.x, SparseMatrix) and batch.members is None and len(step.layers) == 1
    if not (known and fast("structure") and capable(step.model, "first_layer") is not None):
        return False
    if step.context.batcher.fan_out is not None:
        return False
    return capacity * _most_neighbours(step) * step.layers[0].out.size(1) <= LARGEST


def _most_neighbours(step: Step) -> int:
    return int(step.batch.layer(step.batch.num_hops - 1).counts().max())


def empty_table(step: Step, capacity: int) -> Params:
    """Room for so many gradients."""
    (first, _), *others = step.context.params.items()
    layer, width = step.layers[0].out, _most_neighbours(step)
    table = {
        first: layer.detach().new_zeros(capacity, width, layer.size(1)),
        NODES: torch.zeros(capacity, width, dtype=torch.long, device=layer.device),
    }
    return table | {name: value.detach().new_zeros(capacity, *value.shape) for name, value in others}


def push(step: Step, table: Params, place: Tensor, example: Tensor, cotangent: Tensor) -> None:
    """Put the gradient for a cotangent at the outputs of one example at a place of the table."""
    (first, _), *others = step.context.params.items()
    layer = step.layers[0].out
    found = torch.autograd.grad(step.logits, [layer, *(value for _, value in others)], cotangent, retain_graph=True)
    readers = step.batch.layer(step.batch.num_hops - 1)
    seed = example if step.batch.chosen is None else step.batch.chosen[example]
    number = torch.arange(table[NODES].size(1), device=layer.device)
    start = readers.indptr[seed]
    nodes = readers.indices[(start + number).clamp(max=readers.nnz - 1)].long()
    present = number < readers.indptr[seed + 1] - start
    rows = found[0].index_select(0, nodes) * present.unsqueeze(1)
    table[first].index_copy_(0, place, rows.unsqueeze(0))
    table[NODES].index_copy_(0, place, nodes.unsqueeze(0))
    for (name, _), gradient in zip(others, found[1:]):
        table[name].index_copy_(0, place, gradient.unsqueeze(0))


def pull(step: Step, table: Params, displacement: Direction, scale: Tensor | float) -> Tensor:
    """A term of the step's objective whose gradient is scale · Σ_q (g_q · D) g_q over the table's gradients g_q.

    So the first layer's products serve the step and the queue at once: backwards, and forwards where the step's pass
    carried the tangent along D.
    """
    (first, _), *others = step.context.params.items()
    layer = step.layers[0]
    moved = layer.tangent
    if moved is None or layer.direction is not displacement:
        moved = first_layer_product(step.model, step.batch, displacement[first])
    rows, nodes = table[first], table[NODES].flatten()
    read = moved.index_select(0, nodes).view_as(rows)
    inner = (read * rows).sum((1, 2))  # g_q · D
    for name, _ in others:
        inner = inner + table[name].flatten(1) @ displacement[name].flatten()
    inner = inner * scale
    gathered = torch.zeros_like(moved).index_add_(0, nodes, (inner.view(-1, 1, 1) * rows).flatten(0, 1))
    term = layer.out.flatten() @ gathered.flatten()
    for name, value in others:
        term = term + value.flatten() @ (inner @ table[name].flatten(1))
    return term
