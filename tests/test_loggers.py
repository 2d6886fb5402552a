"""Loggers: real TensorBoard event files, a real MLflow SQLite store, and W&B's calls on a stand-in."""

import json
import math
import sys
import types

import pytest

from evergraph import cli
from evergraph.errors import EvergraphError
from evergraph.experiments.loggers import LOGGERS, Logger, Logging, make_loggers
from evergraph.experiments.run import run
from evergraph.experiments.specification import RunSpec
from evergraph.training import Training, driver

pytestmark = pytest.mark.usefixtures("without_pictures")

SPEC = RunSpec(
    source="sbm:nodes=120,classes=4,features=8,signal=3",
    method="ewc",
    settings={"strength": 10.0},
    model_settings={"hidden": 8},
    training=Training(epochs=3, patience=2),
    seeds=[0, 1],
    device="cpu",
)


class Notebook(Logger):
    """Writes down every call."""

    name = "notebook"

    def __init__(self):
        self.calls = []

    def start(self, folder, settings):
        self.calls.append(("start", folder.name, settings["method"]))

    def epoch(self, seed, task, step, values):
        self.calls.append(("epoch", seed, task, step, values))

    def task(self, seed, task, values):
        self.calls.append(("task", seed, task, values))

    def finish(self, result):
        self.calls.append(("finish", result["ap"]["mean"]))

    def close(self, ok):
        self.calls.append(("close", ok))

    def of(self, kind):
        return [call[1:] for call in self.calls if call[0] == kind]


def expected_tasks(result, seed):
    """AP, AF and the accuracies after each task, from the matrix."""
    matrix = result["matrices"][seed]
    rows = []
    for t in range(len(matrix)):
        accuracies = matrix[t][: t + 1]
        lost = [matrix[t][i] - matrix[i][i] for i in range(t)]
        values = {"ap": sum(accuracies) / (t + 1), "af": sum(lost) / t if t else 0.0}
        rows.append(values | {f"accuracy/task-{i + 1}": value for i, value in enumerate(accuracies)})
    return rows


def read_log(folder, seed):
    head, *rows = [line.split(",") for line in (folder / f"seed-{seed}" / "log.csv").read_text().splitlines()]
    return [dict(zip(head, map(float, row))) for row in rows]


def test_the_interface_sees_everything_once(tmp_path):
    notebook = Notebook()
    result = run(SPEC, tmp_path / "run", loggers=[notebook])
    assert [call[0] for call in notebook.calls[:1] + notebook.calls[-2:]] == ["start", "finish", "close"]
    assert notebook.of("close") == [(True,)]
    for seed in SPEC.seeds:
        epochs = [call for call in notebook.of("epoch") if call[0] == seed]
        rows = read_log(tmp_path / "run", seed)
        assert [call[2] for call in epochs] == list(range(1, len(rows) + 1))
        for (_, task, _, values), row in zip(epochs, rows):
            assert task == row["task"]
            assert values == {"loss": row["loss"], "validation_loss": row["validation_loss"]}
        tasks = [values for s, _, values in notebook.of("task") if s == seed]
        assert tasks == [pytest.approx(row) for row in expected_tasks(result, seed)]


def test_a_resumed_run_logs_what_remains_and_says_how_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0.0)
    first, second, whole = Notebook(), Notebook(), Notebook()

    def stop(seed, task, tasks, epoch, epochs):
        if (seed, task, epoch) == (0, 1, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SPEC, tmp_path / "run", loggers=[first], on_progress=stop)
    assert first.of("close") == [(False,)]
    run(SPEC, tmp_path / "run", loggers=[second], resume=True)
    run(SPEC, tmp_path / "whole", loggers=[whole])
    assert first.of("epoch") + second.of("epoch") == whole.of("epoch")
    assert first.of("task") + second.of("task") == whole.of("task")


def test_a_logger_that_breaks_does_not_stop_the_run(tmp_path, capsys):
    class Broken(Notebook):
        name = "broken"

        def epoch(self, *values):
            raise ConnectionError("the server is gone")

    notebook = Notebook()
    broken = Broken()
    result = run(SPEC, tmp_path / "run", loggers=[broken, notebook])
    assert len(result["matrices"]) == 2
    assert broken.of("finish") == []
    assert len(notebook.of("finish")) == 1
    warnings = capsys.readouterr().err.strip().splitlines()
    assert warnings == ["warning: logger broken stopped (the server is gone); the run goes on"]


