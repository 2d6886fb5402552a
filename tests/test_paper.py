"""The paper's experiment: protocols, cells, tables and figures, on small files in the official layouts."""

from __future__ import annotations

import copy
import csv
import dataclasses
import io
import os
import re
import shlex
import shutil
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import field

import evergraph as eg
from evergraph.core.settings import settings_of
from evergraph.evaluation import mean_std
from evergraph.experiments.cells import Cell, CellsFailedError, Choice, run_cells
from evergraph.experiments.engines import Work
from evergraph.experiments.engines.processes import in_words
from evergraph.experiments.paper.experiment import run_paper
from evergraph.experiments.paper.protocol import BOTH, DATASETS, Protocol, read
from evergraph.experiments.paper.tables import (
    OVER_ORDERS,
    markdown,
    markdown_with_differences,
    table_rows,
    with_differences,
    write_tables,
)
from evergraph.experiments.report.collect import find_runs, read_runs
from evergraph.experiments.result_file import read_results
from evergraph.experiments.run import run, run_seed
from evergraph.experiments.specification import RunSpec
from evergraph.methods import METHODS, make_method, parts_of
from evergraph.persistence.reading import read_record
from evergraph.training import Training
from forked import Forked, command_line
from graph_files import change_official, npz_bytes, ogb_bytes, skewed_graph

