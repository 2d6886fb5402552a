"""The benchmark's parts on small inputs: that it measures what it says, and prints it."""

import itertools
import json
import math
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import closed_form, distributed, generated_parts, suite
from benchmarks.baselines import pyg_step, scipy_neighbours
from benchmarks.candidates import in_float64, setting
from benchmarks.committee import Committee
from benchmarks.cost_model import (
    PHASES,
    Constants,
    Run,
    Workload,
    compare_with_model,
    plan,
    traffic,
    worker_bytes,
)  # fmt: skip
from benchmarks.distributed import scaling
from benchmarks.figures import fisher_figures, sampler_figures, scaling_figures, step_figures
from benchmarks.generated_parts import CLASSES, FEATURES, MATCHINGS, make_part
from benchmarks.gpu import Replayed, _steps, arxiv_like
from benchmarks.large import write_large
from benchmarks.methods import SecondTaskSteps, method_figures
from benchmarks.resident import child_environment, peak_megabytes
from benchmarks.setting import SETTINGS, Steps, coauthor, coauthor_like, make_context, remember
from benchmarks.seven_graphs import Contender, contender_of, measure, table
from benchmarks.step_by_hand import Learned, Past, step_by_hand
from benchmarks.suite import TARGETS, Target
from benchmarks.timing import alternate
from typer.testing import CliRunner

import evergraph as eg
from evergraph.cli import make_app
from evergraph.cli.bench import figure_table
from evergraph.core.sparse import SparseMatrix
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph
from evergraph.data.mapped import read_mapped
from evergraph.data.parts import read_parts, write_parts_header
from evergraph.data.streams import TaskStream
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods import METHODS, Finetune, OnlineCurvature, make_method
from evergraph.models import make_model
from evergraph.models.gcn import GCN
from evergraph.training.learner import Learner
from evergraph.training.optimizers import make_optimizer
from evergraph.training.step import train_step


@pytest.fixture(scope="module")
def words() -> Graph:
    return coauthor_like(nodes=3000, words=500)


def test_contenders_take_turns() -> None:
    order: list[str] = []
    found = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, seconds=0, least=3)
    assert order == ["a", "b"] * 4  # a warm-up and three rounds
    assert found.keys() == {"a", "b"}
    assert min(found.values()) >= 0


def test_the_generated_graph_is_like_coauthor_cs() -> None:
    words = coauthor_like()
    assert (words.num_nodes, words.num_features, words.num_classes) == (18333, 6805, 15)
    assert isinstance(words.x, SparseMatrix)
    assert 40 < words.x.nnz / words.num_nodes < 65  # 59 in the real one
    assert 8 < words.num_edges / words.num_nodes < 9.5  # 8.9 in the real one


def test_the_real_graph_is_used_where_it_is_there(real_data: Path, tmp_path: Path) -> None:
    assert coauthor(real_data)[1] == "Coauthor-CS"
    assert "generated" in coauthor(tmp_path)[1]


def test_steps_repeat_their_batches_and_learn(words: Graph) -> None:
    steps = Steps(make_context(GCN(hidden=8), TaskStream(words, 3)[2]), Finetune())
    first = steps.batch()
    for _ in range(len(steps.pieces) - 1):
        steps()
    assert torch.equal(steps.batch().nodes, first.nodes)


def test_a_committee_is_the_mean_of_its_members() -> None:
    """In float64; and each member is drawn as a network of its own, up to Glorot's bound."""
    graph = sbm(nodes=60, classes=5, features=6)
    committee = Committee(hidden=40, members=3)
    committee.setup(6, 5)
    for weight, width in zip(committee.weights, (6, 5)):
        assert not weight[-1].any()
        assert weight.abs().max().item() == pytest.approx((6 / (40 + width)) ** 0.5, rel=0.02)
    torch.nn.init.normal_(committee.weights[1].data[-1])  # a bias that shows
    committee.double()
    first, last = committee.weights
    outputs = []
    for own_first, own_last in zip(first.split(40, dim=1), last[:-1].split(40)):
        member = GCN(hidden=40)
        member.setup(6, 5)
        member.double().load_state_dict({"weights.0": own_first, "weights.1": torch.cat([own_last, last[-1:]])})
        outputs.append(member(graph.x.double(), graph.edge_index))
    torch.testing.assert_close(committee(graph.x.double(), graph.edge_index), torch.stack(outputs).mean(0))


