"""`stability-decay`: from the strongest retention down, until new tasks can be learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from evergraph.core.settings import Bounds
from evergraph.data import TaskStream
from evergraph.errors import EvergraphError
from evergraph.experiments.selection.rule import (
    SELECTION_RULES,
    Selection,
    SelectionRule,
    Trial,
    finished,
    nearly,
    new_task_accuracy,
    result_of,
)
from evergraph.experiments.selection.space import Dimension, Point, Range, Space
from evergraph.experiments.specification import RunSpec
from evergraph.methods import preferred_model

if TYPE_CHECKING:
    from evergraph.experiments.selection.search import Search


@SELECTION_RULES.register
@dataclass(frozen=True)
class StabilityDecay(SelectionRule):
    """The first of decreasing strengths that lets new tasks be learned (De Lange et al., TPAMI 2022).

    Phase 1 finds the learning rate with which fine-tuning learns new tasks best. Phase 2 keeps it, starts from the
    strongest retention and lowers the strength until the accuracy on new tasks is `share` of fine-tuning's. All
    retention settings (`hold`) are lowered together; other settings stay as they are. A method that has none is run
    once, with fine-tuning's learning rate.

    The authors decay the strength within every task. Here one strength is chosen for the whole stream: each trial
    learns all of it, and the accuracy is the mean over its tasks. A step halves the strength or, if so few trials are
    allowed that halving would not cross the range, divides it by more.

    Args:
        share: fraction of fine-tuning's accuracy that new tasks have to reach.
    """

    name = "stability-decay"
    about = (
        "each task's validation nodes right after learning it: the first strength, from high to low, that reaches "
        "`share` of fine-tuning's accuracy"
    )
    proposes = True

    share: Annotated[float, Bounds(above=0, at_most=1)] = 0.8

    def check(self, spec: RunSpec, stream: TaskStream, space: Space, trials: int) -> None:
        """Raise unless there is a strength to lower or a learning rate to find, and trials for both phases."""
        if not space.hold and "lr" not in space.dimensions:
            raise EvergraphError(
                f"stability-decay: {spec.method} searches neither lr nor a setting that holds on to the past; "
                "take another rule"
            )
        if trials < 2:
            raise EvergraphError("stability-decay: fine-tuning is one trial, so --trials must be at least 2")

    def score(self, result: dict[str, Any]) -> float:
        """The accuracy on new tasks."""
        return new_task_accuracy(result)

    def search(self, search: Search) -> Selection:
        """Run both phases; phase 2 ends with the first strength that lets new tasks be learned."""
        space, spec = search.space, search.spec
        plain = replace(spec, method="finetune", settings={}, model=spec.model or preferred_model(spec.method))
        rates = _steps(space.dimensions["lr"], max(1, search.budget // 4)) if "lr" in space.dimensions else [None]
        points: list[Point] = [{} if rate is None else {"lr": rate} for rate in rates]
        tried = [search.trial(self, f"finetune-{i:02d}", point, plain) for i, point in enumerate(points)]
        fine_tuning = search.run(self, tried)
        reference = max(finished(fine_tuning), key=lambda trial: self.score(result_of(trial)))
        held = [{**reference.point, **point} for point in decreasing(space, search.budget - len(fine_tuning))]
        trials: list[Trial] = []
        while held and not (trials and self.reached(trials, reference)):
            batch, held = held[: search.at_once], held[search.at_once :]
            trials += search.run(
                self, [search.trial(self, f"decay-{len(trials) + i:02d}", p) for i, p in enumerate(batch)]
            )
        chosen = self.choose(space, trials, reference)
        note = "" if self.reached(trials, reference) else f"no strength reached {self.share:g}; the weakest is taken"
        note = (
            note if space.hold else "nothing searched holds on to the past: fine-tuning chose the learning rate alone"
        )
        return Selection(chosen, [*fine_tuning, *trials], note)

    def reached(self, trials: Sequence[Trial], reference: Trial) -> list[Trial]:
        """The trials that learn new tasks well enough."""
        wanted = nearly(self.score(result_of(reference)), self.share)
        return [trial for trial in trials if trial.result is not None and self.score(trial.result) >= wanted]

    def choose(self, space: Space, trials: Sequence[Trial], reference: Trial | None = None) -> Trial:
        """The first trial that learns new tasks well enough, else the last; trials go from strongest to weakest."""
        assert reference is not None
        return next(iter(self.reached(trials, reference)), finished(trials)[-1])


def decreasing(space: Space, count: int) -> list[Point]:
    """Values of the `hold` settings from strongest to weakest, at most `count`; one empty point if there are none."""
    if not space.hold:
        return [{}]
    widest = max((math.log2(d.high / d.low) for d in _log_ranges(space)), default=0.0)
    step = max(1 / max(count - 1, 1), 1 / widest if widest else 0.0)  # no finer than halving
    positions = [1 - number * step for number in range(min(count, 1 + int(1 / step + 1e-9)))]
    return [{key: space.dimensions[key].at(max(u, 0.0)) for key in space.hold} for u in positions]


def _log_ranges(space: Space) -> list[Range]:
    ranges = [space.dimensions[key] for key in space.hold]
    return [dimension for dimension in ranges if isinstance(dimension, Range) and dimension.log]


def _steps(dimension: Dimension, count: int) -> list[Any]:
    """Up to `count` evenly spaced values from end to end, or the middle one; without duplicates."""
    positions = [0.5] if count == 1 else np.linspace(0, 1, count).tolist()
    return list(dict.fromkeys(dimension.at(position) for position in positions))