TABLE_1 = ("ewc-empirical", "ewc-sample", "ewc-pred", "online-ewc-1", "online-ewc-095", "mas", "lwf", "twp")
OURS = ("ours", "ours-without-ema")


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A data root with small files where CoraFull's and arxiv's belong, and nothing to download."""
    root = tmp_path / "data"
    cora, arxiv = skewed_graph([151] * 9 + [150] + [152] * 9, features=12), skewed_graph([411] * 12 + [9], features=4)
    (root / "cora/raw").mkdir(parents=True)
    (root / "cora/raw/cora.npz").write_bytes(npz_bytes(cora))
    with zipfile.ZipFile(io.BytesIO(ogb_bytes(arxiv))) as archive:
        archive.extractall(tmp_path / "unpacked")
    shutil.move(tmp_path / "unpacked/arxiv", root / "ogbn_arxiv")
    for name, graph in (("corafull", cora), ("ogbn-arxiv", arxiv)):
        counts = (graph.num_nodes, graph.num_features, graph.num_classes)
        change_official(monkeypatch, name, counts=counts, url="", fingerprint="")
    change_official(monkeypatch, "coauthor-cs", url="")
    return root


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("dataset", DATASETS)
def test_protocols_have_the_papers_rows_and_every_row_can_be_built(name: str, dataset: str) -> None:
    protocol = Protocol.load(name, dataset, seeds=3)
    assert {"finetune", "joint", *TABLE_1, *OURS} <= set(protocol.rows())
    for row in protocol.rows().values():
        spec = protocol.spec(row, range(3))
        make_method(spec.method, spec.settings)
        assert spec.seeds == [0, 1, 2]
    assert protocol.content["model"]["hidden"] == 256


DUPLICATES = {"batch-curvature", "interpolated-curvature", "queue-curvature"}  # forms of `curvature`


def test_the_field_has_every_method_and_its_memories_are_equal_in_bytes() -> None:
    protocol = Protocol.load("field", "coauthor-cs", seeds=3)
    rows = protocol.rows()
    assert {row["method"] for row in rows.values()} >= METHODS.keys() - DUPLICATES
    for name, row in rows.items():
        has_memory = any("per_class" in settings_of(METHODS[part]) for part in parts_of(row["method"]))
        assert has_memory == name.endswith(("-500KB", "-2MB")), name
        protocol.spec(row, range(3)).check()
    for choice in protocol.choices():
        assert 2 <= len(choice.trials) <= 4
        assert choice.trials[0].spec.also_test == []
        for trial in choice.trials:
            trial.spec.check()
    joint = {protocol.spec(row, [0]).stream["test_graph"] for row in rows.values() if row["method"] == "joint"}
    assert joint == {"task", "seen"}  # it trains on the graph that tests run on


@pytest.mark.usefixtures("without_pictures")
def test_a_cell_of_the_field_that_fails_is_named_and_the_others_are_measured(
    official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: eg.Method, context: object) -> None:
        raise RuntimeError("no such luck")

    settings = {"seeds": 1, "epochs": 1, "device": "cpu", "data_root": official, "jobs": 1, "out": tmp_path / "out"}
    settings |= {"datasets": ("corafull",), "protocols": ("field",), "rows": ["finetune", "ema", "reservoir-100KB"]}
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["ema"], "end_task", breaks)
        table = run_paper(**settings)["tables"][0]
    text = Path(table["markdown"]).read_text()
    assert "- ema: RuntimeError: no such luck" in text
    assert "in breaks" in (tmp_path / "out" / "cells" / "failures.txt").read_text()
    for graph in ("task", "seen", "node"):
        assert re.search(rf"\| corafull \| {graph} \| [\d.]+ \| finetune \|", text)
    assert "| reservoir |" in text
    monkeypatch.setattr(field, "STREAMS", ("corafull",))
    shown = field.tables(tmp_path / "out" / "field")
    assert re.search(
        r"^\*\*corafull\*\* \(leak score \d+ on `task`, \d+ on `seen`, \d+ on `node`\)$", shown, re.MULTILINE
    )
    assert re.search(
        r"^\| finetune \| [\d.]+ ± 0\.0 / −?[\d.]+ ± 0\.0 \| [\d.]+ ± 0\.0 \| [\d.]+ ± 0\.0 \| 0 \|",
        shown,
        re.MULTILINE,
    )
    assert "Not measured yet." in field.tables(tmp_path)
    shown = read_runs(find_runs([Path(table["markdown"]).parent])[0])
    assert [run["method"] for run in shown] == ["finetune"] * 3 + ["reservoir"] * 3  # no trials
    again = run_paper(**settings)["tables"][0]  # what failed is run again
    assert "no such luck" not in Path(again["markdown"]).read_text()


def test_the_papers_settings_are_in_its_protocol() -> None:
    protocol = Protocol.load("paper", "coauthor-cs", seeds=3)
    training = protocol.content["training"]
    assert (training["lr"], training["weight_decay"], training["batch_size"]) == (1e-5, 5e-4, 128)
    rows = protocol.rows()
    assert rows["ours"]["settings"]["strength"] == 0.1
    assert rows["ours"]["settings"]["queue_size"] == 128
    assert rows["ours"]["settings"]["ema"] == 0.5
    assert rows["ours-without-ema"]["settings"]["ema"] == 0.0
    assert {rows[name]["settings"]["strength"] for name in ("ewc-empirical", "mas", "online-ewc-1")} == {1e4}
    values = {name: study["values"] for name, study in protocol.content["studies"].items()}
    assert values == {"strength": [0.01, 0.1, 0.5], "queue-size": [32, 64, 128], "estimators": [0.01, 0.1, 1.0]}


def test_what_the_paper_printed() -> None:
    printed = read("printed")
    assert printed["coauthor-cs"]["ours"] == [34.55, -60.18]
    assert printed["corafull"]["ours"] == [46.93, -8.70]
    assert printed["arxiv"]["mas"] == [10.81, -70.16]
    assert all(set(printed[name]) == {*TABLE_1, *OURS} for name in ("corafull", "arxiv", "coauthor-cs"))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(eg.EvergraphError, match="unknown protocol 'worst'"):
        Protocol.load("worst", "coauthor-cs", 1)
    with pytest.raises(eg.EvergraphError, match="unknown dataset 'cora'"):
        Protocol.load("paper", "cora", 1)
    with pytest.raises(eg.EvergraphError, match="unknown row of protocol paper 'gem'"):
        Protocol.load("paper", "coauthor-cs", 1).rows(["gem"])
    with pytest.raises(eg.EvergraphError, match="unknown row 'gem'"):
        run_paper(datasets=["coauthor-cs"], protocols=BOTH, seeds=1, rows=["ours", "gem"], out="nowhere")


def test_corafull_and_arxiv_end_to_end(official: Path, tmp_path: Path) -> None:
    """Both columns on files in the official layouts; Coauthor-CS, not at hand here, is marked."""
    rows = ["finetune", "lwf", "ours", "joint"]
    ran = [*rows, "joint-seen"]  # joint training is trained for each test graph
    settings = {"seeds": 1, "epochs": 1, "device": "cpu", "data_root": official, "rows": rows, "jobs": 1}
    datasets = ("corafull", "arxiv", "coauthor-cs")
    summary = run_paper(datasets=datasets, protocols=("paper",), out=tmp_path / "out", **settings)
    assert [table["dataset"] for table in summary["tables"]] == list(datasets)
    for dataset, table in zip(datasets, summary["tables"]):
        folder = Path(table["markdown"]).parent
        text = (folder / "table.md").read_text()
        assert ("not measured here" in text) == (dataset == "coauthor-cs")
        assert "±" not in text  # one seed has no spread
        assert r"\pm" not in (folder / "table.tex").read_text()
        printed = read("printed")[dataset]["ours"]
        assert f"{printed[0]:.2f} | {printed[1]:.2f}" in text
        lines = list(csv.DictReader((folder / "table.csv").open()))
        assert [line["row"] for line in lines] == rows
        assert (lines[2]["paper_ap"], lines[0]["paper_ap"]) == (str(printed[0]), "")
        assert (lines[0]["ap_task_mean"] == "") == (dataset == "coauthor-cs")
        assert r"\begin{tabular}" in (folder / "table.tex").read_text()
        entries = read_results(folder)
        measured = [key for key in entries if "/choose/" not in key]
        assert sorted(measured) == sorted(f"paper/{dataset}/{row}" for row in ran if dataset != "coauthor-cs")
        if dataset != "coauthor-cs":
            assert {path.name for path in folder.glob("*.png")} == {"heatmaps.png", "final-row.png"}
            result = read_record(tmp_path / "out/cells/paper" / dataset / "ours/result.json")
            tasks = 2
            assert len(result["matrices"][0]) == len(result["also_tested"]["seen"]["matrices"][0]) == tasks
            assert {**entries[f"paper/{dataset}/ours"]["result"], "run_dir": result["run_dir"]} == result


def test_a_row_of_one_protocol_runs_nothing_of_the_other(
    official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(
        "evergraph.experiments.paper.experiment.run_cells",
        lambda cells, out, choices, **_: asked.update(cells=cells, choices=choices) or {},
    )
    assert "si" not in Protocol.load("paper", "corafull", seeds=1).rows()
    summary = run_paper(
        datasets=("corafull",), protocols=BOTH, seeds=1, rows=["si"], data_root=official, jobs=1, out=tmp_path / "out"
    )
    assert [table["protocol"] for table in summary["tables"]] == ["best"]
    assert asked["cells"] == []
    assert {trial.spec.method for choice in asked["choices"] for trial in choice.trials} == {"si"}
    assert Protocol.load("paper", "corafull", seeds=1).rows([]) == {}


@pytest.mark.usefixtures("without_pictures")
def test_cells_in_the_results_file_are_not_run_again(
    official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither rows nor the trials that their settings were chosen by, even where the folders of the runs are gone."""
    settings = {"seeds": 1, "device": "cpu", "data_root": official, "rows": ["finetune", "lwf"], "jobs": 1}
    where = {"datasets": ("corafull",), "protocols": ("paper",), "out": tmp_path / "out", **settings}
    run_paper(**where, epochs=1)
    folder = tmp_path / "out/paper/corafull"
    before = {name: (folder / name).read_bytes() for name in ("results.jsonl", "table.md", "table.csv", "table.tex")}
    shutil.rmtree(tmp_path / "out/cells")
    monkeypatch.setattr("evergraph.training.learner.Learner.learn", lambda *_: pytest.fail("trained again"))
    run_paper(**{**where, "device": "auto"}, epochs=1)  # the file goes on saying where they were run
    assert {name: (folder / name).read_bytes() for name in before} == before
    with pytest.raises(eg.EvergraphError, match=r"results\.jsonl: paper/corafull/.* was run with other settings"):
        run_paper(**where, epochs=2)


