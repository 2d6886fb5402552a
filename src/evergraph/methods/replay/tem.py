"""Topology-aware embedding memory (Zhang et al., KDD 2024): propagated vectors in place of nodes and neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evergraph.methods.base import METHODS, Context
from evergraph.methods.memory import Piece, ReplayMethod, smaller_form
from evergraph.methods.memory.samplers import covered
from evergraph.methods.propagation import depth, propagated


@METHODS.register
@dataclass(repr=False)
class TEM(ReplayMethod):
    """Keep a node as the single vector that the model sees of it, Ã^K X at the node: its topology in O(1) numbers.

    With `pdgnn`, its default model, a node in memory has exactly the outputs and gradients that it had in its graph.
    Other models read the vector as the features of a node without neighbours.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples kept per class if `memory` is empty.
        strength: factor on the loss of the replayed examples; 0 is fine-tuning.
        weighting: weight of replayed examples relative to the task's: `classes`, every old class counts as much as one
            of the task's on average; `nodes`, an example counts as many training nodes as it represents; `sets`, the
            memory as a whole counts as much as the task; `examples`, each counts 1.
        replay_size: examples drawn from the memory at each step; 0 uses all of them.
        sampler: `coverage` draws nodes with probability proportional to the number of nodes within K hops, the paper's
            coverage maximization; `uniform` draws them with equal probability.
    """

    name = "tem"
    reference = "Zhang et al.: Topology-aware Embedding Memory for Continual Learning on Expanding Networks, KDD 2024"
    model = "pdgnn"

    sampler: Literal["coverage", "uniform"] = "coverage"

    def rank(self, context: Context, nodes: Tensor, number: int) -> Tensor:
        """Draw `number` nodes without replacement."""
        if self.sampler == "uniform":
            return super().rank(context, nodes, number)
        if "covered" not in context.cache:
            context.cache["covered"] = covered(context.task.graph.adjacency, depth(context))
        return nodes[torch.multinomial(context.cache["covered"][nodes], number, generator=context.generator)]

    def store(self, context: Context, nodes: Tensor) -> Piece:
        """Keep the nodes' propagated features."""
        dtype = next(context.model.parameters()).dtype
        x = propagated(context.task.graph, nodes, depth(context), dtype)
        return Piece(smaller_form(x), context.batcher.y.cpu()[nodes])
