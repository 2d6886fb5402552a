"""`evergraph compare`: several streams, tuned alike, significance, LaTeX, more seeds later, a method of one's own."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats
from torch_geometric.data import Data

import evergraph as eg
from evergraph import registry
from evergraph.cli.common import look_for_results
from evergraph.cli.tables import comparison_table, methods_and_streams
from evergraph.data.datasets.sbm import sbm
from evergraph.evaluation.significance import paired_p, within_noise
from evergraph.experiments import comparison, heatmaps
from evergraph.experiments.comparison import table_rows
from evergraph.experiments.latex import escape
from evergraph.experiments.method_table import latex, markdown, method_table, table_as_csv
from evergraph.experiments.report.collect import find_runs, read_runs
from evergraph.experiments.result_file import EverySoOften, is_trial, read_results, write_results

STREAMS = ["sbm:nodes=60,classes=4,degree=4,features=8,signal=3", "sbm:nodes=72,classes=6,degree=4,features=8,signal=3"]
QUICK = ["--epochs", "2", "--hidden", "4", "--device", "cpu"]
MINE = '''
from dataclasses import dataclass
import evergraph as eg

@eg.register
@dataclass(repr=False)
class Damped(eg.Method):
    """Smaller steps for later tasks."""
    name = "damped"
    factor: float = 0.5
    def edit_grads(self, step):
        for value in step.model.parameters():
            value.grad *= self.factor ** step.context.index
'''


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_pictures: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERGRAPH_PLUGINS", "")


def result(method: str, stream: str, values: list[float], keeps: tuple[str, ...] = ()) -> dict:
    matrices = [[[value, None], [value, value]] for value in values]
    protocol = {"test_graph": "task", "order": "labelled"}
    return {"method": method, "stream": stream, "protocol": protocol, "seeds": list(range(len(values))),
            "matrices": matrices, "access": {"keeps": list(keeps)}}  # fmt: skip


RESULTS = [
    result("good", "a", [90, 91, 92, 93]), result("close", "a", [89.5, 91.2, 91.9, 92.8]),
    result("bad", "a", [50, 52, 51, 53]), result("joint", "a", [99, 99, 98, 99], ("graphs",)),
    result("good", "months/b.npz", [70, 71, 72]), result("bad", "months/b.npz", [80, 81, 83]),
]  # fmt: skip


def test_methods_and_streams_are_one_table() -> None:
    table = method_table(RESULTS)
    assert table.columns == ["a", "b"]  # no paths in titles
    good, bad, joint = table.rows["good"], table.rows["bad"], table.rows["joint"]
    assert good[0].best
    assert not good[1].best
    assert bad[1].best
    assert table.rows["close"][0].tied
    assert bad[0].tied is False
    assert not joint[0].best  # a ceiling does not compete
    assert table.rows["close"][1] is None
    text = markdown(table)
    assert "| good | **91.5 ± 1.3** | 71.0 ± 1.0 |" in text
    assert "| close | 91.4 ± 1.4† | – |" in text
    assert "| *joint* |" in text
    assert "3 or 4 runs an entry" in text
    assert "cannot be told" not in text
    few = method_table([{**one, "matrices": one["matrices"][:2]} for one in RESULTS])
    assert "fewer than 3 runs" in markdown(few)
    for text in (markdown(few), latex(few)):
        cells = text.split("marked.")[1]  # behind the legend
        assert not any(mark in cells for mark in ("**", "†", "textbf", "dagger"))  # the best of two may be so by chance
    assert {row["within_noise"] for row in csv.DictReader(io.StringIO(table_as_csv(few)))} == {""}
    source = latex(table)
    assert r"\begin{tabular}{lrr}" in source
    assert r"good & \textbf{91.5 $\pm$ 1.3} & 71.0 $\pm$ 1.0 \\" in source
    assert r"91.4 $\pm$ 1.4$^\dagger$ & -- \\" in source
    assert escape("a_b & 5%") == r"a\_b \& 5\%"


def test_a_ceiling_with_fewer_runs_takes_no_mark_from_those_that_compete() -> None:
    marks = [
        method_table([*RESULTS[:3], joint]).rows for joint in (RESULTS[3], result("joint", "a", [99], ("graphs",)))
    ]
    for method in ("good", "close", "bad"):
        assert marks[0][method] == marks[1][method]
    assert marks[1]["good"][0].best


@pytest.mark.parametrize(("kept", "keeps", "competes"), [(0, (), True), (64, (), True), (4000, (), False),
                                                       (4000, ("statistics",), True)])  # fmt: skip
def test_who_keeps_something_and_declares_nothing_does_not_compete(
    kept: int, keeps: tuple[str, ...], competes: bool
) -> None:
    """A few plain numbers, such as a counter, are nothing to declare."""
    best = {**result("hoarder", "a", [98, 99, 98, 99], keeps), "kept_bytes": [[0, kept]] * 4}
    table = method_table([*RESULTS[:3], best])
    assert table.rows["hoarder"][0].best == competes
    assert table.rows["good"][0].best == (not competes)
    assert ("hoarder: keeps something of earlier tasks and declares nothing" in markdown(table)) == (not competes)


HOARDER = '''
from dataclasses import dataclass
import evergraph as eg

@eg.register
@dataclass(repr=False)
class Hoarder(eg.Method):
    """Keeps training nodes and says nothing."""
    name = "hoarder"
    rows_: list = eg.state(list)
    def end_task(self, context):
        self.rows_ = [*self.rows_, context.task.graph.x[context.task.train]]
'''


def test_what_is_kept_and_not_declared_is_told_beside_the_result(evergraph, tmp_path: Path) -> None:
    from evergraph.methods import METHODS

    (tmp_path / "hoarder.py").write_text(HOARDER)
    try:
        words = ["--method", "hoarder", "--plugin", "hoarder.py", "--out", "one"]
        status, out, error = evergraph("run", STREAMS[0], *words, *QUICK)
        assert (status, error.count("hoarder: keeps something of earlier tasks and declares nothing")) == (0, 1)
        assert "undeclared" in out
        (run,) = read_runs(find_runs([tmp_path / "one"])[0])
        assert (run["role"], run["access"]["keeps"]) == ("undeclared", "undeclared")
    finally:
        METHODS.remove("hoarder")


def test_of_errors_the_smallest_is_best() -> None:
    """Mean absolute errors; AF is a gain of either kind of metric, and its largest is best."""
    errors = [result("good", "a", [0.1, 0.2, 0.1]), result("bad", "a", [0.7, 0.9, 0.8])]
    for one in errors:
        one["protocol"]["metric"] = "mae"
    errors[0]["matrices"] = [[[0.1, None], [0.2, 0.2]]] * 3  # the error of the first task has grown: forgetting
    errors[1]["matrices"] = [[[0.8, None], [0.8, 0.8]]] * 3
    by_error, by_gain = method_table(errors), method_table(errors, "af")
    assert [by_error.rows[name][0].best for name in ("good", "bad")] == [True, False]
    assert by_error.rows["good"][0].values == pytest.approx([0.2] * 3)
    assert by_gain.rows["good"][0].values == pytest.approx([-0.1] * 3)
    assert [by_gain.rows[name][0].best for name in ("good", "bad")] == [False, True]


def test_significance_is_paired_and_corrected() -> None:
    random = np.random.default_rng(0)
    base = random.normal(size=8)
    values = {
        "best": base + 1,
        "worse": base + 0.2 * random.normal(size=8),
        "same": base + 1 + 0.01 * random.normal(size=8),
    }
    for name in ("worse", "same"):
        assert paired_p(values["best"], values[name]) == pytest.approx(stats.ttest_rel(values["best"], values[name])[1])
    assert within_noise(values, "best") == {"best": True, "worse": False, "same": True}
    assert paired_p([1, 2, 3], [1, 2, 3]) == 1
    assert paired_p([2, 3, 4], [1, 2, 3]) == 0
    assert paired_p([99, 98], [13, 18]) is None  # two pairs would be called alike
    assert within_noise({"a": [1.0], "b": [2.0]}, "b") == {"a": None, "b": True}


def errors_of(stream: str) -> list[dict]:
    """Two methods on a stream whose metric is an error."""
    found = [result("good", stream, [0.38, 0.4, 0.41]), result("bad", stream, [0.8, 0.82, 0.81])]
    return [{**one, "protocol": {**one["protocol"], "metric": "mae"}} for one in found]


def test_the_table_of_methods_names_a_metric_other_than_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    errors = method_table(errors_of("a"))
    for text in (markdown(errors), latex(errors)):
        assert "AP: mean absolute error, lower is better. Mean ±" in text
    Console(width=200).print(methods_and_streams(errors))
    assert "AP: mean absolute error, lower is better. Mean ±" in " ".join(capsys.readouterr().out.split())
    forgetting = method_table(errors_of("a"), "af")
    assert markdown(forgetting).startswith("AF: mean absolute error. ")  # more is better, as always
    mixed = method_table([*RESULTS[:3], *errors_of("b")])
    assert "| method | a: accuracy (%) | b: mean absolute error, lower is better |" in markdown(mixed)
    assert r"Method & a: accuracy (\%) & b: mean absolute error, lower is better \\" in latex(mixed)
    assert markdown(mixed).startswith("AP. Mean")
    rows = list(csv.DictReader(io.StringIO(table_as_csv(mixed))))
    assert {(row["stream"], row["metric"]) for row in rows} == {("a", "accuracy"), ("b", "mae")}
    plain = method_table(RESULTS)
    assert (plain.columns, markdown(plain)[:8]) == (["a", "b"], "AP. Mean")


def test_the_table_of_rows_names_a_metric_other_than_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    spent = {"seconds": 1.0, "kept_bytes": [[0]], "metrics": {key: {"values": [0.5] * 3} for key in ("ap", "af")}}
    rows = table_rows({**one, **spent} for one in [*RESULTS[1:3], *errors_of("b")])
    cells = [line.split(" | ") for line in comparison.markdown(rows).splitlines()]
    assert cells[0][4] == "metric"
    assert [row[4] for row in cells[2:]] == ["accuracy (%)"] * 2 + ["mean absolute error, lower is better"] * 2
    assert "metric" not in comparison.markdown(rows[:2])
    for row in rows[2:]:  # as the metric's values, and not with the two places of percentages
        row |= {key: {name: value / 100 for name, value in row[key].items()} for key in ("ap", "af")}
    assert "| 0.00500 ± 0.00000 | 0.00500 ± 0.00000 |" in comparison.markdown(rows)
    Console(width=200).print(comparison_table(rows))
    assert "0.50 ± 0.00" in (shown := capsys.readouterr().out)
    assert "0.00500 ± 0.00000" in shown
    table = list(csv.DictReader(io.StringIO(comparison.table_as_csv(rows))))
    assert [row["metric"] for row in table] == ["accuracy"] * 2 + ["mae"] * 2


def test_names_of_methods_break_after_hyphens_where_the_table_is_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    spent = {"seconds": 1.0, "kept_bytes": [[0]], "metrics": {key: {"values": [0.5] * 3} for key in ("ap", "af")}}
    rows = table_rows({**one, **spent, "method": "stand-in-curvature"} for one in RESULTS[1:3])
    Console(width=200).print(comparison_table(rows))
    assert " stand-in-curvature " in capsys.readouterr().out
    Console(width=80).print(comparison_table(rows))
    first = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert "stand-in-" in first
    assert "curvature" in first


def test_holm_counts_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    from evergraph.evaluation import significance

    p = {"x": 0.01, "y": 0.03, "z": 0.04}
    monkeypatch.setattr(significance, "paired_p", lambda first, second: p[second])
    told = within_noise({"best": "best", **{name: name for name in p}}, "best")
    assert told == {"best": True, "x": False, "y": True, "z": True}  # 0.01·3 < 0.05, 0.03·2 is not


def test_a_comparison_over_streams_is_written_as_markdown_latex_and_csv(evergraph, tmp_path: Path) -> None:
    words = ["compare", *STREAMS, "--methods", "finetune,ewc,joint", "--seeds", "2", *QUICK, "--out", "here"]
    status, out, _ = evergraph(*words, "--latex")
    assert status == 0
    assert out == (tmp_path / "here/methods.tex").read_text()
    assert out.count(r"$\pm$") == 6
    rows = list(csv.DictReader((tmp_path / "here/methods.csv").open()))
    assert [(row["method"], row["runs"]) for row in rows] == [
        (m, "2") for m in ("finetune", "ewc", "joint") for _ in "ab"
    ]
    assert sum(row["best"] == "True" for row in rows) == 2
    assert (tmp_path / "here/methods.md").read_text().count("|---") == 1
    assert "methods and streams: here/methods.md" in evergraph(*words, "--resume")[1]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list:
    """The panels of `heatmaps.png`, in place of the file."""
    panels: list = []

    def keep(figure, path: Path) -> Path:
        panels.extend(axis for axis in figure.axes if axis.get_title())
        return path

    monkeypatch.setattr(heatmaps, "save", keep)
    monkeypatch.setattr("evergraph.cli.compare.heatmaps", heatmaps.heatmaps)
    return panels


def test_every_matrix_of_a_comparison_is_a_panel_that_says_what_it_is(evergraph, drawn: list) -> None:
    words = ["--methods", "finetune", "--seeds", "1", *QUICK, "--out", "here", "--json", "--test-graph", "task,seen"]
    status, out, _ = evergraph("compare", *STREAMS, *words, "--order", "labelled", "--order", "random:1")
    assert status == 0
    titles = [panel.get_title().rpartition("\n") for panel in drawn]
    assert ["".join(title[0].split()) for title in titles] == [  # in lines as long as the panel is wide
        f"finetune(stream{stream},order{order},test_graph{graph})"
        for stream in STREAMS
        for order in ("labelled", "random:1")
        for graph in ("task", "seen")
    ]
    means = [(one["ap"]["mean"], one["af"]["mean"]) for one in json.loads(out)["results"]]
    assert [title[2] for title in titles] == [f"AP {ap:z.1f}   AF {af:z.1f}" for ap, af in means]


def test_heatmaps_of_several_metrics_have_a_scale_and_digits_each(drawn: list) -> None:
    accuracies = {**result("ewc", "a", [90]), "ap": {"mean": 90}, "af": {"mean": -0.04}}
    errors = {**result("ewc", "b", [0.38]), "ap": {"mean": 0.38}, "af": {"mean": -0.03}}
    errors["protocol"] = {**errors["protocol"], "metric": "mae"}
    heatmaps.heatmaps([accuracies, errors], "heatmaps.png")
    assert [panel.get_title() for panel in drawn] == [
        "ewc (stream a)\nAP 90.0   AF 0.0",
        "ewc (stream b)\nAP 0.380   AF -0.030",
    ]
    assert [panel.texts[0].get_text() for panel in drawn] == ["90", "0.38"]
    assert [panel.get_xlabel() for panel in drawn] == ["accuracy on task", "mean absolute error on task"]
    assert drawn[0].images[0].get_clim() == (0, 100)
    assert drawn[1].images[0].get_clim()[1] < 2
    bars = [axis.get_ylabel() for axis in drawn[0].figure.axes if not axis.get_title()]
    assert bars == ["accuracy (%)", "mean absolute error"]


def test_with_nothing_to_search_a_tuned_comparison_is_a_comparison(evergraph, tmp_path: Path) -> None:
    words = [
        "compare",
        STREAMS[0],
        "--methods",
        "analytic",
        "--set",
        "analytic.ridge=0.5",
        "--set",
        "analytic.hidden=40",
    ]
    words += ["--seeds", "1", *QUICK, "--tune", "first-tasks", "--trials", "1", "--out", "here"]
    status, _, error = evergraph(*words)
    assert (status, error.count("error")) == (0, 0)
    assert json.loads((tmp_path / "here/tuning/best.json").read_text()) == {}


def test_seeds_can_be_added_later(evergraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["compare", STREAMS[0], "--methods", "finetune,ewc", *QUICK, "--json"]
    whole = json.loads(evergraph(*words, "--seeds", "3", "--out", "whole")[1])
    first = json.loads(evergraph(*words, "--seeds", "2", "--out", "here")[1])
    learned, learn = [], eg.Learner.learn

    def watched(learner: eg.Learner, *rest: object) -> object:
        learned.append(learner.seed)
        return learn(learner, *rest)

    monkeypatch.setattr(eg.Learner, "learn", watched)
    more = json.loads(evergraph(*words, "--seeds", "3", "--out", "here", "--resume")[1])
    assert set(learned) == {2}
    for one, other, before in zip(more["results"], whole["results"], first["results"]):
        assert one["seeds"] == [0, 1, 2]
        assert one["matrices"] == other["matrices"]
        assert one["matrices"][:2] == before["matrices"]
    status, _, error = evergraph(*words, "--seeds", "1", "--out", "here", "--resume")
    assert status == 2
    assert "other settings (seeds)" in error


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Path]:
    """The file on which the graph of the registered dataset `changing` depends."""
    path = tmp_path / "signal.txt"
    path.write_text("3")

    def load(data_root: object) -> eg.Graph:
        return sbm(nodes=60, classes=4, degree=4, features=8, signal=float(path.read_text()), seed=1)

    eg.registry.datasets.register(eg.Dataset("changing", load, classes_per_task=1, about="depends on a file"))
    yield path
    eg.registry.datasets.remove("changing")


@pytest.mark.parametrize("lost", [False, True])
def test_a_dataset_whose_graph_has_changed_is_not_mixed_with_the_old_one(
    evergraph, tmp_path: Path, changing: Path, lost: bool
) -> None:
    """Not even where the comparison was killed before the results of its finished cells were in the file."""
    words = ["compare", "changing", "--seeds", "1", *QUICK, "--out", "here"]
    assert evergraph(*words, "--methods", "finetune")[0] == 0
    if lost:
        (tmp_path / "here/results.jsonl").unlink()
    changing.write_text("1")
    status, _, error = evergraph(*words, "--methods", "finetune,ewc", "--resume")
    assert (status, error.count("\n")) == (2, 1)
    assert "finetune was run on another graph: changing has changed since; name another with --out" in error
    assert not (tmp_path / "here/cells/ewc").exists()
    changing.write_text("3")
    assert evergraph(*words, "--methods", "finetune,ewc", "--resume")[0] == 0
    assert len({one["result"]["graph"] for one in read_results(tmp_path / "here").values()}) == 1


def test_finished_runs_on_a_dataset_whose_graph_has_changed_are_not_shown_as_its_own(evergraph, changing: Path) -> None:
    quick = ["--seeds", "1", *QUICK]
    compare = ["compare", "changing", "--methods", "finetune", *quick, "--out", "here"]
    run = ["run", "changing", "--method", "finetune", *quick, "--out", "there"]
    for words in (compare, run):
        assert evergraph(*words)[0] == 0
    changing.write_text("1")
    for words in (compare, run):
        status, _, error = evergraph(*words, "--resume")
        assert (status, error.count("\n")) == (2, 1)
        assert "was run on another graph: changing has changed since; name another with --out" in error
    changing.write_text("3")
    for words in (compare, run):
        assert evergraph(*words, "--resume")[0] == 0


def test_a_search_on_a_dataset_whose_graph_has_changed_is_not_resumed(evergraph, changing: Path) -> None:
    words = ["tune", "changing", "--method", "ewc", "--rule", "first-tasks", "--label-scope", "seen", *QUICK]
    assert evergraph(*words, "--trials", "1", "--out", "here")[0] == 0
    changing.write_text("1")
    status, _, error = evergraph(*words, "--trials", "2", "--out", "here", "--resume")
    assert (status, error.count("\n")) == (2, 1)
    assert "here was run on another graph: changing has changed since" in error


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The method and the seed of every task learned."""
    seen: list[tuple[str, int]] = []
    learn = eg.Learner.learn

    def watched(learner: eg.Learner, *rest: object, **more: object) -> object:
        seen.append((learner.method.name, learner.seed))
        return learn(learner, *rest, **more)

    monkeypatch.setattr(eg.Learner, "learn", watched)
    return seen


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("added", [["--order", "labelled", "--order", "random:1"], [STREAMS[1]]])
def test_another_order_or_stream_runs_the_new_cells_alone(
    evergraph, tmp_path: Path, trained: list[tuple[str, int]], added: list[str], lost: bool
) -> None:
    """Not even cells whose results were not in the file yet when the comparison was killed are run again."""
    words = ["--seeds", "2", *QUICK, "--json", "--out", "here"]
    first = json.loads(evergraph("compare", STREAMS[0], "--methods", "finetune,ewc", *words)[1])
    tasks = len(trained) // 2
    if lost:
        (tmp_path / "here/results.jsonl").unlink()
    trained.clear()
    words = ["compare", STREAMS[0], *added, "--methods", "finetune", *words, "--resume"]
    status, out, error = evergraph(*words)
    assert status == 0, error
    both = json.loads(out)
    assert (len(both["results"]), len(trained)) == (2, tasks if "--order" in added else 6)
    assert both["results"][0]["matrices"] == first["results"][0]["matrices"]
    assert list(read_results(tmp_path / "here"))[-1].endswith("/finetune")
    assert len(read_results(tmp_path / "here")) == (2 if lost else 3)
    trained.clear()
    assert json.loads(evergraph(*words)[1])["table"] == both["table"]
    assert trained == []


