"""ER-GNN (Zhou and Cao, AAAI 2021): experience replay of single nodes, chosen by one of three rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.features import as_dense, take_rows
from evergraph.core.settings import NonNegative, Positive
from evergraph.curvature import in_mode, outputs_at
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, Context, search_over
from evergraph.methods.memory import ReplayMethod, Weighting
from evergraph.methods.memory.samplers import influences, mean_distance, nearest_to_mean, strangers_within
from evergraph.models.base import MEASURED_AT_ONCE

Sampler = Literal["mean-of-feature", "coverage", "influence"]


@METHODS.register
@dataclass(repr=False)
class ERGNN(ReplayMethod):
    """Minimize β L(D) + (1−β) L(M), β = |M|/(|D|+|M|), with L summed over the task's nodes D and the memory M.

    So both sets have equal weight: relative to 1 for a node of the task, a node in memory counts |D|/|M|
    (`weighting=sets`).

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples kept per class if `memory` is empty.
        strength: factor on the loss of the replayed examples; 0 is fine-tuning.
        weighting: weight of replayed examples relative to the task's: `sets` is the paper's; `classes`, every old class
            counts as much as one of the task's on average; `nodes`, an example counts as many training nodes as it
            represents; `examples`, each counts 1.
        replay_size: examples drawn from the memory at each step; 0 uses all of them.
        sampler: `mean-of-feature` keeps the nodes nearest to the mean of their class; `coverage` those with the fewest
            nodes of other classes of the task within a radius; `influence` those whose removal would raise the loss on
            the task's validation nodes the most.
        space: where distances are measured: `features` of the nodes, or `embeddings`, the inputs of the model's last
            weight matrix.
        radius: of `coverage`; 0 uses half the mean distance between the task's training nodes.
        damping: of `influence`: added to the diagonal of the Hessian.
    """

    name = "er-gnn"
    reference = "Zhou and Cao: Overcoming Catastrophic Forgetting in GNNs with Experience Replay, AAAI 2021"
    search_space = search_over(strength=(0.1, 1000.0), sampler=list(get_args(Sampler)))

    weighting: Weighting = "sets"
    sampler: Sampler = "mean-of-feature"
    space: Literal["features", "embeddings"] = "features"
    radius: NonNegative = 0.0
    damping: Positive = 0.01

    def rank(self, context: Context, nodes: Tensor, number: int) -> Tensor:
        """Return the `number` nodes of one class with the highest priority under `sampler`, in order."""
        if self.sampler == "influence":
            return nodes[self.influence(context)[nodes].argsort(descending=True, stable=True)[:number]]
        x = self.vectors(context, nodes)
        if self.sampler == "mean-of-feature":
            return nodes[nearest_to_mean(x)[:number].cpu()]
        train, units = context.task.train, context.batcher.y.cpu()
        everyone = self.vectors(context, train)
        radius = self.radius or mean_distance(everyone, context.generator) / 2
        strangers = everyone[units[train] != units[nodes[0]]]
        return nodes[strangers_within(x, strangers, radius).argsort(stable=True)[:number].cpu()]

    def vectors(self, context: Context, nodes: Tensor) -> Tensor:
        """Return the rows between which distances are measured, one per node, on the model's device."""
        if self.space == "features":
            return as_dense(take_rows(context.task.graph.x, nodes).to(context.device)).float()
        features = capable(context.model, "features")
        if features is None:
            raise EvergraphError("er-gnn: space=embeddings needs a model with a linear head; use space=features")
        batches = context.batcher.exact().batches(nodes.to(context.device), MEASURED_AT_ONCE)
        with in_mode(context.model, training=False):
            return torch.cat([features(batch).detach() for batch in batches]).float()

    def influence(self, context: Context) -> Tensor:
        """Return the influence of each node of the graph on the validation loss; zero except at training nodes."""
        if "influence" not in context.cache:
            batcher, problem = context.batcher.exact(), context.problem
            train = batcher.batch(context.train)
            judged = batcher.batch(context.task.val.to(context.device)) if context.task.val.numel() else train
            function, judge = (partial(outputs_at, context.model, batch) for batch in (train, judged))
            with in_mode(context.model, training=False):
                values = influences(
                    function, context.params, problem, train.y, (judge, judged.y), self.damping, iterations=20
                )
            all_nodes = torch.zeros(context.task.graph.num_nodes, dtype=values.dtype)
            all_nodes[context.task.train] = values.cpu()
            context.cache["influence"] = all_nodes
        found: Tensor = context.cache["influence"]
        return found
