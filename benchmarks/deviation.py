"""Scatter over seeds, by split and by start: `python -m benchmarks.deviation amazon-computers --data-root DATA`.

A seed of `evergraph run` splits the nodes and initializes the network. Here every start learns every split with
`stand-in-curvature` or, with `--splits own`, only its own, as in `evergraph run`. A line gives the AP of each learner
on validation nodes, on test nodes and on both; the last line gives the standard deviation over starts at one split, and
that over splits beyond it. `--members` trains the mean of several networks instead of one.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from benchmarks.committee import Committee
from evergraph.data import stream
from evergraph.methods import StandInCurvature
from evergraph.models import GCN
from evergraph.training.learner import Learner

PARTS = ("val", "test", "both")  # as many validation nodes as test nodes, so AP on both is the mean


def network(asked: argparse.Namespace) -> GCN:
    """One GCN, or the mean of several."""
    if asked.members == 1:
        return GCN(hidden=asked.hidden, dropout=asked.dropout)
    return Committee(hidden=asked.hidden, members=asked.members, dropout=asked.dropout)


def measured(asked: argparse.Namespace, split: int, start: int) -> dict[str, Any]:
    """AP of one learner after the whole stream, or its first tasks."""
    cut = {"first_tasks": asked.first_tasks, "test_graph": asked.test_graph}
    tasks = stream(asked.stream, data_root=asked.data_root, seed=split, **cut)
    method = StandInCurvature(strength=asked.strength, estimator="integrated", prototypes=asked.prototypes)
    options = {"epochs": asked.epochs, "lr": asked.lr, "warm_up": asked.warm_up, "batch_size": 0, "weight_decay": 0.0}
    options["average_last"] = asked.average_last
    learner = Learner(network(asked), method, label_scope="seen", device=asked.device, seed=start, **options)
    for task in tasks:
        learner.learn(task)
    ap = {part: float(np.mean(learner.evaluate(tasks, part=part).accuracies)) for part in ("val", "test")}
    ap["both"] = (ap["val"] + ap["test"]) / 2
    return {"split": split, "start": start, **{part: round(value, 2) for part, value in ap.items()}}


def scatter(rows: list[dict[str, Any]], part: str) -> dict[str, float]:
    """Standard deviations over starts at one split, and over splits beyond what is due to starts."""
    splits = sorted({row["split"] for row in rows})
    groups = [[row[part] for row in rows if row["split"] == split] for split in splits]
    within = float(np.mean([np.var(group, ddof=1) for group in groups]))
    between = float(np.var([np.mean(group) for group in groups], ddof=1)) - within / len(groups[0])
    return {"starts": round(within**0.5, 2), "splits": round(max(between, 0.0) ** 0.5, 2)}


def main() -> None:
    """Print a JSON line for each learner, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream")
    parser.add_argument("--splits", default="0,1,2", help="seeds of splits, or `own`")
    parser.add_argument("--starts", default="0,1,2,3,4,5", help="seeds of learners")
    parser.add_argument("--strength", type=float, default=100.0)
    parser.add_argument("--prototypes", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--members", type=int, default=1, help="networks whose mean is trained")
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=float, default=0.1)
    parser.add_argument("--average-last", type=float, default=0.0, help="share of a task whose parameters are averaged")
    parser.add_argument("--first-tasks", type=int, default=0, help="learn so many tasks alone; 0 for all")
    parser.add_argument("--test-graph", default="seen")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", help="folder of the datasets")
    asked = parser.parse_args()
    starts = [int(start) for start in asked.starts.split(",")]
    own = asked.splits == "own"
    pairs = [(s, s) for s in starts] if own else [(int(p), s) for p in asked.splits.split(",") for s in starts]
    rows = []
    for split, start in pairs:
        rows.append(measured(asked, split, start))
        print(json.dumps(rows[-1]), flush=True)
    if own:
        total = {part: [row[part] for row in rows] for part in PARTS}
        print(json.dumps({part: [round(np.mean(ap), 2), round(np.std(ap, ddof=1), 2)] for part, ap in total.items()}))
    else:
        print(json.dumps({part: scatter(rows, part) for part in PARTS}))


if __name__ == "__main__":
    main()
