"""`auto`: the closed-form learner with its encoder chosen by the first task, for people who just want it to work."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evergraph.errors import EvergraphError
from evergraph.methods.analytic import RIDGES, Analytic, counted, validation_right
from evergraph.methods.base import Context, state
from evergraph.models.random_features import RandomFeatures

DEPTHS: tuple[tuple[int, ...], ...] = ((1, 2), (0, 1, 2), (0, 1), (1,), (0,))
"""Sets of propagation depths to choose from; the first is taken unless another is clearly better."""


@dataclass(repr=False)
class Auto(Analytic):
    """`analytic`, with the depths of propagation chosen on the first task's validation nodes.

    Graphs differ in how much a node's neighbours say about it: where edges mostly join nodes of one class,
    two steps of propagation are best; where they do not, none is. Each candidate set of depths is fitted on
    the first task's training nodes; the first candidate on the list is kept unless another puts more of the
    validation nodes right than wrong by more than three standard errors: four others are tried, and one task's
    classes may be easier without a graph than those to come. Everything else (ridge, smoothing, voting) is chosen
    as `analytic` chooses it, while the stream goes on.

    Args:
        ridge: as in `analytic`; 0 chooses.
        balance: as in `analytic`.
        premium: as in `analytic`.
        encoder: as in `analytic`.
    """

    name = "auto"
    family = "closed form"
    reference = "analytic, with its encoder chosen by the first task; see docs/analytic.md"

    depths_: list[int] = state(list)

    def start_task(self, context: Context) -> None:
        """Refuse any other model."""
        if not isinstance(context.model, RandomFeatures):
            raise EvergraphError(f"auto chooses among random features, not {type(context.model).__name__}")
        super().start_task(context)

    @torch.no_grad()
    def end_task(self, context: Context) -> None:
        """At the first task choose the depths; then as `analytic`."""
        if not self.tasks_:
            assert isinstance(context.model, RandomFeatures)
            self.depths_ = list(self._choose_depths(context, context.model))
            context.model.in_head.copy_(torch.tensor([depth in self.depths_ for depth, _ in context.model.blocks]))
        super().end_task(context)

    def _choose_depths(self, context: Context, model: RandomFeatures) -> tuple[int, ...]:
        """The first candidate, or the best of those that are clearly better."""
        present = {depth for depth, _ in model.blocks}
        candidates = [depths for depths in DEPTHS if set(depths) <= present] or [tuple(sorted(present))]
        if not context.task.val.numel() or len(candidates) == 1:
            return candidates[0]
        whole = Analytic(self.ridge or RIDGES[1], self.balance)
        whole._accumulate(context, "train", context.task.train.to(context.neighbourhoods.y.device))
        heads = []
        for depths in candidates:
            rows = model.rows_of([depth in depths for depth, _ in model.blocks])
            heads.append(whole.solve(whole.ridge, ("train",), rows))
        right = validation_right(context, heads)
        clear = []
        for number in range(1, len(candidates)):
            changes = [0, 0]
            counted(changes, right[0], right[number])
            if changes[0] - changes[1] > 3 * sum(changes) ** 0.5:
                clear.append(number)
        return candidates[max(clear, key=lambda number: int(right[number].sum()), default=0)]
