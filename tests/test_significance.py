"""Paired differences between methods."""

import math

import pytest

from evergraph.evaluation import paired_difference
from evergraph.evaluation.significance import LEVEL


def test_it_is_students_t_of_the_differences() -> None:
    first, second = [90.0, 80.0, 85.0, 70.0], [88.0, 79.0, 80.0, 69.0]
    found = paired_difference(first, second)
    gaps = [a - b for a, b in zip(first, second)]
    mean = sum(gaps) / 4
    error = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / 3 / 4)
    t = mean / error  # three degrees of freedom: the tail of Student's t in closed form
    angle = math.atan(t / math.sqrt(3))
    tail = 0.5 - (angle + math.sin(angle) * math.cos(angle)) / math.pi
    assert found.mean == mean
    assert found.p_value == pytest.approx(2 * tail)
    assert found.pairs == 4


def test_pairs_count_and_not_the_spread_over_seeds() -> None:
    """Seeds differ by ten points, the methods by one in every run: clear as a pair, hidden without pairing."""
    first, second = [91.0, 81.1, 71.0, 61.1], [90.0, 80.0, 70.0, 60.0]
    assert paired_difference(first, second).chance < LEVEL
    assert paired_difference(first, [60.0, 70.0, 80.0, 90.0]).chance > LEVEL


@pytest.mark.parametrize(
    ("first", "second", "chance"),
    [
        ([1.0], [0.0], None),
        ([99.0, 99.0], [13.0, 13.0], None),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 1.0),
        ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], 0.0),
    ],
)
def test_too_few_runs_and_runs_without_spread(first: list[float], second: list[float], chance: float | None) -> None:
    assert paired_difference(first, second).chance == chance
