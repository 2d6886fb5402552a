"""Pairs without a link, drawn as negative examples of link prediction."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from evergraph.data.attributes import Attribute
from evergraph.data.examples import pairs_as_members, unordered_pairs
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError, tell

NEGATIVES = {0: 1, 1: 5, 2: 5}
"""Number of pairs without a link drawn for each link, by part: training, validation, test."""


def with_negatives(graph: Graph, task_of: Tensor, part: Tensor, seed: int) -> tuple[Graph, Tensor, Tensor]:
    """Add pairs without a link to a graph of existing links, drawn for every task and part, reproducibly by seed.

    One pair is drawn per training link and five per validation or test link (`NEGATIVES`), uniformly among the nodes
    that links of tasks up to this one touch; fewer, with a note, if there are not that many. No pair is drawn twice,
    for whatever task or part, nor one that is linked at any time or joined by an edge of the graph; in either
    direction.

    Returns:
        the graph, and the tasks and parts of its examples.
    """
    assert graph.members is not None
    ends = graph.members.indices.view(-1, 2)
    used = torch.unique(unordered_pairs(torch.cat([ends.T, graph.edge_index], dim=1), graph))
    share = _share_to_draw(graph, task_of, part, used)
    links, tasks, parts = [ends], [task_of], [part]
    for task in torch.unique(task_of[task_of >= 0]).tolist():
        nodes = torch.unique(ends[(task_of >= 0) & (task_of <= task)]).numpy()
        for number, times in NEGATIVES.items():
            wanted = math.ceil(share * times * int(((task_of == task) & (part == number)).sum()))
            random = np.random.default_rng([seed, task, number])
            drawn = torch.as_tensor(_unlinked(nodes, wanted, used.numpy(), graph.num_nodes, random, graph.name))
            used = torch.cat([used, unordered_pairs(drawn, graph)])
            links.append(drawn.T)
            tasks.append(torch.full((wanted,), task))
            parts.append(torch.full((wanted,), number))
    pairs = torch.cat(links)
    added = pairs.size(0) - ends.size(0)
    attributes = {  # drawn pairs have no attributes; fill with zeros
        key: Attribute(torch.cat([value.values, value.values.new_zeros(added)]), value.names)
        for key, value in graph.attributes.items()
    }
    whole = graph.altered(
        y=torch.cat([graph.y, graph.y.new_zeros(added, 1)]),
        members=pairs_as_members(pairs.T, graph.num_nodes),
        attributes=attributes,
        splits=None,
    )
    return whole, torch.cat(tasks), torch.cat(parts)


def _share_to_draw(graph: Graph, task_of: Tensor, part: Tensor, used: Tensor) -> float:
    """Return the share of the wanted pairs without a link that can be drawn, with some left over to draw from.

    `used` holds the pairs that are not to be drawn. A task draws from the pairs whose nodes it or an earlier one met.
    """
    assert graph.members is not None
    chosen = task_of >= 0
    tasks = int(task_of.max()) + 1
    met = torch.full((graph.num_nodes,), tasks).scatter_reduce(
        0, graph.members.indices.view(-1, 2)[chosen].flatten(), task_of[chosen].repeat_interleave(2), "amin"
    )
    last = torch.maximum(met[used // graph.num_nodes], met[used % graph.num_nodes])
    nodes = torch.bincount(met, minlength=tasks)[:tasks].cumsum(0)
    free = nodes * (nodes - 1) // 2 - torch.bincount(last, minlength=tasks)[:tasks].cumsum(0)
    times = torch.tensor([*NEGATIVES.values(), 0])[part]  # -1, no part, indexes the last entry
    wanted = torch.bincount(task_of[chosen], times[chosen], minlength=tasks).cumsum(0)
    share = float((0.8 * free / wanted.clamp(min=1)).min())
    if share <= 0:
        raise _too_few(graph.name)
    if share < 1:
        tell(
            f"{graph.name}: too few pairs of nodes have no link; instead of {NEGATIVES[0]} for each training link and "
            f"{NEGATIVES[2]} for each other one, {share:.0%} as many are drawn"
        )
    return min(share, 1.0)


def _too_few(name: str) -> EvergraphError:
    return EvergraphError(f"{name}: nearly all pairs of nodes are linked; there are too few others to draw")


def _unlinked(
    nodes: np.ndarray, wanted: int, used: np.ndarray, num_nodes: int, random: np.random.Generator, name: str
) -> np.ndarray:
    """Draw different pairs of different nodes, `(2, wanted)`; none of `used`: lower node · num_nodes + higher node."""
    found = np.zeros((2, 0), np.int64)
    for _ in range(100):
        if found.shape[1] >= wanted:
            break
        tried = nodes[random.integers(0, nodes.size, (2, 2 * (wanted - found.shape[1]) + 8))]
        found = np.concatenate([found, tried[:, tried[0] != tried[1]]], axis=1)
        pairs = found.min(0) * num_nodes + found.max(0)
        first = np.sort(np.unique(pairs, return_index=True)[1])
        found = found[:, first[~np.isin(pairs[first], used)]]
    if found.shape[1] < wanted:
        raise _too_few(name)
    return found[:, :wanted]
