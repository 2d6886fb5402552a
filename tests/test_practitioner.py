"""Three months of a practitioner on a real graph, with nothing but the README's commands; methods' defaults."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.data import find_graph
from evergraph.experiments import RunSpec
from evergraph.experiments.cells import Cell, run_cells
from evergraph.experiments.engines import default_jobs
from evergraph.experiments.result_file import read_results
from evergraph.methods import METHODS
from evergraph.training import Training

ROOT = Path(__file__).resolve().parents[1]
MONTHS = ("january", "february", "march")
CLASSES = 5  # a month of a graph with 15; the real graph has more than the three months bring


def write_months(graph: eg.Graph, folder: Path, reduce: int = 1, words: int | None = None) -> torch.Tensor:
    """A file for each month: its own nodes and edges, with its new classes; returns the truth of all nodes.

    Of every so many nodes one is kept, and of the words so many that most nodes have.
    """
    frequent = graph.x.to_scipy().getnnz(axis=0).argsort()[::-1][:words] if words else slice(None)
    for number, name in enumerate(MONTHS):
        kept = (
            torch.isin(graph.y, torch.arange(CLASSES * number, CLASSES * (number + 1))).nonzero().reshape(-1)[::reduce]
        )
        part = graph.subgraph(kept)
        x = part.x.to_scipy() if hasattr(part.x, "to_scipy") else part.x.numpy()
        adjacency = part.adjacency
        dense = x.toarray() if hasattr(x, "toarray") else x
        np.savez(
            folder / f"{name}.npz", adj_indptr=adjacency.indptr, adj_indices=adjacency.indices,
            attr_matrix=dense[:, frequent], labels=part.y, class_names=[f"field {i}" for i in range(graph.num_classes)],
        )  # fmt: skip
    return graph.y


def readme_commands() -> list[list[str]]:
    """`learn` and `predict` as the README has them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = [line.split() for line in re.findall(r"^evergraph (?:learn|predict) .*$", text, flags=re.MULTILINE)]
    assert [words[1] for words in found] == ["learn", "learn", "predict"]
    return [words[1:] for words in found]


def play(
    evergraph, graph: eg.Graph, place: Path, reduce: int = 1, words: int | None = None, extra: tuple[str, ...] = ()
) -> list[float]:
    """January, February and March as the README plays them; accuracy of each month's predictions in the end."""
    write_months(graph, place, reduce, words)
    first, second, ask = readme_commands()
    assert (first[1], second[1], ask[1]) == ("january.npz", "february.npz", "march.npz")
    assert evergraph(*first, *extra)[0] == 0
    assert evergraph(*second)[0] == 0
    # in March its labels have come too
    third = [word.replace("february", "march") for word in second]
    status, out, error = evergraph(*third)
    assert status == 0, error
    assert "knows 15 classes now (task 3)" in out
    accuracies = []
    for name in MONTHS:
        words = [word.replace("march", name) for word in ask]
        status, _, error = evergraph(*words)
        assert status == 0, error
        rows = list(csv.DictReader((place / f"{name}.csv").open()))
        truth = np.load(place / f"{name}.npz")["labels"]
        hits = [row["class"] == f"field {label}" for row, label in zip(rows, truth.tolist())]
        assert len(rows) == len(truth)
        accuracies.append(100 * float(np.mean(hits)))
    # held-out nodes alone, by the same learner in Python
    learner = eg.Learner.load(place / "kept")
    found = learner.evaluate([place / f"{name}.npz" for name in MONTHS])
    assert found.af is not None
    return [found.ap, *accuracies]


