"""A generated graph of any size, written in parts that are generated independently.

Its edges are ten random permutations of the nodes, which every process can compute, and invert, for its own rows:
nothing is exchanged or sorted, and neighbours are anywhere, which is the worst case for an exchange of rows. Eight of
the ten permutations keep the class (homophily 0.8).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from evergraph.data.parts import write_part, write_parts_header

MATCHINGS, CLASSES, FEATURES = 10, 16, 32
KEEP_CLASS = 8  # permutations that keep the class


def write_generated(graphs: Mapping[int, Path], parts: int, workers: int) -> None:
    """Write graphs in parts, with `MATCHINGS` undirected edges per node.

    Args:
        graphs: the folder of each graph, by number of nodes; it must not exist. Nodes are left out to make all parts
            equally large.
        parts: number of parts of each graph.
        workers: number of processes, which generate all parts of all graphs in parallel.
    """
    whole = {folder: nodes - nodes % (CLASSES * parts) for nodes, folder in graphs.items()}
    for folder in whole:
        folder.mkdir(parents=True)
    pieces = [(str(folder), nodes, parts, number) for folder, nodes in whole.items() for number in range(parts)]
    with ProcessPoolExecutor(min(workers, len(pieces)), get_context("spawn")) as pool:
        list(pool.map(make_part, *zip(*pieces)))
    for folder, nodes in whole.items():
        starts = [number * (nodes // parts) for number in range(parts)]
        write_parts_header(folder, "generated", list(range(CLASSES)), FEATURES, starts)


def make_part(folder: str, nodes: int, parts: int, number: int) -> None:
    """Generate and write one part of a graph."""
    size = nodes // parts
    rows = np.arange(number * size, (number + 1) * size, dtype=np.int64)
    random = np.random.default_rng([3, number])
    y = (rows % CLASSES).astype(np.int64)
    means = np.random.default_rng(0).standard_normal((CLASSES, FEATURES)).astype(np.float32) * 0.1
    x = random.standard_normal((size, FEATURES), dtype=np.float32) + means[y]
    neighbours = np.empty((size, 2 * MATCHINGS), dtype=np.int32)
    for which, (factor, inverse, shift) in enumerate(_permutations(nodes)):
        kept = which < KEEP_CLASS
        place, base = (rows // CLASSES, nodes // CLASSES) if kept else (rows, nodes)
        to = (place * factor + shift) % base
        back = (place - shift) * inverse % base
        neighbours[:, 2 * which] = to * CLASSES + y if kept else to
        neighbours[:, 2 * which + 1] = back * CLASSES + y if kept else back
    split = np.digitize(random.random(size), [0.6, 0.8]).astype(np.int8)
    indptr = np.arange(size + 1, dtype=np.int64) * (2 * MATCHINGS)
    arrays = {"y": y, "split": split, "indptr": indptr, "indices": neighbours.reshape(-1), "x": x}
    write_part(Path(folder), number, arrays)


def _permutations(nodes: int) -> list[tuple[int, int, int]]:
    """(a, a⁻¹, c) of the permutations u → a u + c of all nodes, or of those of a class."""
    random, found = np.random.default_rng(5), []
    for which in range(MATCHINGS):
        base = nodes // CLASSES if which < KEEP_CLASS else nodes
        # below 2^31, so that products with numbers of nodes below 2^31 fit into 64 bits
        factor = int(random.integers(base // 3, base))
        while np.gcd(factor, base) != 1:
            factor += 1
        found.append((factor, pow(factor, -1, base), int(random.integers(base))))
    return found