def trial_results(choice: Choice, matrices: list[list[list[float | None]]]) -> dict[str, dict[str, object]]:
    """What the trials came to on validation nodes; on test nodes the opposite, to show that nobody looks there."""
    return {
        trial.key: {"validation": [matrix], "matrices": [[[-1.0 if v is None else -v for v in row] for row in matrix]]}
        for trial, matrix in zip(choice.trials, matrices)
    }


def test_lwf_takes_what_validation_prefers() -> None:
    (choice,) = Protocol.load("paper", "coauthor-cs", seeds=3).choices(["lwf"])
    assert len(choice.trials) == 4
    results = trial_results(choice, [[[50.0, None], [float(number), 10.0]] for number in (0, 1, 3, 2)])
    (cell,) = choice.choose(results)
    assert cell.key == "paper/coauthor-cs/lwf"
    assert cell.spec.seeds == [0, 1, 2]
    assert (cell.spec.settings["strength"], cell.spec.settings["temperature"]) == (10.0, 2.0)


def test_best_chooses_by_its_rule_and_runs_all_orders() -> None:
    """The trial with the highest final AP on validation nodes; one that diverged has none."""
    protocol = Protocol.load("best", "coauthor-cs", seeds=3)
    (choice,) = protocol.choices(["ours"])
    assert len(choice.trials) == protocol.content["search"]["trials"]
    assert all(trial.spec.stream["first_tasks"] == 2 for trial in choice.trials)
    results = trial_results(choice, [[[50.0, None], [float(n), 10.0]] for n in range(len(choice.trials))])
    results[choice.trials[-1].key] = {"error": "diverged"}
    cells = choice.choose(results)
    assert [cell.spec.stream.get("order", "labelled") for cell in cells] == ["labelled", "random:1"]
    assert len({cell.key for cell in cells}) == 2
    tried = choice.trials[-2].spec
    for cell in cells:
        assert (cell.spec.settings, cell.spec.training.lr) == (tried.settings, tried.training.lr)
        assert cell.spec.seeds == [0, 1, 2]
        assert "first_tasks" not in cell.spec.stream