def test_adam_moves_a_committee_as_far_as_a_member() -> None:
    """Members that start alike put out what one network does, and still do after steps of both."""
    graph = sbm(nodes=60, classes=5, features=6)
    single, committee = GCN(hidden=8), Committee(hidden=8, members=4)
    for model in (single, committee):
        model.setup(6, 5)
    first, last = single.weights
    wide = {"weights.0": first.repeat(1, 4), "weights.1": torch.cat([last[:-1].repeat(4, 1), last[-1:]])}
    committee.load_state_dict(wide)
    outputs = []
    for model in (single.double(), committee.double()):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-30)
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(graph.x.double(), graph.edge_index), graph.y).backward()
            optimizer.step()
        outputs.append(model(graph.x.double(), graph.edge_index))
    torch.testing.assert_close(outputs[1], outputs[0])


def test_pyg_s_step_is_our_step() -> None:
    """The contender is the same network on the same seeds: with our weights its loss is ours."""
    from benchmarks import baselines

    task = Task.of(sbm(nodes=400, classes=3, degree=6, features=5, seed=1))
    steps = Steps(make_context(GCN(hidden=6), task), Finetune())
    networks = []

    class Kept(baselines.PyGNetwork):
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            networks.append(self)

    original, baselines.PyGNetwork = baselines.PyGNetwork, Kept  # type: ignore[misc]
    try:
        step = pyg_step(steps)
    finally:
        baselines.PyGNetwork = original  # type: ignore[misc]
    (network,) = networks
    first, second = steps.context.model.weights  # type: ignore[union-attr,misc]
    with torch.no_grad():
        network.first.lin.weight.copy_(first[:-1].T)
        network.second.lin.weight.copy_(second[:-1].T)
    # ours has its biases inside the propagation, PyG's outside: they start at zero, so the losses agree
    batch = steps.batch()
    logits = steps.context.model(batch)
    ours = torch.nn.functional.cross_entropy(logits, batch.y, reduction="sum")
    # PyG's degrees at the rim of the subgraph are those of the subgraph, so it is close, not equal
    assert float(step().detach()) == pytest.approx(float(ours.detach()), rel=0.05)  # type: ignore[attr-defined]


def test_the_figures_of_steps(words: Graph) -> None:
    found = step_figures(TaskStream(words, 3)[2], seconds=0)
    assert found["tasks_50_over_2_memory"] == 1
    assert all(value > 0 for value in found.values())


def test_replayed_steps_cover_the_same_seeds() -> None:
    """The GPU's contender, where nothing is captured: padded batches of the eager steps' seeds, moved as those are."""
    device = torch.device("cpu")
    task = TaskStream(arxiv_like(quick=True), 6)[1]
    for method in (Finetune(), OnlineCurvature()):
        eager = _steps(task, device, method, 2)
        replayed = Replayed(_steps(task, device, type(method)(), 2))
        assert torch.equal(torch.cat([piece.seeds for piece in replayed.pieces]), torch.cat(eager.pieces))
        assert not replayed.executor.captures
        before = [value.detach().clone() for value in replayed.executor.context.model.parameters()]
        assert float(replayed()) > 0  # type: ignore[arg-type]
        after = replayed.executor.context.model.parameters()
        assert any(not torch.equal(old, new) for old, new in zip(before, after))


