"""`auto`: the closed-form learner with its encoder chosen by the first task, for people who just want it to work."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evergraph.core.capabilities import capable
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, Context
from evergraph.methods.closed_form.analytic import RIDGES, Analytic
from evergraph.methods.closed_form.head import linear_head
from evergraph.methods.closed_form.hits import count_changes, rows_of, validation_hits
from evergraph.methods.closed_form.sums import SMALL, accumulate, solve
from evergraph.methods.state import state

DEPTHS: tuple[tuple[int, ...], ...] = ((1, 2), (0, 1, 2), (0, 1), (1,), (0,))
"""Sets of propagation depths to choose from; the first is taken unless another is clearly better."""


@METHODS.register
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
        encoder: as in `analytic`; so are `judge_edges`, `smoothing`, `temperature` and
            `learn_validation`.
    """

    name = "auto"
    family = "closed form"
    reference = "analytic, with its encoder chosen by the first task; see docs/analytic.md"
    levels = ("node",)
    kinds = ("classes",)

    depths_: list[int] = state(list)

    def start_task(self, context: Context) -> None:
        """Refuse a model whose features do not fall into blocks."""
        if capable(context.model, "feature_blocks") is None:
            raise EvergraphError(f"auto chooses among random features, not {type(context.model).__name__}")
        super().start_task(context)

    @torch.no_grad()
    def end_task(self, context: Context) -> None:
        """At the first task choose the depths; then as `analytic`."""
        if not self.tasks_:
            depths, _ = capable(context.model, "feature_blocks")()  # type: ignore[misc]
            self.depths_ = list(self._choose_depths(context))
            self.blocks_ = [depth in self.depths_ for depth in depths]
        super().end_task(context)

    def _choose_depths(self, context: Context) -> tuple[int, ...]:
        """The first candidate, or the best of those that are clearly better."""
        depths, block_of_row = capable(context.model, "feature_blocks")()  # type: ignore[misc]
        candidates = [chosen for chosen in DEPTHS if set(chosen) <= set(depths)] or [tuple(sorted(set(depths)))]
        if not context.count(context.task.val) or len(candidates) == 1:
            return candidates[0]
        features, head = linear_head(context.model)
        own = context.batcher.y[context.own(context.train)]
        sizes = context.total(torch.bincount(own, minlength=head.size(1))).double()
        weights, ridge = sizes.clamp(min=1) ** -self.balance, self.ridge or RIDGES[1]
        sums = accumulate(context, features, head, context.train, weights, None, exact=ridge < SMALL)
        rows = [rows_of(block_of_row, [depth in chosen for depth in depths]) for chosen in candidates]
        hits = validation_hits(context, [solve([ridge], [sums], chosen)[0] for chosen in rows])
        clear, right = [], context.total(hits.sum(1)).tolist()
        for number in range(1, len(candidates)):
            changes = [0, 0]
            count_changes(changes, hits[0], hits[number])
            changes = context.total(torch.tensor(changes)).tolist()
            if changes[0] - changes[1] > 3 * sum(changes) ** 0.5:
                clear.append(number)
        return candidates[max(clear, key=lambda number: right[number], default=0)]
