"""A memory of real nodes with what is around them: nodes of each task, and the subgraph within some hops of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evergraph.core.randomness import own_numbers, random_subset
from evergraph.data.batching import Batch
from evergraph.data.graph import Graph
from evergraph.data.tasks import Task, union
from evergraph.methods.base import Context, Step

Kept = dict[str, Any]
"""A packed task (`Task.pack`) whose training nodes are those kept, in random order; and how many there were."""


def hops_around(context: Context) -> int:
    """How far the model looks from a node."""
    return context.problem.batcher(context.model, context.task.graph, show_edges=True).num_hops


def within_hops(graph: Graph, nodes: Tensor, hops: int) -> tuple[Graph, int]:
    """The graph induced on the nodes, which come first, and all within some hops of them; and the number of nodes."""
    reached = nodes
    for _ in range(hops):
        near = torch.unique(graph.adjacency.rows(reached).indices)
        reached = torch.cat([reached, near[~torch.isin(near, reached)]])
    return graph.subgraph(reached), nodes.numel()


def draw(context: Context, number: int, hops: int) -> Kept:
    """Some training nodes of the task, each as likely as any other, with all within some hops. Labels are units."""
    order = torch.randperm(context.num_train, generator=context.generator)[:number]
    cut, count = within_hops(context.task.graph, context.task.train[order], hops)
    chosen = torch.arange(count)
    units = torch.full((cut.num_nodes,), -1)
    units[:count] = context.batcher.y.cpu()[context.task.train[order]]
    names: list[Any] = list(range(int(units.max()) + 1))
    graph = Graph(cut.x, cut.adjacency, units, names, "memory")
    task = Task(context.index, [], graph, chosen, chosen[:0], chosen[:0], len(names))
    return {**task.pack(), "hops": hops, "drawn_from": context.num_train}


def shrunk(kept: Kept, number: int) -> Kept:
    """The first nodes kept, with their surroundings alone."""
    task = Task.unpack(kept)
    if number >= task.train.numel():
        return kept
    graph, count = within_hops(task.graph, task.train[:number], kept["hops"])
    graph.y[count:] = -1
    nodes = torch.arange(count)
    smaller = Task(task.index, [], graph, nodes, nodes[:0], nodes[:0], task.num_classes)
    return {**smaller.pack(), "hops": kept["hops"], "drawn_from": kept["drawn_from"]}


def remember(memory: list[Kept], context: Context, size: int, hops: int) -> list[Kept]:
    """The memory with the task's share of `size` nodes: every node ever seen is about as likely to be in it."""
    total = sum(kept["drawn_from"] for kept in memory) + context.num_train

    def share(seen: int) -> int:
        return max(1, size * seen // total)

    before = [shrunk(kept, share(kept["drawn_from"])) for kept in memory]
    return [*before, draw(context, share(context.num_train), hops)]


def replayed(step: Step, memory: list[Kept]) -> Batch:
    """A batch of nodes from the memory: as many as the step's own, drawn anew; all of them where it holds no more."""
    context = step.context
    if "memory" not in context.cache:
        task = union([Task.unpack(kept) for kept in memory])
        batcher = context.problem.batcher(context.model, task.graph, targets=task.graph.y, device=context.device)
        nodes = task.train.to(context.device)
        context.cache["memory"] = (batcher, nodes, batcher.batch(nodes))
    batcher, nodes, whole = context.cache["memory"]
    batch: Batch = whole
    if nodes.numel() > step.batch.num_examples:
        chosen = random_subset(step.batch.num_examples, nodes.numel(), context.device, context.generator)
        # on a GPU rows of one pass over all nodes: a step then has the same shapes every time
        batch = whole.choose(chosen, whole.y[chosen]) if own_numbers(nodes.device) else batcher.batch(nodes[chosen])
    return batch