@pytest.mark.parametrize("graph", ["task", "seen"])
def test_rows_with_all_labels_take_the_settings_of_those_without(graph: str) -> None:
    protocol = Protocol.load("best", "coauthor-cs", seeds=3)
    place = ["task", "seen"].index(graph)
    with_few, with_all = (protocol.choices([row])[place] for row in ("joint", "joint-all-labels"))
    assert with_few.trials == with_all.trials
    assert {trial.spec.stream["test_graph"] for trial in with_few.trials} == {graph}
    results = trial_results(with_few, [[[50.0, None], [float(n == 5), 10.0]] for n in range(len(with_few.trials))])
    few, every = with_few.choose(results)[0].spec, with_all.choose(results)[0].spec
    assert (few.training, few.model_settings) == (every.training, every.model_settings)
    assert every.settings == {**few.settings, "learn_validation": True}


def test_a_row_that_reads_earlier_tasks_again_is_trained_for_each_test_graph() -> None:
    protocol = Protocol.load("best", "coauthor-cs", seeds=3)
    assert list(protocol.rows(["joint"])) == list(protocol.rows(["joint-seen"])) == ["joint", "joint-seen"]
    assert list(protocol.rows(["ours"])) == ["ours"]
    trained = {name: protocol.spec(row, [0]) for name, row in protocol.rows(["joint", "ours"]).items()}
    assert {name: (spec.stream["test_graph"], spec.also_test) for name, spec in trained.items()} == {
        "ours": ("task", ["seen"]), "joint": ("task", []), "joint-seen": ("seen", []),
    }  # fmt: skip


