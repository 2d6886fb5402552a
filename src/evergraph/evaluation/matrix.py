"""The accuracy matrix and its summaries, as pure functions of the matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evergraph import registry
from evergraph.core.settings import Checked
from evergraph.errors import EvergraphError, shown

SUMMARIES: registry.Registry[Summary] = registry.summaries

Matrix = Sequence[Sequence[float | None]] | np.ndarray
"""Entry [t, i]: the metric on task i's test examples after task t; NaN or None where it was not measured."""


@dataclass(frozen=True)
class Summary(metaclass=Checked):
    """A number that summarizes a whole matrix.

    Args:
        name: its key in results.
        title: its heading in tables.
        about: one-sentence description.
        function: from the matrix to the number, for a metric where higher is better.
        is_gain: whether the number is an improvement (AF) rather than a level of the metric itself (AP).
    """

    name: str
    title: str
    about: str
    function: Callable[[Matrix], float]
    is_gain: bool = False

    def of(self, matrix: Matrix, *, higher_is_better: bool = True) -> float:
        """Compute the number for a matrix of any metric.

        For an error, lower is better: AP is the mean error itself, and AF is still negative if the learner has
        forgotten, that is, if the error has grown. Only a matrix in which a test is missing may have no number (NaN).
        """
        value = as_number(f"summary {self.name!r}", self.function(matrix if higher_is_better else -as_array(matrix)))
        if not math.isfinite(value) and not np.isnan(np.tril(as_array(matrix))).any():
            raise EvergraphError(f"summary {self.name!r} is {value}, not a finite number; let it return one")
        return value if higher_is_better or self.is_gain else -value


SUMMARIES.accept(instances_of=Summary)


def as_number(owner: str, value: Any) -> float:
    """Convert what a function returned to a number; an array or tensor of one entry is one, too."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise EvergraphError(f"{owner} returned {shown(value)}, not a number") from None


def as_array(matrix: Matrix) -> np.ndarray:
    """Convert a matrix to a float array, with NaN where nothing was measured."""
    try:
        rows = [[np.nan if entry is None else float(entry) for entry in row] for row in matrix]
    except (TypeError, ValueError):
        raise EvergraphError(f"an accuracy matrix is rows of numbers, not {shown(matrix)}") from None
    if not rows or any(len(row) != len(rows) for row in rows):
        raise EvergraphError(f"an accuracy matrix is square, not {len(rows)} rows of {[len(row) for row in rows]}")
    return np.array(rows)


def performance(now: Sequence[float] | np.ndarray) -> float:
    """AP_t, from the row [M[t, 0], …, M[t, t]]: its mean."""
    return float(np.mean(now))


def forgetting(now: Sequence[float] | np.ndarray, first: Sequence[float] | np.ndarray) -> float:
    """AF_t, from the row [M[t, 0], …, M[t, t]] and the diagonal: mean over i < t of M[t, i] − M[i, i].

    Negative is forgetting; 0 for a single task.
    """
    earlier = len(now) - 1
    return float(np.mean(np.subtract(now[:earlier], first[:earlier]))) if earlier else 0.0


def average_performance(matrix: Matrix, after: int = -1) -> float:
    """AP_t = mean over i ≤ t of M[t, i]."""
    array = as_array(matrix)
    t = range(len(array))[after]
    return performance(array[t, : t + 1])


def average_forgetting(matrix: Matrix, after: int = -1) -> float:
    """AF_t = mean over i < t of M[t, i] − M[i, i]. Negative is forgetting; 0 for a single task."""
    array = as_array(matrix)
    t = range(len(array))[after]
    return forgetting(array[t, : t + 1], np.diag(array))


def average_anytime(matrix: Matrix) -> float:
    """Mean over t of AP_t: how good the learner was over the whole stream."""
    return float(np.mean([average_performance(matrix, t) for t in range(len(as_array(matrix)))]))


def learning_accuracy(matrix: Matrix) -> float:
    """Mean of the diagonal: accuracy on each task right after learning it (plasticity)."""
    return float(np.mean(np.diag(as_array(matrix))))


def forward_transfer(matrix: Matrix, chance: Sequence[float]) -> float:
    """Mean over i > 0 of M[i−1, i] − chance_i; NaN if future tasks were not measured."""
    array = as_array(matrix)
    gains = [array[i - 1, i] - chance[i] for i in range(1, len(array))]
    return float(np.mean(gains)) if gains else float("nan")


def intransigence(matrix: Matrix, joint: Matrix) -> float:
    """Mean over i of joint[i, i] − M[i, i]: what is lost in learning new tasks, compared with joint training."""
    return float(np.mean(np.diag(as_array(joint)) - np.diag(as_array(matrix))))


SUMMARIES.register(Summary("ap", "AP", "Mean over all tasks after the last one.", average_performance))
SUMMARIES.register(
    Summary(
        "af",
        "AF",
        "Mean change of each earlier task since it was learned; negative is forgetting.",
        average_forgetting,
        is_gain=True,
    )
)
SUMMARIES.register(Summary("anytime", "Anytime", "AP averaged over the whole stream.", average_anytime))
SUMMARIES.register(
    Summary("learning", "When learned", "Mean over tasks, each right after it was learned.", learning_accuracy)
)


def decimal_places(values: Iterable[float], unit: str, *, percent: int = 1, significant: int = 3) -> int:
    """Number of decimal places to print values of one metric with.

    For percentages it is `percent`; for other units, whatever (at most 9) gives the largest value `significant` digits.
    """
    if unit == "%":
        return percent
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return min(max(significant - 1 - math.floor(math.log10(largest)), 0), 9) if largest else 1


def mean_std(values: Sequence[float]) -> dict[str, float]:
    """Mean and sample standard deviation (0 for one value)."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": spread}


