"""The ridge of each set of blocks: the one whose head explains most about the validation nodes of all tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evergraph.methods.closed_form.block_sets import GRID, PREFERRED, highest, next_places
from evergraph.methods.closed_form.budgeted import BudgetedAnalytic
from evergraph.methods.closed_form.sums import HeadRequest
from evergraph.methods.closed_form.two_forms import TRAIN_ONLY
from evergraph.methods.state import state

SURE = 1.0  # standard errors by which the next smaller ridge has to correct more nodes than it breaks

Explained = dict[str, dict[int, float]]
"""By set and index of a ridge: share of the validation nodes' variance that the head explains."""


def tops(
    starts: Mapping[str, int | None], places: int, explained: Callable[[Mapping[str, Sequence[int]]], Explained]
) -> dict[str, int]:
    """Return the index of the ridge that explains most, for each set; all sets are searched at once.

    Args:
        starts: by set, where to start: the last result, or None for a new set.
        places: number of ridges.
        explained: measures the given ridges of the given sets.
    """
    known: Explained = {name: {} for name in starts}
    while wanted := {name: new for name, start in starts.items() if (new := next_places(known[name], places, start))}:
        for name, found in explained(wanted).items():
            known[name] |= found
    return {name: highest(found) for name, found in known.items()}


def explained_share(error: float, sizes: Tensor) -> float:
    """Return the share of the variance of one-hot labels that a squared error leaves explained.

    Args:
        error: the squared error, summed over weighted nodes.
        sizes: total weight of the nodes of each class.
    """
    variance = float(sizes.sum() - sizes.square().sum() / sizes.sum().clamp(min=1e-12))
    return 1 - error / variance if variance > 0 else 0.0


@dataclass(repr=False)
class ChosenRidges(BudgetedAnalytic):
    """Chooses a ridge for every set of blocks.

    A head that is solved from the training nodes leaves a squared error at the validation nodes of all tasks, which
    follows from their sums without a node (`validation_errors`). The ridge with the smallest error explains most. Hits
    say less about the ridge: only the current task's nodes can be counted, and early tasks with few classes would
    settle it by a handful of them.

    Decisions can do with a smaller ridge than the squared error, which also counts the scores of all classes that are
    far from being chosen: with many classes, a smaller ridge has larger errors and more hits. So the next smaller ridge
    is used if it corrects more validation nodes than it breaks, by more than a standard error; as in AP, the nodes of
    each task count as much together as those of any other.
    """

    set_hits_: dict[str, int] = state(dict)  # by set of blocks: validation hits with the ridge that explains most
    ridge_places_: dict[str, int] = state(dict)  # by set: index of that ridge
    smaller_: dict[str, list[float]] = state(dict)  # by set: what the next smaller ridge changes (`_count`)

    @property
    def _ridges(self) -> Sequence[float]:
        """The ridges to try: beside wider blocks, a larger one weighs as much."""
        return [self.ridge] if self.ridge else [self.wider_ * ridge for ridge in GRID]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a copy of a saved state; older versions counted hits for each ridge and took the one with most."""
        state = {"wider_": 1.0, **state}
        if "ridge_places_" not in state:
            counted = {name: {place: float(hits) for place, hits in enumerate(each)}
                       for name, each in state["set_hits_"].items()}  # fmt: skip
            places = {name: highest(hits) for name, hits in counted.items()}
            most = {name: int(counted[name][place]) for name, place in places.items()}
            state = {**state, "set_hits_": most, "ridge_places_": places, "smaller_": {}}
        super().load_state_dict(state)

    def _find_ridges(self, sets: Mapping[str, Tensor], beside: Sequence[HeadRequest] = ()) -> None:
        """Find the ridge of each set that explains most; `sets` has the features that each reads.

        The heads `beside`, which will be needed too, are solved side by side with the first ones; so are those with
        the sets' last ridges, which will be needed exactly if they are chosen again.
        """
        starts = {name: self.ridge_places_.get(name) for name in sets}
        again = [
            self._request([self._ridge_place(name)], sets[name])._replace(rough=False)
            for name, start in starts.items()
            if start is not None
        ]
        self.ridge_places_ = {**self.ridge_places_, **self._explaining_places(sets, starts, [*again, *beside])}

    def _explaining_places(
        self, sets: Mapping[str, Tensor], starts: Mapping[str, int | None], beside: Sequence[HeadRequest] = ()
    ) -> dict[str, int]:
        """Return the index of the ridge that explains most for each set; without validation nodes, that of 1."""
        if not float(self.cross_["val"][-1].sum()):
            return dict.fromkeys(sets, min(PREFERRED, len(self._ridges) - 1))
        others = list(beside)

        def explained(wanted: Mapping[str, Sequence[int]]) -> Explained:
            requests = {name: self._request(places, sets[name]) for name, places in wanted.items()}
            self.solve_ahead([*requests.values(), *others])
            others.clear()
            return {name: dict(zip(wanted[name], self._explained_by(each))) for name, each in requests.items()}

        return tops(starts, len(self._ridges), explained)

    def _request(self, places: Sequence[int], rows: Tensor) -> HeadRequest:
        """Return a request for heads to compare, solved from the training nodes, with the ridges at `places`."""
        return HeadRequest([self._ridges[place] for place in places], TRAIN_ONLY, rows, rough=True)

    def _explained_by(self, wanted: HeadRequest) -> list[float]:
        """Return the share of all tasks' validation variance that each head explains."""
        known, key = self.computed(), ("explained", *self._key(wanted.parts, wanted.rows))
        if new := [ridge for ridge in wanted.ridges if (*key, ridge) not in known]:
            sizes = self.cross_["val"][-1]  # the last feature is one at every node
            errors = self.validation_errors(wanted._replace(ridges=new))
            known.update({(*key, ridge): explained_share(error, sizes) for ridge, error in zip(new, errors)})
        return [known[*key, ridge] for ridge in wanted.ridges]

    def _compared(self, name: str) -> list[int]:
        """Return the indices of the ridges to compare by hits: the one that explains most, and the next smaller one."""
        place = self.ridge_places_[name]
        return [place, place - 1] if place else [place]

    def _count(self, name: str, hits: int, changes: Sequence[int], validated: int) -> None:
        """Add to a set's hits, and to what the next smaller ridge changes.

        These are the shares of a task's validation nodes that it corrects, and breaks, and the variance of their
        difference, each summed over tasks.

        Args:
            name: the set.
            hits: validation nodes of the task that it classifies correctly.
            changes: those that the next smaller ridge corrects, and breaks.
            validated: number of the task's validation nodes.
        """
        self.set_hits_ = {**self.set_hits_, name: self.set_hits_.get(name, 0) + hits}
        nodes = max(validated, 1)
        new = [changes[0] / nodes, changes[1] / nodes, sum(changes) / nodes**2]
        self.smaller_ = {**self.smaller_, name: [old + more for old, more in zip(self._changes(name), new)]}

    def _changes(self, name: str) -> list[float]:
        return self.smaller_.get(name, [0.0, 0.0, 0.0])

    def _steps_down(self, name: str) -> bool:
        """Return whether the next smaller ridge is used."""
        right, wrong, variance = self._changes(name)
        return self.ridge_places_[name] > 0 and right - wrong > SURE * variance**0.5

    def _ridge_place(self, name: str) -> int:
        """Return the index of a set's ridge."""
        return self.ridge_places_[name] - self._steps_down(name)
