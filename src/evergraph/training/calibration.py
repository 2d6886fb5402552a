"""Calibrated probabilities: one temperature, fitted to the validation examples of all tasks so far.

p = softmax(z / T), with the T that makes the labels of validation examples most probable (Guo et al., ICML 2017). Only
the summed loss of each task at a grid of temperatures is kept: sums add up over tasks, and can be subtracted again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from evergraph.problems import Problem

STEPS = 4  # grid temperatures per power of two
POWERS = 5  # the grid runs from 2^−5 to 2^5
PRIOR = 0.125  # loss per squared octave away from 1: if all validation examples are correct, T would fall to 0
GRID = [2 ** (step / STEPS) for step in range(-POWERS * STEPS, POWERS * STEPS + 1)]


def losses_at_temperatures(problem: Problem, outputs: Tensor, targets: Tensor) -> list[float]:
    """Return the summed loss at each temperature of the grid; `outputs` has a column for each class met."""
    z = outputs.double()
    return [float(problem.loss(z / temperature, targets).sum()) for temperature in GRID]


def best_temperature(losses: Sequence[Sequence[float]]) -> float:
    """Return the temperature with the smallest loss, summed over all tasks; 1 if there are none.

    A parabola interpolates between the grid's temperatures. A weak prior, PRIOR · (log2 T)², keeps the result away from
    0 if all validation examples are classified correctly.
    """
    if not losses:
        return 1.0
    totals = [PRIOR * math.log2(t) ** 2 + sum(column) for t, column in zip(GRID, zip(*losses))]
    best = min(range(len(totals)), key=totals.__getitem__)
    shift = 0.0
    if 0 < best < len(totals) - 1:
        left, middle, right = totals[best - 1 : best + 2]
        curvature = left - 2 * middle + right
        shift = (left - right) / (2 * curvature) if curvature > 0 else 0.0
    return GRID[best] * 2 ** (shift / STEPS)


def temperature_of(records: Sequence[Mapping[str, Any]]) -> float:
    """Return the temperature fitted to the records of all tasks."""
    return best_temperature([record["calibration"] for record in records if record.get("calibration")])