def test_with_another_order_fewer_seeds_are_refused_as_without(evergraph) -> None:
    words = ["compare", STREAMS[0], "--methods", "finetune", *QUICK, "--out", "here"]
    assert evergraph(*words, "--seeds", "2")[0] == 0
    status, _, error = evergraph(*words, "--seeds", "1", "--order", "labelled", "--order", "random:1", "--resume")
    assert status == 2
    assert "finetune was run with other settings (seeds)" in error


def test_the_report_shows_what_the_tables_show(evergraph, tmp_path: Path) -> None:
    """Each order and seed once, and the methods asked for, though the folder holds others."""
    words = ["compare", STREAMS[0], "--seeds", "1", *QUICK, "--out", "here", "--json"]
    assert evergraph(*words, "--methods", "finetune,ewc")[0] == 0
    orders = ["--order", "labelled", "--order", "random:1"]
    out = json.loads(evergraph(*words, "--methods", "mas,finetune", *orders, "--resume")[1])
    assert {row["method"]: row["runs"] for row in out["table"]} == {"mas": 2, "finetune": 2}
    page = (tmp_path / "here/report.html").read_text()
    shown = [(run["method"], run["protocol"]["order"]) for run in page_data(page)["runs"]]
    assert sorted(shown) == [(name, order) for name in ("finetune", "mas") for order in ("labelled", "random:1")]
    assert shown == [(one["method"], one["protocol"]["order"]) for one in out["results"]]
    assert len(read_runs(find_runs([tmp_path / "here"])[0])) == 5  # the folder's own report shows all of them


