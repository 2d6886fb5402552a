"""Whether one method is better than another, or within the noise of seeds and class orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05  # p-values below it are called significant
FEWEST = 3
"""Pairs below which nothing is said about chance: of two, a paired t-test calls even 99 and 13 alike."""


@dataclass(frozen=True)
class Difference:
    """How much higher the first of two methods is, over runs that differ in the method alone.

    Args:
        mean: of the differences.
        p_value: two-sided, of a paired t-test that the mean is zero; 1 where there are fewer than two pairs.
        pairs: their number.
    """

    mean: float
    p_value: float
    pairs: int

    @property
    def is_significant(self) -> bool:
        """Whether it is more than noise, at the level of 5 %."""
        return self.p_value < LEVEL


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two methods run by run: entry i of both has the same seed, split and order of classes."""
    gaps = np.subtract(first, second, dtype=float).round(9)  # equal but for rounding is equal
    if len(gaps) < 2:
        return Difference(float(gaps.mean()), 1.0, len(gaps))
    if np.ptp(gaps) == 0:  # no spread at all: the t-test would divide by zero
        return Difference(float(gaps[0]), 1.0 if gaps[0] == 0 else 0.0, len(gaps))
    from scipy import stats  # a sixth of the time that every command takes to start

    return Difference(float(gaps.mean()), float(stats.ttest_1samp(gaps, 0).pvalue), len(gaps))


def paired_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The p-value of a paired difference; None with too few pairs to say anything about chance."""
    gap = paired_difference(first, second)
    return gap.p_value if gap.pairs >= FEWEST else None


def within_noise(values: Mapping[str, Sequence[float]], best: str) -> dict[str, bool | None]:
    """For each method whether chance may explain its distance from the best one, at the level 0.05.

    p-values are corrected for the number of methods (Holm, 1979). None where there are too few runs to tell.

    Args:
        values: one number per run for each method, runs in one order.
        best: the method that the others are compared with.
    """
    p = {name: paired_p(values[best], own) for name, own in values.items() if name != best}
    told: dict[str, bool | None] = {best: True, **{name: None for name, value in p.items() if value is None}}
    still = True
    known = sorted((value, name) for name, value in p.items() if value is not None)
    for rank, (value, name) in enumerate(known):
        still = still and value * (len(known) - rank) < LEVEL  # once one is not significant, none after it is
        told[name] = not still
    return {name: told[name] for name in values}
