"""Sparsified computation subgraphs: examples with some of their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evergraph.core.features import take_rows
from evergraph.data.graph import Graph
from evergraph.methods.base import Context
from evergraph.methods.memory.piece import Piece, smaller_form

Pick = Callable[[int, Tensor, int], Tensor]
"""Function from a node, its neighbours and a number to that many of the neighbours, or all, in order of priority."""


def drawn_neighbours(context: Context, weights: Tensor | None = None, first: Tensor | None = None) -> Pick:
    """Return a function that picks neighbours at random without replacement, those marked in `first` before others.

    Args:
        context: the task.
        weights: sampling weights of the graph's nodes; None for uniform sampling.
        first: 1 for nodes that come before others, else 0; None for no such order.
    """

    def pick(node: int, neighbours: Tensor, number: int) -> Tensor:
        number = min(number, neighbours.numel())
        if not number:
            return neighbours[:0]
        key = torch.rand(neighbours.numel(), generator=context.generator, dtype=torch.float64)
        if weights is not None:  # the largest u^(1/w) are a weighted draw without replacement (Efraimidis, Spirakis)
            key = key ** (1 / weights[neighbours].clamp(min=1e-9))
        if first is not None:
            key = key + first[neighbours]
        return neighbours[key.topk(number).indices]

    return pick


def seen_by_model(context: Context, nodes: Tensor, neighbours: Sequence[int]) -> Piece:
    """Return the nodes with drawn neighbours or, if `neighbours` is empty, with the whole subgraph the model sees."""
    graph, units = context.task.graph, context.batcher.y.cpu()
    hops = context.problem.batcher(context.model, graph, show_edges=True).num_hops
    dtype = next(context.model.parameters()).dtype
    if neighbours:
        return with_neighbours(graph, nodes, units[nodes], neighbours, drawn_neighbours(context), dtype)
    return with_neighbours(graph, nodes, units[nodes], [graph.num_nodes] * hops, _all_of_them, dtype)


def _all_of_them(node: int, neighbours: Tensor, number: int) -> Tensor:
    return neighbours


def with_neighbours(
    graph: Graph,
    nodes: Tensor,
    units: Tensor,
    numbers: Sequence[int],
    pick: Pick,
    dtype: torch.dtype,
    labels: Tensor | None = None,
) -> Piece:
    """Return the examples with picked neighbours, and all edges of the graph between the kept nodes.

    Args:
        graph: graph of the examples.
        nodes: the examples, in order of priority.
        units: targets of the examples.
        numbers: how many neighbours to pick for each node of the previous hop, hop by hop outwards.
        pick: picks the neighbours.
        dtype: dtype of the kept features.
        labels: target of each node of the graph, -1 for none, to keep with the nodes; None keeps only the examples'.
    """
    adjacency, place, owner, most = graph.adjacency, dict[int, int](), list[int](), max(numbers, default=0)
    picked: dict[int, list[int]] = {}  # a node reached twice has the same neighbours, more of them at an inner hop

    def bring(node: int, example: int) -> None:
        if node not in place:
            place[node] = len(owner)
            owner.append(example)

    for example, seed in enumerate(nodes.tolist()):
        bring(seed, example)
        frontier = [seed]
        for number in numbers:
            outer: list[int] = []
            for node in frontier:
                if node not in picked:
                    neighbours = adjacency.indices[int(adjacency.indptr[node]) : int(adjacency.indptr[node + 1])]
                    picked[node] = pick(node, neighbours, most).tolist()
                outer += picked[node][:number]
            for node in outer:
                bring(node, example)
            frontier = list(dict.fromkeys(outer))
    kept = torch.tensor(list(place))
    seeds = torch.tensor([place[node] for node in nodes.tolist()])
    around = graph.subgraph(kept).adjacency
    edges = torch.stack([around.indices, around.row_of_entry()])
    weights = None if bool((around.values == 1).all()) else around.values
    x = smaller_form(take_rows(graph.x, kept).to(dtype))
    kept_labels = None if labels is None else labels[kept]
    return Piece(x, units, seeds, edges, torch.tensor(owner), kept_labels, edge_weight=weights)
