"""Leak score of a stream: how often mean-pooled features reveal the task being tested."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from evergraph.core.features import Features, take_rows
from evergraph.core.settings import checked
from evergraph.core.sparse import SparseMatrix
from evergraph.data.graph import Graph
from evergraph.data.streams import TaskStream
from evergraph.data.test_graphs import TEST_GRAPHS
from evergraph.errors import EvergraphError
from evergraph.evaluation.leak import share_named

ROWS_AT_ONCE = 2**16  # feature rows read at once, since the graph may be on disk


@checked
def leak_score(stream: TaskStream, test_graph: str | None = None) -> float:
    """Percentage of test queries whose task a nearest-mean rule identifies after the last task, averaged over tasks.

    A task's profile is the mean of its training nodes' features. Queries are pooled in the same way, and the nearest
    profile (in Euclidean distance) names the task. Where all test nodes of a graph belong to one task (test graph
    `task`), their mean is a single query, as in methods that infer the task of a test graph. Otherwise every node is a
    query: the mean over the node and the nodes it reads, which are all its neighbours for `seen` and its training
    neighbours for `node`. Chance is 100 / number of tasks; 100 means that class-incremental results on this test graph
    are task-incremental for any method that pools.

    Args:
        stream: a stream whose examples are nodes.
        test_graph: test graph to use instead of the stream's own.
    """
    rule = TEST_GRAPHS[test_graph or stream.test_graph]
    if stream.graph.level != "node":
        raise EvergraphError(
            f"{stream.name}: the leak score is of streams whose examples are nodes, and these are {stream.graph.level}s"
        )
    profiles = torch.stack([_profile(task.graph.x, task.train) for task in stream])
    last = len(stream) - 1
    tests = (stream.tests(last, index, rule.name) for index in range(len(stream)))
    asked: list[Tensor] = []
    for _, group in groupby(tests, key=lambda pair: id(pair[0])):
        pairs = list(group)
        graph = pairs[0][0]
        if not all(nodes.numel() for _, nodes in pairs):
            raise EvergraphError(f"{stream.name}: a task has no test nodes, so that there is nothing to name it by")
        if rule.one_task:
            asked += [_products(graph.x, nodes, profiles).mean(0, keepdim=True) for _, nodes in pairs]
            continue
        at_nodes = _products(graph.x, torch.arange(graph.num_nodes), profiles)
        asked += [neighbourhood_means(graph, nodes, at_nodes) for _, nodes in pairs]
    return share_named(asked, profiles.square().sum(1))


def neighbourhood_means(graph: Graph, nodes: Tensor, values: Tensor) -> Tensor:
    """Return the mean of `values` (one row per node of the graph) over each of `nodes` and the nodes it reads."""
    read = graph.adjacency.rows(nodes)
    read = read.with_values(torch.ones_like(read.values, dtype=values.dtype))  # edge weights are ignored
    return (values[nodes] + read @ values) / (1 + read.counts().unsqueeze(1))


def _profile(x: Features, nodes: Tensor) -> Tensor:
    """Return the mean of the nodes' features, in float64."""
    total = torch.zeros(x.size(1), dtype=torch.float64)
    for rows in nodes.split(ROWS_AT_ONCE):
        block = take_rows(x, rows)
        if isinstance(block, SparseMatrix):
            total.index_add_(0, block.indices, block.values.double())
        else:
            total += block.double().sum(0)
    return total / nodes.numel()


def _products(x: Features, nodes: Tensor, profiles: Tensor) -> Tensor:
    """Return x_v · p_t for each node v and task t in float64, reading features a block at a time."""
    return torch.cat([take_rows(x, rows).to(torch.float64) @ profiles.T for rows in nodes.split(ROWS_AT_ONCE)])