def test_a_row_has_its_twins_figures_on_the_other_test_graph() -> None:
    protocol = Protocol.load("paper", "coauthor-cs", seeds=1)

    def result(graph: str, ap: float) -> dict[str, Any]:
        shared = {"ap": {"mean": ap, "std": 0.0}, "af": {"mean": 0.0, "std": 0.0}, "metrics": {"ap": {"values": [ap]}}}
        return {**shared, "protocol": {"test_graph": graph}, "hyperparameters": {}, "also_tested": {}}

    results = {protocol.key("joint"): result("task", 97.0)}
    (only,) = table_rows(protocol, results, ["joint"])
    assert only["result"] is None  # half of a row is none
    (both,) = table_rows(protocol, {**results, protocol.key("joint-seen"): result("seen", 93.0)}, ["joint"])
    assert markdown([both]).splitlines()[-1] == "| Joint training | – | – | 97.00 | 0.00 | 93.00 | 0.00 |"


def test_the_same_number_of_trials_for_every_row_with_the_learning_rate_among_the_searched() -> None:
    protocol = Protocol.load("best", "coauthor-cs", seeds=3)
    choices = protocol.choices()
    assert {len(choice.trials) for choice in choices} == {protocol.content["search"]["trials"]}
    searched = {name: protocol.searched_settings(row) for name, row in protocol.rows().items()}
    assert {name for name, settings in searched.items() if "lr" not in settings} == {"analytic", "analytic-all-labels"}


def test_a_rule_that_brings_its_own_trials_is_refused() -> None:
    with pytest.raises(eg.EvergraphError, match="brings its own trials"):
        Protocol.load("best", "coauthor-cs", 1, rule="stability-decay").choices()


