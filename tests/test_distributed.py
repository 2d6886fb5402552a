"""Two processes over gloo: they end where one ends, and fail in one line."""

from __future__ import annotations

import json
import re
import resource
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
from pyarrow import parquet

import evergraph as eg
import two_processes
from evergraph.cli import together
from evergraph.core.workers import share_of
from forked import Forked, command_line

DOOMED = '''
import os, signal
from dataclasses import dataclass
import torch
import evergraph as eg

@eg.registry.methods.register
@dataclass(repr=False)
class Doomed(eg.OnlineCurvature):
    """Killed in the second task, where it is asked to be."""
    name = "doomed"

    def after_step(self, step):
        if step.context.index == 1 and step.context.epoch == 1 and os.environ.get("DOOMED") == os.environ.get("RANK"):
            os.kill(os.getpid(), signal.SIGKILL)
'''


def started(what: str, folder: Path) -> list[Forked]:
    """Two processes that do together what `two_processes` calls so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return [Forked(partial(two_processes.main, what, folder), rank, folder) for rank in ranks]


def test_two_processes_end_where_one_ends(tmp_path: Path) -> None:
    """All methods, several models, uneven batches, early stopping, graphs, a resume: float64, to 1e-10."""
    said = [process.communicate(timeout=500)[1] for process in started("compare", tmp_path)]
    assert (tmp_path / "0.json").exists(), said[0][-2000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        apart = {name: value for name, value in found.items() if not name.endswith(": share")}
        assert not {name: value for name, value in apart.items() if isinstance(value, str) or not value < 1e-10}
        shares = {name.removesuffix(": share"): value for name, value in found.items() if name.endswith(": share")}
        assert 0.3 < shares["method curvature"] < 0.7
        assert shares["model normalized by batch"] == 0  # it is not divided
        assert shares["batches of one"] == 1 - rank


def test_a_graph_in_parts_on_the_command_line(tmp_path: Path, evergraph: Callable[..., tuple[int, str, str]]) -> None:
    """Converted, learned in two calls, predicted into Parquet files; refused where it has no place."""
    parts, learner = tmp_path / "parts", tmp_path / "learner"
    status, said, _ = evergraph("convert", "sbm:nodes=150,classes=4", parts, "--parts", 3)
    assert (status, "in 3 parts" in said) == (0, True)
    for classes in ("0,1", "2,3"):
        status, said, _ = evergraph(
            "learn", parts, "--checkpoint", learner, "--classes", classes, "--model-set", "hidden=40", "--device", "cpu"
        )
        assert status == 0
        assert "accuracy on held-out nodes" in said
    assert evergraph("predict", parts, "--checkpoint", learner, "--out", tmp_path / "shards", "--device", "cpu")[0] == 0
    tables = [parquet.read_table(file) for file in sorted((tmp_path / "shards").glob("*.parquet"))]
    assert [len(table) for table in tables] == [50, 50, 50]
    columns = pyarrow.concat_tables(tables)
    assert columns["node"].to_pylist() == list(range(150))
    graph = eg.stream("sbm:nodes=150,classes=4").graph
    known = eg.Learner.load(learner, device="cpu").predict(graph)
    alike = [a == b for a, b in zip(columns["class"].to_pylist(), known.labels)]
    assert sum(alike) > 140  # in one process the edges of a graph that fits into memory are judged too
    for words in (["run", parts], ["learn", parts, "--checkpoint", tmp_path / "other", "--method", "ewc"]):
        status, _, said = evergraph(*words)
        assert status == 2
        assert "in parts" in said
    (parts / "part-00001/y.npy").write_bytes((parts / "part-00000/y.npy").read_bytes()[:-8] + bytes(8))
    status, _, said = evergraph("predict", parts, "--checkpoint", learner, "--out", tmp_path / "more")
    assert (status, "damaged" in said) == (2, True)


def test_a_process_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    first, second = started("lose", tmp_path)
    said = first.communicate(timeout=120)[1]
    second.kill()
    second.communicate()
    line = json.loads((tmp_path / "0.json").read_text())["said"]
    assert "another process of this run is gone or cannot be reached" in line, said
    assert "--resume" in line


def call(*words: object, **environment: str) -> tuple[int, str]:
    """The command line in a process of its own, which forks others: exit status and stderr."""
    process = Forked(partial(forking, command_line(*words)), environment)
    error = process.communicate()[1]
    return process.wait(), error


def forking(run: Callable[[], None]) -> None:
    """Run a command whose processes are forked where they would be started."""

    class Rank(Forked):
        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            super().__init__(command_line(*command[3:]), env, stderr=2)

    together.subprocess = SimpleNamespace(Popen=Rank)  # type: ignore[assignment]
    run()


def test_a_killed_process_is_one_line_and_the_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Killed twice: the second process, then, in the resumed run, the first."""
    plugin = tmp_path / "doomed.py"
    plugin.write_text(DOOMED)
    words = ["run", "sbm:nodes=120,classes=4", "--method", "doomed", "--epochs", "3", "--device", "cpu"]
    words += ["--model-set", "hidden=4", "--processes", "2", "--plugin", str(plugin)]
    for rank, more in (("1", []), ("0", ["--resume"])):
        status, said = call(*words, "--out", tmp_path / "killed", *more, DOOMED=rank)
        assert status == 2
        assert re.fullmatch(
            r"error: (another process .* is gone|process \d was killed by signal 9).*--resume.*\n", said
        )
        assert json.loads((tmp_path / "killed/seed-0/matrix.json").read_text())["matrix"][0][0] is not None
        assert not (tmp_path / "killed/result.json").exists()
    assert call(*words, "--out", tmp_path / "killed", "--resume") == (0, "")
    assert call(*words, "--out", tmp_path / "whole") == (0, "")
    killed, whole = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("killed", "whole"))
    assert killed["matrices"] == whole["matrices"]
    assert "2 processes" in whole["device"]
    logs = [(tmp_path / name / "seed-0/log.csv").read_text() for name in ("killed", "whole")]
    assert logs[0] == logs[1]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    words = ["run", "sbm:nodes=120,classes=4", "--method", "curvature", "--epochs", "2", "--device", "cpu"]

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        forking(command_line(*words, "--processes", 2, "--out", tmp_path / "out"))

    process = Forked(run)
    error = process.communicate()[1]
    assert process.returncode == 2
    assert error.count("\n") == 1, error
    assert "cannot write" in error


def test_what_torchrun_is_not_for_is_one_line(tmp_path: Path) -> None:
    torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0"}
    status, said = call("compare", "digits", **torchrun)
    assert (status, said) == (2, "error: compare is not for torchrun; run, learn, predict are\n")


@pytest.mark.parametrize("number", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_shares_are_consecutive_and_even(number: int, size: int) -> None:
    items = list(range(number))
    shares = [items[share_of(number, rank, size)] for rank in range(size)]
    assert [item for share in shares for item in share] == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_nothing_changes() -> None:
    group = eg.join_workers()
    assert (group.rank, group.size) == (0, 1)
