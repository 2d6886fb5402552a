"""The command line: what it prints, what it leaves on the disk, and how it says no."""

import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import evergraph as eg
from evergraph.cli import printing
from evergraph.evaluation import average_forgetting, average_performance
from evergraph.experiments.heatmaps import heatmaps
from evergraph.methods import METHODS
from evergraph.persistence.reading import read_record, write_record
from forked import Forked, command_line
from graph_files import npz_parts

SMALL = "sbm:nodes=120,classes=6,degree=4,features=8,signal=3"
QUICK = ["--epochs", "2", "--hidden", "16", "--device", "cpu"]
KEYS = {"stream", "method", "hyperparameters", "protocol", "seeds", "ap", "af", "matrices"}
KEYS |= {"seconds", "device", "run_dir"}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, evergraph: Call, tmp_path: Path, without_pictures: None) -> Call:
    """The command line in this process, in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERGRAPH_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return evergraph


def result_of(printed: tuple[int, str, str]) -> dict[str, Any]:
    status, out, err = printed
    assert status == 0, err
    assert out.count("\n") == 1  # one object on one line, nothing else
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_run_prints_one_json_object(call: Call) -> None:
    result = result_of(call("run", SMALL, "--method", "finetune", "--seeds", 2, "--json", *QUICK))
    assert result.keys() >= KEYS
    assert (result["stream"], result["method"], result["seeds"]) == (SMALL, "finetune", [0, 1])
    assert len(result["matrices"]) == 2
    for matrix in result["matrices"]:
        assert [[entry is not None for entry in row] for row in matrix] == [
            [i <= t for i in range(3)] for t in range(3)
        ]
    for key, metric in (("ap", average_performance), ("af", average_forgetting)):
        values = [metric(matrix) for matrix in result["matrices"]]
        assert result[key] == {"mean": pytest.approx(np.mean(values)), "std": pytest.approx(np.std(values, ddof=1))}
    assert result["seconds"] > 0
    assert result["device"].startswith("cpu")
    assert Path(result["run_dir"]).is_dir()


def test_the_run_folder_holds_everything(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergraph.cli.run.heatmaps", heatmaps)  # with its picture
    options = ["--seeds", 2, "--json", "--out", tmp_path / "here", "--patience", 5, *QUICK]
    result = result_of(call("run", SMALL, "--method", "ewc", "--set", "strength=7", *options))
    folder = tmp_path / "here"
    assert {path.name for path in folder.iterdir()} == {"run.json", "result.json", "heatmap.png", "seed-0", "seed-1"}
    configuration = json.loads((folder / "run.json").read_text())
    assert configuration["spec"]["settings"] == {"strength": "7"}
    assert configuration["spec"]["seeds"] == [0, 1]
    assert configuration["spec"]["training"]["epochs"] == 2
    assert {"evergraph", "python", "torch", "torch_geometric", "numpy"} <= configuration["versions"].keys()
    assert read_record(folder / "result.json") == result
    assert (folder / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    for seed in (0, 1):
        assert {path.name for path in (folder / f"seed-{seed}").iterdir()} == {"matrix.json", "log.csv"}
        saved = json.loads((folder / f"seed-{seed}/matrix.json").read_text())
        assert saved["finished"] is True
        assert saved["matrix"] == result["matrices"][seed]
        rows = list(csv.DictReader((folder / f"seed-{seed}/log.csv").open()))
        assert [(row["task"], row["epoch"]) for row in rows] == [(str(t), str(e)) for t in range(3) for e in (1, 2)]
        assert all(float(row["loss"]) > 0 and float(row["validation_loss"]) > 0 for row in rows)
    assert result["hyperparameters"]["strength"] == 7.0


@pytest.mark.parametrize("method", ["curvature", "auto"])
def test_one_seed_one_matrix(call: Call, method: str) -> None:
    words = ["run", SMALL, "--method", method, "--seeds", 2, "--json", *QUICK]
    first, again = (result_of(call(*words)) for _ in range(2))
    assert first["matrices"] == again["matrices"]
    assert first["matrices"][0] != first["matrices"][1]
    assert first["run_dir"] != again["run_dir"]


def test_every_option_reaches_the_run(call: Call, tmp_path: Path) -> None:
    words = {
        "--classes-per-task": "3",
        "--min-class-size": "6",
        "--order": "5,4,3,2,1,0",
        "--label-scope": "seen",
        "--reduction": "mean",
        "--test-graph": "seen",
        "--epochs": "1",
        "--lr": "0.5",
        "--weight-decay": "0.25",
        "--batch-size": "7",
        "--patience": "3",
        "--fan-out": "4,5",
        "--device": "cpu",
        "--model": "gat",
        "--hidden": "24",
        "--data-root": str(tmp_path),
        "--out": "out/folder",
    }
    flags = ["--task-incremental", "--edges-between-tasks", "--class-balanced", "--json"]
    result = result_of(call("run", SMALL, "--method", "finetune", *flags, *(w for pair in words.items() for w in pair)))
    protocol = result["protocol"]
    for option, value in words.items():
        key = option.removeprefix("--").replace("-", "_")
        if key in protocol:
            kind = type(protocol[key])
            expected = [*value.split(",")] if key == "order" else [4, 5] if key == "fan_out" else kind(value)
            assert protocol[key] == expected, key
    assert protocol["scenario"] == "task-incremental"
    assert protocol["edges_between_tasks"] is True
    assert protocol["class_balanced"] is True
    assert protocol["tasks"] == 2
    assert result["model"]["name"] == "gat"
    assert result["model"]["hidden"] == 24
    assert result["run_dir"] == "out/folder"
    assert result["task_classes"] == [["5", "4", "3"], ["2", "1", "0"]]


def test_a_random_order_is_recorded_for_each_seed(call: Call, tmp_path: Path) -> None:
    words = ["run", SMALL, "--method", "finetune", "--seeds", 2, "--json", "--out", tmp_path / "here", *QUICK]
    result = result_of(call(*words, "--order", "random"))
    own = [[list(map(str, task.class_names)) for task in eg.stream(SMALL, order="random", seed=s)] for s in (0, 1)]
    assert own[0] != own[1]
    assert result["seed_task_classes"] == own
    assert result["task_classes"] == []  # they share none
    for seed in (0, 1):  # as an earlier version left them
        path = tmp_path / f"here/seed-{seed}/matrix.json"
        record = read_record(path)
        del record["task_classes"]
        write_record(path, record)
    (tmp_path / "here/result.json").unlink()
    assert result_of(call(*words, "--order", "random", "--resume"))["seed_task_classes"] == own


def test_a_metric_that_is_undefined_is_named_and_the_run_goes_on_once_it_is_mended(
    call: Call, tmp_path: Path, registries: None
) -> None:
    """The model has not diverged, so nothing is said of lr."""
    calls = []

    def precision(*given: object) -> float:
        calls.append(given)
        return float("nan") if len(calls) == 3 else 50.0  # the last of 1 + 2 tests

    eg.registry.metrics.register(eg.Metric("precision", "precision (%)", precision))
    words = ["run", SMALL, "--method", "finetune", "--seeds", 1, "--metric", "precision", "--out", tmp_path / "here"]
    status, _, error = call(*words, *QUICK)
    assert status == 2
    assert error.splitlines()[-1] == (
        "error: metric 'precision' is nan on task 2; let it return a number where it is undefined, or choose another "
        "with --metric"
    )
    assert result_of(call(*words, *QUICK, "--resume", "--json"))["ap"]["mean"] == 50


def test_a_summary_that_is_not_finite_is_named(call: Call, tmp_path: Path, registries: None) -> None:
    eg.registry.summaries.register(eg.evaluation.Summary("ratio", "Ratio", "A ratio.", lambda matrix: float("inf")))
    status, _, error = call("run", SMALL, "--method", "finetune", "--seeds", 1, "--out", tmp_path / "here", *QUICK)
    assert status == 2
    assert "error: summary 'ratio' is inf, not a finite number; let it return one" in error


def test_the_default_run(call: Call) -> None:
    """`evergraph run` alone is `auto` on digits, with the model and the training that it asks for."""
    result = result_of(call("run", "--hidden", 64, "--json"))
    assert (result["stream"], result["method"], result["protocol"]["tasks"]) == ("digits", "auto", 5)
    assert result["model"]["name"] == METHODS["auto"].model
    assert {key: result["protocol"][key] for key in METHODS["auto"].training} == METHODS["auto"].training


def test_a_result_says_what_was_measured_and_what_was_kept(call: Call) -> None:
    words = ["run", SMALL, "--method", "ewc", "--seeds", 2, "--metric", "balanced-accuracy", "--json", *QUICK]
    result = result_of(call(*words))
    assert result["metrics"].keys() >= {"ap", "af", "anytime", "learning"}
    for key in ("ap", "af"):
        assert {name: result["metrics"][key][name] for name in ("mean", "std")} == result[key]
        assert len(result["metrics"][key]["values"]) == 2
    assert (result["protocol"]["problem"], result["protocol"]["metric"]) == ("node-classification", "balanced-accuracy")
    assert result["access"] == METHODS["ewc"].access.as_dict()
    assert all(len(kept) == 3 and min(kept) > 0 for kept in result["kept_bytes"])
    plain = result_of(call("run", SMALL, "--method", "finetune", "--json", *QUICK))
    assert plain["kept_bytes"] == [[0, 0, 0]]
    assert plain["protocol"]["metric"] == "accuracy"


@pytest.mark.parametrize(
    "words",
    [pytest.param([SMALL, "--hidden", "64"], marks=pytest.mark.slow), [SMALL, "--method", "curvature", *QUICK]],
    ids=["auto", "curvature"],
)
def test_seeds_side_by_side_give_the_same_bit_for_bit(call: Call, tmp_path: Path, words: list[str]) -> None:
    found = {
        jobs: result_of(call("run", *words, "--seeds", 2, "--jobs", jobs, "--out", f"jobs-{jobs}", "--json"))
        for jobs in (1, 2)
    }
    alike = [{key: value for key, value in r.items() if key not in {"seconds", "run_dir"}} for r in found.values()]
    assert alike[0] == alike[1]
    assert len(found[2]["matrices"]) == 2
    names = [
        {str(path.relative_to(tmp_path / f"jobs-{jobs}")) for path in (tmp_path / f"jobs-{jobs}").rglob("*")}
        for jobs in (1, 2)
    ]
    assert names[0] == names[1]
    for seed in (0, 1):
        logs = [(tmp_path / f"jobs-{jobs}/seed-{seed}/log.csv").read_bytes() for jobs in (1, 2)]
        assert logs[0] == logs[1]
    assert (
        result_of(call("run", *words, "--seeds", 2, "--jobs", 2, "--out", "jobs-1", "--resume", "--json")) == found[1]
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_seeds_are_told_as_they_end(call: Call, jobs: int) -> None:
    status, _, said = call("run", SMALL, "--method", "ewc", *QUICK, "--seeds", 3, "--jobs", jobs, "--out", "here")
    assert status == 0
    lines = [line for line in said.splitlines() if re.match(r"\d/", line)]
    assert [line[:3] for line in lines] == ["1/3", "2/3", "3/3"]
    assert {line[3:] for line in lines} == {" seed 0", " seed 1", " seed 2"}


def test_a_seed_that_failed_is_told(call: Call) -> None:
    words = ["run", SMALL, "--method", "finetune", *QUICK, "--lr", "1e30", "--seeds", 2, "--jobs", 2, "--out", "here"]
    status, _, said = call(*words)
    assert status == 2
    assert {"1/2", "2/2"} == {line[:3] for line in said.splitlines() if line.endswith(" failed")}


@pytest.mark.parametrize("jobs", [1, 2])
def test_cells_of_a_comparison_are_told_as_they_end(call: Call, jobs: int) -> None:
    words = ["compare", SMALL, "--methods", "ewc,finetune", *QUICK, "--jobs", jobs, "--out", "here"]
    status, _, said = call(*words)
    assert status == 0
    lines = [line for line in said.splitlines() if re.match(r"[12]/2 ", line)]
    assert [line[:3] for line in lines] == ["1/2", "2/2"]
    assert {line[4:] for line in lines} == {"ewc", "finetune"}


def test_tables_say_what_the_leak_score_is(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    about = "leak score: percent of tests whose task the nearest mean of features names (docs/concepts.md#leak-score)"
    words = [SMALL, "--method", "finetune", *QUICK]
    assert about in call("run", *words, "--out", "run")[1]
    assert about in call("compare", SMALL, "--methods", "ewc,finetune", *QUICK, "--out", "compare")[1]
    assert about in (tmp_path / "compare/table.md").read_text(encoding="utf-8")
    assert about in call("leak", SMALL, "--seeds", 1)[1]
    assert "leak" not in call("run", *words, "--task-incremental", "--out", "known")[1]  # there is none


def test_settings_of_the_model_reach_it(call: Call) -> None:
    words = ["run", SMALL, "--method", "finetune", "--json", *QUICK]
    plain, other = (result_of(call(*words, *more)) for more in ([], ["--model-set", "dropout=0.5"]))
    assert (plain["model"]["dropout"], other["model"]["dropout"]) == (0.0, 0.5)
    assert other["model"]["hidden"] == 16
    logs = [list(csv.DictReader((Path(run["run_dir"]) / "seed-0/log.csv").open())) for run in (plain, other)]
    assert logs[0] != logs[1]
    compared = result_of(
        call("compare", SMALL, "--methods", "finetune", "--seeds", 1, *words[4:], "--model-set", "dropout=0.5")
    )
    assert compared["results"][0]["model"]["dropout"] == 0.5
    assert compared["results"][0]["matrices"] == other["matrices"]


def test_run_without_json_prints_a_table(call: Call) -> None:
    status, out, _ = call("run", SMALL, "--method", "finetune", *QUICK)
    assert status == 0
    assert "AP (%)" in out
    assert "AF (%)" in out
    assert "finetune" in out
    assert "results: runs/sbm-finetune-" in out


def test_progress_is_on_stderr_only(tmp_path: Path) -> None:
    """A real process: stdout is the object and nothing else, even though bars are drawn."""

    def command() -> None:
        printing.stderr = printing.console(stderr=True)  # as a process makes it that finds such a terminal
        command_line("run", SMALL, "--method", "finetune", "--json", *QUICK)()

    # wide enough for the whole line, which is drawn once more when a bar ends, however short the run was
    environment = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": "200"}
    process = Forked(command, environment, folder=tmp_path)
    out, error = process.communicate()
    assert process.returncode == 0, error
    assert json.loads(out)["method"] == "finetune"
    assert "seed 1/1, task 3/3, epoch 2/2" in error
    assert "Warning" not in error
    assert "\x1b" not in out


@pytest.mark.parametrize("declares", [True, False])
def test_a_plug_in_whose_settings_have_no_defaults_is_listed(
    call: Call, monkeypatch: pytest.MonkeyPatch, declares: bool
) -> None:
    @dataclass(repr=False)
    class Needy(eg.Method):
        name = "needy"
        strength: float
        over: int = 3
        names: list = field(default_factory=list)
        access = eg.Access(keeps=("parameters",)) if declares else property(lambda self: eg.Access())

    class Wide(eg.GCN):
        """A model."""

        def __init__(self, width: int, activation: object = torch.relu) -> None:
            super().__init__(width)

    METHODS.register(Needy)
    eg.MODELS.register(name="wide")(Wide)
    try:
        method = next(row for row in json.loads(call("methods", "--json")[1]) if row["name"] == "needy")
        assert (method["required"], method["hyperparameters"]["over"]) == (["strength"], 3)
        assert (method["access"] or {}).get("keeps") == (["parameters"] if declares else None)
        model = next(row for row in json.loads(call("models", "--json")[1]) if row["name"] == "wide")
        assert (model["required"], list(model["hyperparameters"])) == (["width"], ["activation"])
        monkeypatch.setenv("COLUMNS", "200")
        assert "strength (required), over=3" in call("methods")[1]
        assert "width (required), activation=" in call("models")[1]
    finally:
        METHODS.remove("needy")
        eg.MODELS.remove("wide")


def test_methods_models_and_streams(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = json.loads(call("methods", "--json")[1])
    assert {row["name"] for row in methods} == set(METHODS)
    assert all(row.keys() >= {"name", "family", "reference", "hyperparameters"} for row in methods)
    streams = {row["name"]: row for row in json.loads(call("streams", "--json")[1])}
    assert streams.keys() >= {
        "digits", "coauthor-cs", "coauthor-physics", "amazon-computers", "amazon-photo", "corafull", "arxiv", "sbm"
    }  # fmt: skip
    assert streams["corafull"]["classes_per_task"] == 9
    assert all(row["about"] for row in streams.values())
    monkeypatch.setenv("COLUMNS", "80")
    for command, names in (("methods", METHODS), ("models", eg.MODELS), ("streams", streams)):
        status, out, _ = call(command)
        assert status == 0
        assert "…" not in out  # nothing is cut off, on a narrow terminal either
        assert set(names) <= set(out.split())


def test_a_path_of_your_own(call: Call, small_graph: eg.Graph, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **npz_parts(small_graph, small_graph.x.numpy()), class_names=list("abcdef"))
    result = result_of(call("run", "mine.npz", "--method", "finetune", "--order", "f,e,d,c,b,a", "--json", *QUICK))
    assert result["task_classes"] == [["f", "e"], ["d", "c"], ["b", "a"]]
    assert "mine-finetune-" in result["run_dir"]


def test_coauthor_cs_from_a_data_root(call: Call, real_data: Path) -> None:
    words = ["--method", "finetune", "--json", "--data-root", real_data, "--epochs", 1, "--hidden", 32]
    result = result_of(call("run", "coauthor-cs", *words))
    assert result["protocol"]["tasks"] == 5
    assert result["matrices"][0][0][0] > 80  # one epoch suffices for the first task


# bad input


def damaged_npz(graph: eg.Graph, path: Path, **change: Any) -> None:
    parts = npz_parts(graph, graph.x.numpy())
    for key, edit in change.items():
        parts[key] = parts[key].copy()
        edit(parts[key])
    np.savez(path, **parts)


def set_first(value: float) -> Callable[[np.ndarray], None]:
    def edit(array: np.ndarray) -> None:
        array.flat[0] = value

    return edit


def prepare(graph: eg.Graph, folder: Path) -> None:
    """Files that are wrong, each in one way."""
    damaged_npz(graph, folder / "nan.npz", attr_matrix=set_first(np.nan))
    damaged_npz(graph, folder / "inf.npz", attr_matrix=set_first(np.inf))
    damaged_npz(graph, folder / "edge.npz", adj_indices=set_first(99))
    damaged_npz(graph, folder / "label.npz", labels=set_first(-9))
    damaged_npz(graph, folder / "lonely.npz", labels=set_first(6))
    damaged_npz(graph, folder / "whole.npz")
    (folder / "cut.npz").write_bytes((folder / "whole.npz").read_bytes()[:900])
    (folder / "cut.pt").write_bytes(b"PK\x03\x04 and no more")
    np.savez(folder / "pickled.npz", **{**npz_parts(graph, graph.x.numpy()), "labels": np.array([{}] * 60)})
    (folder / "file").write_text("")
    root = folder / "root/CS/raw"
    root.mkdir(parents=True)
    np.savez(root / "ms_academic_cs.npz", **npz_parts(graph, sp.csr_matrix(graph.x.numpy())))
    shutil.copytree(folder / "root", folder / "listed")
    (folder / "listed/SHA256SUMS").write_text(f"{'0' * 64}  CS/raw/ms_academic_cs.npz\n")
    (folder / "empty").mkdir()


BAD = [
    (["run", "nowhere"], "unknown stream 'nowhere'; choose one of: digits, coauthor-cs"),
    (["run", "--method", "magic"], "unknown method 'magic'; choose one of: finetune, joint"),
    (["run", "--method", "ema+magic"], "unknown method 'magic'"),
    (["run", "--model", "mlp"], "unknown model 'mlp'; choose one of: gcn, sage, gat"),
    (["run", "--model", "gat", "--hidden", "10"], "8 heads do not divide hidden=10"),
    (["run", "--device", "tpu"], "unknown device 'tpu'; choose one of: auto, cpu, cuda"),
    (["run", "--order", "alphabetical"], "unknown class order 'alphabetical'; choose one of: labelled"),
    (["run", "--order", "1,2,twelve"], "unknown class in the order 'twelve'"),
    (["run", "--order", "1,2,1"], "class '1' is given twice"),
    (["run", "--label-scope", "old"], "label_scope='old' must be one of: seen, current, all"),
    (["run", "--reduction", "max"], "reduction='max' must be one of: sum, mean"),
    (["run", "--test-graph", "all"], "unknown test graph 'all'; choose one of: task, seen"),
    (["run", "--set", "strength"], "--set 'strength' is not KEY=VALUE"),
    (["run", "--method", "curvature", "--set", "force=3"], "unknown setting of curvature 'force'; choose one of: "),
    (["run", "--set", "force=3"], "unknown setting of auto 'force'; choose one of: "),
    (
        ["run", "--method", "curvature", "--set", "strength=strong"],
        "strength='strong' must be a finite number of at least 0",
    ),
    (["run", "--model-set", "dropout"], "--model-set 'dropout' is not KEY=VALUE"),
    (["run", "--model", "gcn", "--model-set", "droput=0.5"], "unknown setting of gcn 'droput'; choose one of: hidden"),
    (
        ["run", "--model", "gcn", "--model-set", "dropout=half"],
        "gcn: dropout='half' must be a finite number of at least 0 and below 1",
    ),
    (["run", "--problem", "chess"], "unknown problem 'chess'; choose one of: node-classification"),
    (["run", "--metric", "luck"], "unknown metric 'luck'; choose one of: accuracy, balanced-accuracy"),
    (
        ["compare", "--methods", "ewc,mas", "--set", "strenght=3"],
        "unknown setting of ewc, mas 'strenght'; choose one of: ",
    ),
    (["compare", "--methods", "ewc,mas", "--set", "lwf.strength=3"], "unknown setting of ewc, mas 'lwf.strength'"),
    (["compare", "--methods", "ema+ewc", "--set", "ewc.strenght=5"], "unknown setting of ema+ewc 'ewc.strenght'"),
    (["compare", "--methods", "ewc", "--model-set", "droput=0.5"], "unknown setting of gcn 'droput'"),
    (["compare", "--methods", "magic", "--methods", "ewc"], "unknown method 'magic'; choose one of: finetune, joint"),
    (["paper", "--methods", "magic", "--methods", "ewc", "--out", "paper"], "'magic'"),
    (["compare", "--methods", "ewc,magic"], "unknown method 'magic'; choose one of: finetune, joint"),
    (["compare", "--methods", ","], "no method named; give at least one"),
    (["compare", "digits", "nowhere"], "unknown stream 'nowhere'; choose one of: digits, coauthor-cs"),
    (["compare", "--order", "alphabetical"], "unknown class order 'alphabetical'; choose one of: labelled"),
    (["compare", "--test-graph", "task", "--test-graph", "all"], "unknown test graph 'all'; choose one of: task, seen"),
    (["run", "--epochs", "-1"], "epochs=-1 must be"),
    (["run", "--epochs", "many"], "Invalid value for '--epochs'"),
    (["run", "--lr", "nan"], "lr=nan must be"),
    (["run", "--batch-size", "-1"], "batch_size=-1 must be"),
    (["run", "--fan-out", "a,b"], "--fan-out 'a,b' is not a list of numbers"),
    (["run", "--fan-out", "5,0"], "fan_out=(5, 0) must be None or a list that is not empty, each item a whole number"),
    (["run", "--seeds", "0"], "Invalid value for '--seeds'"),
    (["run", "--classes-per-task", "0"], "classes_per_task=0 must be None or a whole number of at least 1"),
    (["run", "--classes-per-task", "11"], "classes_per_task=11 is impossible"),
    (["run", "--min-class-size", "5000"], "no class has 5000 nodes or more (the largest has 183)"),
    (["run", "sbm:nodes=few"], "sbm: nodes='few' must be a whole number of at least 1"),
    (["run", "sbm:homophily=7"], "sbm: homophily=7.0 must be a finite number of at least 0 and at most 1"),
    (["run", "missing.npz"], "no file missing.npz"),
    (["run", "missing.pt"], "no file missing.pt"),
    (["run", "file"], "file: cannot tell what this is"),
    (["run", "cut.npz"], "cut.npz: damaged or not an npz file"),
    (["run", "cut.pt"], "cut.pt: damaged"),
    (["run", "pickled.npz"], "pickled.npz: holds pickled objects, which are refused"),
    (["run", "nan.npz"], "nan: features contain NaN or infinite values"),
    (["run", "inf.npz"], "inf: features contain NaN or infinite values"),
    (["run", "edge.npz"], "edge: an edge names node 99, but nodes run from 0 to 59"),
    (["run", "label.npz"], "label: label -9 is out of range"),
    (["run", "lonely.npz"], "lonely: class 6 has 1 nodes, too few to split 60/20/20"),
    (["run", "coauthor-cs", "--data-root", "nowhere"], "data root nowhere is not a folder"),
    (["run", "coauthor-cs", "--data-root", "root"], "(60, 8, 6) nodes, features, classes, but coauthor-cs has (18333"),
    (["run", "coauthor-cs", "--data-root", "listed"], "its SHA-256 is not the one in listed/SHA256SUMS"),
    (["run", "corafull-knn", "--data-root", "empty"], "corafull-knn: no file empty/CoraFullKNN"),
    (["run", SMALL, "--out", "file"], "file exists and is not a run's folder"),
    (["run", SMALL, "--out", "file/below"], "cannot write to file/below"),
    (["run", SMALL, "--out", "root"], "root exists and is not a run's folder"),
    (["run", SMALL, "--out", "/proc/evergraph"], "cannot write to /proc/evergraph"),
    (["run", "--nonsense"], "No such option"),
    (["walk"], "No such command 'walk'"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line_and_leaves_nothing(
    call: Call, small_graph: eg.Graph, tmp_path: Path, words: list[str], message: str
) -> None:
    prepare(small_graph, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    status, out, err = call(
        *words, *(["--epochs", "1"] if "--epochs" not in words and words[0] in {"run", "compare"} else [])
    )
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_real_process_says_no_without_a_traceback(tmp_path: Path) -> None:
    process = Forked(command_line("run", "missing.npz", "--json"), folder=tmp_path)
    out, error = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert error == "error: no file missing.npz; give a stream's name or the path of an .npz or .pt file\n"
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(call: Call, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    status, _, err = call("run", SMALL, "--out", "locked/run", *QUICK)
    assert (status, err.count("\n")) == (2, 1)
    assert "cannot write to locked/run" in err


def test_a_folder_that_holds_a_run_is_not_overwritten(call: Call, tmp_path: Path) -> None:
    words = ["run", SMALL, "--method", "finetune", "--json", "--out", "here", *QUICK]
    first = result_of(call(*words))
    status, _, err = call(*words)
    assert status == 2
    assert "here holds a run already; add --resume" in err
    assert result_of(call(*words, "--resume")) == first  # finished: nothing to do
    status, _, err = call(*words, "--resume", "--lr", "0.5")
    assert status == 2
    assert "here holds a run with other settings (training: lr)" in err


def test_nothing_looks_finished_unless_it_is(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop in the second task: no result, no finished seed, no picture; then resume to the same numbers."""
    words = ["run", SMALL, "--method", "finetune", "--json", "--out", "here", *QUICK]
    whole = result_of(call(*[*words[: -len(QUICK) - 1], "whole", *QUICK]))
    learn = eg.Learner.learn

    def stop(learner: eg.Learner, task: eg.Task, *rest: Any) -> Any:
        if task.index == 1:
            raise KeyboardInterrupt
        return learn(learner, task, *rest)

    monkeypatch.setattr(eg.Learner, "learn", stop)
    status, out, err = call(*words)
    assert status == 130
    assert out == ""
    assert err.count("\n") <= 2
    names = {path.name for path in (tmp_path / "here").rglob("*")}
    assert "run.json" in names
    assert not names & {"result.json", "heatmap.png", "log.csv"}
    assert json.loads((tmp_path / "here/seed-0/matrix.json").read_text())["finished"] is False
    monkeypatch.setattr(eg.Learner, "learn", learn)
    assert result_of(call(*words, "--resume"))["matrices"] == whole["matrices"]


