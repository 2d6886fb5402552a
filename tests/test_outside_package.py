"""A package of its own adds a method, a model, a dataset, a problem and a metric: they work like ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evergraph import registry
from forked import Forked, command_line

PACKAGE = Path(__file__).parent / "outside_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the package is found as pip would have installed it: on the path, with its metadata."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = site / f"evergraph_outside-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(groups))
    (site / "evergraph_outside").symlink_to(PACKAGE / "evergraph_outside")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


SCRIPT = """
import json, sys
from evergraph import cli
from evergraph.experiments import report

comparison = json.loads(sys.argv[1])
report.FIGURES.clear()  # they take longer than all the rest, and have tests of their own

def call(*words):
    sys.argv = ["evergraph", *words]
    try:
        cli.main()
    except SystemExit as ended:
        print(ended.code, chr(0), sep="\\n")

import evergraph.cli.compare as compare
compare.heatmaps = lambda results, path: path
for words in (["methods", "--json"], ["models", "--json"], ["streams", "--json"], ["run", "--help"]):
    call(*words)
call(*comparison)

import evergraph as eg
stream, folder = eg.stream("ring"), "learner"
learner = eg.Learner("sgc", "sticky", problem="one-versus-rest", epochs=3, device="cpu")
learner.learn(stream[0])
learner.save(folder)
learner = eg.Learner.load(folder, device="cpu")
learner.learn(stream[1])
print(learner.problem.name, learner.classes_, len(learner.predict(stream.graph)))
"""
COMPARE = ["compare", "ring:nodes=90", "--methods", "finetune,sticky,joint", "--model", "sgc", "--model-set", "steps=1",
           "--set", "sticky.strength=3", "--epochs", "8", "--lr", "0.05", "--seeds", "1", "--label-scope", "seen",
           "--out", "out", "--json"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the script runs."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def said(installed: dict[str, str], place: Path) -> list[str]:
    """What a process with the package on its path says to each command, and to a learner that is saved."""
    environment = {**installed, "COLUMNS": "200"}
    command = [sys.executable, "-c", SCRIPT, json.dumps(COMPARE)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place)
    assert done.returncode == 0, done.stderr
    *answers, learner = done.stdout.split("\0\n")
    assert all(answer.endswith("\n0\n") for answer in answers), done.stderr
    return [*(answer.removesuffix("0\n") for answer in answers), learner]


def test_it_is_on_every_list(said: list[str]) -> None:
    methods, models, streams = map(json.loads, said[:3])
    assert {"name": "sticky", "family": "parameter distance"}.items() <= methods[-1].items()
    assert methods[-1]["access"]["keeps"] == ["parameters"]
    assert "sgc" in [row["name"] for row in models]
    assert "ring" in [row["name"] for row in streams]
    for name in ("sgc", "one-versus-rest", "top-2"):
        assert name in said[3]


def test_a_comparison_and_its_report_with_nothing_but_outside_parts(said: list[str], place: Path) -> None:
    results = {result["method"]: result for result in json.loads(said[4])["results"]}
    sticky = results["sticky"]
    assert sticky["hyperparameters"] == {"strength": 3.0}
    assert sticky["model"] == {"name": "sgc", "steps": 1}
    assert sticky["protocol"]["problem"] == "one-versus-rest"
    assert sticky["protocol"]["metric"] == "top-2"
    assert sticky["kept_bytes"][0][-1] == 4 * 6 * 6  # one copy of the weight matrix
    assert results["joint"]["ap"]["mean"] > 80
    assert results["finetune"]["matrices"] != sticky["matrices"]
    page = (place / "out/report.html").read_text()
    for name in ("sticky", "sgc", "one-versus-rest", "top-2 accuracy (%)"):
        assert name in page


def test_a_learner_of_outside_parts_is_saved_and_goes_on(said: list[str]) -> None:
    assert said[5].strip() == "one-versus-rest [0, 1, 2, 3] 120"


def test_a_package_that_cannot_be_imported_is_named_in_one_line(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[evergraph.plugins]\nbroken = not_there.at_all\n")

    def run() -> None:
        sys.path.insert(0, str(tmp_path))
        registry._loaded = False  # as in a process that has just begun
        command_line("run", "digits")()

    process = Forked(run, folder=tmp_path)
    _, error = process.communicate()
    assert process.returncode == 2
    assert error.startswith("error: plug-in 'broken' (not_there.at_all) cannot be loaded")
    assert error.count("\n") == 1
