"""`auto` on dense columns with different scales and offsets: as given, standardized by hand, and scaled by `auto`.

Generated graphs of six classes in three tasks; the features differ in the units of their columns. AP on the test
graphs `task` and `seen`, mean and standard error over seeds:

    python -m benchmarks.column_scales --seeds 10 --workers 2

`by hand` uses the mean and standard deviation of all nodes of all tasks, which a learner cannot know at the first task.
To choose constants, `--held-out` tests on validation nodes and removes the labels of test nodes, and `--first-seed 100`
uses other graphs than the reported ones.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.seven_graphs import without_test_nodes

NODES, CLASSES, TASKS = 1200, 6, 3
TEST_GRAPHS = ("task", "seen")
Features = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def table(z: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Age, income, Kelvin, a share, a count, a year, millimetres, a log-normal amount in thousandths."""
    count = random.poisson(np.exp(0.5 + 0.5 * z[:, 4])).astype(float)
    share, income, amount = 1 / (1 + np.exp(-z[:, 3])), np.exp(10.5 + 0.6 * z[:, 1]), 1e-3 * np.exp(z[:, 7])
    others = (40 + 12 * z[:, 0], income, 290 + 8 * z[:, 2], share, count, np.round(2015 + 4 * z[:, 5]))
    return np.stack([*others, 1700 + 90 * z[:, 6], amount], axis=1)


def mixed(z: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Three one-hot columns with four categories each; four numeric columns in different units."""
    noisy = z[:, :3] + 0.5 * random.standard_normal((len(z), 3))
    categories = [np.eye(4)[np.digitize(column, [-0.7, 0, 0.7])] for column in noisy.T]
    return np.concatenate([*categories, z[:, 3:] * [12, 1e4, 1e-2, 10] + [40, 3e4, 0, 280]], axis=1)


def pixels(z: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Blobs on 8 × 8 pixels with values from 0 to 1, most of them dark."""
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 8)] * 2), axis=-1).reshape(-1, 2)
    at = random.uniform(-0.6, 0.6, (z.shape[1], 1, 2))
    blots = z @ np.exp(-4 * ((grid - at) ** 2).sum(-1)) * 4 + 6 * np.exp(-2 * (grid**2).sum(-1)) - 2
    return np.clip(np.round(blots + 0.7 * random.standard_normal(blots.shape)), 0, 16) / 16


def inflated(z: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Amounts in tens of thousands that are zero for most nodes, beside ages and standardized columns."""
    amounts = np.where(z[:, :4] > 0.8, 1e4 * np.exp(z[:, :4]), 0)
    return np.concatenate([amounts, 40 + 12 * z[:, 4:6], z[:, 6:]], axis=1)


def missing(z: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """`table` with zeros in place of a tenth of its entries."""
    x = table(z, random)
    return np.where(random.random(x.shape) < 0.1, 0, x)


def many(z: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Units from thousandths to millions; three in ten columns have an offset."""
    offset = np.where(random.random(z.shape[1]) < 0.3, 10 ** random.uniform(0, 3, z.shape[1]), 0)
    return z * 10 ** random.uniform(-3, 6, z.shape[1]) + offset


def offsets(z: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Columns whose means are 10 to 1,000 standard deviations from zero."""
    return z + 10 ** random.uniform(1, 3, z.shape[1]) * random.choice([-1, 1], z.shape[1])


STREAMS: dict[str, tuple[int, float, Features]] = {
    "standardized": (16, 1.5, lambda z, random: z),
    "half × 10": (16, 1.65, lambda z, random: z * np.repeat([10, 1], 8)),
    "units of 1, 10, 1000, 1e6": (8, 1.5, lambda z, random: z * ([1, 10, 1e3, 1e6] * 2)),
    "noise in 1e9": (12, 1.65, lambda z, random: np.c_[1e9 * random.standard_normal(len(z)), z[:, 1:]]),
    "offsets of 10 to 1,000": (8, 1.5, offsets),
    "log-normal": (8, 1.9, lambda z, random: np.exp(1.5 * z) * 10 ** random.uniform(0, 4, z.shape[1])),
    "a table": (8, 1.9, table),
    "a table, 10 % missing as 0": (8, 1.9, missing),
    "one-hot and numbers": (7, 1.9, mixed),
    "mostly zero amounts": (10, 1.95, inflated),
    "64 columns unlike": (64, 2.25, many),
    "pixels": (10, 2.25, pixels),
}
"""By name: the number of latent variables, the norm of their class means, and the features made from them."""


def graph_of(name: str, seed: int, by_hand: bool = False) -> Any:
    """Generate a graph of one stream, with half of its edges drawn within a class."""
    from evergraph.data.graph import make_graph

    width, signal, features = STREAMS[name]
    random = np.random.default_rng([seed, list(STREAMS).index(name)])
    y = random.integers(0, CLASSES, NODES)
    source = random.integers(0, NODES, 2 * NODES)
    alike = np.array([random.choice(np.flatnonzero(y == y[node])) for node in source])
    target = np.where(random.random(source.size) < 0.5, alike, random.integers(0, NODES, source.size))
    means = random.standard_normal((CLASSES, width))
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = features(random.standard_normal((NODES, width)) + means[y], random)
    if by_hand:
        x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    return make_graph(x, np.stack([source, target]), y, undirected=True, name=name)


CONTENDERS: dict[str, tuple[bool, dict[str, Any]]] = {
    "as given": (False, {"scales": False}),
    "by hand": (True, {"scales": False}),
    "auto": (False, {}),
}
"""By name: whether columns are standardized by hand, and the model's settings."""


def measure(name: str, seed: int, contender: str, held_out: bool) -> list[float]:
    """AP of one run on each test graph."""
    import torch

    import evergraph as eg
    from evergraph.errors import EvergraphWarning

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EvergraphWarning)
    by_hand, settings = CONTENDERS[contender]
    graph = graph_of(name, seed, by_hand)
    graph = without_test_nodes(graph, list(range(CLASSES)), seed) if held_out else graph
    stream = eg.TaskStream(graph, CLASSES // TASKS, seed=seed)
    learner = eg.Learner(eg.MixedFeatures(**settings), "auto", seed=seed).fit(stream)
    return [learner.evaluate(stream, test_graph=test_graph).ap for test_graph in TEST_GRAPHS]


def main(arguments: list[str] | None = None) -> int:
    """Measure all streams and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", nargs="+", choices=list(STREAMS), default=list(STREAMS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="leave the test nodes alone: test validation nodes")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    print(f"| columns | {' | '.join(CONTENDERS)} |\n|---|{'---|' * len(CONTENDERS)}", flush=True)
    with ProcessPoolExecutor(asked.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = {
            (name, contender): [pool.submit(measure, name, seed, contender, asked.held_out) for seed in seeds]
            for name in asked.streams
            for contender in CONTENDERS
        }
        for name in asked.streams:
            cells = [_cell([run.result() for run in runs[name, contender]]) for contender in CONTENDERS]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


def _cell(found: list[list[float]]) -> str:
    """Means and standard errors over seeds, one for each test graph."""
    errors = [stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0 for values in zip(*found)]
    return " / ".join(f"{mean(values):.1f} ± {error:.1f}" for values, error in zip(zip(*found), errors))


if __name__ == "__main__":
    sys.exit(main())
