"""How the methods' default settings were chosen: the rule `first-tasks` on two real streams.

Every candidate learns the first tasks of each stream, with full batches, a mean loss and no weight decay. The
candidate with the highest AP on these tasks' validation nodes, averaged over the streams, is the method's default;
test nodes and later tasks are not looked at. Finished runs are not repeated:

    python -m benchmarks.defaults --data-root DATA --out results/defaults
    python -m benchmarks.defaults --data-root DATA --out results/defaults/three-tasks --tasks 3 \\
        --streams amazon-computers,coauthor-cs,corafull-knn --methods batch-curvature
    python -m benchmarks.defaults --data-root DATA --out results/defaults/interpolated --tasks 3 \\
        --methods interpolated-curvature
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evergraph.errors import EvergraphError
from evergraph.experiments import RunSpec
from evergraph.experiments.cells import Cell, run_cells
from evergraph.experiments.result_file import CELLS, known_result, read_results, write_results
from evergraph.experiments.selection import FirstTasks
from evergraph.persistence.files import write_atomically
from evergraph.training import Training

STREAMS = ("amazon-computers", "corafull-knn")
SCOPES = ("current", "seen")
STRENGTHS: dict[str, dict[str, list[Any]]] = {
    "finetune": {},
    "ewc": {"strength": [1e2, 1e3, 1e4, 1e5, 1e6]},
    "lwf": {"strength": [0.1, 1.0, 10.0]},
    "mas": {"strength": [1e-2, 1e-1, 1.0, 10.0]},
    "si": {"strength": [1.0, 10.0, 100.0]},
    "curvature": {"nodes": ["prototypes"], "ema": [0.0], "strength": [1.0, 10.0, 100.0]},
    "stand-in-curvature": {"prototypes": [32], "strength": [1.0, 10.0, 100.0]},
    "batch-curvature": {"strength": [1e-2, 1e-1, 1.0]},
    "interpolated-curvature": {"strength": [1e-3, 1e-2, 1e-1]},
    "queue-curvature": {"strength": [1e-2, 1e-1]},
    "ema": {"decay": [0.3, 0.5, 0.7]},
    "twp": {"task_weight": [1e2, 1e4], "topology_weight": [1e2, 1e4]},
    "ewc++": {"strength": [1e2, 1e4, 1e6]},
    "kfac": {"strength": [1e1, 1e3, 1e5]},
}
"""The candidates: every combination of these values, with each label scope."""


def cells(methods: list[str], streams: list[str], rule: FirstTasks) -> Iterator[tuple[str, str, Cell]]:
    """(method, candidate, cell) for every candidate on every stream."""
    for method in methods:
        space = {**STRENGTHS[method], "label_scope": SCOPES}
        for values, source in itertools.product(itertools.product(*space.values()), streams):
            settings = dict(zip(space, values))
            candidate = ",".join(f"{key}={value}" for key, value in settings.items())
            scope = str(settings.pop("label_scope"))
            training = Training(lr=0.01, weight_decay=0.0, batch_size=0, reduction="mean", label_scope=scope)
            spec = rule.restrict(RunSpec(source, method=method, settings=settings, training=training, device="cpu"))
            yield method, candidate, Cell(f"{method}/{candidate}/{source}", spec)


def main() -> None:
    """Run the missing candidates and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/defaults"))
    parser.add_argument("--methods", default=",".join(STRENGTHS))
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    streams, rule = options.streams.split(","), FirstTasks(tasks=options.tasks)
    listed = list(cells(options.methods.split(","), streams, rule))
    entries = read_results(options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    results = dict[str, dict[str, Any]]()
    for _, _, cell in listed:
        done = run_cells(
            [cell],
            options.out / CELLS,
            known=lambda cell: known_result(entries, cell.key, cell.spec),
            failed=lambda cell, error: {"error": str(error)},
            data_root=options.data_root,
            jobs=options.jobs,
        )[cell.key]
        results[cell.key] = done
        print(cell.key, done.get("ap", {}).get("mean", done.get("error")), file=sys.stderr, flush=True)
        if "error" not in done:
            write_results(options.out, {cell.key: cell.spec}, {cell.key: done})
    write_atomically(options.out / "table.md", table(listed, results, streams, rule))
    sys.stdout.write((options.out / "table.md").read_text(encoding="utf-8"))


def table(
    listed: list[tuple[str, str, Cell]], results: dict[str, dict[str, Any]], streams: list[str], rule: FirstTasks
) -> str:
    """One row per candidate: AP on validation nodes after the first tasks, with the chosen candidates marked."""
    scores: dict[tuple[str, str], list[float]] = {}
    for method, candidate, cell in listed:
        result = results[cell.key]
        scores.setdefault((method, candidate), []).append(0.0 if "error" in result else rule.score(result))
    if not scores:
        raise EvergraphError("no method named")
    best = {
        method: max((key for key in scores if key[0] == method), key=lambda key: sum(scores[key]))
        for method, _ in scores
    }
    lines = [
        f"| method | candidate | {' | '.join(streams)} | mean | |",
        "|---|---|" + "--:|" * (len(streams) + 1) + "---|",
    ]
    for key, values in scores.items():
        numbers = " | ".join(f"{value:.1f}" for value in [*values, sum(values) / len(values)])
        lines.append(
            f"| {key[0]} | {key[1].replace(',', ', ')} | {numbers} | {'chosen' if best[key[0]] == key else ''} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