def test_the_figures_of_the_fisher_diagonal_and_of_size(words: Graph) -> None:
    task = TaskStream(words, 3)[2]
    task.train = task.train[:150]
    assert fisher_figures(task, seconds=0)["fisher_diagonal_over_epoch"] > 0
    assert scaling_figures(0, nodes=(500, 1000))["epoch_scaling"] > 0
    rates = sampler_figures(0, nodes=500)
    assert min(rates.values()) > 0


def test_every_method_has_its_step_over_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = TaskStream(sbm(nodes=80, classes=4, degree=5, features=6, seed=0), 2)
    monkeypatch.setattr("benchmarks.methods.alternate", lambda contenders, **more: {"plain": 2.0, "method": 4.0})
    found = method_figures(stream, 0, torch.device("cpu"))
    assert set(found["steps_over_plain"]) == set(METHODS) - {"analytic", "auto"}
    assert found["steps_run_besides"]["lwf"] == "the network as it was after the last task"
    assert set(found["steps_above"]) == set(found["steps_over_plain"]) - set(found["steps_run_besides"])
    assert "ewc" in found["steps_above"]
    steps = SecondTaskSteps(stream, make_method("curvature"), "gcn", "cpu")
    before = [value.detach().clone() for value in steps.executor.context.model.parameters()]
    assert float(steps()) > 0  # type: ignore[arg-type]
    assert any(not torch.equal(a, b) for a, b in zip(before, steps.executor.context.model.parameters()))


def test_auto_s_seconds_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure once: a clock that counts what is timed shows which times each is made of."""
    stream = TaskStream(sbm(nodes=60, classes=4, degree=5, features=6, seed=0), 2)
    counted = itertools.count(1)

    def timed(work: Any) -> tuple[Any, float]:
        return work(), float(next(counted))

    def learned(tasks: TaskStream, about: dict[str, Any]) -> Learner:
        small = make_model("mixed-features" if about is closed_form.AUTO else "gcn", hidden=20)
        return Learner(small, **about).fit(tasks)

    monkeypatch.setattr(closed_form, "timed", timed)
    monkeypatch.setattr(closed_form, "learned", learned)
    monkeypatch.setattr(closed_form, "THREADS", 1)
    before = torch.get_num_threads()
    found = closed_form.auto_figures(stream, stream.first(1))
    assert torch.get_num_threads() == before
    nodes = [10 + closed_form.NODES // 2 + 1, 10 + closed_form.NODES + closed_form.NODES // 2 + 1]
    assert found == {
        "auto_digits_seconds": 1,
        "auto_digits_over_epoch": 1 / 3,  # plain ones were timed as 2, 3 and 4
        "auto_learn_seconds": 5,
        "auto_learn_over_epoch": 5 / 7,
        "auto_predict_seconds": 9,
        "auto_predict_over_gcn": 9 / 10,
        "auto_node_ms": 1e3 * nodes[0],
        "auto_node_over_gcn": nodes[0] / nodes[1],
    }
    assert found.keys() <= TARGETS.keys()


def test_quick_figures_are_not_held_against_bounds_for_the_full_graph() -> None:
    for quick, met in ((False, "yes"), (True, "")):
        table = figure_table({"auto_learn_seconds": 1.0, "quick": quick})
        assert list(table.columns[-1].cells) == [met]
    quick = closed_form.auto_streams(None, quick=True)
    assert [len(stream) for stream in quick] == [2, 1]


def test_seven_graphs_take_any_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's line tells its contender apart, and says what is kept and which labels were used."""
    stream = TaskStream(sbm(nodes=200, classes=4, degree=5, features=6, seed=0), 2)
    monkeypatch.setattr(eg, "stream", lambda *given, **named: stream)
    settings = {"encoder": "continual", "per_class": "3"}
    trained = Contender("ssm+analytic", settings, "sage", {"hidden": "8"}, {"epochs": "2"})
    closed = Contender("analytic", model_settings={"hidden": "20"})
    rows = [json.loads(json.dumps(measure(("actor", "random:0", 0), one, ""))) for one in (trained, closed)]
    assert [contender_of(row) for row in rows] == [trained, closed]
    assert [row["labels"] for row in rows] == ["60 %, 79 %", "79 %"]  # sizes are rounded down
    assert set(rows[0]["keeps"]) == {"real nodes", "graphs", "statistics"}
    assert len(rows[0]["drift"]) == 1
    assert min(row["kept_bytes"] for row in rows) > 0
    lines = table([*rows, rows[0]]).splitlines()
    found = [line.split(" | ")[1:3] for line in lines[2:]]
    assert found == [["ssm+analytic sage hidden=8", "2"], ["analytic hidden=20", "1"]]


