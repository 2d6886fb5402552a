"""Significance of differences between methods, given the noise of seeds and class orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05  # p-values below it are called significant
FEWEST = 3
"""Fewest pairs that allow a statement about chance: with two, a paired t-test cannot even tell 99 from 13."""


@dataclass(frozen=True)
class Difference:
    """How much higher the first of two methods is, over runs that differ only in the method.

    Args:
        mean: mean of the differences.
        p_value: two-sided p-value of a paired t-test that the mean is zero; 1 for fewer than two pairs.
        pairs: number of pairs.
    """

    mean: float
    p_value: float
    pairs: int

    @property
    def chance(self) -> float | None:
        """The p-value; None if there are too few pairs to say anything about chance."""
        return self.p_value if self.pairs >= FEWEST else None


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two methods run by run: entry i of both has the same seed, split and order of classes."""
    gaps = np.subtract(first, second, dtype=float).round(9)  # differences within rounding count as equal
    if len(gaps) < 2:
        return Difference(float(gaps.mean()), 1.0, len(gaps))
    if np.ptp(gaps) == 0:  # no spread at all: the t-test would divide by zero
        return Difference(float(gaps[0]), 1.0 if gaps[0] == 0 else 0.0, len(gaps))
    from scipy import stats  # here, since its import takes a sixth of every command's start-up time

    return Difference(float(gaps.mean()), float(stats.ttest_1samp(gaps, 0).pvalue), len(gaps))


def paired_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """p-value of a paired difference; None if there are too few pairs to say anything about chance."""
    return paired_difference(first, second).chance


def within_noise(values: Mapping[str, Sequence[float]], best: str) -> dict[str, bool | None]:
    """For each method, whether chance may explain its distance from the best one, at the 0.05 level.

    p-values are corrected for the number of methods (Holm, 1979). None if there are too few runs to tell.

    Args:
        values: one number per run for each method, with runs in the same order.
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
