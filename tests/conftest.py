"""What the tests share: one thread per process, small graphs, the folder of real graphs."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the suite runs one process a core, and so do those that it starts

import pytest

if TYPE_CHECKING:  # what the tests need is imported where they run: xdist's own process only hands them out
    import evergraph as eg

os.fsync = lambda handle: None  # no test pulls the plug, and runs wait for the disk thousands of times

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector need not look at it again, nor forked processes import it."""
    import torch

    from forked import made_once

    torch.set_num_threads(1)
    made_once()
    importlib.import_module("matplotlib.figure")
    importlib.import_module("matplotlib.backends.backend_agg")
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _forked_pools(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes side by side are forked, so that none has to import everything; those of `spawned` tests are not."""
    from forked import forked_pool

    if "spawned" not in request.keywords:
        monkeypatch.setattr("evergraph.experiments.engines.processes._one_process", forked_pool)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real graphs, where it is there."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no folder of real graphs at {REAL_DATA}")
    return REAL_DATA


@pytest.fixture
def evergraph(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Calls the command line in this process: exit status, stdout, stderr."""
    from evergraph import cli
    from forked import made_once

    commands = made_once()
    monkeypatch.setattr(cli, "make_app", lambda: commands)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evergraph", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, comparisons and reports draw no figures, which take longer than small runs and have tests of their own."""
    monkeypatch.setattr("evergraph.experiments.report.FIGURES", {})
    for place in ("cli.run.heatmaps", "cli.compare.heatmaps"):
        monkeypatch.setattr(f"evergraph.{place}", lambda results, path: path)
    for figure in ("heatmaps", "final_rows"):
        monkeypatch.setattr(f"evergraph.experiments.paper.experiment.{figure}", lambda results, path: path)


@pytest.fixture
def small_graph() -> eg.Graph:
    """60 nodes, 6 classes, 8 features."""
    from evergraph.data.datasets.sbm import sbm

    return sbm(nodes=60, classes=6, degree=4, features=8, signal=3.0, seed=1)


@pytest.fixture
def small_stream(small_graph: eg.Graph) -> eg.TaskStream:
    """Three tasks of two classes."""
    import evergraph as eg

    return eg.TaskStream(small_graph, 2)


@pytest.fixture
def registries() -> Iterator[None]:
    """What a page registers is taken off the lists again."""
    import evergraph as eg
    from evergraph.registry import Registry

    lists = [value for value in vars(eg.registry).values() if isinstance(value, Registry)]
    before = [set(entries) for entries in lists]
    yield
    for entries, known in zip(lists, before):
        for name in set(entries) - known:
            entries.remove(name)
