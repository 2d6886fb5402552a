"""Subgraph episodic memory (Zhang, Song and Tao, TPAMI 2023): neighbours kept by Ricci curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from evergraph.methods.base import METHODS, Context
from evergraph.methods.memory.ricci import EdgeCurvature
from evergraph.methods.memory.subgraphs import Pick
from evergraph.methods.replay.ssm import SubgraphMemory


@METHODS.register
@dataclass(repr=False)
class SEM(SubgraphMemory):
    """Random nodes of each class with those neighbours whose edges have the highest Ricci curvature.

    The curvature of an edge grows with the overlap of the two neighbourhoods: a neighbour across an edge of high
    curvature tells much about the node itself.

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
        label_neighbours: train on kept neighbours too if they are training nodes; the paper trains on examples alone.
        curvature: `bound` is the lower bound of Jost and Liu, from degrees and triangles; `ollivier` is Ollivier's
            curvature itself, by linear programming, for graphs with small degrees.
    """

    name = "sem"
    reference = "Zhang, Song and Tao: Ricci Curvature-Based Graph Sparsification for Continual Graph ... , TPAMI 2023"

    curvature: Literal["bound", "ollivier"] = "bound"

    def pick(self, context: Context) -> Pick:
        """The neighbours across the edges of highest curvature; of equal ones the first."""
        edges = EdgeCurvature(context.task.graph.adjacency)

        def pick(node: int, neighbours: Tensor, number: int) -> Tensor:
            if neighbours.numel() <= number or not number:
                return neighbours[:number]
            if self.curvature == "bound":
                values = edges.bound(node, neighbours.numpy())
            else:
                values = np.array([edges.ollivier(node, other) for other in neighbours.tolist()])
            return neighbours[np.argsort(-values, kind="stable")[:number]]

        return pick
