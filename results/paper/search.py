"""Searches for the open choices of the protocols of `evergraph paper`, one seed; docs/results.md says what was found.

    python results/paper/search.py paper --data-root DIR [--device cuda] [--jobs 15]
    python results/paper/search.py current --data-root DIR [--device cuda] [--jobs 15]
    python results/paper/search.py best --data-root DIR [--device cuda] [--jobs 15]

`paper`: epochs × label scope × reduction on Coauthor-CS, for the rows EWC empirical and MAS, beside what the paper
prints. `current`: the paper's regularizer under the label scope `current`. `best`: epochs × learning rate on three
streams, for fine-tuning and for the regularizer at class means at five strengths, with and without EMA. Every run is
a line of `search-paper.jsonl`, `search-current.jsonl` or `search-best.jsonl` beside this file. What choices may be
made by is the column `new_tasks`: the accuracy on each task's validation nodes right after it was learned, mean over
tasks. `ap` and `af` are of test nodes, for the record.
"""

import argparse
import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from evergraph.experiments.cells import Cell, run_cells
from evergraph.experiments.paper.protocol import Protocol
from evergraph.experiments.selection.rule import new_task_accuracy
from evergraph.experiments import RunSpec

HERE = Path(__file__).parent


def paper_cells(device: str) -> dict[str, RunSpec]:
    """The paper's settings, with each combination of what it leaves open."""
    plan = Protocol.load("paper", "coauthor-cs", 1, device)
    cells = {}
    for epochs, scope, reduction in itertools.product((50, 200), ("seen", "all"), ("sum", "mean")):
        for row in ("ewc-empirical", "mas"):
            spec = plan.spec(plan.rows()[row], [0])
            training = replace(spec.training, epochs=epochs, label_scope=scope, reduction=reduction)
            cells[f"{row} {epochs} {scope} {reduction}"] = replace(spec, training=training)
    return cells


def current_cells(device: str) -> dict[str, RunSpec]:
    """The paper's settings with the label scope `current`: strengths, readings, reductions, with and without EMA."""
    plan = Protocol.load("paper", "coauthor-cs", 1, device)
    both = ("square-of-sum", "sum-of-squares")
    wanted = [("queue", "mean", 5e-4, 0.5, 0.1, reading) for reading in both]
    wanted += [("exact", "mean", 5e-4, 0.5, strength, r) for strength in (0.0, 0.1, 0.3, 1.0) for r in both]
    wanted += [("exact", "sum", 5e-4, 0.5, strength, both[1]) for strength in (0.0, 0.1, 1.0)]
    wanted += [("exact", "mean", 0.0, ema, strength, both[1]) for ema in (0.5, 0.0) for strength in (0.0, 0.1, 1.0)]
    cells = {}
    for seed, (estimator, reduction, decay, ema, strength, reading) in itertools.product((0, 1), wanted):
        settings = {"estimator": estimator, "ema": ema, "strength": strength, "over_tasks": reading}
        spec = plan.spec(plan.rows()["ours"], [seed], **settings)
        training = replace(spec.training, label_scope="current", reduction=reduction, weight_decay=decay)
        name = f"{estimator} {reduction} {decay:g} {ema:g} {strength:g} {reading} {seed}"
        cells[name] = replace(spec, training=training)
    return cells


def best_cells(device: str) -> dict[str, RunSpec]:
    """Fine-tuning and the regularizer at class means, trained for longer and shorter."""
    cells = {}
    for stream in ("coauthor-cs", "amazon-computers", "corafull-knn"):
        plan = Protocol.load("best", stream, 1, device)
        trainings = [*itertools.product((30, 100, 300), (3e-4, 1e-3)), (10, 1e-3)]
        for (epochs, lr), ema, strength in itertools.product(trainings, (0.0, 0.5), (0.0, 1.0, 10.0, 1e2, 1e3, 1e4)):
            if strength or not ema:
                spec = plan.spec(plan.rows()["ours"], [0], strength=strength, ema=ema)
                cells[f"{stream} {epochs} {lr:g} {strength:g} {ema:g}"] = replace(
                    spec, training=replace(spec.training, epochs=epochs, lr=lr)
                )
    return cells


SEARCHES = {"paper": paper_cells, "current": current_cells, "best": best_cells}


def main() -> None:
    """Run what is asked for and write a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("search", choices=SEARCHES)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="runs whose name contains this; nothing is written then")
    given = parser.parse_args()
    specs = SEARCHES[given.search](given.device)
    cells = [Cell(name.replace(" ", "_"), spec) for name, spec in specs.items() if given.only in name]
    with tempfile.TemporaryDirectory() as folder:
        results = run_cells(cells, folder, data_root=given.data_root, jobs=given.jobs)
    lines = []
    for cell in cells:
        result = results[cell.key]
        training, settings = cell.spec.training, cell.spec.settings
        row = {"stream": cell.spec.source, "method": cell.spec.method, "seed": cell.spec.seeds[0], "settings": settings}
        row |= {key: getattr(training, key) for key in ("epochs", "lr", "weight_decay", "label_scope", "reduction")}
        row["new_tasks"] = round(new_task_accuracy(result), 2)
        row |= {"ap": round(result["ap"]["mean"], 2), "af": round(result["af"]["mean"], 2)}
        lines.append(json.dumps(row))
        print(lines[-1], flush=True)
    if not given.only:
        (HERE / f"search-{given.search}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
