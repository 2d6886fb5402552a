"""Examples with some of their neighbours: computation subgraphs, made sparse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evergraph.core.sparse import take_rows
from evergraph.data.graph import Graph
from evergraph.methods.base import Context
from evergraph.methods.memory.piece import Piece, smaller_form

Pick = Callable[[int, Tensor, int], Tensor]
"""From a node, its neighbours and a number to so many of the neighbours, or all."""


def drawn_neighbours(context: Context, weights: Tensor | None = None, first: Tensor | None = None) -> Pick:
    """Picks neighbours at random without replacement: uniformly or by weights, those of `first` before all others.

    Args:
        context: the task.
        weights: of the graph's nodes; None for all alike.
        first: whether a node comes before others; None for no such order.
    """

    def pick(node: int, neighbours: Tensor, number: int) -> Tensor:
        if neighbours.numel() <= number or not number:
            return neighbours[:number]
        key = torch.rand(neighbours.numel(), generator=context.generator, dtype=torch.float64)
        if weights is not None:  # the largest u^(1/w) are a weighted draw without replacement (Efraimidis, Spirakis)
            key = key ** (1 / weights[neighbours].clamp(min=1e-9))
        if first is not None:
            key = key + first[neighbours]
        return neighbours[key.topk(number).indices]

    return pick


def seen_by_model(context: Context, nodes: Tensor, neighbours: Sequence[int]) -> Piece:
    """The nodes with drawn neighbours; where no numbers are named, with the whole subgraph that the model sees."""
    graph, units = context.task.graph, context.batcher.y.cpu()
    hops = context.problem.batcher(context.model, graph, show_edges=True).num_hops
    numbers = neighbours or [graph.num_nodes] * hops
    dtype = next(context.model.parameters()).dtype
    return with_neighbours(graph, nodes, units[nodes], numbers, drawn_neighbours(context), dtype)


def with_neighbours(
    graph: Graph,
    nodes: Tensor,
    units: Tensor,
    numbers: Sequence[int],
    pick: Pick,
    dtype: torch.dtype,
    labels: Tensor | None = None,
) -> Piece:
    """The examples with picked neighbours, and all edges of the graph between the nodes kept.

    Args:
        graph: where they are.
        nodes: the examples, the most wanted first.
        units: their targets.
        numbers: how many neighbours to pick for each node of the hop before, hop by hop outwards.
        pick: picks them.
        dtype: of the features kept.
        labels: a target for each node of the graph, -1 for none, to be kept with the nodes; None keeps the examples'.
    """
    adjacency, place, owner = graph.adjacency, dict[int, int](), list[int]()
    picked: dict[int, list[int]] = {}  # of a node met twice, the neighbours are the same

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
                    picked[node] = pick(node, neighbours, number).tolist()
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
