"""Speed of `auto` on two cores, in seconds and relative to a GCN on the same data.

`python -m benchmarks.closed_form --data-root DATA` measures only these figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.setting import coauthor, coauthor_like
from evergraph.core.side_by_side import controller
from evergraph.data import Graph, stream
from evergraph.data.streams import TaskStream
from evergraph.training.learner import Learner

THREADS = 2  # the targets are for two threads
NODES = 21  # predicted one by one
AUTO, GCN = {"method": "auto"}, {"method": "finetune", "epochs": 1}


def auto_figures(words: TaskStream, digits: TaskStream) -> dict[str, float]:
    """Time learning both streams, predicting all nodes of the first one's `seen` graph, and predicting one node of it.

    Seconds are wall-clock time. Ratios are over a GCN with the learner's defaults and one epoch per task, which learns
    the same stream and predicts the same nodes. The graph to predict on is new to the learner; the single node is
    predicted by a learner loaded from disk that has predicted on the graph before.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        found, learners = dict[str, float](), list[Learner]()
        for about in (AUTO, GCN):
            learned(digits.first(1), about)  # first runs import, allocate and fill caches
        for name, tasks in (("digits", digits), ("learn", words)):
            auto, seconds = timed(partial(learned, tasks, AUTO))
            epochs = [timed(partial(learned, tasks, GCN)) for _ in range(3)]
            over = seconds / statistics.median(epoch for _, epoch in epochs)
            found |= {f"auto_{name}_seconds": seconds, f"auto_{name}_over_epoch": over}
            learners = [auto, epochs[0][0]]
        graph = words.tests(len(words) - 1, 0, "seen")[0]
        seconds, plain_seconds = (timed(partial(one.predict, graph.altered()))[1] for one in learners)
        found |= {"auto_predict_seconds": seconds, "auto_predict_over_gcn": seconds / plain_seconds}
        seconds, plain_seconds = (seconds_of_one_node(one, graph) for one in learners)
        return found | {"auto_node_ms": 1e3 * seconds, "auto_node_over_gcn": seconds / plain_seconds}
    finally:
        torch.set_num_threads(before)


def auto_streams(data_root: str | Path | None, quick: bool) -> tuple[TaskStream, TaskStream]:
    """Coauthor-CS, or a generated graph like it, and the digits; if `quick`, fewer tasks and a smaller graph."""
    if quick:
        return TaskStream(coauthor_like(nodes=1000, words=300), 3).first(2), stream("digits").first(1)
    return TaskStream(coauthor(data_root)[0], 3), stream("digits")


def learned(tasks: TaskStream, about: dict[str, Any]) -> Learner:
    """Return a learner that has learned the tasks."""
    return Learner(**about, device="cpu").fit(tasks)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `work` and the seconds it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def seconds_of_one_node(learner: Learner, graph: Graph) -> float:
    """Median seconds to predict one node, with a learner that was saved, loaded and used on the graph once."""
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder) / "learner")
        loaded, own = Learner.load(Path(folder) / "learner", device="cpu"), graph.altered()
    nodes = torch.linspace(0, graph.num_nodes - 1, NODES).long().tolist()
    loaded.predict(own, nodes[:1])
    return statistics.median(timed(partial(loaded.predict, own, [node]))[1] for node in nodes)


def blas_kernels() -> str:
    """Which kernels the loaded BLAS libraries use: OpenBLAS is twice as fast with those for AVX-512 as for AVX2."""
    kinds = {str(library.get("architecture", library["internal_api"])) for library in controller().info()
             if library["user_api"] == "blas"}  # fmt: skip
    return ", ".join(sorted(kinds))


def main() -> None:
    """Measure and print these figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", help="folder of the datasets")
    parser.add_argument("--quick", action="store_true", help="a smaller graph")
    asked = parser.parse_args()
    figures = auto_figures(*auto_streams(asked.data_root, asked.quick))
    print(json.dumps({**figures, "blas_kernels": blas_kernels()}, indent=2))


if __name__ == "__main__":
    main()