def summarize(matrices: Sequence[Matrix], *, higher_is_better: bool = True) -> dict[str, dict[str, Any]]:
    """Compute every registered summary, one matrix per seed: mean, standard deviation and the values."""
    summaries = {}
    for name, summary in SUMMARIES.items():
        values = [summary.of(matrix, higher_is_better=higher_is_better) for matrix in matrices]
        summaries[name] = {**mean_std(values), "values": values}
    return summaries


@dataclass
class Evaluation:
    """The metric on each task learned so far, now and right after learning it.

    Args:
        accuracies: one number per task, in percent for accuracies.
        first: the number right after learning each task; None where it was not measured.
        task_names: name of each task: its classes, or the value of the attribute that defines it.
        latest: for each task, whether it was learned last and so cannot be forgotten yet; by default the last one.
        rows: numbers measured right after each of the tasks.
        higher_is_better: False for an error.
        unit: unit of the metric; empty for numbers of any size, which are printed with the decimal places they need.
    """

    accuracies: list[float]
    first: list[float | None]
    task_names: list[str]
    latest: list[bool] = field(default_factory=list)
    rows: list[list[float | None]] = field(default_factory=list)
    higher_is_better: bool = True
    unit: str = "%"

    @property
    def ap(self) -> float:
        """Average performance."""
        return performance(self.accuracies)

    @property
    def af(self) -> float | None:
        """Average forgetting; None unless the accuracies right after learning are known. Negative is forgetting."""
        latest = self.latest or [False] * (len(self.accuracies) - 1) + [True]
        earlier = [i for i, newest in enumerate(latest) if not newest]
        first = [value for i in earlier if (value := self.first[i]) is not None]
        if len(first) < len(earlier):
            return None
        change = forgetting([*(self.accuracies[i] for i in earlier), 0.0], first)
        return change if self.higher_is_better or not first else -change

    @property
    def matrix(self) -> np.ndarray:
        """Entry [t, i]: the metric on task i right after task t of those listed; NaN where it was not measured."""
        return as_array(self.rows)

    def __str__(self) -> str:
        measured = [value for value in [*self.accuracies, *self.first] if value is not None]
        digits, of_means = (decimal_places(measured, self.unit, percent=places) for places in (1, 2))

        def text(value: float | None, places: int) -> str:
            return "–" if value is None else f"{value:z.{places}f}"

        wide = max(7, *(len(text(value, digits)) + 2 for value in measured))
        lines = [f"{'task':<6}{'now':>{wide}}{'then':>{wide}}  classes"]
        for i, (now, first, names) in enumerate(zip(self.accuracies, self.first, self.task_names), start=1):
            lines.append(f"{i:<6}{text(now, digits):>{wide}}{text(first, digits):>{wide}}  {names}")
        return "\n".join([*lines, f"AP {text(self.ap, of_means)}   AF {text(self.af, of_means)}"])
