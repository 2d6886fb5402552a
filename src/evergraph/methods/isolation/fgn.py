"""Lifelong graph learning (Wang, Qiu, Gao and Scherer, CVPR 2022): feature graphs with a memory of examples."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from evergraph.core.settings import NonNegativeInt, PositiveInt
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, Context, search_over
from evergraph.methods.memory import Piece, ReplayMethod, Weighting
from evergraph.methods.memory.subgraphs import seen_by_model


@METHODS.register
@dataclass(repr=False)
class FGN(ReplayMethod):
    """Rehearse single nodes, which a feature graph network makes independent examples: loss + strength · old loss.

    The model (`feature-graph`) reads a node and the features of its direct neighbours, and nothing else of the graph.
    So a node can be kept with those, and rehearsed long after its graph is gone. The memory is a uniform random sample
    of the nodes of all tasks; each step adds the loss of some of them.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
            Neighbours count only towards a budget in bytes.
        per_class: if `memory` is empty, this many nodes times the number of classes are kept; 500 in all in the
            paper. Their neighbours are not counted.
        strength: factor on the loss of the rehearsed nodes; 0 is fine-tuning.
        weighting: weight of rehearsed nodes relative to the task's: `sets`, the memory as a whole counts as much as the
            task, as with equal batches of both; or as for `reservoir`.
        replay_size: nodes drawn from the memory at each step; 0 uses all of them.
        neighbours: how many neighbours of each node are kept, drawn at random; empty for all, as in the paper.
    """

    name = "fgn"
    family = "architecture"
    besides = "the graph of the memory"
    reference = "Wang, Qiu, Gao and Scherer: Lifelong Graph Learning, CVPR 2022"
    access = Access(keeps=("real nodes", "graphs"), old_labels=True)
    model = "feature-graph"
    training = MappingProxyType({"label_scope": "seen", "lr": 0.01})
    search_space = search_over(strength=(0.1, 10.0))
    by_chance = True

    per_class: PositiveInt = 50
    weighting: Weighting = "sets"
    replay_size: NonNegativeInt = 128
    neighbours: tuple[NonNegativeInt, ...] = ()

    def store(self, context: Context, nodes: Tensor) -> Piece:
        """Keep the nodes with their neighbours."""
        return seen_by_model(context, nodes, self.neighbours)
