"""Gradients of single nodes, in tables of fixed shape, so that a step that reads them can be captured.

With sparse inputs a node's gradient at the first weight matrix of a two-layer network is XᵀΔ, where Δ has a row for
each of the node's neighbours: some ten rows of a hidden layer's width, instead of a matrix as large as the weights. A
table has as many rows per gradient as the node with the most neighbours needs; unused rows are zero. Gradients of all
other parameters, which are small, are stored in full. If the outputs are P [σ(H) 1] W of the first layer's output H,
kernels on a GPU write a gradient and read all of them.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.params import Direction, Params, all_trained
from evergraph.core.pulled import pulled_along
from evergraph.core.row_pieces import fused_kernels
from evergraph.core.shortcuts import fast
from evergraph.core.sparse import SparseMatrix
from evergraph.core.tangent_products import members_at
from evergraph.data.batching import Batch
from evergraph.methods.base import Context, Step
from evergraph.models.fixed_products import first_layer_product

NODES = "nodes"  # nodes of the rows of each gradient's Δ, which is stored under the first weight's name
NUMBERS = "rows"  # number of rows of each gradient
LARGEST = 2**28  # maximum number of entries in a table
ROW_OF = "row of each node in the batch that lasts"  # cache key


def rows_pay(context: Context, capacity: int) -> bool:
    """Return whether to keep gradients as first-layer rows if one batch serves all steps: sparse inputs, two layers."""
    batcher = context.batcher
    known = isinstance(batcher.x, SparseMatrix) and batcher.members is None and batcher.fan_out is None
    shown = capable(context.model, "first_layer") is not None and all_trained(context.model)
    shown = shown and len(context.params) == 2
    if not (known and shown and fast("structure")):
        return False
    return capacity * _most_neighbours(context) * _width(context) <= LARGEST


def kernels_suit(context: Context) -> bool:
    """Return whether the kernels for such tables apply: on a GPU, for outputs P [σ(H) 1] W."""
    dtypes = {value.dtype for value in context.params.values()}
    kind = dtypes in ({torch.float32}, {torch.float64})
    return kind and capable(context.model, "last_layer") is not None and fused_kernels(context.device)


def _most_neighbours(context: Context) -> int:
    return int(context.batcher.operator.counts().max())


def _width(context: Context) -> int:
    """Return the width of the first layer."""
    return next(iter(context.params.values())).size(1)


def empty_table(context: Context, capacity: int) -> Params:
    """Return a table with room for `capacity` gradients."""
    (first, weight), *others = context.params.items()
    weight, most = weight.detach(), _most_neighbours(context)
    table = {
        first: weight.new_zeros(capacity, most, weight.size(1)),
        NODES: torch.zeros(capacity, most, dtype=torch.long, device=weight.device),
        NUMBERS: torch.zeros(capacity, 1, dtype=torch.int32, device=weight.device),
    }
    return table | {name: value.detach().new_zeros(capacity, *value.shape) for name, value in others}


def know_rows(context: Context, batch: Batch) -> None:
    """Store the row of each node in the batch that serves all steps."""
    row_of = torch.zeros(context.batcher.operator.num_rows, dtype=torch.long, device=batch.nodes.device)
    row_of[batch.nodes] = torch.arange(batch.nodes.numel(), device=batch.nodes.device)
    context.cache[ROW_OF] = row_of


def known(context: Context, table: Params) -> bool:
    """Return whether this task's steps can read a table: they share one batch, and the table has all current fields."""
    return ROW_OF in context.cache and NUMBERS in table


def push_and_pull(
    step: Step, table: Params, place: Tensor, example: Tensor, score: Tensor, displacement: Direction, scale: Tensor
) -> Tensor:
    """Push the gradient of score · outputs at one example; return a term whose gradient is the pull of the table.

    The pull is scale · Σ_q (g_q · D) g_q over the table's gradients g_q. The first layer's products serve both the step
    and the queue: backwards, and forwards if the step's pass computed the tangent along D.
    """
    layer, last = step.layers[0], capable(step.model, "last_layer")
    shown = last(step.batch) if last is not None and kernels_suit(step.context) else None
    seed = example if step.batch.chosen is None else step.batch.chosen.index_select(0, example)
    moved = layer.tangent
    if moved is None or layer.direction is not displacement:
        first = next(iter(step.context.params))
        moved = first_layer_product(step.model, step.batch, displacement[first])
    parts = capable(displacement, "parts")
    if shown is None or parts is None:
        push(step, table, place, seed, torch.zeros_like(step.logits).index_copy(0, example, score))
        return pull(step, table, moved, displacement, scale)
    (first, _), (name, weight) = step.context.params.items()
    count, total = parts(name)
    tables = (table[first], table[NODES], table[NUMBERS], table[name])
    names, row_of = step.batch.nodes, step.context.cache[ROW_OF]
    at_layer, at_weight = _PushAndPull.apply(
        place, seed, score, scale, layer.out.detach(), moved, weight.detach(), total, *tables,
        count, shown, names, row_of,
    )  # fmt: skip
    return pulled_along(pulled_along(step.logits.new_zeros(()), layer.out, at_layer), weight, at_weight)


