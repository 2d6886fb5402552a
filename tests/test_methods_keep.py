"""With the exact estimator old classes are kept, where fine-tuning under the same protocol loses them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import evergraph as eg
from evergraph.cli import make_app
from evergraph.data.datasets.digits import digits
from evergraph.evaluation import average_forgetting, average_performance
from evergraph.methods import METHODS


def outcome(method: eg.Method, stream: eg.TaskStream, **training: object) -> tuple[float, float]:
    """AP and AF after the last task."""
    learner = eg.Learner(eg.GCN(), method, seed=stream.seed, device="cpu", label_scope="seen", **training)
    matrix = []
    for task in stream:
        learner.learn(task)
        row = learner.evaluate(stream).accuracies
        matrix.append([*row, *[None] * (len(stream) - len(row))])
    return average_performance(matrix), average_forgetting(matrix)


def test_on_digits_curvature_keeps_clearly_more_than_fine_tuning() -> None:
    """The gain is the regularizer alone: parameters are not averaged. Measured: AP 36, AF −67 against 19, −99."""
    graph = digits()
    gains = []
    for seed in range(2):
        stream = eg.TaskStream(graph, 2, seed=seed)
        ours = outcome(eg.OnlineCurvature(strength=1.0, ema=0.0), stream, epochs=15, lr=2e-3)
        plain = outcome(eg.Finetune(), stream, epochs=15, lr=2e-3)
        gains.append((ours[0] - plain[0], ours[1] - plain[1]))
    for performance, forgetting in gains:
        assert performance > 10
        assert forgetting > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "gain"), [({}, 20), ({"strength": 0.3, "ema": 0.0}, 30)], ids=["as the paper", "no averaging"]
)
def test_on_coauthor_cs_curvature_keeps_clearly_more_than_fine_tuning(
    settings: dict[str, float], gain: float, real_data: Path
) -> None:
    stream = eg.stream("coauthor-cs", data_root=real_data)
    ours = outcome(eg.OnlineCurvature(**settings), stream, epochs=5, lr=3e-4)
    plain = outcome(eg.Finetune(), stream, epochs=5, lr=3e-4)
    assert ours[0] - plain[0] > gain
    assert ours[1] - plain[1] > gain


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_from_the_command_line(name: str, tmp_path: Path) -> None:
    options = ["--epochs", "1", "--hidden", "16", "--json", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(make_app(), ["run", "digits", "--method", name, *options])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["method"] == name
    assert 0 <= result["ap"]["mean"] <= 100
