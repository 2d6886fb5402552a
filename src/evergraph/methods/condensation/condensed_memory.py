"""Base class of condensation methods: a memory of synthetic nodes, with the same budgets as other memories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from evergraph.core.features import Features, as_dense, take_rows
from evergraph.core.settings import NonNegativeInt, Positive, PositiveInt
from evergraph.methods.access import Access
from evergraph.methods.base import Context, search_over
from evergraph.methods.memory import MemoryMethod, Piece
from evergraph.methods.memory.condensation import Matching, condense
from evergraph.methods.propagation import depth, propagated


@dataclass(repr=False)
class CondensedMemory(MemoryMethod):
    """A memory of synthetic nodes without edges: `condense` turns each task's training nodes into a few.

    All randomness comes from the method's own generator, so an interrupted condensation is repeated from the state
    before it with bitwise equal results.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: synthetic nodes per class if `memory` is empty.
        networks: random networks drawn for each task.
        updates: steps of the synthetic nodes under each network.
        width: hidden units of a random network.
        condensation_lr: Adam's learning rate on the features of the synthetic nodes, in standard deviations of
            each feature.
        start: initial features of a synthetic node: those of a random training node, `propagated` to the depth of the
            model, or the node's own `features`.
    """

    family = "condensation"
    access = Access(keeps=("synthetic nodes",), old_labels=True)
    search_space = search_over(condensation_lr=(3e-3, 0.3), networks=[0, 40, 160])
    matching: ClassVar[type[Matching]]

    networks: NonNegativeInt = 40
    updates: PositiveInt = 4
    width: PositiveInt = 128
    condensation_lr: Positive = 0.03
    start: Literal["propagated", "features"] = "propagated"

    def collect(self, context: Context) -> Piece:
        """Condense the task's training nodes."""
        x, units = self.first_nodes(context)
        real = self.seen_as(context, context.task.train)
        return self.condensed(context, x, units, real, self.units(context))

    def condensed(self, context: Context, x: Tensor, units: Tensor, real: Features, real_units: Tensor) -> Piece:
        """Optimize synthetic nodes, starting at the features `x`, to match the real ones.

        A class that keeps all its nodes starts, if `propagated`, at the optimum, which steps along rounding errors
        would leave: its nodes are held.
        """
        device = context.device
        counts = torch.bincount(real_units)
        whole = (torch.bincount(units, minlength=counts.numel()) == counts) & (self.start == "propagated")
        matching = self.matching(real.to(device), real_units.to(device), units.to(device), self.width)
        moved, _ = condense(
            x.to(device), matching, networks=self.networks, updates=self.updates, lr=self.condensation_lr,
            generator=context.generator, held=whole[units].to(device),
        )  # fmt: skip
        return Piece(moved.cpu(), units)

    def first_nodes(self, context: Context) -> tuple[Tensor, Tensor]:
        """Return the initial features of the synthetic nodes, taken from random training nodes, and their units."""
        units, drawn = self.units(context), []
        numbers = self.allotment(context, units)
        for unit, number in numbers.items():
            own = torch.nonzero(units == unit).reshape(-1)
            drawn.append(own[torch.randperm(own.numel(), generator=context.generator)[:number]])
        chosen = torch.cat(drawn)
        nodes = context.task.train[chosen]
        if self.start == "propagated":
            return as_dense(self.seen_as(context, nodes)), units[chosen]
        dtype = next(context.model.parameters()).dtype
        return as_dense(take_rows(context.task.graph.x, nodes).to(dtype)), units[chosen]

    def allotment(self, context: Context, units: Tensor) -> dict[int, int]:
        """Return the number of synthetic nodes of each class of the task: at least 1, at most its real nodes.

        A share of the nodes is divided among the task's classes in proportion to their training nodes; a budget in
        bytes is divided equally among all known classes.
        """
        budget, counts = self.budget(), torch.bincount(units)
        if budget.per_class is not None:
            wanted = torch.full_like(counts, budget.per_class)
        elif budget.share is not None:
            kept = sum(piece.num_nodes for piece in self.pieces())
            wanted = (budget.nodes(self.nodes_met_) - kept) * counts // counts.sum()
        else:
            assert budget.num_bytes is not None
            size = next(context.model.parameters()).element_size()
            room = budget.num_bytes // (context.task.graph.num_features * size + 4)  # 4 bytes for the target
            wanted = torch.full_like(counts, math.ceil(room / self.classes_met))
        numbers = wanted.clamp(min=1).minimum(counts)
        return {unit: int(numbers[unit]) for unit in torch.nonzero(counts).reshape(-1).tolist()}

    def seen_as(self, context: Context, nodes: Tensor) -> Features:
        """Return what the model sees of the task's nodes: their features, propagated once for all networks."""
        dtype = next(context.model.parameters()).dtype
        return propagated(context.task.graph, nodes, depth(context), dtype)
