"""Whether methods differ by more than chance: paired over seeds and class orders, which all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evergraph.evaluation import paired_difference
from evergraph.evaluation.significance import LEVEL


def paired_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p of the paired t-test; None with fewer than two pairs, which say nothing about chance."""
    gaps = np.subtract(first, second).round(9)  # equal but for rounding is equal
    return paired_difference(gaps.tolist(), [0.0] * len(gaps)).p_value if len(gaps) > 1 else None


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
