"""The sums that a closed-form head is solved from, G = Σ w φ φᵀ and B = Σ w φ yᵀ, and the solution.

y is one-hot if examples have classes, else their row of labels or numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.dense_algebra import (
    EXACT,
    SingularError,
    Solution,
    add_symmetric_product,
    solutions,
)
from evergraph.core.finite import is_finite
from evergraph.core.shared_factor import ShiftedSystem
from evergraph.core.symmetric import FEW_RUNS, SymmetricSum, pack, packed_size, runs_of
from evergraph.core.workers import workers
from evergraph.data.batching import Batch
from evergraph.errors import DivergedError, EvergraphError
from evergraph.methods.base import Context
from evergraph.methods.closed_form.factor import weighed
from evergraph.models.base import NODES_AT_ONCE

SMALL = 0.01  # smaller ridges need products in float64


class Sums(NamedTuple):
    """G, packed as its lower triangle (`core.symmetric`), and B, in float64."""

    gram: Tensor
    cross: Tensor


class HeadRequest(NamedTuple):
    """A request for heads, one for each ridge.

    Args:
        ridges: the ridges.
        parts: the parts (`train`, `val`) from whose sums the heads are solved.
        rows: the features that the heads read; None for all.
        rough: whether a relative error of about a thousandth will do, as in comparisons.
    """

    ridges: Sequence[float]
    parts: Sequence[str]
    rows: Tensor | None = None
    rough: bool = False


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
    """Return the sums with nodes of the task added; each process adds its share of them.

    Args:
        context: the task.
        features: returns the rows of a batch that the head multiplies.
        head: the head, for its shape.
        nodes: the nodes to add, on the device.
        weights: weight of an example by the output unit of its class; None for rows of labels or numbers.
        before: the sums so far; None for none.
        exact: form the products in float64 too, not only their sums.
        sign: 1 to add the nodes, -1 to subtract them.
        in_place: overwrite G of `before`, which is left unchanged otherwise.
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
    """The system W = (M + ridge · unit · I)⁻¹ T, for any ridge.

    Args:
        matrix: M.
        unit: what a ridge of one adds to the diagonal of M.
        targets: T, in float64.
    """

    matrix: SymmetricSum
    unit: float
    targets: Tensor

    @classmethod
    def of(cls, matrix: SymmetricSum, targets: Tensor, squares: Tensor, classes: int) -> RidgeSystem:
        """Make a system whose unit is the mean of the nonzero `squares` over the number of classes.

        Args:
            matrix: M, a Gram matrix: its largest entries are on the diagonal.
            targets: T.
            squares: Σ w φ² of each feature.
            classes: number of classes that have nodes.
        """
        if not is_finite([matrix.diagonal(), targets, squares]):
            raise DivergedError("the closed form's sums are not finite numbers; are the features finite?")
        return cls(matrix, float(squares[squares > 0].mean()) / max(classes, 1), targets)

    def at(self, ridge: float, rough: bool = False) -> ShiftedSystem:
        """Return the system with a ridge."""
        return ShiftedSystem(self.matrix, ridge * self.unit, self.targets, rough)


def ridge_system(sums: Sequence[Sums], rows: Tensor | None = None) -> RidgeSystem:
    """Return the system of the total of several sums, on the features `rows` only, if given, in their order."""
    matrix = SymmetricSum([part.gram for part in sums], rows)
    cross = torch.stack([part.cross for part in sums]).sum(0)
    targets = cross if rows is None else cross[rows.to(cross.device)]
    return RidgeSystem.of(matrix, targets, matrix.diagonal(), met(cross))


def constant_first(rows: Tensor, width: int) -> Tensor:
    """Return ascending rows with the last of all features, the column of ones, in front.

    So the features that one set of blocks reads are often the first of those that another reads, and their heads share
    a factorization.
    """
    few = len(runs_of(rows)) < FEW_RUNS and rows.numel() > 1
    return rows.roll(1) if few and int(rows[-1]) == width - 1 else rows


def met(targets: Tensor) -> int:
    """Return the number of columns that have nodes."""
    return int((targets != 0).any(0).sum())


def solved(systems: Sequence[tuple[RidgeSystem, float, bool]], error: float = EXACT) -> list[Solution]:
    """Solve each system with its ridge, exactly or roughly; those that can share a factorization do."""
    try:
        found = solutions([system.at(ridge, rough) for system, ridge, rough in systems], error)
    except SingularError as singular:
        ridge = next(ridge for system, ridge, _ in systems if ridge * system.unit == singular.shift)
        raise EvergraphError(
            f"ridge={ridge:g} is too small for these features: their sums are singular to float64's "
            "precision; raise it, or use ridge=0 to choose one"
        ) from None
    for one, (_, ridge, _) in zip(found, systems):
        if not is_finite([one.found]):
            raise EvergraphError(f"ridge={ridge:g}: the closed form has no finite solution; are the features finite?")
    return found


def solve(
    ridges: Sequence[float], sums: Sequence[Sums], rows: Tensor | None = None, error: float = EXACT
) -> list[Tensor]:
    """Return W = (G + ridge · mean diagonal / classes · I)⁻¹ B for each ridge, with G and B the total of `sums`.

    With `rows` only those features are read; the others' weights are zero. `error` is a solution's relative error.
    """
    system = ridge_system(sums, rows)
    found = solved([(system, ridge, False) for ridge in ridges], error)
    return [spread(one.found, rows, sums[0].cross) for one in found]


def spread(found: Tensor, rows: Tensor | None, like: Tensor) -> Tensor:
    """Expand a solution on the features `rows` to a head over all features; the others' weights are zero."""
    if rows is None:
        return found
    head = torch.zeros_like(like)
    head[rows.to(head.device)] = found
    return head
