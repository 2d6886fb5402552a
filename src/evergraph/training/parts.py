"""Prediction on a partitioned graph: each process predicts its own nodes, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.data import Graph

if TYPE_CHECKING:
    from evergraph.training.learner import Learner

NODES_IN_PIECE = 2**16  # of a graph in parts, whose outputs are computed together


def outputs_in_pieces(learner: Learner, graph: Graph, nodes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this process's nodes and their outputs, a piece at a time."""
    for piece in nodes.split(NODES_IN_PIECE):
        yield piece, learner.outputs(graph, piece)


def accuracy_on_parts(learner: Learner, graph: Graph, nodes: Tensor) -> float | None:
    """Percentage of the given nodes, over all processes, that are classified correctly among the known classes."""
    assert graph.rows is not None
    truth, known = learner.problem.targets(graph, learner.classes_), len(learner.classes_)
    counts = torch.tensor([0, nodes.numel()])
    for piece, outputs in outputs_in_pieces(learner, graph, nodes) if nodes.numel() else ():
        counts[0] += int((outputs[:, :known].argmax(1) == truth[piece]).sum())
    hits, total = graph.rows.group.sum([counts])[0].tolist()
    return 100 * hits / total if total else None