def page_data(page: str) -> dict:
    """The data that a report's page holds."""
    (text,) = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_a_run_under_two_keys_is_reported_once(evergraph, tmp_path: Path) -> None:
    words = ["compare", STREAMS[0], "--methods", "finetune", *QUICK, "--out", "here"]
    assert evergraph(*words, "--seeds", "1")[0] == 0
    before = (tmp_path / "here/results.jsonl").read_text().replace('"key": "finetune"', '"key": "labelled/finetune"')
    assert evergraph(*words, "--seeds", "2", "--resume")[0] == 0
    with (tmp_path / "here/results.jsonl").open("a") as file:
        file.write(before)
    assert len(read_results(tmp_path / "here")) == 2
    (run,) = read_runs(find_runs([tmp_path / "here"])[0])
    assert run["seeds"] == [0, 1]


def test_a_run_is_reported_beside_a_trial_with_the_same_settings(tmp_path: Path) -> None:
    training = eg.Training(epochs=1)
    spec = eg.RunSpec(STREAMS[0], method="finetune", model_settings={"hidden": 4}, training=training, device="cpu")
    keys = ("best/sbm/choose/finetune@lr=0.001", "best/sbm/finetune", "choose/finetune")
    done = eg.run(spec, tmp_path / "run")
    write_results(tmp_path, dict.fromkeys(keys[:2], spec), dict.fromkeys(keys[:2], done))
    assert len(read_runs([tmp_path])) == 1
    assert [is_trial(key) for key in keys] == [True, False, False]  # a stream may be called `choose`


