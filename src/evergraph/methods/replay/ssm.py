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
    """Replay of random nodes of each class, each with a few of its neighbours; a subclass picks which."""

    access = Access(keeps=("real nodes", "graphs"), old_labels=True)
    # small steps: what no kept example reads shall not drift; and enough of them for dense features
    training = MappingProxyType({**ReplayMethod.training, "lr": 3e-4, "epochs": 200})
    search_space = MappingProxyType({**ReplayMethod.search_space, "lr": (1e-5, 1e-3)})

    strength: NonNegative = 10.0
    neighbours: tuple[NonNegativeInt, ...] = (3, 1)
    label_neighbours: bool = True

    def store(self, context: Context, nodes: Tensor) -> Piece:
        """The nodes, the neighbours picked hop by hop, and the edges between all of these."""
        graph, units, train = context.task.graph, context.batcher.y.cpu(), context.task.train
        labels = None
        if self.label_neighbours:
            labels = torch.full_like(units, -1)
            labels[train] = units[train]
        dtype, pick = next(context.model.parameters()).dtype, self.pick(context)
        return with_neighbours(graph, nodes, units[nodes], self.neighbours, pick, dtype, labels)

    def pick(self, context: Context) -> Pick:
        """How neighbours are picked."""
        raise NotImplementedError


@METHODS.register
@dataclass(repr=False)
class SSM(SubgraphMemory):
    """Random nodes of each class with their computation subgraphs, made sparse by drawing a few neighbours at each hop.

    A subgraph takes O(1) nodes in place of O(d^L), and a replayed node is still read through neighbours of its own.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
            Neighbours count in bytes alone.
        per_class: examples of each class that are kept where `memory` is empty; their neighbours are not counted.
        strength: factor on the loss of the replayed examples; 0 is fine-tuning.
        weighting: of replayed examples against the task's: `classes`, every old class counts as one of the task's
            classes does on average; `nodes`, an example counts as many as the training nodes it stands for; `sets`,
            the memory as a whole counts as the task does; `examples`, each counts 1.
        replay_size: examples drawn from the memory at each step; 0 takes all of them.
        neighbours: how many neighbours are kept for each node of the hop before, from the examples outwards.
        label_neighbours: train on kept neighbours too if they are training nodes, which are then drawn first; the paper
            trains on examples alone.
        sampler: draws neighbours `uniform`ly, or with probability proportional to their `degree`.
    """

    name = "ssm"
    reference = "Zhang, Song and Tao: Sparsified Subgraph Memory for Continual Graph Representation Learning, ICDM 2022"

    sampler: Literal["uniform", "degree"] = "uniform"

    def pick(self, context: Context) -> Pick:
        """At random, without replacement; if neighbours are trained on, training nodes first: they count twice."""
        degrees, first = context.task.graph.adjacency.counts().double(), None
        if self.label_neighbours:
            first = torch.zeros_like(degrees)
            first[context.task.train] = 1
        return drawn_neighbours(context, degrees if self.sampler == "degree" else None, first)
