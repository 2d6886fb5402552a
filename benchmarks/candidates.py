"""Candidates for a faster captured step: microseconds and the largest error of each, on one GPU in about two minutes.

The step is that of `bench --device cuda`: a two-layer GCN with 256 hidden units on a task of a generated stream of
ogbn-arxiv's size, a batch of 128, plain and with exact curvature. Every candidate starts from the same parameters,
takes one step that is compared with the step written out in float64, and is then captured and replayed.

    python -m benchmarks.candidates            # on a GPU
    TRITON_INTERPRET=1 python -m benchmarks.candidates --check    # the Triton kernels on a CPU, small
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import Replayed, _steps, arxiv_like
from benchmarks.setting import make_context
from benchmarks.step_by_hand import Learned, Past, Standing, step_by_hand
from evergraph.core.shortcuts import FAST_PATHS, fast_paths
from evergraph.data.datasets.sbm import sbm
from evergraph.data.streams import TaskStream
from evergraph.data.tasks import Task
from evergraph.methods import Finetune, OnlineCurvature
from evergraph.methods.base import Context
from evergraph.models.gcn import GCN
from evergraph.training.executors.captured import rounded_up

Step = Callable[[], object]


def setting(task: Task, device: str, hidden: int, batch: int) -> tuple[Standing, GCN, Tensor, int]:
    """What is constant during a task, a model, seeds, and the number of rows that their batch is padded to."""
    model = GCN(hidden=hidden, propagate_inputs=True)
    context: Context = make_context(model, task, device=device)
    batcher, scope = context.batcher, context.problem.scope
    assert isinstance(batcher.x, Tensor)
    in_scope = torch.zeros(model.out_channels or 0, dtype=torch.int32, device=device)
    in_scope[scope] = 1
    operator = batcher.operator
    standing = Standing(batcher.x, operator.indptr, operator.indices, operator.values, batcher.y, in_scope)
    seeds = context.train[:batch].clone()
    capacity = -(-rounded_up(int(operator.counts()[seeds].sum())) // 256) * 256
    return standing, model, seeds, capacity


def anchors(model: GCN, strength: float = 0.1) -> Past:
    """Two anchors near the parameters."""
    generator = torch.Generator().manual_seed(1)
    noise = [torch.randn(w.shape, generator=generator).to(w.device) * 1e-3 for w in model.weights]
    first, second = (2 * w.detach() + more for w, more in zip(model.weights, noise))
    return Past(2, first, second, strength)


def in_float64(standing: Standing, past: Past | None) -> tuple[Standing, Past | None]:
    """Convert both to float64."""
    wide = replace(standing, x=standing.x.double(), values=standing.values.double())
    return wide, past and replace(past, total1=past.total1.double(), total2=past.total2.double())


def one_step(make: Callable[[Learned], Step], model: GCN, dtype: torch.dtype = torch.float32) -> Tensor:
    """Adam's mean after one step: a tenth of the gradient, so that its relative error is that of the gradient."""
    own = Learned.of(*(weight.to(dtype) for weight in model.weights))
    make(own)()
    return own.mean.double()


def candidates(
    standing: Standing, seeds: Tensor, capacity: int, past: Past | None
) -> dict[str, Callable[[Learned], Step]]:
    """Functions by name that make a step from parameters."""
    by_hand = partial(step_by_hand, standing, seeds=seeds, capacity=capacity, past=past)
    narrow = replace(standing, x=standing.x.bfloat16())
    compiled = torch.compile(step_by_hand, dynamic=False)
    made: dict[str, Callable[[Learned], Step]] = {
        "by hand": lambda own: partial(by_hand, own),
        "by hand, bf16 inputs": lambda own: partial(
            step_by_hand, narrow, own, seeds, capacity, past, product=_bf16_product
        ),
        "by hand, compiled": lambda own: partial(compiled, standing, own, seeds, capacity, past),
    }
    try:
        from benchmarks.triton_step import TritonStep
    except ImportError as error:
        print(f"Triton kernels are left out: {error}", file=sys.stderr)
        return made
    for precision in ("ieee", "tf32"):
        name = f"Triton, {precision}"
        made[name] = lambda own, kind=precision: TritonStep(standing, own, seeds, capacity, past, kind)
    return made


def _bf16_product(left: Tensor, right: Tensor) -> Tensor:
    """Product of bf16 factors with float32 accumulation."""
    return torch.mm(left.bfloat16(), right.bfloat16(), out_dtype=torch.float32)


def captured_microseconds(step: Step, rounds: int = 200) -> float:
    """Capture a step and return the median time of a replay, in microseconds."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return _median(graph.replay, rounds)


def _median(step: Step, rounds: int) -> float:
    """Median microseconds of a replay, timed over twenty in a row, so that launch overhead is not measured."""
    times = []
    for _ in range(rounds // 20):
        torch.cuda.synchronize()
        clock = time.perf_counter()
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - clock) / 20)
    return 1e6 * statistics.median(times)


def measure() -> None:
    """Measure all candidates, plain and exact, and print a table."""
    task = TaskStream(arxiv_like(quick=False), 6)[1]
    device = torch.device("cuda")
    print("| step | candidate | µs | error of the gradient |\n|---|---|---|---|")
    for name, method, past_tasks in (("plain", Finetune(), 0), ("exact", OnlineCurvature(), 2)):
        for left_out in ({"tf32"}, set[str]()):
            with fast_paths(*(path for path in FAST_PATHS if path not in left_out)):
                ours = _median(Replayed(_steps(task, device, type(method)(), past_tasks)), 200)
            print(f"| {name} | the loop's, captured{'' if left_out else ', tf32'} | {ours:.0f} | |", flush=True)
        standing, model, seeds, capacity = setting(task, "cuda", 256, 128)
        past = anchors(model) if past_tasks else None
        expected = reference(standing, model, seeds, capacity, past)
        for candidate, make in candidates(standing, seeds, capacity, past).items():
            try:
                error = float((one_step(make, model) - expected).abs().max() / expected.abs().max())
                time_of = captured_microseconds(make(Learned.of(*model.weights)))
                print(f"| {name} | {candidate} | {time_of:.0f} | {error:.1e} |", flush=True)
            except Exception as problem:  # one failing candidate must not hide the others
                print(f"| {name} | {candidate} | failed: {str(problem).splitlines()[0][:90]} | |", flush=True)


def reference(standing: Standing, model: GCN, seeds: Tensor, capacity: int, past: Past | None) -> Tensor:
    """Adam's mean after the step in float64."""
    wide, wide_past = in_float64(standing, past)
    return one_step(lambda own: partial(step_by_hand, wide, own, seeds, capacity, wide_past), model, torch.float64)


def check() -> dict[str, float]:
    """Largest relative error of the gradient, by the Triton kernels and by hand, on a small task on a CPU."""
    from benchmarks.triton_step import TritonStep

    task = Task.of(sbm(nodes=120, classes=5, degree=6, features=40, seed=0))
    standing, model, seeds, capacity = setting(task, "cpu", 64, 32)
    errors = {}
    for name, past in (("plain", None), ("exact", anchors(model, 3.0))):
        expected = reference(standing, model, seeds, capacity, past)
        makers: dict[str, Any] = {
            "by hand": lambda own, past=past: partial(step_by_hand, standing, own, seeds, capacity, past),
            "Triton": lambda own, past=past: TritonStep(standing, own, seeds, capacity, past),
        }
        for candidate, make in makers.items():
            found = one_step(make, model)
            errors[f"{name}, {candidate}"] = float((found - expected).abs().max() / expected.abs().max())
    return errors


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        print(check())
    else:
        measure()