class _PushAndPull(torch.autograd.Function):
    """Run the kernels for one network or several; writes into the tables and is not differentiable."""

    @staticmethod
    def forward(
        place: Tensor, seed: Tensor, score: Tensor, scale: Tensor, hidden: Tensor, moved: Tensor, weight: Tensor,
        total: Tensor, rows: Tensor, nodes: Tensor, numbers: Tensor, grads: Tensor, count: int, operator: SparseMatrix,
        names: Tensor, row_of: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        from evergraph.methods.online_curvature.gradient_kernel import pull, push

        alone = hidden.dim() == 2
        tables = tuple(value.unsqueeze(1) if alone else value for value in (rows, nodes, numbers, grads))
        assert all(value.is_contiguous() for value in tables)  # written in place
        h, m, w, t = ((value.unsqueeze(1) if alone else value).contiguous() for value in (hidden, moved, weight, total))
        push(tables, place.contiguous(), seed.contiguous(), score.contiguous(), h, w, operator.parts(), names)  # type: ignore[arg-type]
        found = pull(tables, m, w, t, count, scale.contiguous(), row_of)  # type: ignore[arg-type]
        return tuple(value.squeeze(1) if alone else value for value in found)  # type: ignore[return-value]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *values: Any) -> Any:
        small = [members_at(0, value, dim, info.batch_size) for value, dim in zip(values[:4], in_dims)]
        large = [members_at(1, value, dim, info.batch_size) for value, dim in zip(values[4:12], in_dims[4:])]
        return _PushAndPull.apply(*small, *large, *values[12:]), (1, 1)


vars(_PushAndPull.forward)["__signature__"] = inspect.signature(_PushAndPull.forward)  # computed once, not per call


def push(step: Step, table: Params, place: Tensor, seed: Tensor, cotangent: Tensor) -> None:
    """Write the gradient for a cotangent at the outputs of one example to a place in the table."""
    (first, _), *others = step.context.params.items()
    layer = step.layers[0].out
    found = torch.autograd.grad(step.logits, [layer, *(value for _, value in others)], cotangent, retain_graph=True)
    readers = step.batch.layer(step.batch.num_hops - 1)
    number = torch.arange(table[NODES].size(1), device=layer.device)
    start = readers.indptr[seed]
    neighbours = readers.indices[(start + number).clamp(max=readers.nnz - 1)].long()
    count = readers.indptr[seed + 1] - start
    rows = found[0].index_select(0, neighbours) * (number < count).unsqueeze(1)
    table[first].index_copy_(0, place, rows.unsqueeze(0))
    table[NODES].index_copy_(0, place, step.batch.nodes[neighbours].unsqueeze(0))
    table[NUMBERS].index_copy_(0, place, count.unsqueeze(1).int())
    for (name, _), gradient in zip(others, found[1:]):
        table[name].index_copy_(0, place, gradient.unsqueeze(0))


def pull(step: Step, table: Params, moved: Tensor, displacement: Direction, scale: Tensor | float) -> Tensor:
    """Return a term of the objective whose gradient is scale · Σ_q (g_q · D) g_q over the table's gradients g_q."""
    (first, _), *others = step.context.params.items()
    layer = step.layers[0]
    rows = table[first]
    places = step.context.cache[ROW_OF].index_select(0, table[NODES].flatten())
    read = moved.index_select(0, places).view_as(rows)
    inner = (read * rows).sum((1, 2))  # g_q · D
    for name, _ in others:
        inner = inner + table[name].flatten(1) @ displacement[name].flatten()
    inner = inner * scale
    gathered = torch.zeros_like(moved).index_add_(0, places, (inner.view(-1, 1, 1) * rows).flatten(0, 1))
    term = pulled_along(step.logits.new_zeros(()), layer.out, gathered)
    for name, value in others:
        term = pulled_along(term, value, (inner @ table[name].flatten(1)).view_as(value))
    return term
