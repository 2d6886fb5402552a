"""Two processes over gloo: they end where one ends, and fail in one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
import torch
from pyarrow import parquet

import evergraph as eg
import two_processes
from cases import slow
from evergraph.cli import together
from evergraph.core import workers
from evergraph.core.shared_memory import MemoryFile, NamedFile, _alike
from evergraph.core.workers import ConnectionLostError, ProcessGroup, share_of
from evergraph.data.parts import write_parts
from forked import Forked, command_line

DOOMED = '''
import os, resource, signal, socket, sys
from dataclasses import dataclass
import evergraph as eg

def doom():
    """What the variable DOOM says of this process, as in `killed 1`."""
    how, _, rank = os.environ.get("DOOM", "").rpartition(" ")
    if rank != os.environ.get("RANK"):
        return
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "disk full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    if how == "cut off":
        for number in range(3, 1024):
            try:
                connection = socket.socket(fileno=os.dup(number))
                ports = connection.getsockname()[1], connection.getpeername()[1]
                if int(os.environ["MASTER_PORT"]) not in ports:
                    connection.shutdown(socket.SHUT_RDWR)
            except (OSError, IndexError):  # not a connection
                pass

@eg.registry.methods.register
@dataclass(repr=False)
class Doomed(eg.OnlineCurvature):
    """Fails in the second task, where it is asked to."""
    name = "doomed"

    def after_step(self, step):
        if (step.context.index, step.context.epoch) == (1, 1):
            doom()

@eg.registry.methods.register
@dataclass(repr=False)
class DoomedSums(eg.Analytic):
    """Fails at the end of the second task, or at the second part that a process predicts."""
    name = "doomed-sums"
    predicted = 0

    def end_task(self, context):
        super().end_task(context)
        if context.index == 1:
            doom()

    def predict(self, view):
        self.predicted += "predict" in sys.argv
        if self.predicted == 2:
            doom()
        return super().predict(view)
'''
DOOMS = {  # what happens to which process, and what is said of it
    "killed 1": r"another process of this run is gone.*--resume|process 1 was killed by signal 9.*--resume",
    "killed 0": r"another process of this run is gone.*--resume|process 0 was killed by signal 9.*--resume",
    "disk full 0": r"cannot write .*",
    "cut off 1": r"another process of this run is gone or cannot be reached.*--resume",
}


def started(what: str, folder: Path, number: int = 2) -> list[Forked]:
    """Processes that do together what `two_processes` calls so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(number)}
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]
    return [Forked(partial(two_processes.main, what, folder), rank, folder) for rank in ranks]


@pytest.mark.parametrize(
    ("what", "fewer_ways"),
    [
        ("parts", two_processes.ONE_EACH),
        slow("parts in more ways", two_processes.FEWER_WAYS),
    ],
)
def test_three_processes_have_the_head_of_one_over_parts(
    tmp_path: Path, what: str, fewer_ways: dict[str, list[tuple[str, str]]]
) -> None:
    """The closed forms on five parts, edges with weights and without: float64, features to 1e-10, heads to 1e-8.

    Rows are shared by all processes, by two of three, or sent; where memory cannot be shared, one line says so.
    """
    before = set(Path("/dev/shm").glob("evergraph-*"))
    said = [process.communicate(timeout=200)[1] for process in started(what, tmp_path, 3)]
    for rank in range(3):
        assert (tmp_path / f"{rank}.json").exists(), said[rank][-2000:]
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found.pop("weights")[0] > 1e-3  # they matter
        assert len(found) == len(two_processes.WAYS) + sum(map(len, fewer_ways.values()))
        for name, (features, head, sent, lines) in found.items():
            assert features < 1e-10, name
            assert head < 1e-8, name
            assert (sent > 0) == (not name.startswith("shared")), name
            assert lines == (name.startswith("no memory") and rank == 0), name
    assert set(Path("/dev/shm").glob("evergraph-*")) == before


