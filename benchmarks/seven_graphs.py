"""`auto` on seven real graphs, three seeds by three random orders, on both test graphs.

Every run learns the whole stream once and is tested on each task's own graph and on the graph of all tasks. A run is
one line of `runs.jsonl`, written as it ends; what was run before is not run again. The longest runs come first, one
thread each:

    python -m benchmarks.seven_graphs --data-root DATA --out results/seven-graphs --workers 16
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

GRAPHS = (
    "corafull-knn",
    "coauthor-cs",
    "amazon-computers",
    "blogcatalog",
    "actor",
    "squirrel-filtered",
    "chameleon-filtered",
)
"""The longest first."""
TEST_GRAPHS = ("task", "seen")
CHOICES = ("chosen_", "own_", "set_hits_", "own_within_", "own_explains_", "voting_", "smooths_", "doubt_")
"""What a run's line says about what was chosen."""

Cell = tuple[str, str, int]


def cells(graphs: list[str], orders: int, seeds: int) -> Iterator[Cell]:
    """Graph, order and seed of every run."""
    yield from itertools.product(graphs, [f"random:{number}" for number in range(orders)], range(seeds))


def measure(cell: Cell, method: str, data_root: str) -> dict[str, Any]:
    """Learn one stream, and test it."""
    import torch

    import evergraph as eg

    torch.set_num_threads(1)
    graph, order, seed = cell
    stream = eg.stream(graph, data_root=data_root, order=order, seed=seed)
    start, used = time.perf_counter(), time.process_time()
    learner = eg.Learner(method=method, seed=seed, device="cpu").fit(stream)
    row: dict[str, Any] = {"graph": graph, "order": order, "seed": seed, "method": method}
    row["learn_s"] = round(time.perf_counter() - start, 2)
    for test_graph in TEST_GRAPHS:
        start = time.perf_counter()
        row[test_graph] = round(learner.evaluate(stream, test_graph=test_graph).ap, 3)
        row[f"{test_graph}_s"] = round(time.perf_counter() - start, 2)
    row["processor_s"] = round(time.process_time() - used, 1)
    row.update({key.strip("_"): getattr(learner.method, key) for key in CHOICES if hasattr(learner.method, key)})
    if hasattr(learner.method, "elsewhere"):
        row["elsewhere"] = learner.method.elsewhere()
    return row


def read(path: Path) -> list[dict[str, Any]]:
    """The runs so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """AP in percent, mean and standard deviation over the runs of each graph and method."""
    lines = ["| graph | method | runs | task | seen | decides on seen | learning, s | processor, s |"]
    lines.append("|---|---|--:|--:|--:|---|--:|--:|")
    for graph, method in dict.fromkeys((row["graph"], row["method"]) for row in rows):
        own = [row for row in rows if (row["graph"], row["method"]) == (graph, method)]
        figures = [[row[name] for row in own] for name in TEST_GRAPHS]
        spread = " | ".join(f"{mean(values):.1f} ± {pstdev(values):.1f}" for values in figures)
        ways = [row.get("elsewhere", "") for row in own]
        chosen = ", ".join(f"{way} {ways.count(way)}" for way in dict.fromkeys(ways) if way)
        seconds = " | ".join(f"{mean(row[name] for row in own):.0f}" for name in ("learn_s", "processor_s"))
        lines.append(f"| {graph} | {method} | {len(own)} | {spread} | {chosen} | {seconds} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, default=Path("results/seven-graphs"))
    parser.add_argument("--method", default="auto")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "runs.jsonl"
    known = {(row["graph"], row["order"], row["seed"], row["method"]) for row in read(path)}
    missing = [cell for cell in cells(asked.graphs, asked.orders, asked.seeds) if (*cell, asked.method) not in known]
    failed = 0
    with ProcessPoolExecutor(asked.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(measure, cell, asked.method, asked.data_root): cell for cell in missing}
        for done in as_completed(running):
            if (error := done.exception()) is not None:
                failed += 1
                print(f"{running[done]}: {error!r}", file=sys.stderr, flush=True)
                continue
            with path.open("a") as file:
                file.write(json.dumps(done.result()) + "\n")
    written = table(sorted(read(path), key=lambda row: (GRAPHS.index(row["graph"]), row["order"], row["seed"])))
    (asked.out / "table.md").write_text(written + "\n")
    print(written)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
