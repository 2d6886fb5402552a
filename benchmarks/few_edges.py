"""`auto` on graphs with some of the edges between tasks: who decides as they become more.

A stream's graph of all tasks has all edges between tasks, each task's own graph has none. In between, a share of them
is kept, drawn by the run's seed. Every run learns the whole stream once and predicts the graph of all tasks with each
share. Validation nodes are tested (`--held-out` of `benchmarks.seven_graphs`). A run is one line of `runs.jsonl`;
finished runs are not repeated.

    python -m benchmarks.few_edges --data-root DATA --out results/few-edges
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.seven_graphs import GRAPHS, Cell, Contender, Nodes, cells, read, stream_of

KEPT = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Shares of the edges between tasks that are kept."""
RULES = ("auto", "head", "other", "before")
"""`auto` as it is, its head alone, its way for graphs with edges between tasks alone, and `auto` as it was before: that
way decided whatever it cost where there are no such edges."""


def measure(cell: Cell, data_root: str) -> dict[str, Any]:
    """Learn one stream, and test each rule on graphs with more and more of the edges between tasks."""
    import torch

    torch.set_num_threads(1)
    graph, order, seed = cell
    stream = stream_of(cell, data_root, Nodes(held_out=True))
    learner = Contender().learner(seed).fit(stream)
    last = len(stream) - 1
    seen, tests = stream.tests(last, 0, "seen")[0], [stream.tests(last, task, "seen")[1] for task in range(last + 1)]
    between, drawn = edges_between(seen, stream), draws(seen, seed)
    row: dict[str, Any] = {"graph": graph, "order": order, "seed": seed, "elsewhere": learner.method.elsewhere()}
    row |= {"cost": learner.method._cost_elsewhere(), "doubt": learner.method.doubt_, "kept": []}
    for share in KEPT:
        kept = ~between | (drawn < share)
        found: dict[str, Any] = {"share": share, "between": round(float((between & kept).sum() / kept.sum()), 4)}
        for rule in RULES:
            labels = predicted_by(rule, learner, with_edges(seen, kept))
            found[rule] = round(
                100 * mean(float((labels[nodes] == seen.y[nodes]).double().mean()) for nodes in tests), 3
            )
        row["kept"].append(found)
    return row


def edges_between(graph: Any, stream: Any) -> Any:
    """Mask of the edges whose ends belong to different tasks."""
    import torch

    task = torch.full((graph.num_nodes,), -1)
    for number, each in enumerate(stream):
        task[torch.isin(graph.y, torch.tensor(each.class_positions))] = number
    sources, targets = graph.edge_index
    return task[sources] != task[targets]


def draws(graph: Any, seed: int) -> Any:
    """A number from 0 to 1 for each edge, the same in both directions."""
    import torch

    sources, targets = graph.edge_index
    pair = torch.minimum(sources, targets) * graph.num_nodes + torch.maximum(sources, targets)
    _, place = torch.unique(pair, return_inverse=True)
    return torch.rand(int(place.max()) + 1, generator=torch.Generator().manual_seed(seed))[place]


def with_edges(graph: Any, kept: Any) -> Any:
    """The graph with some of its edges."""
    import scipy.sparse as sp
    import torch

    from evergraph.core.sparse import SparseMatrix

    sources, targets = graph.edge_index
    ends = torch.ones(int(kept.sum())), (targets[kept], sources[kept])
    return graph.altered(adjacency=SparseMatrix.from_scipy(sp.csr_matrix(ends, shape=(graph.num_nodes,) * 2)))


def predicted_by(rule: str, learner: Any, graph: Any) -> Any:
    """The labels that a rule predicts at all nodes."""
    method = learner.method
    costs: dict[str, Callable[[], float]] = {"other": lambda: -1e9, "before": lambda: 0.0}
    method.judge_edges = rule != "head"
    if rule in costs:
        method._cost_elsewhere = costs[rule]
    try:
        return learner.logits(graph).argmax(1)
    finally:
        method.judge_edges = True
        method.__dict__.pop("_cost_elsewhere", None)


def table(rows: list[dict[str, Any]]) -> str:
    """Mean AP in percent, by graph and share of the edges between tasks."""
    lines = [f"| graph | edges between tasks kept, % | share of all edges, % | {' | '.join(RULES)} |"]
    lines.append("|---|--:|--:|" + "--:|" * len(RULES))
    for graph in GRAPHS:
        own = [row["kept"] for row in rows if row["graph"] == graph]
        for some in zip(*own):
            figures = " | ".join(f"{mean(one[rule] for one in some):.1f}" for rule in RULES)
            between = 100 * mean(one["between"] for one in some)
            lines.append(f"| {graph} | {100 * some[0]['share']:.0f} | {between:.1f} | {figures} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the missing cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, default=Path("results/few-edges"))
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "runs.jsonl"
    known = {(row["graph"], row["order"], row["seed"]) for row in read(path)}
    missing = [cell for cell in cells(asked.graphs, range(asked.orders), [0]) if cell not in known]
    with ProcessPoolExecutor(asked.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        run = partial(measure, data_root=asked.data_root)
        for done in as_completed([pool.submit(run, cell) for cell in missing]):
            with path.open("a") as file:
                file.write(json.dumps(done.result()) + "\n")
    written = table(read(path))
    (asked.out / "table.md").write_text(written + "\n")
    print(written)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
