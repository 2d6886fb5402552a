"""Cut classes into parts by the features of their examples, to make more classes than a task has."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from evergraph.core.features import Features, product, with_self_loops
from evergraph.core.sparse import SparseMatrix
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError

HOPS = 2  # hops over which features are averaged before classes are cut: what a two-layer network sees of a node
STEPS = 50  # iterations of the power method
MOST_PSEUDO_TASKS = 5  # made from one task's classes
PSEUDO_CLASSES, LEAST_PSEUDO_CLASSES = 8, 4  # classes to aim for over all pseudo-tasks; minimum for two tasks of two


def parts_of_classes(graph: Graph, strata: Tensor, halvings: int) -> Tensor:
    """Return the part of its class that each example is in: 0 … 2^halvings − 1, or -1 if it has no class.

    A part is halved at the median along its first principal axis (principal direction divisive partitioning, Boley,
    1998; he cuts at the mean, the median makes equal halves). Features are first averaged over neighbours, as networks
    read them, and over the nodes that an example reads.

    Args:
        graph: the graph; all its examples are used, so it must not contain test examples.
        strata: a number for each example; examples with the same number have their own median, so that each part has
            its share of training and of validation examples.
        halvings: how often to halve; 0 leaves every class whole.
    """
    view = _View(graph)
    part = torch.where(graph.y >= 0, 0, -1)
    for _ in range(halvings):
        halves = torch.zeros_like(part)
        for position in range(graph.num_classes):
            for number in part[graph.y == position].unique().tolist():
                own = torch.nonzero((graph.y == position) & (part == number)).reshape(-1)
                along = view.along_first_axis(own)
                for stratum in strata[own].unique().tolist():
                    among = torch.nonzero(strata[own] == stratum).reshape(-1)
                    order = along[among].argsort(stable=True)
                    halves[own[among[order[among.numel() // 2 :]]]] = 1
        part = torch.where(part >= 0, 2 * part + halves, -1)
    return part


def pseudo_classes(graph: Graph, strata: Tensor, name: str) -> tuple[Graph, list[list[int]]]:
    """Return the graph with parts of its classes as classes, as many as pseudo-tasks need, and the classes of each.

    Args:
        graph: the graph, as in `parts_of_classes`.
        strata: part of each example: 0 for training, 1 for testing. Every class of the result has examples of both.
        name: name of the stream in messages.
    """
    number = graph.num_classes
    for times in range(max(0, math.ceil(math.log2(PSEUDO_CLASSES / number))), -1, -1):
        part = parts_of_classes(graph, strata, times)
        y = torch.where(part >= 0, part * number + graph.y, -1)
        sizes = torch.stack([torch.bincount(y[strata == kind], minlength=number * 2**times) for kind in (0, 1)])
        if not times or bool(sizes.all()):
            break
    if number * 2**times < LEAST_PSEUDO_CLASSES:
        raise EvergraphError(
            f"{name}: the {number} classes of the task have too few {graph.level}s to be cut into a pseudo-stream; "
            "take another rule"
        )
    names = [f"{each}, part {piece + 1}" for piece in range(2**times) for each in graph.class_names]
    cut = graph.altered(y=y, class_names=names if times else graph.class_names)
    tasks = min(MOST_PSEUDO_TASKS, cut.num_classes // 2)
    return cut, [group.tolist() for group in torch.arange(cut.num_classes).tensor_split(tasks)]


class _View:
    """Smoothed features of examples: rows of M S … S X; S averages over a node and its neighbours, M over members."""

    def __init__(self, graph: Graph) -> None:
        averaging = _averaging(with_self_loops(graph.adjacency.to(torch.float64)))
        factors: list[Features] = [*[averaging] * HOPS, graph.x.to(torch.float64)]
        if graph.members is not None:
            factors = [_averaging(graph.members.to(torch.float64)), *factors]
        self._factors, self._flipped = factors, [factor.t() for factor in factors]

    def along_first_axis(self, examples: Tensor) -> Tensor:
        """Return the examples' coordinates along their first principal axis, found by the power method."""
        rows = self._factors[0].size(0)

        def forward(direction: Tensor) -> Tensor:
            for factor in reversed(self._factors):
                direction = product(factor, direction)
            chosen = direction[examples]
            return chosen - chosen.mean(0)

        def backward(coordinates: Tensor) -> Tensor:
            spread = coordinates.new_zeros(rows, 1).index_copy(0, examples, coordinates)
            for factor in self._flipped:
                spread = product(factor, spread)
            return spread

        axis = _power_method(lambda v: backward(forward(v)), self._factors[-1].size(1))
        return forward(axis).reshape(-1)


def _averaging(matrix: SparseMatrix) -> SparseMatrix:
    """Divide each row by its sum."""
    return matrix.with_values(matrix.values / matrix.row_sums()[matrix.row_of_entry()])


def _power_method(apply: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """Return the direction of the largest eigenvalue, starting from a fixed random vector."""
    start = torch.Generator().manual_seed(0)
    axis = torch.randn(size, 1, generator=start, dtype=torch.float64)
    for _ in range(STEPS):
        image = apply(axis)
        length = image.norm()
        if not length:  # all examples are equal: any axis will do
            return axis
        axis = image / length
    return axis