# comparisons


def cells_of(folder: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(folder / "cells")) for path in folder.rglob("result.json"))


def test_settings_reach_the_parts_of_a_composed_method(call: Call) -> None:
    words = ["compare", SMALL, "--seeds", 1, "--json", *QUICK]
    for given in ("ewc.strength=5", "strength=5"):
        (result,) = result_of(call(*words, "--methods", "ema+ewc", "--set", given))["results"]
        assert result["hyperparameters"]["1.ewc"]["strength"] == 5.0, given
    found = result_of(
        call(*words, "--methods", "ema+ewc,mas", "--set", "ewc.strength=5", "--set", "ema+ewc.decay=0.25")
    )
    composed, mas = (result["hyperparameters"] for result in found["results"])
    assert composed["1.ewc"]["strength"] == 5.0
    assert composed["0.ema"]["decay"] == 0.25
    assert mas["strength"] == eg.MAS().strength
    run = result_of(call("run", SMALL, "--method", "ema+ewc", "--set", "ewc.strength=5", "--json", *QUICK))
    assert run["hyperparameters"]["1.ewc"]["strength"] == 5.0


def test_a_comparison_of_streams_and_orders(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "sbm:nodes=90,classes=4,degree=4,features=8,signal=3"
    words = ["compare", SMALL, other, "--methods", "finetune,ewc", "--order", "labelled", "--order", "size"]
    words += ["--seeds", 2, "--out", "here", "--json", *QUICK]
    found = result_of(call(*words))
    assert len(found["results"]) == 8
    assert len(cells_of(tmp_path / "here")) == 8
    lines = [json.loads(line) for line in (tmp_path / "here/results.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines] == [*dict.fromkeys(line["key"] for line in lines)]
    assert sorted(line["key"] for line in lines) == cells_of(tmp_path / "here")
    for line, result in zip(lines, found["results"]):
        assert line["result"] == {key: value for key, value in result.items() if key != "run_dir"}
        assert (line["spec"]["source"], line["spec"]["method"]) == (result["stream"], result["method"])
    assert {(r["stream"], r["protocol"]["order"], r["method"]) for r in found["results"]} == {
        (stream, order, method)
        for stream in (SMALL, other)
        for order in ("labelled", "size")
        for method in ("finetune", "ewc")
    }
    # a row for each stream and method, over both orders and both seeds
    assert [(row["stream"], row["method"], row["runs"]) for row in found["table"]] == [
        (SMALL, "finetune", 4), (SMALL, "ewc", 4), (other, "finetune", 4), (other, "ewc", 4)
    ]  # fmt: skip
    for row in found["table"]:
        members = [r for r in found["results"] if (r["stream"], r["method"]) == (row["stream"], row["method"])]
        values = [average_performance(matrix) for member in members for matrix in member["matrices"]]
        assert row["ap"] == {"mean": pytest.approx(np.mean(values)), "std": pytest.approx(np.std(values, ddof=1))}
    table = (tmp_path / "here/table.md").read_text()
    assert sum(line.startswith("|") for line in table.splitlines()) == 2 + 4
    assert f"{found['table'][1]['ap']['mean']:.2f} ± {found['table'][1]['ap']['std']:.2f}" in table
    rows = list(csv.DictReader((tmp_path / "here/table.csv").open()))
    assert [(row["stream"], row["method"]) for row in rows] == [(r["stream"], r["method"]) for r in found["table"]]
    assert float(rows[3]["ap_mean"]) == pytest.approx(found["table"][3]["ap"]["mean"])
    # what the results file holds is not run again, not even without the folders of the runs
    status, _, said = call(*words)
    assert status == 2
    assert "here holds a comparison already; add --resume" in said
    other = ["mas" if word == "finetune,ewc" else word for word in words]
    assert other != words
    status, _, said = call(*other)  # other methods would overwrite its tables too
    assert status == 2
    assert "here holds a comparison already; add --resume" in said
    shutil.rmtree(tmp_path / "here/cells")
    with monkeypatch.context() as patch:
        patch.setattr(eg.Learner, "learn", lambda *_: pytest.fail("trained again"))
        again = result_of(call(*words, "--resume"))
    assert [r["matrices"] for r in again["results"]] == [r["matrices"] for r in found["results"]]
    assert (tmp_path / "here/table.md").read_text() == table
    assert len((tmp_path / "here/results.jsonl").read_text().splitlines()) == 8
    status, _, said = call(*words, "--resume", "--lr", "0.5")
    assert status == 2
    assert "was run with other settings (training: lr)" in said


def test_a_comparison_goes_on_with_what_is_left(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after its first cell and resumed: that cell is not run again; the numbers are those of a whole one."""
    words = ["compare", SMALL, "--methods", "finetune,ewc", "--seeds", 1, "--json", *QUICK]
    whole = result_of(call(*words, "--out", "whole"))
    learn, methods = eg.Learner.learn, []

    def stop(learner: eg.Learner, task: eg.Task, *rest: Any) -> Any:
        methods.append(learner.method.name)
        if learner.method.name == "ewc" and task.index == 1:
            raise KeyboardInterrupt
        return learn(learner, task, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(eg.Learner, "learn", stop)
        status, _, said = call(*words, "--out", "here")
    assert status == 130
    assert "--out here --resume" in said
    methods.clear()

    def watch(learner: eg.Learner, *rest: Any) -> Any:
        methods.append(learner.method.name)
        return learn(learner, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(eg.Learner, "learn", watch)
        found = result_of(call(*words, "--out", "here", "--resume"))
    assert set(methods) == {"ewc"}
    assert [r["matrices"] for r in found["results"]] == [r["matrices"] for r in whole["results"]]


@pytest.mark.slow  # in the default suite: seeds side by side, and the cells of the paper's tables
def test_cells_side_by_side_give_the_same(call: Call, tmp_path: Path) -> None:
    words = ["compare", SMALL, "--methods", "finetune,ewc", "--seeds", 2, "--json", *QUICK]
    apart, together = (result_of(call(*words, "--jobs", jobs, "--out", f"jobs-{jobs}")) for jobs in (2, 1))
    assert [r["matrices"] for r in apart["results"]] == [r["matrices"] for r in together["results"]]
    assert cells_of(tmp_path / "jobs-2") == cells_of(tmp_path / "jobs-1") == ["ewc", "finetune"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_is_not_gone_on_with_unasked(call: Call, tmp_path: Path, jobs: int) -> None:
    """Cells of a comparison that was stopped are there, but no results file yet."""
    words = ["compare", SMALL, "--methods", "finetune,ewc", "--seeds", 1, "--out", "here", "--json", *QUICK]
    whole = result_of(call(*words))
    (tmp_path / "here/results.jsonl").unlink()
    (tmp_path / "here/cells/ewc/result.json").unlink()
    status, _, said = call(*words, "--jobs", jobs)
    assert status == 2
    assert "add --resume" in said
    again = result_of(call(*words, "--resume"))
    assert [r["matrices"] for r in again["results"]] == [r["matrices"] for r in whole["results"]]


def test_graphs_of_one_name_in_two_folders_are_two_streams(call: Call, small_graph: eg.Graph, tmp_path: Path) -> None:
    for folder, features in (("a", small_graph.x.numpy()), ("b", -small_graph.x.numpy()[::-1])):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "graph.npz", **npz_parts(small_graph, features))
    words = ["compare", "a/graph.npz", "b/graph.npz", "--methods", "finetune", "--seeds", 1, "--json", *QUICK]
    found = result_of(call(*words))
    assert [result["stream"] for result in found["results"]] == ["a/graph.npz", "b/graph.npz"]
    assert [row["stream"] for row in found["table"]] == ["a/graph.npz", "b/graph.npz"]


# what can go wrong while it runs


@pytest.mark.parametrize("command", [["run"], ["compare", "--seeds", "1", "--methods"]], ids=["run", "compare"])
def test_a_model_that_diverges_is_one_line(call: Call, tmp_path: Path, command: list[str]) -> None:
    """It names the task, the epoch and the learning rate, and nothing looks finished."""
    method = [*command[1:], "finetune"] if command[1:] else ["--method", "finetune"]
    status, out, err = call(command[0], SMALL, *method, "--lr", "1e30", "--out", "here", "--json", *QUICK)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.search(r"task 1, epoch \d", err)
    assert "diverged" in err
    assert "lr (now 1e+30)" in err
    assert not list(tmp_path.rglob("result.json"))


# help


def test_help_is_wrapped_for_the_terminal_and_gives_flags_no_type(evergraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for command in ("learn", "compare"):
        status, out, _ = evergraph(command, "--help")
        assert status == 0
        assert not re.search(r"--(json|help|directed)\b.*<bool>", out)
        about = [line.strip() for line in out.partition("╭")[0].splitlines()]
        full = [line for line, after in pairwise(about) if line and after]  # lines that another one follows
        assert min(map(len, full)) > 90, full
    status, out, _ = evergraph("--help")
    assert "<bool>" not in out


@pytest.mark.parametrize("command", ["run", "compare", "tune", "learn", "forget"])
def test_help_cuts_no_name_where_lines_are_short(evergraph, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = evergraph(command, "--help")
    assert status == 0
    assert not re.findall(r"\w+…", out)


def test_help_may_be_read_in_part(evergraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `evergraph run --help | head`: rich ends the program, since nobody reads its output any more."""

    monkeypatch.setattr("rich.console.Console._write_buffer", lambda console: console.on_broken_pipe())
    monkeypatch.setattr("evergraph.cli.drop_output", lambda: None)
    monkeypatch.setattr("rich.console.Console.on_broken_pipe", _ends_as_rich_does)
    status, _, err = evergraph("run", "--help")
    assert (status, err) == (0, "")


def _ends_as_rich_does(console: object) -> None:
    try:
        raise BrokenPipeError
    except BrokenPipeError:
        raise SystemExit(1)  # noqa: B904 - rich raises it like this


@pytest.mark.parametrize(
    ("words", "close"),
    [(["--method", "finetun"], "finetune"), (["--set", "ridg=1"], "ridge"), (["--model", "sgc", "--epochs", "1"], "")],
)
def test_a_mistyped_name_is_met_with_the_closest_one(call: Call, words: list[str], close: str) -> None:
    status, _, err = call("run", SMALL, *words)
    assert status == 2
    assert err.rstrip().endswith(f"; did you mean {close}?" if close else "prototype-network")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_of_two_runs_that_begin_in_one_new_folder_one_says_no(tmp_path: Path) -> None:
    def begin(method: str, folder: Path, ready: int, start: int) -> None:
        settings = {"model_settings": {"hidden": 8}, "training": eg.Training(epochs=2), "device": "cpu"}
        os.close(start)
        os.read(ready, 1)  # returns for both at once, when the parent closes its end
        try:
            eg.run(eg.RunSpec("sbm:nodes=60,classes=4", method=method, **settings), folder)
        except eg.EvergraphError:
            sys.exit(2)

    for number in range(5):
        ready, start = os.pipe()
        both = [Forked(partial(begin, name, tmp_path / f"new-{number}", ready, start)) for name in ("finetune", "ewc")]
        os.close(start)
        assert sorted(process.wait() for process in both) == [0, 2], [process.communicate() for process in both]
        os.close(ready)
    for folder in tmp_path.glob("new-*"):
        result = json.loads((folder / "result.json").read_text())
        assert json.loads((folder / "run.json").read_text())["spec"]["method"] == result["method"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--metric", "mae"], "mae is for numbers, and what is predicted here are classes; choose one of: accuracy"),
        (["--problem", "node-regression"], "its examples have one label or number each, and no class; make tasks of"),
        (["--problem", "graph-classification"], "sbm has nodes as examples, and graph-classification is about graphs"),
    ],
)
def test_what_a_run_cannot_measure_or_learn_is_found_before_its_folder_is_made(
    evergraph, tmp_path, wrong: list, said: str
) -> None:
    words = ["run", "sbm:nodes=80,classes=2,features=8", "--method", "ewc", *wrong, "--out", tmp_path / "run"]
    status, _, err = evergraph(*words)
    assert status == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
