"""Classes cut into parts: more classes than a task has, made of what its own examples look like."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evergraph.core.sparse import Features, SparseMatrix, product, with_self_loops
from evergraph.data.graph import Graph

HOPS = 2  # that features are averaged over before classes are cut: what a two-layer network sees of a node
STEPS = 50  # of the power method


def parts_of_classes(graph: Graph, strata: Tensor, halvings: int) -> Tensor:
    """The part of its class that each example is in: 0 … 2^halvings − 1, or -1 where it has no class.

    A part is halved at the median along its first principal axis (principal direction divisive partitioning: Boley,
    1998, at the median where he cuts at the mean, so that halves are equal). Features are averaged over neighbours
    first, as networks read them, and over the nodes that an example reads.

    Args:
        graph: all of its examples are looked at, so test examples must not be among them.
        strata: a number for each example; those of one number have a median of their own, so that each part has its
            share of training and of validation examples.
        halvings: how often; 0 leaves every class whole.
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


class _View:
    """What examples look like: the rows of M S … S X, S averaging over a node and its neighbours, M over members."""

    def __init__(self, graph: Graph) -> None:
        averaging = _averaging(with_self_loops(graph.adjacency.to(torch.float64)))
        factors: list[Features] = [*[averaging] * HOPS, graph.x.to(torch.float64)]
        if graph.members is not None:
            factors = [_averaging(graph.members.to(torch.float64)), *factors]
        self._factors, self._flipped = factors, [factor.t() for factor in factors]

    def along_first_axis(self, examples: Tensor) -> Tensor:
        """The examples' coordinates along the first principal axis of their cloud, by the power method."""
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
    """Each row divided by its sum."""
    return matrix.with_values(matrix.values / matrix.row_sums()[matrix.row_of_entry()])


def _power_method(apply: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """The direction of the largest eigenvalue, from a random start that is always the same."""
    start = torch.Generator().manual_seed(0)
    axis = torch.randn(size, 1, generator=start, dtype=torch.float64)
    for _ in range(STEPS):
        image = apply(axis)
        length = image.norm()
        if not length:  # all examples alike: any axis will do
            return axis
        axis = image / length
    return axis
