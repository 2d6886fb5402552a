"""Calibrated probabilities: one temperature, settled on the validation examples of every task as the stream goes on.

p = softmax(z / T), with the T that makes the validation examples' labels most probable (Guo et al., ICML 2017). Of each
task only its summed loss at a grid of temperatures is kept: sums add up over tasks, and can be taken out again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from evergraph.problems import Problem

STEPS = 4  # temperatures of the grid from one power of two to the next
POWERS = 5  # the grid runs from 2^−5 to 2^5
PRIOR = 0.125  # loss per squared octave away from 1: where all validation examples are right, T would fall to 0
GRID = [2 ** (step / STEPS) for step in range(-POWERS * STEPS, POWERS * STEPS + 1)]


def losses_at_temperatures(problem: Problem, outputs: Tensor, targets: Tensor) -> list[float]:
    """The summed loss at each temperature of the grid; `outputs` has the columns of the classes met."""
    z = outputs.double()
    return [float(problem.loss(z / temperature, targets).sum()) for temperature in GRID]


def best_temperature(losses: Sequence[Sequence[float]]) -> float:
    """The temperature with the smallest sum of losses over all tasks; between the grid's by a parabola; 1 for none.

    A weak prior, PRIOR · (log2 T)², keeps it from 0 where all validation examples are right.
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
    """The temperature that the records of all tasks settle."""
    return best_temperature([record["calibration"] for record in records if record.get("calibration")])