def test_a_logger_cannot_change_what_is_written_or_what_others_see(tmp_path):
    class Rewrites(Logger):
        def start(self, folder, settings):
            settings["method"] = "changed"

        def task(self, seed, task, values):
            values.clear()

        def finish(self, result):
            result["ap"]["mean"] = result["matrices"][0][0][0] = 999.0

    notebook = Notebook()
    result = run(SPEC, tmp_path, loggers=[Rewrites(), notebook])
    assert result["ap"]["mean"] == notebook.of("finish")[0][0] <= 100
    written = json.loads((tmp_path / "result.json").read_text())
    assert (written["ap"], written["matrices"]) == (result["ap"], result["matrices"])
    assert notebook.of("start")[0][1] == "ewc"
    assert "ap" in notebook.of("task")[0][2]


def test_a_logger_that_cannot_start_stops_it_at_once(tmp_path):
    class Unwilling(Logger):
        name = "unwilling"

        def start(self, folder, settings):
            raise ConnectionError("no server at all")

    with pytest.raises(EvergraphError, match="--log unwilling: cannot start \\(no server at all\\)"):
        run(SPEC, tmp_path / "run", loggers=[Unwilling()])


def test_names_and_missing_packages(monkeypatch):
    with pytest.raises(EvergraphError, match="unknown logger 'paper'; choose one of: tensorboard, mlflow, wandb"):
        make_loggers(["paper"])
    for name, module in (("wandb", "wandb"), ("mlflow", "mlflow.tracking"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(EvergraphError, match=rf"pip install 'evergraph\[{name}\]'"):
            make_loggers([name])
    assert set(LOGGERS) == {"tensorboard", "mlflow", "wandb"}
    assert Logging([]).loggers == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Needy", "--log other: its constructor needs url, port; give each a default"),
        ("Failing", "--log other: cannot start \\(no server at all\\)"),
        ("Refusing", "^set SERVER first$"),
    ],
)
def test_a_constructor_that_fails_is_one_line(kind, message):
    class Needy(Logger):
        def __init__(self, url, *, port, path="/"):
            pass

    class Failing(Logger):
        def __init__(self):
            raise ConnectionError("no server at all\nnor a second line")

    class Refusing(Logger):
        def __init__(self):
            raise EvergraphError("set SERVER first")

    LOGGERS.register(name="other")(locals()[kind])
    try:
        with pytest.raises(EvergraphError, match=message) as raised:
            make_loggers(["other"])
        assert "\n" not in str(raised.value)
    finally:
        LOGGERS.remove("other")


