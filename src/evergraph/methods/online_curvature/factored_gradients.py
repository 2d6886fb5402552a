"""Gradients of single nodes as factors: a weight's gradient is XᵀΔ, and a node has few rows of X and Δ.

With sparse inputs, a node's dense gradient at the first weight matrix is almost all zeros. Its factors are the
cotangents Δ at the rows that the node reads, and the nodes of those rows, whose inputs are in the graph. The inputs of
later layers change with the parameters, so their rows are stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.features import product
from evergraph.core.params import Direction, Params, all_trained
from evergraph.core.recording import recorded_products
from evergraph.core.shortcuts import fast
from evergraph.core.sparse import SparseMatrix
from evergraph.core.workers import workers
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.methods.base import Context, Step
from evergraph.models.fixed_products import first_layer_product

SEEDS, NODES, INPUTS, NUMBER = "seeds", "nodes", "inputs of ", "rows of "
"""Keys of a queue besides the weights' names, which hold the cotangents: the node of each gradient; the nodes of the
first layer's rows; the inputs of other layers; how many rows each gradient has for a weight."""


def factors_pay(context: Context) -> bool:
    """Return whether to keep single nodes' gradients as factors: sparse inputs, a supported model, nothing frozen."""
    batcher = context.batcher
    exact = batcher.fan_out is None and batcher.members is None
    at_hand = context.device.type == "cpu" and isinstance(batcher.x, SparseMatrix) and workers().size == 1
    shown = all(capable(context.model, name) is not None for name in ("first_layer", "after_first_layer"))
    return fast("structure") and exact and at_hand and shown and all_trained(context.model)


def node_factors(context: Context, seed: Tensor, score: Tensor, step: Step) -> Params:
    """Return the factors of the gradient of score · outputs at one node of a step's batch."""
    after = capable(context.model, "after_first_layer")
    assert after is not None
    factors: Params
    names = {id(value): name for name, value in context.params.items()}
    first = next(iter(names.values()))
    batch = _beyond_first_layer(context).batch(seed)
    nodes = batch.nodes
    if step.layers:  # the pass over the batch has computed the first layer's output
        out = step.layers[0].out.detach()
        hidden = out.index_select(0, _places(context, step.batch, out.size(0), nodes))
    else:
        hidden = _first_layer_rows(context, seed, nodes.numel())
    if (known := _by_the_last_layer(context, batch, hidden, score)) is not None:
        inputs, cotangent = known
        number = seed.new_full((1,), nodes.numel())
        last = list(names.values())[-1]
        factors = {SEEDS: seed, NODES: nodes, first: cotangent, NUMBER + first: number}
        return {**factors, last: score, NUMBER + last: torch.ones_like(number), INPUTS + last: inputs}
    hidden.requires_grad_()
    with torch.enable_grad(), recorded_products() as products:
        outputs = after(batch, hidden)
    made = {names[id(each.weight)]: each for each in products}
    cotangents = torch.autograd.grad(outputs, [hidden, *(each.out for each in made.values())], score)
    factors = {SEEDS: seed, NODES: nodes}
    for name, cotangent in zip([first, *made], cotangents):
        factors[name] = cotangent
        factors[NUMBER + name] = seed.new_full((1,), cotangent.size(0))
        if name in made:
            rows = made[name].rows
            assert isinstance(rows, Tensor)
            factors[INPUTS + name] = rows.detach()
    return factors


