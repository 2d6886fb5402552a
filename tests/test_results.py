"""The metrics against matrices worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.evaluation import (
    Evaluation,
    as_array,
    average_anytime,
    average_forgetting,
    average_performance,
    forward_transfer,
    intransigence,
    learning_accuracy,
    mean_std,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both")

M = [
    [90.0, None, None],
    [60.0, 80.0, None],
    [30.0, 50.0, 70.0],
]


def test_average_performance() -> None:
    assert average_performance(M, 0) == 90
    assert average_performance(M, 1) == (60 + 80) / 2
    assert average_performance(M) == average_performance(M, 2) == (30 + 50 + 70) / 3


def test_average_forgetting_is_negative_when_tasks_are_forgotten() -> None:
    assert average_forgetting(M, 0) == 0
    assert average_forgetting(M, 1) == 60 - 90
    assert average_forgetting(M) == ((30 - 90) + (50 - 80)) / 2
    better = [[50.0, None], [65.0, 70.0]]
    assert average_forgetting(better) == 15  # learning the second task helped the first


def test_average_anytime_accuracy() -> None:
    assert average_anytime(M) == pytest.approx((90 + 70 + 50) / 3)


def test_learning_accuracy() -> None:
    assert learning_accuracy(M) == 80


def test_forward_transfer() -> None:
    full = [[90.0, 20.0, 12.0], [60.0, 80.0, 31.0], [30.0, 50.0, 70.0]]
    assert forward_transfer(full, [10.0, 15.0, 25.0]) == ((20 - 15) + (31 - 25)) / 2
    assert math.isnan(forward_transfer(M, [10.0, 15.0, 25.0]))  # the tasks to come were not measured
    assert math.isnan(forward_transfer([[90.0]], [10.0]))


def test_intransigence_against_joint_training() -> None:
    joint = [[92.0, None, None], [91.0, 88.0, None], [90.0, 86.0, 84.0]]
    assert intransigence(M, joint) == pytest.approx(((92 - 90) + (88 - 80) + (84 - 70)) / 3)
    assert intransigence(joint, joint) == 0


def test_mean_and_standard_deviation_of_a_sample() -> None:
    assert mean_std([1.0, 2.0, 6.0]) == {"mean": 3.0, "std": pytest.approx(math.sqrt((4 + 1 + 9) / 2))}
    assert mean_std([5.0]) == {"mean": 5.0, "std": 0.0}


def test_none_is_not_a_number() -> None:
    array = as_array(M)
    assert np.isnan(array[0, 1:]).all()
    assert array[2].tolist() == [30, 50, 70]
    assert as_array(array).tolist()[2] == [30, 50, 70]


@pytest.mark.parametrize("matrix", [[], [[1.0, 2.0]], [[1.0], [2.0, 3.0]]])
def test_a_matrix_is_square(matrix: list) -> None:
    with pytest.raises(eg.EvergraphError, match="an accuracy matrix is square"):
        average_performance(matrix)


def test_evaluation() -> None:
    found = Evaluation([30.0, 50.0, 70.0], [90.0, 80.0, 70.0], ["a", "b", "c"])
    assert found.ap == 50
    assert found.af == average_forgetting(M)
    assert str(found).splitlines()[-1] == "AP 50.00   AF -45.00"
    assert str(found).splitlines()[1].split() == ["1", "30.0", "90.0", "a"]


def test_errors_are_printed_with_as_many_places_as_their_size_takes() -> None:
    error = {"higher_is_better": False, "unit": ""}
    found = Evaluation([0.42, 0.38], [0.38, None], ["a", "b"], **error)
    first, second, means = (line.split() for line in str(found).splitlines()[1:])
    assert first == ["1", "0.420", "0.380", "a"]
    assert second == ["2", "0.380", "–", "b"]
    assert means == ["AP", "0.400", "AF", "-0.040"]
    large = str(Evaluation([12345.6, 7.0], [None, None], ["a", "b"], **error))
    assert [line.split()[1] for line in large.splitlines()[1:3]] == ["12346", "7"]
    tiny = str(Evaluation([1.234e-5], [1.234e-5], ["a"], **error)).splitlines()
    assert tiny[1].split()[1:3] == ["0.0000123", "0.0000123"]
    assert tiny[0].index("now") + 3 == tiny[1].index("0.0000123") + len("0.0000123")  # columns are as wide as they need


def test_a_learners_evaluation_knows_its_metrics_unit() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = {"x": torch.randn(60, 4, generator=generator), "y": torch.rand(60, generator=generator)}
    task = eg.Task.of(Data(**numbers, edge_index=torch.randint(60, (2, 100), generator=generator)), numbers=True)
    learner = eg.Learner("analytic")
    learner.learn(task)
    found = learner.evaluate([task])
    assert 0.1 < found.ap < 1
    assert f"AP {found.ap:.3f}" in str(found)
    assert str(found).splitlines()[1].split()[1] == f"{found.ap:.3f}"


def test_evaluation_where_the_first_accuracies_are_not_known() -> None:
    found = Evaluation([30.0, 50.0], [None, 80.0], ["a", "b"])
    assert found.af is None
    assert str(found).splitlines()[-1] == "AP 40.00   AF –"
    assert Evaluation([30.0], [None], ["a"]).af == 0  # the last task cannot have been forgotten yet
