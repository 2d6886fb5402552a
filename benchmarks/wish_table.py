"""Temporary: what products with words, and Adam, take on a GPU in several forms; and where fifteen seeds spend their time."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from functools import partial

import torch

from benchmarks.gpu import side_by_side_figures
from benchmarks.setting import coauthor, make_context
from evergraph.core.sparse import SparseMatrix
from evergraph.data.streams import TaskStream
from evergraph.models.gcn import GCN
from evergraph.training.adam import WideAdam

DEVICE = torch.device("cuda")


def us(work, repeat=30):
    """Microseconds of some work, captured and replayed."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            work()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(100 * start.elapsed_time(end))
    return round(sorted(times)[len(times) // 2], 1)


def columns_of(x: SparseMatrix, keep: torch.Tensor) -> SparseMatrix:
    """The matrix with the entries of some columns alone."""
    there = keep[x.indices]
    rows = x.row_of_entry()[there]
    counts = torch.bincount(rows, minlength=x.num_rows)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return SparseMatrix(indptr, x.indices[there], x.values[there], x.num_columns)


def products(root):
    graph, _ = coauthor(root)
    stream = TaskStream(graph, 3)
    tasks = {"2": stream[2], "0": stream[0], "4": stream[4]}
    torch.set_float32_matmul_precision("high")
    for name, task in tasks.items():
        context = make_context(GCN(), task, 0, "cuda")
        x = context.batcher.batch(context.train).x.for_many_products()
        x.t().for_many_products()
        count = torch.bincount(x.indices, minlength=x.num_columns)
        order = count.argsort(descending=True)
        for networks in (1, 3, 15):
            weight = torch.randn(x.num_columns, networks * 256, device=DEVICE)
            back = torch.randn(x.num_rows, networks * 256, device=DEVICE)
            want, want_back = x.multiply(weight), x.t().multiply(back)
            found = {
                "task": name, "rows": x.num_rows, "nnz": x.nnz, "networks": networks,
                "sparse": us(lambda: x.multiply(weight)), "sparse_t": us(lambda: x.t().multiply(back)),
            }
            from evergraph.core import row_kernel

            for width in (32, 64, 128, 256):
                for size in (2**12, 2**13, 2**14):
                    row_kernel.WIDEST, row_kernel.TILE = width, size
                    found[f"w{width}_t{size}"] = us(lambda: x.multiply(weight)), us(lambda: x.t().multiply(back))
            row_kernel.WIDEST, row_kernel.TILE = 64, 2**13
            close = max(float((x.multiply(weight) - want).abs().max()), float((x.t().multiply(back) - want_back).abs().max()))
            row_kernel.WIDEST, row_kernel.TILE = 256, 2**13
            found["w64_error"] = close
            for k in (256, 512, 1024, 2048):
                words = order[:k].sort().values
                keep = torch.ones(x.num_columns, dtype=torch.bool, device=DEVICE)
                keep[words] = False
                rest = columns_of(x, keep).for_many_products()
                rest.t().for_many_products()
                block = x.dense()[:, words].contiguous()
                block_t = block.t().contiguous()
                whole = rest.multiply(weight) + block @ weight[words]
                forms = {
                    "rest": lambda: rest.multiply(weight), "rest_t": lambda: rest.t().multiply(back),
                    "pick": lambda: weight.index_select(0, words),
                }
                picked = weight[words]
                forms["mm"] = lambda: torch.mm(block, picked)
                out = torch.zeros_like(whole)
                grad, made = torch.empty_like(weight), torch.mm(block_t, back)
                forms["addmm"] = lambda: torch.addmm(out, block, picked, out=out)
                forms["mm_t"] = lambda: torch.mm(block_t, back)
                forms["mm_t2"] = lambda: torch.mm(block.t(), back)
                forms["put"] = lambda: grad.index_copy_(0, words, made)
                if k in (512, 1024):
                    from benchmarks.wish_block_kernel import launch

                    places = words.int()
                    for tile in ((128, 128, 32, 8, 3), (128, 128, 32, 4, 3), (64, 128, 32, 4, 4), (128, 64, 32, 4, 4), (128, 256, 32, 8, 3), (64, 64, 64, 4, 4)):
                        mark = "x".join(map(str, tile))
                        more = {"precision": "tf32", "tile": tile[:3], "warps": tile[3], "stages": tile[4]}
                        try:
                            found[f"k{k}_{mark}"] = (
                                us(lambda: launch(out, block, weight, places, gathers=True, **more)),
                                us(lambda: launch(grad, block_t, back, places, gathers=False, **more)),
                            )
                        except Exception as error:
                            found[f"k{k}_{mark}"] = str(error)[:60]
                half, half_t, p16, b16 = (one.bfloat16() for one in (block, block_t, picked, back))
                forms["mm_bf16"] = lambda: torch.mm(half, p16)
                forms["mm_t_bf16"] = lambda: torch.mm(half_t, b16)
                forms["to_bf16"] = lambda: back.bfloat16()
                found[f"k{k}"] = {key: us(work) for key, work in forms.items()}
                found[f"k{k}"]["share"] = round(1 - rest.nnz / x.nnz, 3)
                found[f"k{k}"]["error"] = float((whole - want).abs().max() / want.abs().max())
                out = rest.t().multiply(back).index_copy_(0, words, torch.mm(block_t, back))
                found[f"k{k}"]["error_t"] = float((out - want_back).abs().max() / want_back.abs().max())
            print(json.dumps(found), flush=True)


def adam():
    from evergraph.core.layer_kernel import against
    from evergraph.training import adam_kernel

    for networks in (1, 3, 15):
        param = torch.nn.Parameter(torch.randn(6806, networks, 256, device=DEVICE))
        total = torch.randn_like(param)
        param.grad = torch.randn_like(param)
        found = {"adam": networks}
        for numbers in (512, 1024, 2048, 4096):
            adam_kernel.NUMBERS = numbers
            optimizer = WideAdam([param], torch.tensor(1e-5, device=DEVICE), 5e-4)
            found[f"us_{numbers}"] = us(optimizer.step)
        adam_kernel.NUMBERS = 1024
        found["against"] = us(lambda: against([param.detach()], [total], 2))
        found["copy"] = us(lambda: total.copy_(param.detach()))
        print(json.dumps(found), flush=True)


def fifteen():
    """Where Python's threads stand, every 5 ms, while one seed and fifteen train."""
    seen, stop = Counter(), threading.Event()

    def look():
        while not stop.wait(0.005):
            for number, frame in sys._current_frames().items():
                if number == threading.get_ident():
                    continue
                stack = []
                while frame is not None:
                    stack.append((frame.f_code.co_filename.split("/evergraph/")[-1][-40:], frame.f_code.co_name, frame.f_lineno))
                    frame = frame.f_back
                if any(name == "wait" and "threading" in file for file, name, _ in stack[:3]):
                    continue  # it has not its turn
                ours = [one for one in stack if "/" not in one[0].lstrip("/") or one[0].startswith(("training", "core", "data", "methods", "models", "problems", "curvature"))]
                seen[" < ".join(f"{file}:{name}:{line}" for file, name, line in stack[:1] + ours[:6])] += 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    began = time.perf_counter()
    found = side_by_side_figures(DEVICE, True)
    print(json.dumps({**found, "seconds": time.perf_counter() - began}), flush=True)
    stop.set()
    for stack, number in seen.most_common(60):
        print(number, stack, flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        products(sys.argv[1])
        adam()
    fifteen()
