"""Peak memory of `auto` by its budget: `python -m benchmarks.budget --data-root DATA amazon-computers 500MB 1GB 2GB`.

Every budget has its own process, which learns the stream on one thread. The peak is the operating system's
(`ru_maxrss`), reported beside the memory of the process with the stream loaded and before a task was learned.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from typing import Any

import torch

from evergraph.data import stream
from evergraph.methods import Auto
from evergraph.training.learner import Learner

MEGABYTE = 10**6  # as in `memory`


def peaks(name: str, memory: str, data_root: str | None, order: str = "labelled") -> dict[str, Any]:
    """Peak megabytes of this process (after loading, after learning, and after predicting) and of what is kept."""
    torch.set_num_threads(1)
    tasks = stream(name, data_root=data_root, order=order)
    loaded = _peak()
    learner = Learner(method=Auto(memory=memory), device="cpu").fit(tasks)
    learned, kept = _peak(), learner.method.kept_bytes() // MEGABYTE
    found = {"graph": name, "memory": memory, "loaded_mb": loaded, "learned_mb": learned, "kept_mb": kept}
    found |= {f"AP_{graph}": round(learner.evaluate(tasks, test_graph=graph).ap, 1) for graph in ("task", "seen")}
    return found | {"peak_mb": _peak()}


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // MEGABYTE


def main() -> None:
    """Print one line for each budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph")
    parser.add_argument("budgets", nargs="+")
    parser.add_argument("--data-root", help="folder of the datasets")
    parser.add_argument("--order", default="labelled", help="order of the classes, e.g. random:0")
    asked = parser.parse_args()
    if len(asked.budgets) == 1:
        print(json.dumps(peaks(asked.graph, asked.budgets[0], asked.data_root, asked.order)), flush=True)
        return
    again = [sys.executable, "-m", "benchmarks.budget", asked.graph, "--order", asked.order]
    for memory in asked.budgets:
        subprocess.run([*again, memory, *(["--data-root", asked.data_root] if asked.data_root else [])], check=True)


if __name__ == "__main__":
    main()
