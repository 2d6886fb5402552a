"""Notes that are the same for several files are shown once; predictions print as a few rows and become data frames."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import evergraph as eg
from evergraph.errors import EvergraphWarning

ONCE = "notes that are the same as for jan are not repeated, nor for other files"


def months(folder: Path, number: int = 3) -> list[Path]:
    """Tables with a column of text and edges in one direction, of which each has another number."""
    paths = []
    for name in ("jan", "feb", "mar")[:number]:
        rows = "".join(f"{i},{i % 5 + 0.5},{'ab'[i % 2]},{'xy'[i % 2]}\n" for i in range(40))
        (folder / f"{name}.csv").write_text(f"id,a,city,label\n{rows}")
        ends = "".join(f"{i},{i + 1}\n" for i in range(20 + len(paths)))
        (folder / "edges.csv").write_text(f"source,target\n{ends}")
        paths.append(folder / f"{name}.csv")
    return paths


def test_in_a_script_a_note_is_shown_for_the_first_file_alone(tmp_path: Path) -> None:
    """As Python shows warnings by default."""
    months(tmp_path)
    code = "import evergraph as eg\nfor m in ('jan', 'feb', 'mar'): eg.from_tables(f'{m}.csv', 'edges.csv')\n"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = [line for line in run.stderr.splitlines() if "EvergraphWarning" in line]
    assert [line.partition("EvergraphWarning: ")[2].split(":")[0] for line in lines] == ["jan", "jan", "feb"]
    assert lines[2].endswith(ONCE)


def test_whoever_asks_for_all_warnings_sees_all(tmp_path: Path) -> None:
    paths = months(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for path in paths:
            eg.from_tables(path, tmp_path / "edges.csv")
    assert sum("columns of text are not features" in str(one.message) for one in caught) == 3


def test_the_command_line_collapses_notes_over_files(evergraph, tmp_path: Path) -> None:
    sources = [f"{path}:edges=edges.csv" for path in months(tmp_path, 2)]
    words = ("--checkpoint", tmp_path / "kept")
    for source in sources:
        assert evergraph("learn", source, *words, "--hidden", "10", "--again")[0] == 0
    status, _, error = evergraph("evaluate", *sources, *words)
    assert status == 0
    assert error.count("columns of text are not features") == 1
    assert error.count("were given in one direction") == 1
    assert error.count(ONCE) == 1


def predicted(**options: object) -> eg.Prediction:
    stream = eg.stream("sbm:nodes=200,classes=4,features=8,signal=3")
    graph = stream.graph.altered(class_names=list("abcd"))
    learner = eg.Learner(eg.RandomFeatures(hidden=20), "auto")
    learner.learn(graph)
    return learner.predict(graph, **options)


def test_a_prediction_prints_a_few_rows_and_the_counts_of_classes() -> None:
    prediction = predicted(unknown=0.05)
    lines = repr(prediction).splitlines()
    assert lines[0].startswith("Prediction(200 nodes: '")
    assert all(f"'{name}' {prediction.labels.count(name)}" in lines[0] for name in set(prediction.labels))
    assert lines[0].endswith(f"; {int(prediction.unknown.sum())} flagged as unknown)")
    assert lines[1].split() == ["node", "class", "probability", "strangeness", "unknown"]
    assert [line.split()[0] for line in lines[2:7]] == ["0", "1", "2", "3", "4"]
    assert lines[7:] == ["…"]
    assert repr(predicted(nodes=[0])).count("\n") == 2
    assert repr(predicted(nodes=[])) == "Prediction(0 nodes)"


def test_a_prediction_becomes_a_data_frame() -> None:
    pytest.importorskip("pandas")
    prediction = predicted(nodes=[3, 1])
    frame = prediction.to_frame(all_classes=True)
    assert list(frame) == ["node", "class", "probability", *(f"p({name})" for name in "abcd")]
    assert frame["node"].tolist() == [3, 1]
    np.testing.assert_allclose(frame[[f"p({name})" for name in "abcd"]].sum(1), 1.0)


def test_a_prediction_of_numbers_prints_them() -> None:
    graph = eg.make_graph(np.random.default_rng(0).normal(size=(30, 3)), [[0], [1]], np.linspace(0, 1, 30),
                          columns=True, undirected=True, attributes={"id": [f"u{i}" for i in range(30)]})  # fmt: skip
    learner = eg.Learner("analytic", problem="node-regression")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvergraphWarning)
        learner.learn(graph)
    lines = repr(learner.predict(graph)).splitlines()
    assert lines[0] == "Prediction(30 nodes)"
    assert [line.split()[0] for line in lines[1:3]] == ["node", "u0"]
