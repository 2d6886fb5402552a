"""Prediction on a graph in parts: every process its own nodes, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.data import Graph

if TYPE_CHECKING:
    from evergraph.training.learner import Learner

NODES_AT_ONCE = 2**16


def outputs_in_pieces(learner: Learner, graph: Graph, nodes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some of the process's own nodes and their outputs, until all are done."""
    for piece in nodes.split(NODES_AT_ONCE):
        yield piece, learner.outputs(graph, piece)


def accuracy_on_parts(learner: Learner, graph: Graph, nodes: Tensor) -> float | None:
    """Of the given nodes of all processes, how many per cent the learner puts right among the classes it knows."""
    assert graph.rows is not None
    truth, known = learner.problem.targets(graph, learner.classes_), len(learner.classes_)
    counts = torch.tensor([0, nodes.numel()])
    for piece, outputs in outputs_in_pieces(learner, graph, nodes) if nodes.numel() else ():
        counts[0] += int((outputs[:, :known].argmax(1) == truth[piece]).sum())
    hits, total = graph.rows.group.sum([counts])[0].tolist()
    return 100 * hits / total if total else None