def test_a_folder_with_a_comparison_is_refused_before_anything_is_searched(evergraph, tmp_path: Path) -> None:
    words = ["compare", STREAMS[0], "--methods", "finetune", "--seeds", "1", *QUICK, "--out", "here"]
    tuned = ["--tune", "first-tasks", "--trials", "2", "--classes-per-task", "1"]
    assert evergraph(*words)[0] == 0
    status, _, error = evergraph(*words, *tuned)
    assert (status, "holds a comparison already; add --resume" in error) == (2, True)
    assert not (tmp_path / "here/tuning").exists()


def test_a_summary_that_only_some_runs_have_is_in_no_table(evergraph, tmp_path: Path) -> None:
    words = ["compare", STREAMS[0], "--methods", "finetune", "--seeds", "1", *QUICK, "--out", "here"]
    eg.registry.summaries.register(eg.evaluation.Summary("worst", "Worst", "The lowest.", lambda m: min(m[-1])))
    try:
        assert evergraph(*words)[0] == 0
    finally:
        eg.registry.summaries.remove("worst")
    status, _, error = evergraph(*words, "--order", "labelled", "--order", "random:1", "--resume")
    assert status == 0, error
    (row,) = csv.DictReader((tmp_path / "here/table.csv").open())
    assert row["runs"] == "2"
    assert not [name for name in row if name.startswith("worst")]


