"""The sums that a closed-form head is solved from: G = Σ w φ φᵀ and B = Σ w φ yᵀ, and the solution.

y is one-hot where examples have classes; else their row of labels or numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.dense_algebra import (
    EXACT,
    SingularError,
    add_symmetric_product,
    by_blas,
    shared_solutions,
)
from evergraph.core.finite import is_finite
from evergraph.core.shared_factor import shared
from evergraph.core.side_by_side import side_by_side
from evergraph.core.symmetric import SymmetricSum, pack, packed_size
from evergraph.core.workers import workers
from evergraph.data.batching import Batch
from evergraph.errors import DivergedError, EvergraphError
from evergraph.methods.base import Context
from evergraph.methods.closed_form.factor import weighed
from evergraph.models.base import NODES_AT_ONCE

SMALL = 0.01  # a ridge below needs products in float64


class Sums(NamedTuple):
    """G, packed as its lower triangle (`core.symmetric`), and B, in float64."""

    gram: Tensor
    cross: Tensor


class Wanted(NamedTuple):
    """Heads that are asked for: one for each ridge.

    Args:
        ridges: the ridges.
        parts: whose sums they are solved from.
        rows: the features that they read; None for all.
    """

    ridges: Sequence[float]
    parts: Sequence[str]
    rows: Tensor | None = None


def accumulate(
    context: Context,
    features: Callable[[Batch], Tensor],
    head: Tensor,
    nodes: Tensor,
    weights: Tensor | None,
    before: Sums | None,
    exact: bool,
    sign: int = 1,
    in_place: bool = False,
) -> Sums:
    """The sums with some nodes of the task added, of which each process adds its share.

    Args:
        context: the task.
        features: from a batch to the rows that the head multiplies.
        head: the head, for its shape.
        nodes: the nodes to add, on the device.
        weights: of an example, by the output unit of its class; None where examples have rows of labels or numbers.
        before: the sums so far; None for none.
        exact: form the products in float64 too, not only their sums.
        sign: 1 to add the nodes, -1 to take them out again.
        in_place: write over G of `before`, which is left as it is otherwise.
    """
    width, units = head.shape
    group = workers()
    nodes = context.own(nodes)
    fresh = before is None or group.size > 1
    if before is None or fresh:
        gram = large.zeros((packed_size(width),), torch.float64, head.device)
        cross = torch.zeros(width, units, dtype=torch.float64, device=head.device)
    else:
        gram, cross, fresh = pack(before.gram), before.cross, in_place
    for batch in context.batcher.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ():
        rows = features(batch)
        if exact:
            rows = rows.double()
        own = None if weights is None else weights[batch.y]
        added = weighed(rows, batch.y, own, units, in_place=rows is batch.x)
        gram = add_symmetric_product(gram, added.rows, sign, out=gram if fresh else None)
        cross = torch.add(cross, added.cross(), alpha=sign)
        fresh = True
    if group.size > 1:
        gram, cross = group.sum([gram, cross])
        if before is not None:
            gram, cross = gram + pack(before.gram), cross + before.cross
    return Sums(gram, cross)


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """W = (M + ridge · unit · I)⁻¹ T: everything but the ridge.

    Args:
        matrix: M.
        unit: what a ridge of one adds to its diagonal.
        targets: T, in float64.
    """

    matrix: SymmetricSum
    unit: float
    targets: Tensor

    @classmethod
    def of(cls, matrix: SymmetricSum, targets: Tensor, squares: Tensor, classes: int) -> RidgeSystem:
        """With the mean of the features' sums of squares, where they are not zero, over the number of classes as unit.

        Args:
            matrix: M: a Gram matrix, so that its largest entries stand on the diagonal.
            targets: T.
            squares: Σ w φ² of each feature.
            classes: how many have met a node.
        """
        if not is_finite([matrix.diagonal(), targets, squares]):
            raise DivergedError("the closed form's sums are not finite numbers; are the features finite?")
        return cls(matrix, float(squares[squares > 0].mean()) / max(classes, 1), targets)

    def solutions(self, ridges: Sequence[float], error: float = EXACT) -> list[Tensor]:
        """W for each of some ridges that share a factorization; `error` is the relative one that they may have."""
        try:
            return shared_solutions(self.matrix, [ridge * self.unit for ridge in ridges], self.targets, error)
        except SingularError as singular:
            ridge = singular.shift / self.unit
            raise EvergraphError(
                f"ridge={ridge:g} is too small for these features: their sums are singular to float64's "
                "precision; raise it, or use ridge=0 to choose one"
            ) from None


def ridge_system(sums: Sequence[Sums], rows: Tensor | None = None) -> RidgeSystem:
    """The system of some sums together; of the features `rows` alone, if given."""
    matrix = SymmetricSum([part.gram for part in sums], rows)
    cross = torch.stack([part.cross for part in sums]).sum(0)
    targets = cross if rows is None else cross[rows.to(cross.device)]
    return RidgeSystem.of(matrix, targets, matrix.diagonal(), met(cross))


def met(targets: Tensor) -> int:
    """How many columns have met a node."""
    return int((targets != 0).any(0).sum())


def solved(systems: Sequence[tuple[RidgeSystem, float]], error: float = EXACT) -> list[Tensor]:
    """The solution of each system with its ridge, side by side on a CPU; the largest ones come first."""
    places = dict[int, list[int]]()
    for place, (system, _) in enumerate(systems):
        places.setdefault(id(system), []).append(place)
    groups = [[own[i] for i in group] for own in places.values() for group in shared([systems[i][1] for i in own])]
    groups.sort(key=lambda group: -systems[group[0]][0].matrix.size)
    jobs = [partial(systems[group[0]][0].solutions, [systems[i][1] for i in group], error) for group in groups]
    on_cpu = all(by_blas(system.targets) for system, _ in systems)
    solutions = side_by_side(jobs) if on_cpu else [job() for job in jobs]
    found = {place: one for group, some in zip(groups, solutions) for place, one in zip(group, some)}
    for place, (_, ridge) in enumerate(systems):
        if not is_finite([found[place]]):
            raise EvergraphError(f"ridge={ridge:g}: the closed form has no finite solution; are the features finite?")
    return [found[place] for place in range(len(systems))]


def solve(
    ridges: Sequence[float], sums: Sequence[Sums], rows: Tensor | None = None, error: float = EXACT
) -> list[Tensor]:
    """W = (G + ridge · mean diagonal / classes · I)⁻¹ B for each ridge, from the sums together.

    With `rows` only those features are read; the others' weights are zero. `error` is the relative one of a solution.
    """
    system = ridge_system(sums, rows)
    return [spread(found, rows, sums[0].cross) for found in solved([(system, ridge) for ridge in ridges], error)]


def spread(found: Tensor, rows: Tensor | None, like: Tensor) -> Tensor:
    """A solution among some features as a head over all: the others' weights are zero."""
    if rows is None:
        return found
    head = torch.zeros_like(like)
    head[rows.to(head.device)] = found
    return head