def test_three_months_on_a_made_graph(evergraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evergraph.data.datasets.sbm import sbm

    monkeypatch.chdir(tmp_path)
    graph = sbm(nodes=300, classes=15, degree=6, features=16, signal=4.0, seed=1)
    ap, *_ = play(evergraph, graph, tmp_path, extra=("--hidden", "64"))
    assert ap > 60


@pytest.mark.parametrize(
    ("reduce", "words", "narrower"),
    [(4, 500, ("--hidden", "280")), (1, None, ())],
    ids=["quarter", "all"],
)
@pytest.mark.slow
def test_three_months_on_a_real_graph_end_above_90(
    evergraph, real_data: Path, tmp_path, monkeypatch, reduce: int, words: int | None, narrower: tuple[str, ...]
) -> None:
    """Every fourth node of Coauthor-CS, its 500 most frequent words and fewer features, or all and not a word more."""
    monkeypatch.chdir(tmp_path)
    graph, _ = find_graph("coauthor-cs", real_data)
    ap, *accuracies = play(evergraph, graph, tmp_path, reduce, words, narrower)
    print(f"held-out AP {ap:.1f}; all nodes of each month {[round(value, 1) for value in accuracies]}")
    assert ap > 90
    assert min(accuracies) > 90


def test_a_mask_of_a_pyg_object_reaches_the_learner(tmp_path: Path) -> None:
    """What `torch.save(data)` writes and a boolean mask over its nodes ask the same as node numbers."""
    graph, _ = find_graph("sbm:nodes=60,classes=4,features=8,signal=3")
    data = Data(x=graph.x, edge_index=graph.edge_index, y=graph.y)
    learner = eg.Learner(eg.RandomFeatures(hidden=16), "auto").fit([data])
    assert learner.predict(data, nodes=data.y == 1).nodes.tolist() == (data.y == 1).nonzero().reshape(-1).tolist()


STREAMS = ("coauthor-cs", "amazon-computers")
NOISE = 1.0  # points of AP between two runs that differ by chance
AT_DEFAULTS = ROOT / "results/at-defaults"
COMMAND = "evergraph compare coauthor-cs amazon-computers --methods all --seeds 1 --out results/at-defaults --resume"


def worse_than_fine_tuning(found: dict[str, float]) -> dict[str, float]:
    return {name: ap for name, ap in found.items() if ap < found["finetune"] - NOISE}


def measured_at_defaults(stream: str) -> dict[str, dict[str, Any]]:
    """Results by method."""
    results = [entry["result"] for entry in read_results(AT_DEFAULTS).values()]
    return {result["method"]: result for result in results if result["stream"] == stream}


@pytest.mark.parametrize("stream", STREAMS)
def test_no_method_was_worse_at_its_defaults_than_fine_tuning(stream: str) -> None:
    """As measured with the very defaults of today; a method that is not there is left to the slow test."""
    measured = measured_at_defaults(stream)
    if not measured:
        pytest.skip(f"not measured: {COMMAND}")
    for name, result in measured.items():
        method = METHODS[name]()
        protocol = Training(**method.training).protocol()
        again = f"{name} had other defaults when it was measured: take its lines out of {AT_DEFAULTS}, and {COMMAND}"
        assert result["hyperparameters"] == json.loads(json.dumps(method.hyperparameters())), again
        if "epochs" in result["protocol"]:  # a closed form has no settings of training
            then = Training().protocol() | result["protocol"]  # without a setting that has come since, all was as it is
            assert {key: then[key] for key in protocol} == protocol, again
    assert worse_than_fine_tuning({name: result["ap"]["mean"] for name, result in measured.items()}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_no_method_at_its_defaults_is_worse_than_fine_tuning(stream: str, real_data: Path, tmp_path: Path) -> None:
    """Every registered method that has not been measured, those of other packages too, with nothing said."""
    cells = [
        Cell(name, RunSpec(stream, method=name, training=Training(**kind().training), device="cpu"))
        for name, kind in METHODS.items()
        if "node" in kind.levels and name not in measured_at_defaults(stream)
    ]
    found = run_cells(cells, tmp_path, data_root=real_data, jobs=default_jobs("cpu"))
    reached = {name: result["ap"]["mean"] for name, result in (measured_at_defaults(stream) | found).items()}
    print(reached)
    assert worse_than_fine_tuning(reached) == {}


@pytest.mark.parametrize(
    ("table", "methods"),
    [
        ("table.md", "ewc,ewc++,lwf,mas,si,stand-in-curvature"),
        ("three-tasks/table.md", "batch-curvature"),
        ("interpolated/table.md", "interpolated-curvature"),
    ],
)
def test_defaults_are_those_that_the_rule_chose(table: str, methods: str) -> None:
    """`results/defaults` holds the search; a default is the chosen candidate, or as good as it on validation nodes."""
    lines = (ROOT / "results/defaults" / table).read_text(encoding="utf-8").splitlines()
    head, _, *rows = [line.strip("| ").split(" | ") for line in lines]
    scores = {(row[0], row[1]): float(row[head.index("mean")]) for row in rows}
    for name in methods.split(","):
        kind = METHODS[name]
        prototypes = "prototypes=32, " if name == "stand-in-curvature" else ""
        scope = Training(**kind().training).label_scope
        own = scores[name, f"{prototypes}strength={float(kind().strength)}, label_scope={scope}"]
        assert own >= max(score for (method, _), score in scores.items() if method == name) - 0.1, name