def test_what_was_not_tested_is_not_called_different() -> None:
    rows = list(csv.DictReader(io.StringIO(table_as_csv(method_table(RESULTS[:4])))))
    assert {row["method"]: row["within_noise"] for row in rows}["joint"] == ""


def test_names_with_bars_keep_their_columns_and_nothing_is_minus_zero() -> None:
    table = markdown(method_table([result("good", "a|b.npz", [-0.001])])).splitlines()
    assert table[2:] == ["| method | a\\|b |", "|---|--:|", "| good | 0.0 |"]


def test_runs_of_an_earlier_plug_in_are_named(evergraph, tmp_path: Path) -> None:
    path = tmp_path / "mine_changing.py"
    path.write_text(MINE.replace("damped", "damped-changing"))
    words = ["compare", STREAMS[0], "--methods", "finetune,damped-changing", "--seeds", "1", *QUICK, "--out", "here"]
    words += ["--plugin", path]
    try:
        status, _, error = evergraph(*words)
        assert (status, "has changed" in error) == (0, False), error
        same = evergraph(*words, "--resume")[2]
        path.write_text(path.read_text() + "# another\n")
        changed = evergraph(*words, "--resume")[2]
    finally:
        registry.methods.remove("damped-changing")
    assert "has changed" not in same
    assert "results.jsonl: damped-changing: mine_changing.py has changed since this was run" in changed
    assert changed.count("has changed") == 1  # fine-tuning does not come from it
    results = read_results(tmp_path / "here")
    assert "mine_changing.py" in results["damped-changing"]["result"]["versions"]
    assert "mine_changing.py" not in results["finetune"]["result"]["versions"]


def test_with_another_order_the_search_is_not_repeated(evergraph, tmp_path: Path) -> None:
    words = ["compare", STREAMS[0], "--methods", "ewc", "--seeds", "1", "--tune", "first-tasks", "--trials", "2"]
    words += [*QUICK, "--classes-per-task", "1", "--label-scope", "seen", "--out", "here"]
    assert evergraph(*words)[0] == 0
    status, _, error = evergraph(*words, "--order", "labelled", "--order", "random:1", "--resume")
    assert status == 0, error
    assert [path.parent.name for path in (tmp_path / "here/tuning").rglob("tune.json")] == ["ewc"]
    assert len(read_results(tmp_path / "here")) == 2


