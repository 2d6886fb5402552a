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
    """Replay random nodes of each class with the neighbours whose edges have the highest Ricci curvature.

    The curvature of an edge grows with the overlap of the two neighbourhoods: a neighbour across an edge of high
    curvature says much about the node itself.

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
        label_neighbours: also train on kept neighbours that are training nodes; the paper trains on examples only.
        curvature: `bound` is the lower bound of Jost and Liu, from degrees and triangles; `ollivier` is Ollivier's
            curvature itself, by linear programming, for graphs with small degrees.
    """

    name = "sem"
    reference = "Zhang, Song and Tao: Ricci Curvature-Based Graph Sparsification for Continual Graph ... , TPAMI 2023"

    curvature: Literal["bound", "ollivier"] = "bound"

    def pick(self, context: Context) -> Pick:
        """Return a function that picks the neighbours across the edges of highest curvature, the first among equals."""
        edges = EdgeCurvature(context.task.graph.adjacency)

        def pick(node: int, neighbours: Tensor, number: int) -> Tensor:
            if neighbours.numel() <= 1 or not number:  # all of several are in order too: another hop takes fewer
                return neighbours[:number]
            if self.curvature == "bound":
                values = edges.bound(node, neighbours.numpy())
            else:
                values = np.array([edges.ollivier(node, other) for other in neighbours.tolist()])
            return neighbours[np.argsort(-values, kind="stable")[:number]]

        return pick
