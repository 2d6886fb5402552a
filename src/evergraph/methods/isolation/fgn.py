"""Lifelong graph learning (Wang, Qiu, Gao and Scherer, CVPR 2022): feature graphs with a memory of examples."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch

from evergraph.core.capabilities import capability
from evergraph.core.settings import NonNegative, PositiveInt
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, Replay, Step, search_over
from evergraph.methods.isolation.node_memory import Kept, hops_around, remember, replayed
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class FGN(Method):
    """Rehearsal of single nodes, which a feature graph network makes independent examples: loss + strength · old loss.

    The model (`feature-graph`) reads a node and the features of its direct neighbours, and nothing else of the graph.
    So a node can be kept with those, and rehearsed long after its graph is gone. The memory holds nodes of all tasks,
    each ever seen about equally likely; a step adds the loss of as many of them as its batch has nodes.

    Args:
        kept_nodes: nodes kept, each with its neighbours' features; 500 in the paper.
        strength: weight of the rehearsed examples' loss, reduced as the step's own.
    """

    name = "fgn"
    family = "architecture"
    besides = "the graph of the memory"
    reference = "Wang, Qiu, Gao and Scherer: Lifelong Graph Learning, CVPR 2022"
    access = Access(keeps=("real nodes",), old_labels=True)
    levels = ("node",)
    kinds = ("classes",)
    model = "feature-graph"
    training = MappingProxyType({"label_scope": "seen", "lr": 0.01})
    search_space = search_over(kept_nodes=[100, 200, 500, 1000], strength=(0.1, 10.0))

    kept_nodes: PositiveInt = 500
    strength: NonNegative = 1.0
    memory_: list[Kept] = state(list, replaced=True)

    def replay(self, step: Step) -> list[Replay]:
        """Nodes from the memory."""
        if not self.memory_ or not self.strength:
            return []
        batch = replayed(step, self.memory_)
        scale = step.batch.num_examples if step.context.reduction == "sum" else 1
        weight = self.strength * scale / batch.num_examples
        return [Replay(batch, weights=torch.full_like(batch.y, 1, dtype=step.logits.dtype) * weight)]

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """The memory is one batch; a draw takes rows of it, by the device's own random numbers."""
        return True

    def end_task(self, context: Context) -> None:
        """Make room for the task's nodes, and draw them."""
        self.memory_ = remember(self.memory_, context, self.kept_nodes, hops_around(context))