@pytest.mark.parametrize("left", ["cells/finetune/", "cells/finetune/.lock", "cells/failures.txt"])
def test_a_comparison_stopped_before_its_first_run_goes_on(evergraph, tmp_path: Path, left: str) -> None:
    leave(tmp_path / "here", left)
    words = ["compare", STREAMS[0], "--methods", "finetune", "--seeds", "1", *QUICK, "--out", "here", "--resume"]
    status, _, error = evergraph(*words)
    assert status == 0, error
    assert list(read_results(tmp_path / "here")) == ["finetune"]


def test_a_tuned_comparison_stopped_before_its_first_trial_goes_on(evergraph, tmp_path: Path, monkeypatch) -> None:
    words = ["compare", STREAMS[0], "--methods", "ewc", "--seeds", "1", "--tune", "first-tasks", "--trials", "1"]
    words += [*QUICK, "--classes-per-task", "1", "--label-scope", "seen", "--out", "here"]

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("evergraph.experiments.selection.search.Search.run", killed)
        status, _, error = evergraph(*words)
        assert status == 130
        assert "go on with: evergraph compare" in error
    status, _, error = evergraph(*words, "--resume")
    assert status == 0, error


@pytest.mark.parametrize("left", ["cells/coauthor-cs/best/ewc/", "commands.jsonl", "cells/failures.txt"])
def test_an_experiment_stopped_before_its_first_run_may_go_on(tmp_path: Path, left: str) -> None:
    leave(tmp_path / "here", left)
    assert look_for_results(tmp_path / "here", "an experiment") == {}


@pytest.mark.parametrize("left", ["letter.txt", "letters/old/letter.txt"])
def test_a_folder_with_something_else_is_not_taken(tmp_path: Path, left: str) -> None:
    leave(tmp_path / "here", left)
    with pytest.raises(eg.EvergraphError, match="here exists and is not a comparison's folder; name another"):
        look_for_results(tmp_path / "here", "a comparison")


def leave(folder: Path, name: str) -> None:
    """Leave an empty file, or an empty folder if its name ends in a slash, in a folder."""
    place = folder / name
    place.parent.mkdir(parents=True)
    place.mkdir() if name.endswith("/") else place.write_text("")