@pytest.mark.parametrize("cases", ["compare", slow("variants")])
def test_two_processes_end_where_one_ends(tmp_path: Path, cases: str) -> None:
    """All methods, several models, uneven batches, early stopping, graphs, a resume: float64, to 1e-10."""
    said = [process.communicate(timeout=500)[1] for process in started(cases, tmp_path)]
    assert (tmp_path / "0.json").exists(), said[0][-2000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        apart = {name: value for name, value in found.items() if not name.endswith(": share")}
        assert not {name: value for name, value in apart.items() if isinstance(value, str) or not value < 1e-10}
        if cases == "variants":
            continue
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
    saved = eg.Learner.load(learner, device="cpu")
    assert saved.records[-1]["tested"] == {saved.records[-1]["mark"]: saved.first_accuracies[-1]}
    assert saved.records[-1]["examples"]["test"] > 0
    assert evergraph("predict", parts, "--checkpoint", learner, "--out", tmp_path / "shards", "--device", "cpu")[0] == 0
    tables = [parquet.read_table(file) for file in sorted((tmp_path / "shards").glob("*.parquet"))]
    assert [len(table) for table in tables] == [50, 50, 50]
    columns = pyarrow.concat_tables(tables)
    assert columns["node"].to_pylist() == list(range(150))
    graph = eg.stream("sbm:nodes=150,classes=4").graph
    known = eg.Learner.load(learner, device="cpu")
    known.method.judge_edges = False  # in one process the edges of a graph that fits into memory are judged too
    assert columns["class"].to_pylist() == known.predict(graph).labels
    whole = ["predict", parts, "--checkpoint", learner, "--device", "cpu", "--out"]
    assert evergraph(*whole, tmp_path / "few", "--classes", "0,3", "--all-classes", "--uncalibrated")[0] == 0
    few = parquet.read_table(tmp_path / "few/part-00001.parquet").to_pydict()
    assert few.keys() == {"node", "class", "probability", "p(0)", "p(3)"}
    assert {*few["class"]} == {0, 3}
    assert all(abs(p + q - 1) < 1e-6 and max(p, q) == r for p, q, r in zip(*list(few.values())[3:], few["probability"]))
    for words in (["--nodes", "1,2"], ["--unknown", "0.05"], ["--directed"]):
        status, _, said = evergraph(*whole, tmp_path / "refused", *words)
        assert (status, said.count("\n"), words[0] in said) == (2, 1, True)
    first_task = tmp_path / "first"
    evergraph(
        "learn", parts, "--checkpoint", first_task, "--classes", "0,1", "--model-set", "hidden=40", "--device", "cpu"
    )
    whole[whole.index(learner)] = first_task
    status, _, said = evergraph(*whole, tmp_path / "strange")
    assert (status, said.count("\n"), "unknown classes 2, 3" in said) == (2, 1, True)
    assert evergraph(*whole, tmp_path / "strange", "--ignore-labels")[0] == 0
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


def test_all_processes_stop_in_the_first_one_s_epoch(tmp_path: Path) -> None:
    said = [process.communicate(timeout=200)[1] for process in started("stop", tmp_path)]
    for rank in range(2):
        assert (tmp_path / f"{rank}.json").exists(), said[rank][-2000:]
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {"epochs": 5}


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


def one_line_of(doom: str, said: str) -> bool:
    """Whether a command that failed said what it should, in one line."""
    return re.fullmatch(rf"error: ({DOOMS[doom]})[^\n]*\n", said) is not None


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), True),
        (RuntimeError("Timed out waiting 600000ms for recv operation to complete"), True),
        (RuntimeError("Application timeout caused pair closure"), True),
        (torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1"), True),
        (torch.distributed.DistStoreError("wait timeout after 10000ms, keys: /default_pg/0//cpu//0/0"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), False),
        (torch.distributed.DistBackendError("NCCL error: unhandled cuda error. 'out of memory'"), False),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"), False),
        (RuntimeError("CUDA error: the launch timed out and was terminated"), False),
        (RuntimeError("shape '[2, -1]' is invalid for input of size 3"), False),
        (NotImplementedError("Could not run 'c10d::allgather_' with arguments from the 'Meta' backend."), False),
    ],
)
def test_only_a_lost_process_is_told_as_one(error: RuntimeError, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(workers, "_all_gather", fail)
    with pytest.raises(ConnectionLostError if lost else type(error)) as raised:
        ProcessGroup().sum([torch.ones(2)])
    assert raised.value is error or lost


EVERY_DOOM = slow(tuple(DOOMS))


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("dooms", [("killed 1", "cut off 1"), EVERY_DOOM], ids=["two", "all"])
def test_a_run_that_fails_is_one_line_and_resumes_to_the_same_bits(tmp_path: Path, dooms: tuple[str, ...]) -> None:
    """Killed in one process, then in the other; a full disk; a lost connection: each time it is resumed."""
    plugin = tmp_path / "doomed.py"
    plugin.write_text(DOOMED)
    words = ["run", "sbm:nodes=120,classes=4", "--method", "doomed", "--epochs", "2", "--device", "cpu"]
    words += ["--model-set", "hidden=4", "--processes", "2", "--plugin", str(plugin)]
    for doom in dooms:
        resume = ["--resume"] if (tmp_path / "failed").exists() else []
        status, said = call(*words, "--out", tmp_path / "failed", *resume, DOOM=doom)
        assert status == 2
        assert one_line_of(doom, said), said
        assert json.loads((tmp_path / "failed/seed-0/matrix.json").read_text())["matrix"][0][0] is not None
        assert not (tmp_path / "failed/result.json").exists()
    assert call(*words, "--out", tmp_path / "failed", "--resume") == (0, "")
    assert call(*words, "--out", tmp_path / "whole") == (0, "")
    failed, whole = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("failed", "whole"))
    assert failed["matrices"] == whole["matrices"]
    assert "2 processes" in whole["device"]
    logs = [(tmp_path / name / "seed-0/log.csv").read_text() for name in ("failed", "whole")]
    assert logs[0] == logs[1]


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder; a killed process leaves its locks, which nobody holds any more."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in {".lock", ".turn"})
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("dooms", [("killed 0", "disk full 0"), EVERY_DOOM], ids=["two", "all"])
def test_over_parts_a_failure_is_one_line_and_leaves_all_as_it_was(tmp_path: Path, dooms: tuple[str, ...]) -> None:
    """The learner is that of the task before, no prediction is left; then the same command does what it should."""
    plugin, parts = tmp_path / "doomed.py", tmp_path / "parts"
    plugin.write_text(DOOMED)
    write_parts(eg.stream("sbm:nodes=150,classes=4").graph, parts, 4)
    more = ["--device", "cpu", "--processes", "2", "--plugin", str(plugin)]
    learn = ["learn", parts, "--method", "doomed-sums", *more, "--checkpoint"]
    learner, whole = tmp_path / "learner", tmp_path / "whole"
    assert call(*learn, learner, "--classes", "0,1", "--model-set", "hidden=20") == (0, "")
    shutil.copytree(learner, whole)
    before = contents(learner)
    for doom in dooms:
        status, said = call(*learn, learner, "--classes", "2,3", DOOM=doom)
        assert status == 2
        assert one_line_of(doom, said), said
        assert contents(learner) == before
    for folder in (learner, whole):
        assert call(*learn, folder, "--classes", "2,3") == (0, "")
    tensors = [{file.name: file.read_bytes() for file in folder.glob("*.safetensors")} for folder in (learner, whole)]
    assert tensors[0] == tensors[1]
    assert len(tensors[0]) == 1
    out = tmp_path / "out"
    out.mkdir()
    predict = ["predict", parts, "--checkpoint", learner, *more, "--out"]
    for doom in ("killed 0", "disk full 0"):
        status, said = call(*predict, out / "shards", DOOM=doom)
        assert status == 2
        assert one_line_of(doom, said), said
        assert list(out.iterdir()) == []
    for name in ("shards", "others"):
        assert call(*predict, out / name) == (0, "")
    assert contents(out / "shards") == contents(out / "others")
    assert sorted(contents(out / "shards")) == [f"part-{number:05d}.parquet" for number in range(4)]
    status, said = call(*predict, out / "shards")
    assert (status, said.count("\n"), "exists" in said) == (2, 1, True)


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


def test_processes_that_see_one_another_share_memory() -> None:
    """Both ways and the same others; whoever is seen one way only, or by some, is on a machine of its own."""
    table = [
        [True, False, True, False],
        [False, True, False, False],
        [True, False, True, False],
        [True, True, True, False],
    ]
    assert [_alike(table, rank) for rank in range(4)] == [[0, 2], [1], [0, 2], [3]]


def test_a_file_in_memory_is_opened_by_its_makers_number_and_name() -> None:
    for kind in (MemoryFile, NamedFile):
        made = kind()
        os.write(made.number, b"rows")
        opened = kind(made.address)
        assert os.pread(opened.number, 4, 0) == b"rows"
        process, number, token = made.address
        with pytest.raises(FileNotFoundError):  # as on another machine, where that number is another file
            kind((process, number, token + 1))
        os.close(opened.number)
        made.close()
        with pytest.raises(FileNotFoundError):
            kind(made.address)


def test_alone_nothing_changes() -> None:
    group = eg.join_workers()
    assert (group.rank, group.size) == (0, 1)
