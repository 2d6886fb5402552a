"""The figures measured on a CPU. Each function returns a few numbers under flat names."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor

from benchmarks.baselines import pyg_neighbours, pyg_step, scipy_neighbours
from benchmarks.setting import SETTINGS, Steps, make_context, remember
from benchmarks.timing import alternate
from evergraph.curvature import fisher_diagonal
from evergraph.data.batching import Neighbourhoods
from evergraph.data.datasets.sbm import sbm
from evergraph.data.tasks import Task
from evergraph.methods import EWC, Finetune, OnlineCurvature, QueueCurvature
from evergraph.methods.state import count_bytes
from evergraph.models.gcn import GCN
from evergraph.training.executors import AheadExecutor, Executor, PlainExecutor
from evergraph.training.optimizers import make_optimizer
from evergraph.training.step import train_step

Figures = dict[str, float]
FAN_OUT = (10, 25)


def step_figures(task: Task, seconds: float) -> Figures:
    """Time of regularized steps, PyG's step and EWC's step over a plain one; all take turns."""
    plain = Steps(make_context(GCN(), task), Finetune())
    curvature = {past: _curvature_steps(task, past) for past in (2, 50)}
    queue = _curvature_steps(task, 2, estimator="queue")
    _fill_queue(queue)
    found = alternate(
        {
            "plain": plain,
            "exact_2": curvature[2],
            "exact_50": curvature[50],
            "ewc": _ewc_steps(task),
            "assembly": plain.batch,
        },
        seconds=seconds,
    )
    slow = alternate({"plain": plain, "exact": curvature[2], "queue": queue, "pyg": pyg_step(plain)}, seconds=seconds)
    state = {past: count_bytes(steps.method.state_dict()) for past, steps in curvature.items()}
    return {
        "curvature_exact_over_plain": found["exact_2"] / found["plain"],
        "queue_over_exact": slow["queue"] / slow["exact"],
        "tasks_50_over_2": found["exact_50"] / found["exact_2"],
        "tasks_50_over_2_memory": state[50] / state[2],
        "pyg_over_evergraph": slow["pyg"] / slow["plain"],
        "ewc_10_tasks_over_plain": found["ewc"] / found["plain"],
        "plain_step_ms": 1e3 * found["plain"],
        "batch_assembly_ms": 1e3 * found["assembly"],
        "pyg_step_ms": 1e3 * slow["pyg"],
    }


def _curvature_steps(task: Task, past: int, estimator: str = "exact") -> Steps:
    context = make_context(GCN(), task, past)
    return Steps(context, remember(OnlineCurvature(estimator=estimator), context, past))


def _fill_queue(steps: Steps) -> None:
    """Fill the queue to its capacity, as it is in the long run."""
    assert isinstance(steps.method, OnlineCurvature)
    queue = steps.method.methods[1]
    assert isinstance(queue, QueueCurvature)
    for _ in range(queue.capacity):
        steps()


def _ewc_steps(task: Task) -> Steps:
    context = make_context(GCN(), task, 10)
    method = EWC(strength=1.0)
    for number in range(10):
        importance = {name: torch.full_like(value, 1e-6 * (number + 1)) for name, value in context.params.items()}
        method.merge(importance, {name: value.detach() + 1e-3 for name, value in context.params.items()})
    return Steps(context, method)


def ahead_figures(task: Task, seconds: float) -> Figures:
    """Wall-clock time of an epoch whose batches another thread cuts ahead, over one that cuts them between steps."""
    epochs = {}
    for kind in (PlainExecutor, AheadExecutor):
        context = make_context(GCN(), task)
        step = partial(train_step, context, Finetune(), optimizer=make_optimizer(context.model, SETTINGS))
        epochs[kind.__name__] = partial(_epoch, kind(context, step))
    found = alternate(epochs, seconds=seconds)
    return {"cut_ahead_over_plain": found["AheadExecutor"] / found["PlainExecutor"]}


def _epoch(executor: Executor) -> None:
    for batch in executor.batches(executor.context.train):
        executor.step(batch)


def fisher_figures(task: Task, seconds: float) -> Figures:
    """Time of the per-node diagonal on a task's training nodes (expectation over labels) over a training epoch."""
    context = make_context(GCN(), task)
    steps = Steps(context, Finetune())
    number = -(-task.train.numel() // SETTINGS.batch_size)

    def epoch() -> None:
        for _ in range(number):
            steps()

    def diagonal() -> None:
        fisher_diagonal(context.model, context.batches, context.problem, "exact")

    found = alternate({"epoch": epoch, "diagonal": diagonal}, seconds=seconds, least=3)
    return {"fisher_diagonal_over_epoch": found["diagonal"] / found["epoch"], "epoch_seconds": found["epoch"]}


def scaling_figures(seconds: float, nodes: tuple[int, int] = (100_000, 1_000_000)) -> Figures:
    """Time per epoch and node on a large graph over one a tenth of its size, both with ten edges per node."""
    per_node = {}
    contenders, epochs = {}, {}
    for size in nodes:
        task = Task.of(sbm(nodes=size, classes=10, degree=20, features=32, seed=0))
        contenders[str(size)] = Steps(make_context(GCN(), task), Finetune())
        epochs[str(size)] = task.train.numel()
    found = alternate(contenders, seconds=seconds, least=20)
    for name, size in epochs.items():
        clock = time.process_time()
        torch.randperm(size)  # what an epoch does besides its steps
        shuffle = time.process_time() - clock
        per_node[name] = found[name] / SETTINGS.batch_size + shuffle / size
    small, large = (per_node[str(size)] for size in nodes)
    return {"epoch_scaling": large / small, "epoch_scaling_nodes": nodes[1], "seconds_per_million_nodes": 1e6 * large}


def sampler_figures(seconds: float, nodes: int = 100_000) -> Figures:
    """Nodes gathered per second by neighbour sampling with fan-out 10, 25: ours and two baselines."""
    graph = sbm(nodes=nodes, classes=10, degree=20, features=1, seed=0)
    cut = Neighbourhoods(graph.x, graph.adjacency, graph.y, num_hops=2, fan_out=FAN_OUT)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(nodes, (1024,), generator=generator).unique() for _ in range(8)]
    turn = {"own": 0, "scipy": 0, "pyg": 0}
    gathered = dict.fromkeys(turn, 0)

    def next_seeds(name: str) -> Tensor:
        turn[name] += 1
        return drawn[turn[name] % len(drawn)]

    def own() -> None:
        gathered["own"] += cut.batch(next_seeds("own"), generator).nodes.numel()

    def scipy() -> None:
        gathered["scipy"] += scipy_neighbours(graph, next_seeds("scipy"), FAN_OUT)

    def pyg() -> None:
        gathered["pyg"] += pyg_neighbours(graph, next_seeds("pyg"), FAN_OUT)

    found = alternate({"own": own, "scipy": scipy, "pyg": pyg}, seconds=seconds, least=3)
    rate = {name: gathered[name] / turn[name] / found[name] for name in turn}
    return {
        "sampler_nodes_per_second": rate["own"],
        "sampler_scipy_nodes_per_second": rate["scipy"],
        "sampler_pyg_nodes_per_second": rate["pyg"],
    }
