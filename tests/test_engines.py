"""Many runs: on Ray's real local cluster, and as the task lines of a SLURM array."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import evergraph as eg
from cases import slow
from evergraph import program
from evergraph.core import fork_server
from evergraph.experiments.cells import Cell, CellsFailedError, run_cells
from evergraph.experiments.engines import (
    FOLDER,
    SCRIPT,
    ArrayWrittenError,
    Engine,
    MakeEngine,
    ProcessEngine,
    RayEngine,
    Work,
    engine_for,
    processes,
)
from evergraph.experiments.engines.base import passed_on
from evergraph.experiments.engines.preloaded import LATER
from evergraph.experiments.run import RunSpec
from evergraph.experiments.selection.side_by_side import search_side_by_side
from evergraph.training import Training
from forked import Forked, command_line, forked_pool

Call = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(("has_gpu", "expected"), [(True, 15), (False, 40)])
def test_the_papers_processes_by_default_are_what_its_help_says(
    evergraph: Call, monkeypatch: pytest.MonkeyPatch, has_gpu: bool, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(40)), raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert processes.default_jobs("auto") == expected
    assert processes.default_jobs("cpu") == 40
    monkeypatch.setenv("COLUMNS", "300")
    assert "by default one for each core, on a GPU at most 15" in evergraph("paper", "--help")[1]


COMPARE = ["compare", "sbm:nodes=120,classes=4", "--methods", "finetune,ewc", "--seeds", "2", "--epochs", "1"]
COMPARE += ["--device", "cpu"]
BAD = "sbm:nodes=60,classes=1"


def spec(**changes: object) -> RunSpec:
    settings = {"method": "finetune", "training": Training(epochs=1), "device": "cpu", **changes}
    return RunSpec(**{"source": "sbm:nodes=120,classes=4", **settings})


class Once(Work):
    """Its process is gone at the first try."""

    def do(self) -> None:
        tried = Path(f"{self.folder}.tried")
        if self.key == "dies" and not tried.exists():
            tried.touch()
            os._exit(1)
        super().do()


class LostError(Exception):
    """Ray's word for a process or a machine that is gone."""


