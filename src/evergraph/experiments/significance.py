"""Whether methods differ by more than chance: paired over seeds and class orders, which all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

LEVEL = 0.05
"""Differences with a smaller p are called significant."""


def paired_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p of the paired t-test; None with fewer than two pairs, which say nothing about chance."""
    from scipy import stats  # takes a moment to import: only where something is compared

    differences = np.subtract(first, second)
    if len(differences) < 2:
        return None
    if np.ptp(differences) < 1e-9:  # no spread at all: equal, or apart by the same amount every time
        return 1.0 if abs(differences[0]) < 1e-9 else 0.0
    return float(stats.ttest_rel(first, second).pvalue)


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
