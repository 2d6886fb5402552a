"""A head that is a blend: the mean of the heads of all sets of blocks that may be the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.methods.closed_form.block_sets import GRID, best_ridge
from evergraph.methods.closed_form.budgeted import BudgetedAnalytic
from evergraph.methods.closed_form.hits import rows_of
from evergraph.methods.closed_form.prior import stretch
from evergraph.methods.closed_form.sums import HeadRequest
from evergraph.methods.closed_form.two_forms import TRAIN_ONLY
from evergraph.methods.state import state
from evergraph.models.base import GraphModel

FEW_NODES = 512  # training nodes up to which every ridge is tried at every task


@dataclass(repr=False)
class Blended(BudgetedAnalytic):
    """Counts the validation hits of sets of blocks and ridges, and blends the heads of the sets near the best.

    Validation nodes are few, so which of several sets has most hits is partly chance. The mean of the heads within a
    standard error of the best is better than the best one, as averages of models with different errors usually are. A
    large ridge shrinks scores towards their mean, so each head is first stretched to probabilities (`prior.stretch`).
    Every head is linear in the features, and so is the blend: it is a single head and predicts at no extra cost.

    A subclass defines the sets (`_sets`) and which of them are blended.
    """

    set_hits_: dict[str, list[int]] = state(dict)  # by set of blocks: validation hits of each ridge
    chosen_: str = state(str)  # the set with most hits
    blend_: dict[str, float] = state(dict)  # weights of the blended sets: the chosen one and those near it
    stretch_: float = state(lambda: 1.0)  # factor that stretches the head's scores to probabilities

    def _sets(self, model: GraphModel) -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
        """Return the sets that the head may read, and those that the voice of own features may read."""
        raise NotImplementedError

    def _blended(self, model: GraphModel) -> Tensor:
        """Weight the blend by all tasks' validation sums; return the blend of heads solved from the training nodes."""
        wanted = dict(zip(self.blend_, self._blend_requests(model, TRAIN_ONLY)))
        self.solve_ahead(list(wanted.values()))
        short = {name: self._stretch(self.solve(*each)[0], each.rows) for name, each in wanted.items()}
        self.blend_ = {name: factor / len(short) if len(short) > 1 else 1.0 for name, factor in short.items()}
        trained = self._solved(model, TRAIN_ONLY)
        self.stretch_ = short[self.chosen_] if len(short) == 1 else self._stretch(trained, self._head_rows(model))
        return trained

    def _stretch(self, head: Tensor, rows: Tensor | None) -> float:
        """Return the factor that stretches the scores of a training head on the features `rows` to probabilities."""
        assert rows is not None
        return stretch(head, self.cross_["val"], lambda found: self.energy("val", found, rows))

    def _blend_requests(self, model: GraphModel, parts: Sequence[str]) -> list[HeadRequest]:
        """Return requests for the heads to blend, each with the ridge that has most hits."""
        _, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        sets = self._sets(model)[0]
        return [
            HeadRequest([self._ridges[best_ridge(self.set_hits_[name])]], parts, rows_of(block_of_row, sets[name]))
            for name in self.blend_
        ]

    def _solved(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """Return the blend, solved from the sums of `parts`."""
        heads = [self.solve(*each)[0] for each in self._blend_requests(model, parts)]
        return torch.stack([share * head for share, head in zip(self.blend_.values(), heads)]).sum(0)

    @property
    def _ridges(self) -> Sequence[float]:
        return [self.ridge] if self.ridge else GRID

    def chosen_ridge(self) -> float:
        """Return the ridge of the chosen set with most hits."""
        return self._ridges[best_ridge(self.set_hits_[self.chosen_])]

    def _places(self, name: str) -> list[int]:
        """Return which ridges to try: all while that is cheap; else first every other one, later those near the best.

        The best one's neighbours are tried only with the second, fourth, eighth … task, since a single task changes
        the counts less and less.
        """
        every = range(len(self._ridges))
        if len(every) == 1 or sum(self.class_sizes_) <= FEW_NODES:
            return list(every)
        if name not in self.set_hits_:
            return list(every[1::2])
        best = best_ridge(self.set_hits_[name])
        reach = 1 if (self.tasks_ + 1).bit_count() == 1 else 0
        return [place for place in every if abs(place - best) <= reach]

    def _count(self, name: str, places: Sequence[int], hits: Sequence[int]) -> None:
        """Add to a set's hits; an untried ridge gets those of the nearest ridge tried."""
        before = self.set_hits_.get(name, [0] * len(self._ridges))
        nearest = [min(range(len(places)), key=lambda i: abs(places[i] - place)) for place in range(len(before))]
        self.set_hits_ = {**self.set_hits_, name: [count + hits[near] for count, near in zip(before, nearest)]}
