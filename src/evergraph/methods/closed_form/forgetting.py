"""Removing examples from a closed form: sums are additive, so what was added can be subtracted.

Whole tasks are subtracted as they were learned, and added again without the examples. Products of the same batches are
the same numbers, so the result differs from never having added the examples only by float64 rounding. Sums that were
kept as factors before they became G have the rounding of the features' own type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core import symmetric
from evergraph.methods.base import Context
from evergraph.methods.closed_form.head import linear_head
from evergraph.methods.forgetting import Forgetting, Small
from evergraph.methods.state import copied
from evergraph.models.base import GraphModel
from evergraph.problems.base import Problem

if TYPE_CHECKING:
    from evergraph.methods.closed_form.analytic import Analytic

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12}
"""By type of the features: share of a sum below which what remains after subtraction is nothing but rounding."""
RESIDUE = 1e-12
"""Share of the mean sum below which it is the rounding of an earlier subtraction, when this sum was larger."""
COUNTS = (
    "hits_", "set_hits_", "smaller_", "smoothing_counts_", "voting_", "validated_", "own_within_",
    "smoothing_elsewhere_",
)  # fmt: skip
"""State to which every task adds the results on its validation nodes."""


class ForgettingFromSums(Forgetting):
    """Removes examples from a closed form.

    Args:
        method: the closed form; its encoder is frozen.
    """

    def __init__(self, method: Analytic) -> None:
        self.method = method

    @property
    def weighs_by_size(self) -> bool:
        """Whether the weight of an example depends on the size of its class."""
        return self.method.balance > 0

    def small_state(self) -> Small:
        """Return a copy of the state without its tensors."""
        large = {
            each.name for each in fields(self.method) if each.metadata.get("replaced") or each.metadata.get("like")
        }
        return {key: copied(value) for key, value in self.method.state_dict().items() if key not in large}

    def keeps_alike(self, before: Small) -> bool:
        """Return whether the sums have the form they had, or no set of blocks was or would be given up for room since.

        Factors that have become G stay G, which takes more: sets would be given up earlier than they were.
        """
        if self.method.factor_ or not before.get("task_rows_"):
            return True
        sets = before.get("set_hits_", {}), getattr(self.method, "set_hits_", {})
        return sets[0].keys() == sets[1].keys() and not self.method.too_much()

    def exchange(
        self, number: int, old: tuple[Context, Sequence[int]], new: tuple[Context, Sequence[int]] | None
    ) -> None:
        """Replace a task in the sums, whichever form they are kept in."""
        rows = self._rows_by_task
        if rows is not None:
            rows(number, None if new is None else self.method.factors_of(new[0], _sizes(new[1], new[0])))
            return
        self._take_out(*old)
        if new is not None:
            self.method.add_to_sums(new[0], _sizes(new[1], new[0]))

    @property
    def _rows_by_task(self) -> Callable[..., None] | None:
        """Function that exchanges a task's rows if the sums are kept as factors; None if they are kept as G."""
        return self.method.exchange_rows if self.method.factor_ else None

    def _take_out(self, context: Context, sizes: Sequence[int]) -> None:
        """Subtract a task from the sums."""
        before = {part: symmetric.diagonal(gram) for part, gram in self.method.gram_.items()}
        columns = {part: _largest(cross) for part, cross in self.method.cross_.items()}
        self.method.add_to_sums(context, _sizes(sizes, context), sign=-1)
        rounding = ROUNDING[linear_head(context.model)[1].dtype]
        for part, gram in self.method.gram_.items():
            cross, left = self.method.cross_[part], symmetric.diagonal(gram)
            residue = (left < before[part]) & (left <= RESIDUE * before[part].mean())
            gone = (left <= rounding * before[part]) | residue  # features that are zero at all other examples
            symmetric.clear(gram, gone)
            cross[gone] = 0.0
            cross[:, _largest(cross) <= rounding * columns[part]] = 0.0  # units without other examples

    def rewind(self, number: int, context: Context, before: Small) -> None:
        """Undo the last task: subtract it from the sums, and restore all other state to what it was before."""
        self.exchange(number, (context, self.method.class_sizes_), None)
        self.restore({key: value for key, value in before.items() if key != "task_rows_"})
        self.method.task_rows_ = self.method.task_rows_[:number]  # earlier tasks may have lost rows since
        met = [unit for unit, size in enumerate(self.method.class_sizes_) if size]
        self.method.cross_ = {part: _only(cross, met) for part, cross in self.method.cross_.items()}

    def count(self, context: Context) -> Small:
        """Return what the task's validation examples would add to the counts with the current sums; changes nothing."""
        before = self.small_state()
        self.method.decide(context)
        counted = count_difference(self.small_state(), before)
        self.restore(before)
        return counted

    def restore(self, small: Small) -> None:
        """Load a state without tensors."""
        for key, value in small.items():
            setattr(self.method, key, copied(value))

    # states of all moments

    def _states_after(self, number: int, before: Sequence[Small]) -> Iterator[Small]:
        """Yield the states after a task for editing: those before later ones, and the present one."""
        yield from before[number + 1 :]
        present = self.small_state()
        yield present
        for key, value in present.items():
            setattr(self.method, key, value)

    def sizes_after(self, number: int, before: Sequence[Small], width: int) -> list[int]:
        """Return the size of each class right after a task."""
        state = before[number + 1] if number + 1 < len(before) else self.small_state()
        return _padded(state["class_sizes_"], width)

    def subtract(self, number: int, before: Sequence[Small], sizes: Sequence[int], counts: Small) -> None:
        """Subtract class sizes and counts that a task has added."""
        for small in self._states_after(number, before):
            small["class_sizes_"] = [size - less for size, less in zip(small["class_sizes_"], sizes)]
            subtract_counts(small, counts)

    def reassign_units(self, gone: Sequence[int], before: Sequence[Small], has: Callable[[int, int], bool]) -> None:
        """Reassign classes without examples left in the task that introduced them to the next task that has some."""
        tasks = range(len(before))
        for unit, number in enumerate(self.method.task_of_unit_):
            if number in gone and not has(number, unit):
                later = next((other for other in tasks[number + 1 :] if has(other, unit)), len(tasks))
                for after, small in enumerate(self._states_after(number, before), start=number):
                    if unit < len(small["task_of_unit_"]):
                        small["task_of_unit_"][unit] = later if later <= after else -1

    def arrange_units(self, units: Sequence[int], before: Sequence[Small]) -> None:
        """Keep the given output units only, in this order; empty ones fill the last places."""
        for small in self._states_after(-1, before):
            arrange_units(small, units)
        for key in ("cross_", "factor_targets_"):
            if (known := getattr(self.method, key, None)) is not None:
                setattr(self.method, key, {part: _arranged(columns, units) for part, columns in known.items()})

    def drop_task(self, number: int, before: Sequence[Small]) -> None:
        """Remove a task; later ones move up."""
        for small in self._states_after(number, before):
            without_task(small, number)

    # solutions

    def write(self, problem: Problem, model: GraphModel) -> None:
        """Solve the heads and write them into the model."""
        self.method.write(problem, model)

    def conclude(self, problem: Problem, model: GraphModel) -> None:
        """Choose the ridge and the blocks by the present counts, then write the heads."""
        self.method.conclude(model)
        self.method.write(problem, model)