@pytest.mark.parametrize("past", [0, 2])
def test_the_step_written_out_is_the_loop_s(past: int) -> None:
    """One step of the loop in float64, autograd and fused Adam, against the one that candidates are held against."""
    task = Task.of(sbm(nodes=120, classes=5, degree=6, features=7, seed=0))
    standing, model, seeds, capacity = setting(task, "cpu", 8, 16)
    model.double()
    context = make_context(model, task)
    method = remember(OnlineCurvature(strength=3.0), context, past)
    curvature = method.methods[1]  # type: ignore[attr-defined]
    first, second = curvature.anchor_sum_.values() if past else (None, None)
    anchored = Past(past, first, second, 3.0) if past else None
    wide, _ = in_float64(standing, None)
    own = Learned.of(*model.weights)
    for _ in range(3):
        step_by_hand(wide, own, seeds, capacity, anchored)
    optimizer = make_optimizer(model, SETTINGS)
    assert (SETTINGS.lr, SETTINGS.weight_decay) == (own.lr, own.decay)
    for _ in range(3):
        train_step(context, method, context.batcher.batch(seeds), optimizer)
    for written, trained in zip((own.w1, own.w2), model.weights):
        torch.testing.assert_close(written, trained.detach(), rtol=1e-12, atol=1e-13)


