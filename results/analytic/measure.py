"""Measures the table of docs/analytic.md: closed-form learners and a jointly trained GCN, 3 seeds × 3 class orders.

    python results/analytic/measure.py --data-root DIR [--methods analytic,auto,joint] [--streams …]

Every run is one line per test graph of `runs.jsonl` beside this file; runs that are there already are not
repeated. `--jobs N` makes N runs side by side, each with its share of the cores; `--device cuda` makes them on
the GPU. The joint GCN (2 × 256, full batch, Adam 0.01, weight decay 5e-4, at most 300 epochs, early stopping on
the validation loss with patience 30) sees all tasks' data at once, on the graph that the tests run on; the order
of the classes says which of them share a task. No choice depends on test nodes.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import torch

import evergraph as eg
from evergraph.runs import model_for, versions

HERE = Path(__file__).parent
STREAMS = ("coauthor-cs", "amazon-computers", "corafull-knn")
ORDERS = ("random:0", "random:1", "random:2")
KEY = ("stream", "method", "seed", "order")


def closed_form(name: str, method: str, seed: int, order: str, root: str, device: str) -> list[dict]:
    """One pass over the tasks without old data, tested on both test graphs."""
    stream = eg.stream(name, seed=seed, order=order, data_root=root)
    learner = eg.Learner(model_for(method), eg.methods.make_method(method), seed=seed, device=device)
    begun = time.perf_counter()
    for task in stream:
        learner.learn(task)
    learned = time.perf_counter() - begun
    rows = []
    for graph in ("task", "seen"):
        result = learner.evaluate(stream, test_graph=graph)
        rows.append({"test_graph": graph, "ap": result.ap, "af": result.af, "learn_seconds": learned})
    return rows


def joint(name: str, method: str, seed: int, order: str, root: str, device: str) -> list[dict]:
    """A GCN trained on all tasks at once, anew for each test graph."""
    rows = []
    for graph in ("task", "seen"):
        stream = eg.stream(name, seed=seed, order=order, data_root=root, test_graph=graph)
        settings = {"batch_size": 0, "lr": 0.01, "epochs": 300, "patience": 30, "label_scope": "seen"}
        learner = eg.Learner(eg.GCN(hidden=256), eg.Joint(), seed=seed, device=device, reduction="mean", **settings)
        begun = time.perf_counter()
        learner.learn(stream.joint()[-1])
        learner.num_tasks = len(stream)
        result = learner.evaluate(stream)
        rows.append({"test_graph": graph, "ap": result.ap, "af": None, "learn_seconds": time.perf_counter() - begun})
    return rows


def table(runs: list[dict]) -> str:
    """Mean ± standard deviation of all runs, as Markdown."""
    lines = ["| stream | test graph | method | AP | AF | runs |", "|---|---|---|--:|--:|--:|"]
    keys = dict.fromkeys((r["stream"], r["test_graph"], r["method"]) for r in runs)
    for stream, graph, method in sorted(keys):
        found = [r for r in runs if (r["stream"], r["test_graph"], r["method"]) == (stream, graph, method)]
        cells = []
        for measure in ("ap", "af"):
            values = [r[measure] for r in found if r[measure] is not None]
            spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
            cells.append(f"{np.mean(values):.2f} ± {spread:.2f}" if values else "–")
        lines.append(f"| {stream} | {graph} | {method} | {cells[0]} | {cells[1]} | {len(found)} |")
    return "\n".join(lines) + "\n"


def one_run(key: tuple[str, str, int, str], root: str, device: str) -> list[dict]:
    """The lines of one run."""
    made = (joint if key[1] == "joint" else closed_form)(*key, root, device)
    return [{**dict(zip(KEY, key)), "device": device, **row} for row in made]


def main() -> None:
    """Make the runs that are missing, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--methods", default="analytic,auto,joint")
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--orders", default=",".join(ORDERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    given = parser.parse_args()
    log = HERE / "runs.jsonl"
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {tuple(run[part] for part in KEY) for run in runs}
    wanted = [
        (name, method, seed, order)
        for seed in range(given.seeds)
        for method in given.methods.split(",")
        for order in given.orders.split(",")
        for name in given.streams.split(",")
        if (name, method, seed, order) not in done
    ]
    threads = max(torch.get_num_threads() // given.jobs, 1)
    fresh = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
    with ProcessPoolExecutor(given.jobs, fresh, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        for future in as_completed(pool.submit(one_run, key, given.data_root, given.device) for key in wanted):
            made = future.result()
            with log.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in made)
            runs.extend(made)
            print(*(made[0][part] for part in KEY), [round(row["ap"], 2) for row in made], flush=True)
    (HERE / "table.md").write_text(table(runs))
    noted = HERE / "versions.json"
    by_device = json.loads(noted.read_text()) if noted.exists() else {}
    noted.write_text(json.dumps({**by_device, given.device: versions()}, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
