"""Whether one method is better than another, or within the noise of seeds and class orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05  # p-values below it are called significant


@dataclass(frozen=True)
class Difference:
    """How much higher the first of two methods is, over runs that differ in the method alone.

    Args:
        mean: of the differences.
        p_value: of a paired t-test that the mean is zero; 1 where there are fewer than two pairs.
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
    gaps = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    if len(gaps) < 2:
        return Difference(float(gaps.mean()), 1.0, len(gaps))
    if np.ptp(gaps) == 0:  # no spread at all: the t-test would divide by zero
        return Difference(float(gaps[0]), 1.0 if gaps[0] == 0 else 0.0, len(gaps))
    return Difference(float(gaps.mean()), float(stats.ttest_rel(first, second).pvalue), len(gaps))