def test_triton_s_step_is_the_one_written_out() -> None:
    """In Triton's interpreter, which needs no GPU; where Triton is not installed there is nothing to test."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", "from benchmarks.candidates import check; print(max(check().values()))"],
        env={**child_environment(), "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) < 1e-5


def test_the_scipy_sampler_keeps_to_the_fan_out() -> None:
    graph = sbm(nodes=300, classes=3, degree=20, features=1)
    seeds = torch.arange(5)
    assert 5 < scipy_neighbours(graph, seeds, (2,)) <= 15
    everything = torch.unique(torch.cat([seeds, graph.adjacency.rows(seeds).indices])).numel()
    assert scipy_neighbours(graph, seeds, (300,)) == everything


def test_peak_memory_is_this_process_s() -> None:
    before = peak_megabytes()
    block = torch.ones(40 * 2**18)  # 40 MB
    assert peak_megabytes() >= before
    assert peak_megabytes() > block.numel() * 4 / 2**20


def test_a_process_started_elsewhere_finds_the_benchmarks(tmp_path: Path) -> None:
    find = "from importlib.util import find_spec; assert find_spec('benchmarks') and find_spec('evergraph')"
    subprocess.run([sys.executable, "-c", find], cwd=tmp_path, env=child_environment(), check=True)


def test_a_large_graph_is_written_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.large.BLOCK", 1000)
    graph = read_mapped(write_large(tmp_path / "graph", nodes=900, edges=4500, classes=6, features=4))
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (900, 4, 6)
    assert 8000 < graph.num_edges <= 9000
    dense = graph.adjacency.dense()
    assert torch.equal(dense, dense.T)
    source, target = graph.edge_index
    assert 0.75 < float((graph.y[source] == graph.y[target]).float().mean()) < 0.9


def test_targets_say_whether_they_are_met() -> None:
    assert Target(1.5, True, "").met(1.4) is True
    assert Target(1.5, True, "").met(1.6) is False
    assert Target(4, False, "").met(5) is True
    assert Target(None, True, "").met(5) is None
    assert [str(Target(1.5, True, "")), str(Target(4, False, "")), str(Target(None, True, ""))] == [
        "≤ 1.5",
        "≥ 4",
        "reported",
    ]


def test_the_command_prints_a_table_or_one_flat_object(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: dict[str, Any] = {key: 1.0 for key in TARGETS if not key.startswith(("gpu", "large"))}
    by_method = {
        "steps_over_plain": {"ewc": 1.25, "gpm": 2.0},
        "steps_run_besides": {"ewc": "nothing but this"},
        "steps_above": ["gpm"],
    }

    def parts(*given: object) -> object:
        found = given[-1]
        assert isinstance(found, dict)
        found |= {"graph": "a small one", "pyg_sampler": "none"}
        return [("everything", lambda: {**figures, **by_method})]

    monkeypatch.setattr(suite, "_parts", parts)
    done = CliRunner().invoke(make_app(), ["bench", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert figures.items() <= told.items()
    assert {key for key, value in told.items() if isinstance(value, (dict, list))} == set(by_method)
    assert (told["device"], told["threads"], told["graph"]) == ("cpu", 1, "a small one")
    plain = CliRunner().invoke(make_app(), ["bench", "--quick"])
    assert plain.exit_code == 0
    assert "pyg_over_evergraph" in plain.stdout
    assert "a small one" in plain.stdout
    assert "1.25" in plain.stdout
    assert "nothing but this" in plain.stdout
    assert "above 1.6" in plain.stdout
    assert figure_table(told).row_count == len(figures)


def test_the_graph_in_parts_is_one_graph(tmp_path: Path) -> None:
    """Made part by part, edges are the same from both ends, and most keep the class."""
    nodes = 3200
    for number in range(2):
        make_part(str(tmp_path), nodes, 2, number)
    write_parts_header(tmp_path, "generated", list(range(CLASSES)), FEATURES, [0, nodes // 2])
    graph, own = read_parts(tmp_path)
    assert graph.rows is not None
    edges = graph.rows.edges()
    assert (own, graph.num_nodes, edges.nnz) == ([0, 1], nodes, nodes * 2 * MATCHINGS)
    adjacency = edges.to_scipy()
    assert (adjacency != adjacency.T).nnz == 0
    alike = graph.y[edges.indices] == graph.y[edges.row_of_entry()]
    assert 0.78 < float(alike.double().mean()) < 0.84


def test_the_cost_model_says_what_it_was_told() -> None:
    """Of runs that cost exactly what the formulas say, it finds the constants, and says the others without error."""
    true = Constants({name: 1e-9 * (1 + i) for i, name in enumerate(PHASES)}, 1e8, 2e7)

    def run(nodes: int, processes: int, kind: str = "weak") -> Run:
        work, network = Workload(nodes, 20, 32, 80), math.inf if kind == "sent" else None
        seconds = {f"{name}_seconds": value for name, value in true.predict(work, processes, network).items()}
        own_mb = worker_bytes(work, processes, sent=kind == "sent") / 2**20
        found = {**seconds, "seconds": sum(seconds.values()), "own_mb": own_mb, "sent_mb": float(kind == "sent")}
        return Run(kind, processes, work, found)

    sent = [run(nodes, 2, "sent") for nodes in (2000, 4000)]
    found = compare_with_model([run(10**6, 1), run(2 * 10**6, 2), run(8 * 10**6, 8), run(8 * 10**6, 1), *sent])
    assert found["bytes_per_second"] == pytest.approx({"shown": 1e8, "sent": 2e7})
    assert [row["processes"] for row in found["runs"]] == [8, 1, 2]
    assert compare_with_model([run(10**6, 1), *sent])["bytes_per_second"] == pytest.approx({"sent": 2e7})
    assert all(abs(row["error"]) < 1e-9 and abs(row["mb_error"]) < 1e-9 for row in found["runs"])
    needed = 1 - math.exp(-20 / 8)  # of another process's rows
    assert traffic(Workload(8000, 20, 32, 80), 8) == pytest.approx(1000 * 7 * needed * 128)
    assert worker_bytes(Workload(8000, 20, 32, 80), 8) * 8 == worker_bytes(Workload(8000, 20, 32, 80), 1)  # no more
    assert plan(true).count("\n") == 7


def test_runs_become_speed_ups_and_shares() -> None:
    found = {1: (80.0, 800.0), 2: (40.0, 440.0)}
    work = Workload(1000, 20, 32, 80)
    runs = [
        Run("strong", count, work, {"seconds": seconds, "own_seconds": seconds, "own_mb": mb, "peak_mb": mb + 100})
        for count, (seconds, mb) in found.items()
    ]
    figures = scaling(runs)
    assert (figures["strong_2"], figures["memory_share_2"]) == (2.0, pytest.approx(1.1))
    assert figures["resident_share_2"] == pytest.approx(2 * 540 / 900)


def test_figures_of_several_processes_are_kept_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command with one process measured here, and one of two that fails: it is named, and the rest is saved."""
    saved, found = tmp_path / "figures.json", list[dict[str, Any]]()

    def together(processes: int, *words: object, seconds: float) -> dict[str, Any]:
        if saved.exists():
            found.append(json.loads(saved.read_text()))
        if processes > 1:
            raise EvergraphError("a process was killed")
        return distributed._closed_form(str(words[1]))

    monkeypatch.setattr(distributed, "together", together)
    monkeypatch.setattr(generated_parts, "get_context", lambda kind: get_context("fork"))
    words = ["bench", "--distributed", "--nodes", "3200", "--processes", "1,2", "--no-training", "--save", str(saved)]
    done = CliRunner().invoke(make_app(), words)
    assert done.exit_code == 0, done.output
    about = "closed form, strong scaling, processes: 2, nodes: 3,200: a process was killed"
    assert f"missing: {about}" in done.stderr
    assert "strong_1: 1" in done.stdout
    figures = json.loads(saved.read_text())
    assert figures["missing"] == [about, about.replace("strong scaling", "rows sent")]
    assert [(run["scaling"], run["processes"], run["nodes"]) for run in figures["runs"]] == [
        ("strong", 1, 3200),
        ("weak", 1, 1600),
    ]
    assert figures["runs"][0]["accuracy"] > 50
    assert figures["model"] == {}  # it needs runs of several processes
    assert [len(then["runs"]) for then in found] == [1, 2]  # each was saved before the next began


def test_no_run_begins_when_the_seconds_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, limits = iter(range(0, 10_000, 100)), list[float]()

    def together(processes: int, *words: object, seconds: float) -> dict[str, Any]:
        limits.append(seconds)
        return {"seconds": 2.0 / processes, "own_seconds": 1.0 / processes}

    monkeypatch.setattr(distributed, "together", together)
    monkeypatch.setattr(distributed, "write_generated", lambda *graphs: None)
    monkeypatch.setattr(distributed, "time", SimpleNamespace(perf_counter=lambda: next(now)))  # 100 s between looks
    told = list[dict[str, Any]]()
    figures = distributed.distributed_figures(
        nodes=3200, counts=(1, 2), seconds=350, on_figures=lambda figures: told.append({**figures})
    )
    assert limits == [250, 150, 50]  # what is left of them
    assert figures["plain_two_over_one"] == 2
    assert "curvature_two_over_one" not in figures
    assert [about.partition(": no time left")[1] for about in figures["missing"]] == [": no time left"] * 5
    assert "curvature" in figures["missing"][0]
    assert told[0]["plain_two_over_one_own_time"] == 2
    status = CliRunner().invoke(make_app(), ["bench", "--seconds", "5"])
    assert "--distributed" in str(status.exception)
