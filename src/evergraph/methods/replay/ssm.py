"""Sparsified subgraph memory (Zhang, Song and Tao, ICDM 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from evergraph.core.settings import NonNegative, NonNegativeInt
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, Context
from evergraph.methods.memory import Piece, ReplayMethod
from evergraph.methods.memory.subgraphs import Pick, drawn_neighbours, with_neighbours


@dataclass(repr=False)
class SubgraphMemory(ReplayMethod):
    """Replay random nodes of each class, each with a few of its neighbours, which a subclass picks."""

    access = Access(keeps=("real nodes", "graphs"), old_labels=True)
    # small steps, so that weights that no kept example reads do not drift; enough of them for dense features
    training = MappingProxyType({**ReplayMethod.training, "lr": 3e-4, "epochs": 200})
    search_space = MappingProxyType({**ReplayMethod.search_space, "lr": (1e-5, 1e-3)})

    strength: NonNegative = 10.0
    neighbours: tuple[NonNegativeInt, ...] = (3, 1)
    label_neighbours: bool = True

    def store(self, context: Context, nodes: Tensor) -> Piece:
        """Keep the nodes, the neighbours picked hop by hop, and the edges between all of these."""
        graph, units, train = context.task.graph, context.batcher.y.cpu(), context.task.train
        labels = None
        if self.label_neighbours:
            labels = torch.full_like(units, -1)
            labels[train] = units[train]
        dtype, pick = next(context.model.parameters()).dtype, self.pick(context)
        return with_neighbours(graph, nodes, units[nodes], self.neighbours, pick, dtype, labels)

    def pick(self, context: Context) -> Pick:
        """Return the function that picks neighbours."""
        raise NotImplementedError


@METHODS.register
@dataclass(repr=False)
class SSM(SubgraphMemory):
    """Replay random nodes of each class with computation subgraphs sparsified by drawing a few neighbours per hop.

    A subgraph has O(1) nodes instead of O(d^L), and a replayed node is still read through its own neighbours.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
            Neighbours count only towards a budget in bytes.
        per_class: examples kept per class if `memory` is empty; their neighbours are not counted.
        strength: factor on the loss of the replayed examples; 0 is fine-tuning.
        weighting: weight of replayed examples relative to the task's: `classes`, every old class counts as much as one
            of the task's on average; `nodes`, an example counts as many training nodes as it represents; `sets`, the
            memory as a whole counts as much as the task; `examples`, each counts 1.
        replay_size: examples drawn from the memory at each step; 0 uses all of them.
        neighbours: how many neighbours are kept for each node of the previous hop, from the examples outwards.
        label_neighbours: also train on kept neighbours that are training nodes, which are then drawn first; the paper
            trains on examples only.
        sampler: draws neighbours `uniform`ly, or with probability proportional to their `degree`.
    """

    name = "ssm"
    reference = "Zhang, Song and Tao: Sparsified Subgraph Memory for Continual Graph Representation Learning, ICDM 2022"

    sampler: Literal["uniform", "degree"] = "uniform"

    def pick(self, context: Context) -> Pick:
        """Return a random pick without replacement.

        If neighbours are trained on, training nodes come first, since they serve twice.
        """
        degrees, first = context.task.graph.adjacency.counts().double(), None
        if self.label_neighbours:
            first = torch.zeros_like(degrees)
            first[context.task.train] = 1
        return drawn_neighbours(context, degrees if self.sampler == "degree" else None, first)
