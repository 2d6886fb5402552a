"""A stream of ogbn-products' size, written and trained from disk in processes whose memory is measured.

`python -m benchmarks.large write FOLDER 1 2` writes it, with two threads; `auto` in place of `write` learns it in
closed form, with as many bytes of sums as a fifth argument allows (`500MB`), and `train` by gradient steps, one epoch
per task. The last line has seconds, the peak in MB and the average accuracy.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.resident import child_environment, peak_megabytes
from evergraph.data.mapped import write_mapped_blocks
from evergraph.errors import EvergraphError

NODES, EDGES, CLASSES, FEATURES = 2_400_000, 60_000_000, 45, 100
BLOCK = 4_000_000  # edges made at once


def write_large(
    folder: str | Path, nodes: int = NODES, edges: int = EDGES, classes: int = CLASSES, features: int = FEATURES
) -> Path:
    """Generate a graph like `sbm`'s (homophily 0.8, noisy class features) and write it, block by block."""
    random = np.random.default_rng(0)
    y = random.integers(0, classes, nodes)
    by_class = np.argsort(y, kind="stable")  # the nodes of a class are consecutive
    start = np.searchsorted(y[by_class], np.arange(classes + 1))
    means = random.standard_normal((classes, features)).astype(np.float32) * 3 / np.sqrt(features)

    def feature_blocks() -> Iterator[np.ndarray]:
        for number, labels in enumerate(np.array_split(y, max(1, nodes // 100_000))):
            noise = np.random.default_rng([1, number]).standard_normal((labels.size, features), dtype=np.float32)
            yield noise + means[labels]

    def edge_blocks() -> Iterator[np.ndarray]:
        for number, first in enumerate(range(0, edges, BLOCK)):
            own = np.random.default_rng([2, number])
            size = min(BLOCK, edges - first)
            source = own.integers(0, nodes, size)
            label = y[source]
            inside = by_class[start[label] + (own.random(size) * (start[label + 1] - start[label])).astype(np.int64)]
            target = np.where(own.random(size) < 0.8, inside, own.integers(0, nodes, size))
            yield np.stack([source, target])

    return write_mapped_blocks(
        folder,
        features=feature_blocks(),
        edges=edge_blocks,
        y=y,
        num_features=features,
        class_names=list(range(classes)),
        name="large",
    )


def large_figures(folder: str | Path | None = None, *, epochs: int = 1, threads: int = 2) -> dict[str, float]:
    """Seconds and peak memory of writing the graph and of training a stream on it; the folder is kept if given."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(folder or Path(scratch) / "large")
        found = {} if path.exists() else _child("write", path, epochs, threads)
        return {**found, **_child("train", path, epochs, threads)}


def _child(what: str, folder: Path, epochs: int, threads: int) -> dict[str, float]:
    command = [sys.executable, "-c", "from benchmarks.large import main; main()", what, str(folder), str(epochs)]
    command.append(str(threads))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=child_environment(), check=False)
    if done.returncode:
        raise EvergraphError(f"bench: the run of {folder} failed with status {done.returncode}")
    seconds, megabytes, *rest = (float(number) for number in done.stdout.split())
    found = {f"large_{what}_seconds": seconds, f"large_{what}_mb": megabytes}
    return {**found, **({"large_average_accuracy": rest[0]} if rest else {})}


def _train(folder: str, method: str, epochs: int, threads: int, memory: str | None) -> list[Any]:
    import torch

    import evergraph as eg

    torch.set_num_threads(threads)
    stream = eg.stream(folder, classes_per_task=9)
    if method == "auto":
        learner = eg.Learner(method=eg.Auto() if memory is None else eg.Auto(memory=memory), device="cpu")
    else:
        learner = eg.Learner(eg.GCN(hidden=128), eg.OnlineCurvature(), epochs=epochs, batch_size=1024, device="cpu")
    for task in stream:
        clock, used = time.perf_counter(), time.process_time()
        learner.learn(task)
        seconds = f"{time.perf_counter() - clock:.0f} s, {time.process_time() - used:.0f} s of processor time"
        print(f"{task}: {seconds}, {peak_megabytes():.0f} MB so far", file=sys.stderr)
    accuracies = learner.evaluate(stream).accuracies
    return [sum(accuracies) / len(accuracies)]


def main() -> None:
    """Run `write`, `train` or `auto` with folder, epochs, threads and memory; print seconds and megabytes."""
    what, folder, epochs, threads, *memory = sys.argv[1:]
    began = time.perf_counter()
    rest: list[Any] = []
    if what == "write":
        write_large(folder)
    else:
        rest = _train(folder, what, int(epochs), int(threads), memory[0] if memory else None)
    print(time.perf_counter() - began, peak_megabytes(), *rest)


if __name__ == "__main__":
    main()