def test_results_are_saved_as_they_come(evergraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that is killed keeps them; `--resume` runs the rest alone."""
    monkeypatch.setattr("evergraph.cli.compare.EverySoOften", partial(EverySoOften, seconds=0))
    words = ["compare", STREAMS[0], "--methods", "finetune,ewc", "--seeds", "1", *QUICK, "--out", "here"]
    learn = eg.Learner.learn

    def killed(learner: eg.Learner, *rest: object, **more: object) -> object:
        if learner.method.name == "ewc":
            raise KeyboardInterrupt
        return learn(learner, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(eg.Learner, "learn", killed)
        assert evergraph(*words)[0] == 130
    assert list(read_results(tmp_path / "here")) == ["finetune"]
    assert evergraph(*words, "--resume")[0] == 0
    assert list(read_results(tmp_path / "here")) == ["finetune", "ewc"]


def test_a_method_that_fails_is_named_and_the_others_are_in_the_tables(evergraph, tmp_path: Path, monkeypatch) -> None:
    def fails(method: eg.EWC, context: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(eg.EWC, "end_task", fails)
    words = ["compare", STREAMS[0], "--methods", "ewc,finetune", "--seeds", "1", *QUICK, "--out", "here"]
    status, _, error = evergraph(*words)
    assert status == 2
    assert "1 of 2 runs failed, --resume tries them again; ewc: ZeroDivisionError: a mistake" in error
    assert list(read_results(tmp_path / "here")) == ["finetune"]
    assert "| finetune |" in (tmp_path / "here/methods.md").read_text()


def test_results_that_cannot_be_saved_are_no_methods_failure(evergraph, tmp_path: Path, monkeypatch) -> None:
    def full(results: object) -> None:
        raise eg.EvergraphError("cannot write results.jsonl (No space left on device)")

    monkeypatch.setattr("evergraph.cli.compare.EverySoOften", lambda save: full)
    words = ["compare", STREAMS[0], "--methods", "finetune,ewc", "--seeds", "1", *QUICK, "--out", "here"]
    assert evergraph(*words)[::2] == (2, "error: cannot write results.jsonl (No space left on device)\n")
    assert (tmp_path / "here/cells/finetune/result.json").exists()
    assert not (tmp_path / "here/cells/ewc").exists()


def test_notes_are_said_once_and_captions_name_what_was_trained(evergraph, tmp_path: Path, monkeypatch) -> None:
    """A graph is read for its checks and for its runs; a closed form has neither epochs nor a learning rate."""
    graph = sbm(nodes=60, classes=4, degree=4, features=8, signal=3.0, seed=1)
    edges = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
    torch.save(Data(x=graph.x, edge_index=edges, y=graph.y), tmp_path / "graph.pt")
    monkeypatch.setenv("COLUMNS", "200")
    words = ["graph.pt", "--seeds", "1", "--hidden", "8", "--device", "cpu", "--out"]
    closed = evergraph("compare", *words, "closed", "--methods", "analytic,auto")
    both = evergraph("compare", *words, "both", "--methods", "analytic,ewc,lwf", "--epochs", "2", "--set", "lwf.lr=0.5")
    for status, _, error in (closed, both):
        assert status == 0, error
        notes = [line for line in error.splitlines() if not re.match(r"\d/\d \w+$", line)]  # those are progress
        assert len(notes) == 1
        assert "edges were given in one direction" in notes[0]
    assert not re.search("epoch|lr |label scope|loss", closed[1])
    assert "seed 0\n" in closed[1]
    assert "loss mean or sum, 2 epochs, lr 0.001 or 0.5, seed 0" in " ".join(both[1].split())
    results = read_results(tmp_path / "both")
    assert "lr" in results["ewc"]["result"]["protocol"]
    assert not {"epochs", "lr", "label_scope"} & results["analytic"]["result"]["protocol"].keys()


def test_one_run_has_no_spread(evergraph, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = [STREAMS[0], "--hidden", "4", "--device", "cpu", "--epochs", "1"]
    one = evergraph("run", *words, "--method", "finetune", "--out", "one")[1]
    assert "±" not in one
    assert "1 epoch, lr 0.001, seed 0\n" in one
    several = evergraph("run", *words, "--method", "finetune", "--seeds", "2", "--out", "two")[1]
    assert several.count("±") == 3  # AP, AF and the caption
    assert "1 epoch, lr 0.001, seeds 0, 1; mean ± std over seeds" in several
    varied = evergraph("compare", *words, "--methods", "lwf", "--seeds", "1", "--vary", "strength=1,2", "--out", "all")[
        1
    ]
    for text in (varied, (tmp_path / "all/table.md").read_text(), (tmp_path / "all/methods.md").read_text()):
        assert "±" not in text
    assert "±" not in evergraph("leak", STREAMS[0], "--seeds", "1")[1]


@pytest.mark.slow
def test_seeds_can_be_added_side_by_side(evergraph) -> None:
    words = ["compare", STREAMS[0], "--methods", "finetune,ewc", *QUICK, "--json"]
    whole = json.loads(evergraph(*words, "--seeds", "3", "--out", "whole")[1])
    assert evergraph(*words, "--seeds", "1", "--out", "here")[0] == 0
    more = json.loads(evergraph(*words, "--seeds", "3", "--jobs", "2", "--out", "here", "--resume")[1])
    assert [one["matrices"] for one in more["results"]] == [one["matrices"] for one in whole["results"]]


def test_every_method_is_tuned_by_one_rule(evergraph, tmp_path: Path) -> None:
    words = ["compare", *STREAMS, "--methods", "finetune,ewc", "--seeds", "2", "--tune", "first-tasks", "--trials", "2"]
    stream = ["--classes-per-task", "1", "--label-scope", "seen"]
    status, out, error = evergraph(*words, *QUICK, *stream, "--out", "here", "--json")
    assert status == 0, error
    found, best = json.loads(out), json.loads((tmp_path / "here/tuning/best.json").read_text())
    assert len(best) == 4
    runs = read_runs(find_runs([tmp_path / "here"])[0])
    assert len(runs) == 4  # the trials are not in the report
    for one in found["results"]:
        chosen = best[f"{one['stream']}: {one['method']}"]
        assert one["protocol"]["lr"] == chosen["training"]["lr"]
        assert one["hyperparameters"].get("strength") == chosen["settings"].get("strength")
        assert len(one["seeds"]) == 2
    assert "rule first-tasks, 2 trials" in (tmp_path / "here/methods.md").read_text()
    assert evergraph(*words, *QUICK, *stream, "--out", "here", "--json", "--resume")[0] == 0
    status, _, error = evergraph("compare", STREAMS[0], "--tune", "guessing", *QUICK)
    assert status == 2
    assert "unknown selection rule 'guessing'" in error


def test_what_is_searched_with_which_seeds_and_how_the_rule_is_set(evergraph, tmp_path: Path) -> None:
    words = ["compare", STREAMS[0], "--methods", "finetune,ewc", "--seeds", "1", "--tune", "first-tasks"]
    words += ["--trials", "4", "--lr", "0.01", "--label-scope", "seen", "--classes-per-task", "1", "--epochs", "1"]
    words += ["--space", "model.hidden=4,8", "--space", "strength=1,2", "--tune-seeds", "2", "--rule-set", "tasks=2"]
    status, out, error = evergraph(*words, "--device", "cpu", "--out", "here", "--json")
    assert status == 0, error
    for one in json.loads(out)["results"]:
        method = one["method"]
        record = json.loads((tmp_path / f"here/tuning/{method}/tune.json").read_text())
        searched = {"strength", "model.hidden"} if method == "ewc" else {"model.hidden"}
        assert record["space"].keys() == searched
        assert record["spec"]["seeds"] == [0, 1]
        assert record["rule_settings"] == {"tasks": 2, "standard_errors": 0.0}
        chosen = json.loads((tmp_path / "here/tuning/best.json").read_text())[f"{STREAMS[0]}: {method}"]
        assert one["model"]["hidden"] == chosen["model_settings"]["hidden"]
        assert one["seeds"] == [0]
    for wrong, message in (
        (["--space", "power=1,2"], "--space power: no setting of finetune, ewc, of their models"),
        (["--space", "lr=0.1,0.2"], "lr is both set and searched"),
        (["--rule-set", "k=2"], "unknown setting of first-tasks 'k'"),
    ):
        status, _, error = evergraph(*words, *wrong, "--out", "there")
        assert (status, error.count("\n")) == (2, 1)
        assert message in error
    status, _, error = evergraph("compare", STREAMS[0], "--space", "strength=1,2")
    assert (status, error) == (2, "error: --space is for --tune; name a rule with it\n")


@pytest.mark.slow
def test_the_students_comparison_is_one_command(evergraph, tmp_path: Path) -> None:
    """Five methods tuned by one rule, three streams, three seeds, LaTeX."""
    third = "sbm:nodes=80,classes=4,degree=4,features=6,signal=3"
    words = ["compare", *STREAMS, third, "--methods", "auto,stand-in-curvature,er-gnn,lwf,ewc", "--seeds", "3"]
    words += ["--epochs", "2", "--hidden", "8", "--device", "cpu", "--classes-per-task", "1", "--label-scope", "seen"]
    status, out, error = evergraph(*words, "--tune", "first-tasks", "--trials", "2", "--latex", "--out", "here")
    assert status == 0, error
    assert out.count(r"$\pm$") == 5 * 3
    assert out.count(r"\textbf{") == 3  # the best of each stream
    assert len(json.loads((tmp_path / "here/tuning/best.json").read_text())) == 5 * 3


@pytest.mark.slow
def test_all_methods_are_one_comparison(evergraph, tmp_path: Path) -> None:
    words = ["compare", STREAMS[0], "--methods", "all", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--json"]
    status, out, error = evergraph(*words, "--set", "auto.hidden=12", "--set", "analytic.hidden=12")
    assert status == 0, error
    assert [one["method"] for one in json.loads(out)["results"]] == list(eg.METHODS)


def test_settings_of_one_methods_model_and_training(evergraph) -> None:
    words = ["compare", STREAMS[0], "--methods", "auto,ewc", "--seeds", "1", "--json", "--device", "cpu"]
    words += ["--set", "auto.hidden=12", "--set", "ewc.hidden=5", "--set", "ewc.epochs=1", "--set", "ewc.strength=3"]
    auto, ewc = json.loads(evergraph(*words)[1])["results"]
    assert auto["model"]["hidden"] == 12
    assert ewc["model"]["hidden"] == 5
    assert (ewc["protocol"]["epochs"], ewc["hyperparameters"]["strength"]) == (1, 3.0)
    status, _, error = evergraph("compare", STREAMS[0], "--methods", "auto", "--set", "auto.hiden=3")
    assert status == 2
    assert "unknown setting of auto 'hiden'" in error


@pytest.mark.spawned  # a process that imports everything has to find the file too
@pytest.mark.parametrize("command", ["run", "compare", "methods"])
def test_a_method_from_ones_own_file(evergraph, tmp_path: Path, command: str) -> None:
    from evergraph.methods import METHODS

    path = tmp_path / f"mine_{command}.py"
    path.write_text(MINE.replace("damped", f"damped-{command}"))
    words = {
        "run": ["run", STREAMS[0], "--method", "damped-run", *QUICK, "--json"],
        "compare": [
            "compare",
            STREAMS[0],
            "--methods",
            "damped-compare",
            "--seeds",
            "1",
            "--jobs",
            "2",
            *QUICK,
            "--json",
        ],
        "methods": ["methods", "--json"],
    }[command]
    try:
        status, out, error = evergraph(*words, "--plugin", path)
        assert status == 0, error
        assert f"damped-{command}" in out
    finally:
        METHODS.remove(f"damped-{command}")


def test_the_command_that_tune_prints_loads_the_plug_in_too(evergraph, tmp_path: Path) -> None:
    from evergraph.methods import METHODS

    path = tmp_path / "mine.py"
    path.write_text(MINE.replace("damped", "damped-tune"))
    words = ["tune", STREAMS[0], "--method", "damped-tune", "--plugin", "mine.py", "--trials", "1"]
    try:
        status, out, error = evergraph(*words, *QUICK, "--rule", "pseudo-stream", "--space", "lr=0.01")
        assert status == 0, error
        [line] = [line for line in out.splitlines() if line.startswith("use it: ")]
        assert f"--plugin {path}" in line
        assert evergraph(*shlex.split(line)[3:])[0] == 0
    finally:
        METHODS.remove("damped-tune")


def test_a_bad_plug_in_is_one_line(evergraph, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module")
    for words, message in (
        (["--plugin", "broken.py"], "cannot be loaded (ModuleNotFoundError: No module named 'no_such_module')"),
        (["--plugin=none.py"], "no such Python file"),
        (["--plugin"], "--plugin needs the path of a Python file"),
    ):
        status, out, error = evergraph("methods", *words)
        assert (status, out) == (2, "")
        assert message in error
        assert error.count("\n") == 1


def test_a_broken_plug_in_is_an_error_until_it_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evergraph.methods import METHODS

    path, content = tmp_path / "mine.py", MINE.replace("damped", "damped-late")
    path.write_text(content + "\nraise ValueError('half-way')\n")
    monkeypatch.setenv(registry.FILES, str(path))
    monkeypatch.setattr(registry, "_loaded", False)
    for _ in range(2):
        with pytest.raises(eg.EvergraphError, match="ValueError: half-way"):
            METHODS["ewc"]
    path.write_text(content)
    try:
        assert METHODS["damped-late"].name == "damped-late"
    finally:
        METHODS.remove("damped-late")


def test_the_version(evergraph) -> None:
    assert evergraph("--version")[:2] == (0, f"evergraph {eg.__version__}\n")


def test_the_version_is_there_at_once() -> None:
    """Before what takes seconds to import."""
    script = """if True:
        import sys
        sys.argv = ["evergraph", "--version"]
        try:
            import evergraph
        except SystemExit as ended:
            print(ended.code, "torch" in sys.modules)
    """
    here = {**os.environ, "PYTHONPATH": str(Path(eg.__file__).parents[1])}
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=here)
    assert (said.stdout, said.stderr) == (f"evergraph {eg.__version__}\n0 False\n", "")


def test_help_by_its_short_name_and_spaces_after_commas(evergraph) -> None:
    for words in (["-h"], ["compare", "-h"]):
        status, out, _ = evergraph(*words)
        assert (status, "Usage: evergraph" in out) == (0, True)
    words = ["compare", STREAMS[0], "--methods", "finetune, ema", "--seeds", 1, *QUICK, "--json"]
    status, out, error = evergraph(*words)
    assert status == 0, error
    assert [result["method"] for result in json.loads(out)["results"]] == ["finetune", "ema"]


def test_the_citation_names_this_version() -> None:
    root = Path(__file__).resolve().parents[1]
    text = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert "cff-version: 1.2.0" in text
    assert f"version: {eg.__version__}" in text
    assert "@software{evergraph" in (root / "README.md").read_text(encoding="utf-8")