def count_difference(after: Small, before: Small) -> Small:
    """Return what a task added to the counts."""
    return {key: _combined(after[key], before[key], -1) for key in COUNTS if key in after}


def subtract_counts(small: Small, counts: Mapping[str, Any]) -> None:
    """Subtract from the counts of a state, down to zero at least."""
    for key, value in counts.items():
        small[key] = _at_least_zero(_combined(small[key], value, -1))


def arrange_units(small: Small, units: Sequence[int]) -> None:
    """Keep the given output units only, in this order, in the lists of a state that have an entry for each unit."""
    for key, empty in (("class_sizes_", 0), ("task_of_unit_", -1)):
        known = small[key]
        kept = [known[unit] if unit < len(known) else empty for unit in units]
        small[key] = [*kept, *[empty] * len(known)][: len(known)]


def without_task(small: Small, number: int) -> None:
    """Remove a task from a state; later tasks move up."""
    small["tasks_"] -= 1
    small["task_of_unit_"] = [task - 1 if task > number else task for task in small["task_of_unit_"]]
    small["task_rows_"] = [rows for task, rows in enumerate(small.get("task_rows_", [])) if task != number]


def _combined(first: Any, second: Any, sign: int) -> Any:
    if isinstance(first, dict):  # a set of blocks that was dropped since stays dropped
        return {key: _combined(value, second.get(key, _nothing(value)), sign) for key, value in first.items()}
    if isinstance(first, list):
        width = max(len(first), len(second))
        return [a + sign * b for a, b in zip(_padded(first, width), _padded(second, width))]
    return first + sign * second


def _nothing(counts: Any) -> Any:
    """Return counts of the same shape that are all zero."""
    return [0] * len(counts) if isinstance(counts, list) else 0


def _at_least_zero(counts: Any) -> Any:
    if isinstance(counts, dict):
        return {key: _at_least_zero(value) for key, value in counts.items()}
    return [max(entry, 0) for entry in counts] if isinstance(counts, list) else max(counts, 0)


def _padded(values: list[int], width: int) -> list[int]:
    return [*values, *[0] * (width - len(values))]


def _largest(cross: Tensor) -> Tensor:
    """Return the largest absolute entry of each column."""
    return cross.abs().amax(0)


def _sizes(sizes: Sequence[int], context: Context) -> Tensor:
    return torch.tensor(sizes, dtype=torch.long, device=context.device)


def _only(cross: Tensor, units: Sequence[int]) -> Tensor:
    """Return B with zeros at all other units, where only rounding errors are left."""
    kept = torch.zeros_like(cross)
    kept[:, list(units)] = cross[:, list(units)]
    return kept


def _arranged(columns: Tensor, units: Sequence[int]) -> Tensor:
    return torch.nn.functional.pad(columns[:, list(units)], (0, columns.size(1) - len(units)))
