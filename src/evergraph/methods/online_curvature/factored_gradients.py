"""Gradients of single nodes as factors: a weight's is XᵀΔ, and a node has few rows of X and Δ.

Where inputs are sparse, a node's gradient at the first weight matrix is written out almost all zeros. Its factors are
the cotangents Δ at the rows that the node reads, and which nodes those are: the rows of inputs stand in the graph. Of
later layers the rows of inputs, which move with the parameters, are kept as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.params import Direction, Params
from evergraph.core.recording import recorded_products
from evergraph.core.shortcuts import fast
from evergraph.core.sparse import SparseMatrix, product
from evergraph.core.workers import workers
from evergraph.methods.base import Context

SEEDS, NODES, INPUTS, NUMBER = "seeds", "nodes", "inputs of ", "rows of "
"""Beside each weight's cotangents, under its name: whose gradients, the nodes of the first layer's rows; the inputs of
other layers; how many rows each gradient has of a weight."""


def factors_pay(context: Context) -> bool:
    """Whether gradients of single nodes are to be kept as factors: sparse inputs, a model that shows how."""
    batcher = context.batcher
    exact = batcher.fan_out is None and batcher.members is None
    at_hand = context.device.type == "cpu" and isinstance(batcher.x, SparseMatrix) and workers().size == 1
    return fast("structure") and exact and at_hand and capable(context.model, "first_layer") is not None


def node_factors(context: Context, seed: Tensor, score: Tensor) -> Params:
    """The factors of the gradient of score · outputs at one node."""
    batch = context.batcher.batch(seed)
    with torch.enable_grad(), recorded_products() as products:
        outputs = context.model(batch)
    cotangents = torch.autograd.grad(outputs, [made.out for made in products], score)
    names = {id(value): name for name, value in context.params.items()}
    factors: Params = {SEEDS: seed, NODES: batch.nodes[: cotangents[0].size(0)]}
    for number, (made, cotangent) in enumerate(zip(products, cotangents)):
        name = names[id(made.weight)]
        factors[name] = cotangent
        factors[NUMBER + name] = seed.new_full((1,), cotangent.size(0))
        if number:
            assert isinstance(made.rows, Tensor)
            factors[INPUTS + name] = made.rows.detach()
    return factors


def pushed(queue: Params, new: Params, capacity: int) -> Params:
    """A queue with one gradient more, and without the first where it would hold more than it may."""
    if not queue:
        return new
    full = queue[SEEDS].numel() == capacity
    kept = {}
    for key, value in queue.items():
        weight = key.removeprefix(INPUTS)
        per_gradient = key == SEEDS or key.startswith(NUMBER)
        first = 1 if per_gradient else int(queue[NUMBER + (_first_weight(queue) if key == NODES else weight)][0])
        kept[key] = torch.cat([value[first if full else 0 :], new[key]])
    return kept


def _first_weight(queue: Params) -> str:
    """The weight whose inputs stand in the graph."""
    return next(key for key in queue if NUMBER + key in queue and INPUTS + key not in queue)


def pull(context: Context, queue: Params, displacement: Direction, scale: Tensor | float) -> Params:
    """scale · Σ_q (g_q · D) g_q over the queue's gradients g_q, by weight."""
    first_layer = capable(context.model, "first_layer")
    assert first_layer is not None
    batch = context.batcher.batch(queue[SEEDS].unique())
    inputs = first_layer(batch)  # matrices whose product with the weight is the layer's output
    rows = inputs[0].size(0)
    in_order, order = batch.nodes[:rows].sort()
    place = order[torch.searchsorted(in_order, queue[NODES])]
    weights = [name for name in displacement if NUMBER + name in queue]
    gradients = torch.arange(queue[SEEDS].numel(), device=batch.nodes.device)
    owner = {name: gradients.repeat_interleave(queue[NUMBER + name]) for name in weights}
    inner = queue[weights[0]].new_zeros(gradients.numel())  # g_q · D
    for name in weights:
        if INPUTS + name in queue:
            moved = queue[INPUTS + name] @ displacement[name]
        else:
            moved = displacement[name]
            for matrix in reversed(inputs):
                moved = product(matrix, moved)
            moved = moved[place]
        inner.index_add_(0, owner[name], (moved * queue[name]).sum(1))
    inner *= scale
    pulls = {}
    for name in weights:
        cotangents = inner[owner[name]].unsqueeze(1) * queue[name]
        if INPUTS + name in queue:
            pulls[name] = queue[INPUTS + name].T @ cotangents
            continue
        gathered = cotangents.new_zeros(rows, cotangents.size(1)).index_add_(0, place, cotangents)
        for matrix in inputs:
            gathered = product(matrix.t(), gathered)
        pulls[name] = gathered
    return pulls