class StandIn(ModuleType):
    """As much of Ray as is used, over processes that are forked for one task after the other."""

    exceptions = SimpleNamespace(RayError=LostError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.told = list[str]()

    def is_initialized(self) -> bool:
        return "init" in self.told

    def init(self, **settings: Any) -> None:
        assert {"num_cpus": 2, "log_to_driver": False}.items() <= settings.items()
        assert settings["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "1"
        self.told.append("init")

    def remote(self, **settings: Any) -> Callable[..., Any]:
        assert settings == {"max_retries": 0, "num_cpus": 1}

        def started(function: Callable[[Work], object], work: Work) -> Future[object]:
            with forked_pool() as pool:  # through before the next one is forked, which would copy its threads' locks
                return pool.submit(function, work)

        def of(function: Callable[[Work], object]) -> Any:
            return SimpleNamespace(options=lambda num_gpus: SimpleNamespace(remote=partial(started, function)))

        return of

    def wait(self, tasks: list[Future[object]], num_returns: int) -> tuple[list[Future[object]], list[Future[object]]]:
        done = next(as_completed(tasks))
        return [done], [task for task in tasks if task is not done]

    def get(self, task: Future[object]) -> object:
        try:
            return task.result()
        except BrokenProcessPool as error:
            raise LostError("its process is gone") from error

    def shutdown(self) -> None:
        self.told.append("shutdown")


@pytest.mark.parametrize("real", [False, slow(True)], ids=["stand-in", "real"])
def test_cells_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: bool) -> None:
    """The same results; a task whose process dies is tried again; a bad one fails alone."""
    stand_in = StandIn()
    if real:
        pytest.importorskip("ray", reason="Ray is not installed (pip install 'evergraph[ray]')")
    else:
        monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("evergraph.experiments.cells.Work", Once)
    cells = [Cell("a", spec(seeds=[0, 1])), Cell("dies", spec(method="ema")), Cell("bad", spec(source=BAD))]
    with pytest.raises(CellsFailedError, match="1 of 3 runs failed") as found:
        run_cells(cells, tmp_path / "ray", engine=lambda folder: RayEngine(2))
    assert real or stand_in.told == ["init", "shutdown"]
    assert {*found.value.errors} == {"bad"}
    assert (tmp_path / "ray/dies.tried").exists()
    alone = run_cells(cells[:2], tmp_path / "alone")
    assert {key: result["matrices"] for key, result in found.value.results.items()} == {
        key: result["matrices"] for key, result in alone.items()
    }


def test_without_ray_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(eg.EvergraphError, match=r"--on ray needs Ray .*pip install 'evergraph\[ray\]'"):
        RayEngine()


def test_of_a_group_each_piece_is_told_when_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group shares a process, as on a GPU; its first piece does not wait for its last."""
    last = threading.Event()

    class Waits(Work):
        def do(self) -> None:
            assert self.seed == 0 or last.wait(60)
            super().do()

    monkeypatch.setattr(processes, "_one_process", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(processes, "grouped", lambda works, jobs: [works] if works else [])
    monkeypatch.setattr(processes, "LOOK_EVERY", 0.05)
    with ProcessEngine(1) as engine:
        pieces = [Waits("a", spec(seeds=[0, 1]), str(tmp_path / "a"), seed) for seed in (0, 1)]
        for piece in pieces:
            engine.submit(piece)
        assert engine.wait() == [(pieces[0], None)]
        last.set()
        assert engine.wait() == [(pieces[1], None)]
    with pytest.raises(eg.EvergraphError, match="stopped"):
        engine.wait()


class Asked(Engine):
    """Carries out nothing, and knows what it was asked for."""

    def __init__(self) -> None:
        self.works = list[Work]()

    def submit(self, work: Work) -> None:
        self.works.append(work)

    def wait(self) -> list[tuple[Work, Exception | None]]:
        raise eg.EvergraphError("enough")


def test_long_runs_are_started_first_the_longest_before_the_others(tmp_path: Path) -> None:
    methods, asked = ("finetune", "curvature", "lwf", "ewc", "twp", "joint"), Asked()
    with pytest.raises(eg.EvergraphError, match="enough"):
        run_cells([Cell(name, spec(method=name)) for name in methods], tmp_path, engine=lambda folder: asked)
    assert [work.key for work in asked.works] == ["joint", "twp", "lwf", "curvature", "ewc", "finetune"]


def test_searches_share_the_processes() -> None:
    """Each has its part of them; one that fails lets the others come to their end."""
    told = list[tuple[str, int]]()

    def search(name: str, jobs: int, engine: MakeEngine | None) -> dict[str, str]:
        assert engine is not None
        with engine(Path()) as made:
            assert isinstance(made, ProcessEngine)
        told.append((name, jobs))
        if name == "bad":
            raise eg.EvergraphError("no settings fit")
        return {"best": name}

    good = {name: partial(search, name) for name in ("one", "two")}
    assert search_side_by_side(good, 5) == {"one": {"best": "one"}, "two": {"best": "two"}}
    assert sorted(told) == [("one", 2), ("two", 2)]
    with pytest.raises(eg.EvergraphError, match="no settings fit"):
        search_side_by_side({"bad": partial(search, "bad"), **good}, 2)
    assert sorted(told[2:]) == [("bad", 1), ("one", 1), ("two", 1)]
    alone = search_side_by_side({"one": lambda jobs, engine: {"jobs": jobs, "engine": engine}}, 5)
    assert alone == {"one": {"jobs": 5, "engine": None}}


def test_an_interrupt_ends_all_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Barrier(3), list[str]()

    def search(name: str, jobs: int, engine: MakeEngine | None) -> dict[str, str]:
        assert engine is not None
        made = engine(Path())
        begun.wait(60)
        while True:
            try:
                made.wait() if made._closed else time.sleep(0.001)  # type: ignore[attr-defined]
            except eg.EvergraphError:
                ended.append(name)
                raise

    def interrupted(futures: object) -> None:
        begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr("evergraph.experiments.selection.side_by_side.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search_side_by_side({name: partial(search, name) for name in ("one", "two")}, 2)
    assert sorted(ended) == ["one", "two"]


def test_an_unknown_engine_is_one_line(evergraph: Call, tmp_path: Path) -> None:
    status, _, said = evergraph(*COMPARE, "--on", "cloud", "--out", tmp_path / "out")
    assert status == 2
    assert "unknown engine 'cloud'; choose one of: local, ray, slurm" in said
    assert engine_for("local", 1) is None


def test_processes_elsewhere_take_the_shortcuts_asked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a SLURM job nor a machine of a Ray cluster inherits this process's environment."""
    monkeypatch.setenv("EVERGRAPH_FAST", "bags,compiled")
    engine = engine_for("slurm", None)(tmp_path)  # type: ignore[misc]
    engine.submit(Work("a", spec(seeds=[0]), str(tmp_path / "a"), 0))
    with pytest.raises(ArrayWrittenError):
        engine.wait()
    assert "export EVERGRAPH_FAST=bags,compiled\n" in (tmp_path / FOLDER / SCRIPT).read_text()
    assert passed_on()["EVERGRAPH_FAST"] == "bags,compiled"  # what Ray is given


@pytest.mark.parametrize("by_bash", [False, slow(True)])
def test_a_comparison_as_a_slurm_array(evergraph: Call, tmp_path: Path, without_pictures: None, by_bash: bool) -> None:
    """The script's own lines do the work; a failed task is named and written again; then the table is gathered."""
    out, words = tmp_path / "out", [*COMPARE, "--on", "slurm", "--jobs", "3"]
    status, said, _ = evergraph(*words, "--out", out)
    script = Path(re.search(r"sbatch (\S+)", said).group(1))  # type: ignore[union-attr]
    assert (status, "4 runs are left" in said) == (0, True)
    text = script.read_text()
    assert "#SBATCH --array=0-3%3\n" in text
    tasks = script.with_name("tasks.json")
    listed = json.loads(tasks.read_text())
    listed[3]["spec"]["source"] = BAD
    tasks.write_text(json.dumps(listed))
    assert evergraph("work", tasks, 0)[0] == 0
    if by_bash:
        ended = subprocess.run(["bash", script], env={**os.environ, "SLURM_ARRAY_TASK_ID": "3"}, capture_output=True)
        assert (ended.returncode, ended.stderr.count(b"\n")) == (2, 1)
    else:  # its last line, in this process
        *program, command, file, number = shlex.split(text.replace("$SLURM_ARRAY_TASK_ID", "3").splitlines()[-1])
        assert program == ["exec", sys.executable, "-m", "evergraph"]
        ended = Forked(command_line(command, file, number))
        assert (ended.communicate()[1].count("\n"), ended.returncode) == (1, 2)
    status, said, _ = evergraph(*words, "--out", out, "--resume")
    assert (status, "3 runs are left" in said) == (0, True)
    assert re.search(r"failed before, tried again: \S*finetune\S*, seed 1 \(", said)
    for number in range(3):  # one process for all: what `work` does
        assert evergraph("work", tasks, number)[0] == 0
    assert evergraph("work", tasks, 3)[0] == 2
    status, said, _ = evergraph(*words, "--out", out, "--resume")
    assert (status, "ewc" in said) == (0, True)
    assert len((out / "results.jsonl").read_text().splitlines()) == 2
    status, _, _ = evergraph(*COMPARE, "--out", tmp_path / "alone")
    gathered, alone = ((folder / "results.jsonl").read_text() for folder in (out, tmp_path / "alone"))
    matrices = [[json.loads(line)["result"]["matrices"] for line in file.splitlines()] for file in (gathered, alone)]
    assert matrices[0] == matrices[1]


def test_a_search_as_a_slurm_array(evergraph: Call, tmp_path: Path) -> None:
    words = ["tune", "sbm:nodes=150,classes=6", "--method", "ewc", "--rule", "first-tasks", "--trials", "2"]
    words += ["--epochs", "1", "--device", "cpu", "--on", "slurm", "--jobs", "2", "--out", tmp_path / "out"]
    status, said, _ = evergraph(*words)
    assert status == 0
    rounds = 0
    while "sbatch" in said and rounds < 3:
        tasks = Path(re.search(r"sbatch (\S+)", said).group(1)).with_name("tasks.json")  # type: ignore[union-attr]
        for number in range(len(json.loads(tasks.read_text()))):
            assert evergraph("work", tasks, number)[0] == 0
        status, said, _ = evergraph(*words, "--resume")
        rounds += 1
    assert (status, "use it: evergraph run" in said) == (0, True), said
    assert "--on" not in said


def seen_from_within() -> tuple[str | None, str, int, bool, bool]:
    """What a process finds: a variable, its folder, its threads, whether Ctrl-C is its own, whether it has imported."""
    ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    preloaded = "evergraph.experiments.engines.preloaded" in sys.modules
    return os.environ.get("EVERGRAPH_DATA"), os.getcwd(), torch.get_num_threads(), ignores, preloaded


@pytest.mark.spawned
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are new interpreters")
def test_processes_are_forked_from_a_server_and_have_what_their_parent_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may have begun in another folder, with other variables."""
    assert fork_server.start()
    monkeypatch.setenv("EVERGRAPH_DATA", "somewhere")
    monkeypatch.chdir(tmp_path)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes._one_process() as pool:
        assert pool.submit(seen_from_within).result(120) == ("somewhere", str(tmp_path), 1, True, True)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_every_kernel_that_is_imported_later_is_imported_beforehand() -> None:
    package = Path(eg.__file__).parent
    paths = (path.relative_to(package).with_suffix("") for path in package.rglob("*_kernel.py"))
    names = {".".join(("evergraph", *path.parts)) for path in paths}
    assert names <= set(LATER)


def test_where_no_server_can_be_started_processes_are_new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", no_socket)
    assert fork_server.context().get_start_method() == "spawn"


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        ("paper --jobs 9", True),
        ("compare a --jobs=2 --seeds 3", True),
        ("compare a --jobs 1", False),
        ("compare a --jobs many", False),
        ("run a --seeds 3", False),
        ("compare a --jobs", False),
    ],
)
def test_the_command_line_asks_for_processes(words: str, asks: bool) -> None:
    assert program.asks_for_processes(["evergraph", *words.split()]) == asks


def test_a_closed_engine_leaves_no_process_behind(tmp_path: Path) -> None:
    """Those that are through end by themselves, soon."""
    before = multiprocessing.active_children()
    with ProcessEngine(2) as engine:
        for seed in (0, 1):
            engine.submit(Work("a", spec(seeds=[0, 1]), str(tmp_path / "a"), seed))
        assert engine.wait()
    until = time.monotonic() + 60
    while new := set(multiprocessing.active_children()) - set(before):
        assert time.monotonic() < until, new
        time.sleep(0.02)