def _by_the_last_layer(context: Context, batch: Batch, hidden: Tensor, score: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return P [σ(H) 1] and the gradient at H for outputs P [σ(H) 1] W at one node; None for other outputs."""
    last_layer, output_weight = capable(context.model, "last_layer"), capable(context.model, "output_weight")
    operator = None if last_layer is None or output_weight is None else last_layer(batch)
    if operator is None or output_weight is None:
        return None
    weights, weight = operator.dense(), output_weight().detach()
    inputs = torch.cat([weights @ hidden.clamp(min=0), weights.sum(1, keepdim=True)], dim=1)
    return inputs, torch.ops.aten.threshold_backward(weights.T @ (score @ weight[:-1].T), hidden, 0)


def _beyond_first_layer(context: Context) -> Neighbourhoods:
    """Return a batcher for all layers but the first, whose batches hold no inputs."""
    if "beyond first layer" not in context.cache:
        whole = context.batcher
        nothing = whole.operator.values.new_empty(whole.operator.num_rows, 0)
        hops = len(context.params) - 1  # one weight matrix per layer
        context.cache["beyond first layer"] = Neighbourhoods(nothing, whole.operator, whole.y, hops)
    batcher: Neighbourhoods = context.cache["beyond first layer"]
    return batcher


def _first_layer_rows(context: Context, seed: Tensor, rows: int) -> Tensor:
    """Compute the first layer's output at the first rows of a node's batch."""
    weight = next(iter(context.params.values())).detach()
    return first_layer_product(context.model, context.batcher.batch(seed), weight)[:rows]


def pushed(queue: Params, new: Params, capacity: int) -> Params:
    """Return the queue with one more gradient, without the oldest if it would exceed its capacity."""
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
    """Return the name of the weight whose inputs are in the graph."""
    return next(key for key in queue if NUMBER + key in queue and INPUTS + key not in queue)


def pull(context: Context, queue: Params, displacement: Direction, scale: Tensor | float) -> Params:
    """Return scale · Σ_q (g_q · D) g_q over the queue's gradients g_q, by weight, from a batch of the queue's nodes."""
    first_layer = capable(context.model, "first_layer")
    assert first_layer is not None
    batch = context.batcher.batch(queue[SEEDS].unique())
    inputs = first_layer(batch)  # matrices whose product with the weight is the layer's output
    moved = first_layer_product(context.model, batch, displacement[_first_weight(queue)])
    place = _places(context, batch, inputs[0].size(0), queue[NODES])
    cotangents = _weighted(queue, moved.index_select(0, place), displacement, scale)
    pulls = {}
    for name, cotangent in cotangents.items():
        if INPUTS + name in queue:
            pulls[name] = queue[INPUTS + name].T @ cotangent
            continue
        gathered = torch.zeros_like(moved).index_add_(0, place, cotangent)
        for matrix in inputs:
            gathered = product(matrix.t(), gathered)
        pulls[name] = gathered
    return pulls


def pull_within(step: Step, queue: Params, displacement: Direction, scale: Tensor | float) -> Tensor | None:
    """Return a term of the step's objective whose gradient is `pull`, if the step's batch holds the queue's nodes.

    The first layer's forward and backward products then serve both the step and the queue. None if the batch does not
    hold the nodes, or its pass did not compute the tangent along D.
    """
    layer = next((each for each in step.layers if each.direction is displacement), None)
    if layer is None or layer.tangent is None:
        return None
    place = _places(step.context, step.batch, layer.out.size(0), queue[NODES])
    if bool((place < 0).any()):
        return None
    cotangents = _weighted(queue, layer.tangent.index_select(0, place), displacement, scale)
    params, terms = step.context.params, []
    for name, cotangent in cotangents.items():
        inputs = queue.get(INPUTS + name)
        if inputs is None:  # summed by row, so that no rows of the layer's output are picked, forwards or backwards
            cotangent = torch.zeros_like(layer.out).index_add_(0, place, cotangent)
        rows = layer.out if inputs is None else inputs @ params[name]
        terms.append(rows.flatten() @ cotangent.flatten())
    return torch.stack(terms).sum()


def _places(context: Context, batch: Batch, rows: int, nodes: Tensor) -> Tensor:
    """Return the positions of nodes among the first rows of a batch; −1 for nodes not there."""
    if "places" not in context.cache:
        context.cache["places"] = torch.full((context.batcher.operator.num_rows,), -1, device=nodes.device)
    places: Tensor = context.cache["places"]
    places[batch.nodes[:rows]] = torch.arange(rows, device=nodes.device)
    found = places.index_select(0, nodes)
    places[batch.nodes[:rows]] = -1
    return found


def _weighted(queue: Params, first: Tensor, displacement: Direction, scale: Tensor | float) -> Params:
    """Return scale · (g_q · D) times each g_q's cotangents, by weight; `first` is the first layer's tangent along D."""
    weights = [name for name in displacement if NUMBER + name in queue]
    gradients = torch.arange(queue[SEEDS].numel(), device=first.device)
    owner = {name: gradients.repeat_interleave(queue[NUMBER + name]) for name in weights}
    inner = first.new_zeros(gradients.numel())  # g_q · D
    for name in weights:
        inputs = queue.get(INPUTS + name)
        moved = first if inputs is None else inputs @ displacement[name]
        inner.index_add_(0, owner[name], (moved * queue[name]).sum(1))
    inner *= scale
    return {name: inner[owner[name]].unsqueeze(1) * queue[name] for name in weights}
