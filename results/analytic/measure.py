"""Measures the table of docs/analytic.md: closed-form learners and a jointly trained GCN, 3 seeds × 3 class orders.

    python results/analytic/measure.py --data-root DIR [--methods analytic,joint] [--streams …]

Every run is one line of `runs.jsonl` beside this file; runs that are there already are not repeated. The
joint GCN (2 × 256, full batch, Adam 0.01, weight decay 5e-4, at most 300 epochs, early stopping on the
validation loss with patience 30) sees all tasks' data at once, on the graph that the tests run on; it is trained
once a seed and test graph, with the classes as labelled. No choice depends on test nodes.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import evergraph as eg
from evergraph.runs import model_for, versions

HERE = Path(__file__).parent
STREAMS = ("coauthor-cs", "amazon-computers", "corafull-knn")
ORDERS = ("random:0", "random:1", "random:2")


def closed_form(name: str, method: str, seed: int, order: str, root: str) -> list[dict]:
    stream = eg.stream(name, seed=seed, order=order, data_root=root)
    learner = eg.Learner(model_for(method), eg.methods.make_method(method), seed=seed, device="cpu")
    begun = time.perf_counter()
    for task in stream:
        learner.learn(task)
    learned = time.perf_counter() - begun
    rows = []
    for graph in ("task", "seen"):
        result = learner.evaluate(stream, test_graph=graph)
        rows.append({"test_graph": graph, "ap": result.ap, "af": result.af, "learn_seconds": learned})
    return rows


def joint(name: str, seed: int, root: str) -> list[dict]:
    rows = []
    for graph in ("task", "seen"):
        stream = eg.stream(name, seed=seed, data_root=root, test_graph=graph)
        settings = {"batch_size": 0, "lr": 0.01, "epochs": 300, "patience": 30, "label_scope": "seen"}
        learner = eg.Learner(eg.GCN(hidden=256), eg.Joint(), seed=seed, device="cpu", reduction="mean", **settings)
        begun = time.perf_counter()
        learner.learn(stream.joint()[-1])
        learner.num_tasks = len(stream)
        result = learner.evaluate(stream)
        rows.append({"test_graph": graph, "ap": result.ap, "af": None, "learn_seconds": time.perf_counter() - begun})
    return rows


def table(runs: list[dict]) -> str:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--methods", default="analytic,joint")
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    log = HERE / "runs.jsonl"
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(r["stream"], r["method"], r["seed"], r["order"]) for r in runs}
    wanted = [
        (name, method, seed, order)
        for seed in range(given.seeds)
        for method in given.methods.split(",")
        for order in (("labelled",) if method == "joint" else ORDERS)
        for name in given.streams.split(",")
    ]
    for name, method, seed, order in wanted:
        if (name, method, seed, order) in done:
            continue
        if method == "joint":
            made = joint(name, seed, given.data_root)
        else:
            made = closed_form(name, method, seed, order, given.data_root)
        with log.open("a") as file:
            for row in made:
                runs.append({"stream": name, "method": method, "seed": seed, "order": order, **row})
                file.write(json.dumps(runs[-1]) + "\n")
        print(name, method, seed, order, [round(row["ap"], 2) for row in made], flush=True)
    (HERE / "table.md").write_text(table(runs))
    (HERE / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