@pytest.mark.usefixtures("without_pictures")
def test_best_end_to_end(official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials, choices, all orders, and a table with differences; finished cells are not run again."""
    content = read("best")
    content["search"]["trials"] = 2
    monkeypatch.setattr("evergraph.experiments.paper.protocol.read", lambda name: copy.deepcopy(content))
    rows = ["finetune", "ewc-pred", "joint", "joint-all-labels"]
    settings = {"seeds": 2, "epochs": 1, "device": "cpu", "data_root": official, "rows": rows, "jobs": 1}
    given = {"datasets": ("corafull",), "protocols": ("best",), "rule": "first-tasks", "out": tmp_path / "out"}
    (table,) = run_paper(**given, **settings)["tables"]
    text = Path(table["markdown"]).read_text()
    assert "not measured here" not in text
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert all(len(line) == len(lines[0]) for line in lines)
    assert any("best" in line for line in lines)
    entries = read_results(Path(table["markdown"]).parent)
    twins = 2  # of the joint rows
    assert len(entries) == 2 * 4 + 2 * (len(rows) + twins)  # trials of four searches, rows in two orders
    assert all(entry["spec"]["stream"]["first_tasks"] == 2 for key, entry in entries.items() if "choose/ewc" in key)
    monkeypatch.setattr("evergraph.training.learner.Learner.learn", lambda *_: pytest.fail("trained again"))
    shutil.rmtree(tmp_path / "out/cells")
    run_paper(**given, **settings)


def row(title: str, values: list[list[float]], keeps: tuple[str, ...] = ()) -> dict[str, object]:
    """A row of the table, with the AP of each seed in each order."""

    def result(aps: list[float]) -> dict[str, object]:
        mean = sum(aps) / len(aps)
        shared = {"ap": {"mean": mean, "std": 0.0}, "af": {"mean": 0.0, "std": 0.0}}
        shared["metrics"] = {"ap": {"values": aps}}
        more = {"protocol": {"test_graph": "task"}, "access": {"keeps": list(keeps)}, "kept_bytes": [[8]]}
        return {**shared, **more, "also_tested": {"seen": shared}}

    orders = [result(aps) for aps in values]
    return {"title": title, "result": orders[0], "orders": orders, "searched": []}


def test_two_pairs_say_nothing_about_chance() -> None:
    """One seed in two orders: a gap without a p-value, and no spread over one seed."""
    rows = [row("first", [[90.0], [85.0]]), row("second", [[88.0], [82.9]])]
    table = markdown_with_differences(with_differences(rows))
    assert "| first | 90.00 | 0.00 | 87.50 ± 3.54 | best |" in table
    assert "| second | 88.00 | 0.00 | 85.45 ± 3.61 | −2.05 |" in table


def test_what_a_row_keeps_is_said_as_in_other_tables() -> None:
    """A method that keeps something and declares nothing does not keep nothing."""
    rows = [row("silent", [[90.0]]), row("uncounted", [[80.0]])]
    rows[0]["result"]["kept_bytes"] = [[64], [4096]]
    rows[1]["result"]["kept_bytes"] = []
    table = markdown_with_differences(with_differences(rows))
    assert "| undeclared | 4,096 |" in table
    assert "| nothing | not measured here |" in table


def test_bold_and_gaps_follow_paired_tests() -> None:
    rows = [
        row("first", [[90.0, 80.0], [85.0, 75.1]]),
        row("second", [[88.0, 78.0], [83.0, 73.0]]),
        row("joint", [[99.0, 99.0], [99.0, 99.0]], ("graphs",)),
    ]
    table = markdown_with_differences(with_differences(rows))
    first, second, joint = (next(line for line in table.splitlines() if f"| {name}" in line) for name in NAMES)
    assert "**82.53 ± 6.42**" in first
    assert "best" in first
    assert "−2.02 (p " in second
    assert "**" not in second + joint  # a ceiling is no competitor
    alike = [row("first", [[90.0, 80.0], [85.0, 75.1]]), row("second", [[70.0, 79.0], [89.0, 90.0]])]
    assert "**" not in markdown_with_differences(with_differences(alike))  # within noise: nobody is best


def test_csv_and_latex_hold_what_the_printed_table_holds(tmp_path: Path) -> None:
    rows = [
        row("first", [[90.0, 80.0], [85.0, 75.1]]),
        row("second", [[88.0, 78.0], [83.0, 73.0]], ("parameters",)),
        {**row("third", [[0.0]]), "result": None, "orders": [None, None]},
    ]
    for number, one in enumerate(rows):
        one |= {"protocol": "best", "dataset": "d", "row": str(number), "paper_ap": None, "paper_af": None}
        if one["result"]:
            one["result"] |= {"seconds": 1.0, "hyperparameters": {}, "model": {}}
    rows[1]["searched"], rows[1]["result"]["hyperparameters"] = ["strength"], {"strength": 1e-5}
    printed = write_tables(with_differences(rows), tmp_path, "heading").read_text(encoding="utf-8")
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    tex = (tmp_path / "table.tex").read_text(encoding="utf-8")
    for graph in ("task", "seen"):
        first, second, third = ({key: line[f"{key}_{graph}"] for key in OVER_ORDERS} for line in lines)
        spread, gap = mean_std([90.0, 80.0, 85.0, 75.1]), rows[1]["behind"][graph]
        assert first == {
            "all_orders_mean": str(spread["mean"]), "all_orders_std": str(spread["std"]), "against_best": "",
            "against_best_p": "", "best": "True",
        }  # fmt: skip
        assert (second["against_best"], second["against_best_p"]) == (str(gap.mean), str(gap.chance))
        assert set(third.values()) == {""}
    assert (lines[1]["keeps"], lines[1]["kept_bytes"], lines[1]["settings"]) == ("parameters", "8", "strength 1e-05")
    assert "**82.53 ± 6.42**" in printed
    assert r"\textbf{82.53 $\pm$ 6.42} & best" in tex
    assert "$-$2.02 (p " in tex
    assert tex.count("strength 1e-05") == printed.count("strength 1e-05") == 1
    # cell by cell, but for how bold and signs are written
    cells = [line[2:-2].split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    body = [line.removesuffix(r" \\").split(" & ") for line in tex.splitlines() if " & " in line]
    plain = [[re.sub(r"\\textbf\{(.*)\}", r"**\1**", cell) for cell in line] for line in body]
    plain = [[cell.replace(r"$\pm$", "±").replace("$-$", "−").strip() for cell in line] for line in plain]
    assert plain == [[cell.strip() for cell in line] for line in (cells[0], *cells[2:])]


NAMES = ("first", "second", "joint")


def test_a_studys_own_value_is_the_tables_cell() -> None:
    protocol = Protocol.load("paper", "coauthor-cs", seeds=3)
    studies = protocol.study_cells()
    ours = "Ours (queue) with EMA"
    in_table = [studies[name][ours][value] for name, value in (("strength", "0.1"), ("queue-size", "128"))]
    assert {cell.key for cell in in_table} == {"paper/coauthor-cs/ours"}
    (of_table,) = (cell for cell in protocol.cells() if cell.key == "paper/coauthor-cs/ours")
    for cell in in_table:  # so that either may be run first, and the other goes on with it
        assert not cell.spec.differences(of_table.spec.as_dict())
        assert not of_table.spec.differences(cell.spec.as_dict())
    assert studies["queue-size"][ours]["32"].spec.settings["queue_size"] == 32


def test_studies_of_one_setting_share_their_cells() -> None:
    studies = Protocol.load("paper", "coauthor-cs", seeds=3).study_cells()
    ours = "Ours (queue) with EMA"
    assert studies["strength"][ours]["0.01"] == studies["estimators"][ours]["0.01"]
    assert studies["estimators"]["Ours (exact) with EMA"]["0.1"].key == "paper/coauthor-cs/ours-exact"
    by_key = {}
    for cells in (cells for study in studies.values() for cells in study.values()):
        for cell in cells.values():
            assert by_key.setdefault(cell.key, cell.spec) == cell.spec, cell.key


def test_finished_cells_are_never_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        Cell(f"cell-{name}", RunSpec("sbm:nodes=60,classes=4", method=name, training=Training(epochs=1), device="cpu"))
        for name in ("finetune", "ema")
    ]
    first = run_cells(cells, tmp_path)
    monkeypatch.setattr("evergraph.training.learner.Learner.learn", lambda *_: pytest.fail("trained again"))
    again = run_cells(cells, tmp_path)
    assert {key: result["matrices"] for key, result in again.items()} == {
        key: result["matrices"] for key, result in first.items()
    }


def test_processes_side_by_side_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make_stream = list[int](), RunSpec.make_stream
    monkeypatch.setattr(
        RunSpec, "make_stream", lambda spec, seed, root: (made.append(seed), make_stream(spec, seed, root))[1]
    )
    spec = RunSpec(
        "sbm:nodes=60,classes=4", method="curvature", training=Training(epochs=2), device="cpu", seeds=[0, 1]
    )
    cells = [Cell("a", spec), Cell("b", dataclasses.replace(spec, method="ewc"))]
    trials = tuple(Cell(f"trial-{n}", dataclasses.replace(spec, seeds=[n], validate=True)) for n in (0, 1))

    def choose(results: dict[str, dict[str, object]]) -> list[Cell]:
        assert results.keys() >= {"trial-0", "trial-1"}
        return [Cell("c", spec)]

    choices = [Choice(trials, choose)]
    apart = run_cells(cells, tmp_path / "apart", choices=choices, jobs=2)
    assert sorted(made) == [0, 1]  # here, where results are only gathered, a stream is made once for all cells
    together = run_cells(cells, tmp_path / "together", choices=choices, jobs=1)
    assert {*apart} == {*together} == {"a", "b", "c", "trial-0", "trial-1"}
    assert all(apart[key]["matrices"] == together[key]["matrices"] for key in together)
    assert len(apart["c"]["matrices"]) == 2


def break_some(spec: RunSpec, out: Path, seed: int, **_: object) -> None:
    """Stands for `run_seed`: fails as the cell's folder is called."""
    if Path(out).name.endswith("bug"):
        raise KeyError("a mistake")
    if Path(out).name.endswith("killed"):
        tried = Path(f"{out}.tried")
        tried.write_text((tried.read_text() if tried.exists() else "") + "x")
        os.kill(os.getpid(), signal.SIGKILL)
    if Path(out).name.endswith("once") and not Path(f"{out}.tried").exists():
        Path(f"{out}.tried").touch()
        os._exit(1)
    run_seed(spec, out, seed)


class Breaking(Work):
    def do(self) -> None:
        break_some(self.spec, Path(self.folder), self.seed)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_cell_keeps_no_other_from_being_run(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistakes, killed processes and bad input alike; what a second try mends is mended."""
    spec = RunSpec("sbm:nodes=60,classes=4", method="finetune", training=Training(epochs=1), device="cpu")
    bad = dataclasses.replace(spec, source="sbm:nodes=60,classes=1")
    names = ["a-bug", "b-bad", "c"] + (["d-killed", "e-once"] if jobs > 1 else [])
    cells = [Cell(name, bad if name == "b-bad" else spec) for name in names]
    monkeypatch.setattr("evergraph.experiments.cells.Work", Breaking)
    if jobs == 1:
        whole = Cell.finish
        monkeypatch.setattr(
            Cell, "finish", lambda cell, *rest: {}["a mistake"] if cell.key == "a-bug" else whole(cell, *rest)
        )
    with pytest.raises(
        CellsFailedError, match=r"of . runs failed, --resume tries them again; .*a-bug: KeyError"
    ) as found:
        run_cells(cells, tmp_path, jobs=jobs)
    assert {*found.value.errors} == {"a-bug", "b-bad", "d-killed"} & {*names}
    assert {*found.value.results} == {"c", "e-once"} & {*names}
    assert str(found.value).count("\n") == 0
    assert "KeyError" in (tmp_path / "failures.txt").read_text()
    if jobs > 1:
        assert "d-killed: its process died" in str(found.value)
        assert (tmp_path / "d-killed.tried").read_text() == "xx"
    monkeypatch.undo()
    assert {*run_cells([cell for cell in cells if cell.key != "b-bad"], tmp_path, jobs=1)} == {*names} - {"b-bad"}
    assert not (tmp_path / "failures.txt").exists()


def test_seeds_that_begin_one_run_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes run.json between two looks of this one."""
    spec = RunSpec(
        "sbm:nodes=60,classes=4", method="curvature", training=Training(epochs=1), device="cpu", seeds=[0, 1]
    )
    folder, listed = tmp_path / "cell", Path.iterdir

    def other_first(path: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", listed)
        run_seed(spec, folder, 1)
        return listed(path)

    folder.mkdir()
    monkeypatch.setattr(Path, "iterdir", other_first)
    run_seed(spec, folder, 0)
    monkeypatch.setattr("evergraph.training.learner.Learner.learn", lambda *_: pytest.fail("trained again"))
    assert len(run(spec, folder, resume=True)["matrices"]) == 2


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (BrokenProcessPool("a process in the pool died"), "died"),
        (torch.OutOfMemoryError("no room"), "ran out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "ran out of memory"),
        (MemoryError(), "ran out of memory"),
    ],
)
def test_a_process_that_ended_is_one_line(error: Exception, what: str) -> None:
    said = in_words(error, Work("a/b", RunSpec("digits"), "folder", 0))
    assert re.match(rf"a/b: its process {what} \(.*fewer --jobs", str(said))


def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, evergraph: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    commands = (["paper"], ["paper", "--resume"], ["compare", "digits"])
    for command in commands:
        status, _, said = evergraph(*command, "--out", tmp_path)
        assert status == 2
        assert "name another with --out" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("how", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_a_stopped_experiment_leaves_nobody_behind_and_says_how_to_go_on(
    how: str, tmp_path: Path, real_data: Path
) -> None:
    words = shlex.split("paper --dataset corafull-knn --protocol best --methods ours --seeds 1 --jobs 2 --device cpu")
    words += ["--data-root", str(real_data), "--out", str(tmp_path / "o")]
    process = Forked(command_line(*words), session=True)
    while not list(tmp_path.rglob("run.json")):
        assert process.poll() is None
        time.sleep(0.1)
    if how == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        _, said = process.communicate(timeout=120)
        assert process.returncode == 130
        assert "stopped; go on with: evergraph paper" in said
    else:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    for _ in range(100):  # nobody of its session is left, and no lock is held
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("workers outlived their parent")