def test_tensorboard_event_files(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run(SPEC, tmp_path / "run", loggers=make_loggers(["tensorboard"]))

    def read(name):
        events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard" / name))
        events.Reload()
        return events

    for seed in SPEC.seeds:
        events, rows = read(f"seed-{seed}"), read_log(tmp_path / "run", seed)
        assert [point.step for point in events.Scalars("loss")] == list(range(1, len(rows) + 1))
        assert [point.value for point in events.Scalars("loss")] == pytest.approx([row["loss"] for row in rows])
        assert len(events.Scalars("validation_loss")) == len(rows)
        for key, value in expected_tasks(result, seed)[-1].items():
            point = events.Scalars(key)[-1]
            assert (point.step, point.value) == (2, pytest.approx(value, abs=1e-4))
    summary = read("run")
    assert summary.Scalars("ap_mean")[0].value == pytest.approx(result["ap"]["mean"])
    assert "settings/text_summary" in summary.Tags()["tensors"]


def test_mlflow_sqlite_store(tmp_path, monkeypatch):
    pytest.importorskip("sqlalchemy")
    tracking = pytest.importorskip("mlflow.tracking")
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", 0.0)

    def stop(seed, task, tasks, epoch, epochs):
        if (seed, task) == (1, 0):
            raise KeyboardInterrupt

    client = tracking.MlflowClient(address)
    with pytest.raises(KeyboardInterrupt):
        run(SPEC, tmp_path / "run", loggers=make_loggers(["mlflow"]), on_progress=stop)
    experiment = client.get_experiment_by_name("evergraph").experiment_id
    (stored,) = client.search_runs([experiment])
    assert stored.info.status == "KILLED"
    result = run(SPEC, tmp_path / "run", loggers=make_loggers(["mlflow"]), resume=True)
    (stored,) = client.search_runs([experiment])  # the same MLflow run
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == "run"
    assert stored.data.params["training.lr"] == "0.001"
    assert stored.data.params["hyperparameters.strength"] == "10.0"
    assert stored.data.metrics["ap_mean"] == pytest.approx(result["ap"]["mean"])
    for seed in SPEC.seeds:
        rows = read_log(tmp_path / "run", seed)
        history = sorted(client.get_metric_history(stored.info.run_id, f"seed-{seed}/loss"), key=lambda m: m.step)
        assert {metric.step: metric.value for metric in history} == {i + 1: row["loss"] for i, row in enumerate(rows)}
        for key, value in expected_tasks(result, seed)[-1].items():
            assert stored.data.metrics[f"seed-{seed}/{key}"] == pytest.approx(value)


class StandIn(types.ModuleType):
    """Answers as the wandb package does, and remembers."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = []

    def init(self, **settings):
        one = types.SimpleNamespace(
            id=settings["id"] or "abc123", settings=settings, logged=[], axes={}, summary={}, ended=None
        )
        one.log = one.logged.append
        one.define_metric = lambda name, step_metric: one.axes.update({name: step_metric})
        one.finish = lambda exit_code: setattr(one, "ended", exit_code)
        self.runs.append(one)
        return one


def test_wandb_calls(tmp_path, monkeypatch):
    wandb = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    def stop(seed, task, tasks, epoch, epochs):
        if (seed, task) == (0, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SPEC, tmp_path / "run", loggers=make_loggers(["wandb"]), on_progress=stop)
    result = run(SPEC, tmp_path / "run", loggers=make_loggers(["wandb"]), resume=True)
    first, second = wandb.runs
    assert (first.settings["id"], second.settings["id"]) == (None, "abc123")  # the same W&B run
    assert second.settings["resume"] == "allow"
    assert second.settings["config"]["training.epochs"] == 3
    assert (first.ended, second.ended) == (1, 0)
    assert second.axes["seed-1/loss"] == "seed-1/epoch"
    assert second.axes["seed-1/accuracy/*"] == "seed-1/task"
    last = [row for row in second.logged if "seed-1/ap" in row][-1]
    assert last["seed-1/task"] == 2
    assert last["seed-1/ap"] == pytest.approx(expected_tasks(result, 1)[-1]["ap"])
    assert second.summary["ap_mean"] == result["ap"]["mean"]
    losses = [row["seed-1/loss"] for row in second.logged if "seed-1/loss" in row]
    assert losses == [row["loss"] for row in read_log(tmp_path / "run", 1)]


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")
    words = ["run", SPEC.source, "--epochs", "1", "--hidden", "8", "--device", "cpu", "--json"]
    monkeypatch.setattr(sys, "argv", ["evergraph", *words, "--log", "tensorboard", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == str(tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard" / "seed-0").glob("events.out.tfevents.*"))
    monkeypatch.setattr(
        sys, "argv", ["evergraph", *words, "--log", "paper", "--log", "tensorboard", "--out", str(tmp_path / "other")]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "unknown logger 'paper'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_numbers_after_a_task_are_those_of_the_results() -> None:
    """Also for errors, whose growth is forgetting, and where a task was not measured right after it was learned."""
    told: list[dict[str, float]] = []
    logger = type("Told", (Logger,), {"task": lambda self, seed, task, values: told.append(values)})()
    logging = Logging([logger])
    logging.task(0, [[0.2, None, None], [0.5, 0.3, None]], higher_is_better=False)
    logging.task(0, [[None, None], [50.0, 30.0]], higher_is_better=True)
    assert told[0] == pytest.approx({"ap": 0.4, "af": -0.3, "accuracy/task-1": 0.5, "accuracy/task-2": 0.3})
    assert told[1]["ap"] == 40
    assert math.isnan(told[1]["af"])
