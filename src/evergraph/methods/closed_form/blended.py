"""A head that is a blend: a weighted mean of the heads of all sets of blocks that may be the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.methods.closed_form.hits import rows_of
from evergraph.methods.closed_form.prior import stretch
from evergraph.methods.closed_form.ridges import ChosenRidges
from evergraph.methods.closed_form.sums import HeadRequest
from evergraph.methods.closed_form.two_forms import TRAIN_ONLY
from evergraph.methods.state import state
from evergraph.models.base import GraphModel


@dataclass(repr=False)
class Blended(ChosenRidges):
    """Blends the heads of the sets of blocks near the one with most validation hits.

    Validation nodes are few, so which of several sets has most hits is partly chance. A mean of their heads, weighted
    by how near their hits are to the most (`block_sets.blend_shares`), is better than the head with most, as averages
    of models with different errors usually are. A large ridge shrinks scores towards their mean, so each head is first
    stretched to probabilities (`prior.stretch`). Every head is linear in the features, and so is the blend: it is a
    single head and predicts at no extra cost.

    A subclass defines the sets (`_sets`) and which of them are blended.
    """

    chosen_: str = state(str)  # the set with most hits
    blend_: dict[str, float] = state(dict)  # by blended set: its weight, times the factor that stretches its scores
    stretch_: float = state(lambda: 1.0)  # factor that stretches the head's scores to probabilities

    def _sets(self, model: GraphModel) -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
        """Return the sets that the head may read, and those that the voice of own features may read."""
        raise NotImplementedError

    def _blended(self, model: GraphModel) -> Tensor:
        """Stretch the blended heads by all tasks' validation sums; return the blend, solved from the training nodes."""
        wanted = dict(zip(self.blend_, self._blend_requests(model, TRAIN_ONLY)))
        self.solve_ahead(list(wanted.values()))
        factors = {name: self._stretch(self.solve(*each)[0], each.rows) for name, each in wanted.items()}
        if len(factors) > 1:
            self.blend_ = {name: share * factors[name] for name, share in self.blend_.items()}
        trained = self._solved(model, TRAIN_ONLY)
        self.stretch_ = factors[self.chosen_] if len(factors) == 1 else self._stretch(trained, self._head_rows(model))
        return trained

    def _stretch(self, head: Tensor, rows: Tensor | None) -> float:
        """Return the factor that stretches the scores of a training head on the features `rows` to probabilities."""
        assert rows is not None
        return stretch(head, self.cross_["val"], lambda found: self.energy("val", found, rows))

    def _blend_requests(self, model: GraphModel, parts: Sequence[str]) -> list[HeadRequest]:
        """Return requests for the heads to blend, each with its set's ridge."""
        _, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        sets = self._sets(model)[0]
        return [
            HeadRequest([self._ridges[self._ridge_place(name)]], parts, rows_of(block_of_row, sets[name]))
            for name in self.blend_
        ]

    def _solved(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """Return the blend, solved from the sums of `parts`."""
        heads = [self.solve(*each)[0] for each in self._blend_requests(model, parts)]
        return torch.stack([share * head for share, head in zip(self.blend_.values(), heads)]).sum(0)

    def chosen_ridge(self) -> float:
        """Return the ridge of the chosen set."""
        return self._ridges[self._ridge_place(self.chosen_)]
