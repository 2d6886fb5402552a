"""The sums that a closed-form head is solved from: G = Σ w φ φᵀ and B = Σ w φ yᵀ, and the solution.

y is one-hot where examples have classes; else their row of labels or numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evergraph.core.dense_algebra import EXACT, SingularError, shifted_solutions, symmetric_product
from evergraph.core.finite import is_finite
from evergraph.core.workers import workers
from evergraph.data.batching import Batch
from evergraph.errors import DivergedError, EvergraphError
from evergraph.methods.base import Context
from evergraph.methods.closed_form.factor import Factor, weighed
from evergraph.models.base import NODES_AT_ONCE

FEW_RUNS = 16  # of features side by side, up to which they are copied run by run
SMALL = 0.01  # a ridge below needs products in float64


class Sums(NamedTuple):
    """G and B, in float64."""

    gram: Tensor
    cross: Tensor


def accumulate(
    context: Context,
    features: Callable[[Batch], Tensor],
    head: Tensor,
    nodes: Tensor,
    weights: Tensor | None,
    before: Sums | None,
    exact: bool,
    sign: int = 1,
) -> Sums:
    """The sums with some nodes of the task added, of which each process adds its share; `before` is left as it is.

    Args:
        context: the task.
        features: from a batch to the rows that the head multiplies.
        head: the head, for its shape.
        nodes: the nodes to add, on the device.
        weights: of an example, by the output unit of its class; None where examples have rows of labels or numbers.
        before: the sums so far; None for none.
        exact: form the products in float64 too, not only their sums.
        sign: 1 to add the nodes, -1 to take them out again.
    """
    width, units = head.shape
    group = workers()
    nodes = context.own(nodes)
    fresh = before is None or group.size > 1
    if before is None or fresh:
        gram = torch.zeros(width, width, dtype=torch.float64, device=head.device)
        cross = torch.zeros(width, units, dtype=torch.float64, device=head.device)
    else:
        gram, cross = before.gram, before.cross
    for batch in context.batcher.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ():
        rows = features(batch)
        if exact:
            rows = rows.double()
        if weights is None:
            targets = torch.nn.functional.pad(batch.y, (0, units - batch.y.size(1))).to(rows.dtype)
        else:
            rows, targets = weighed(rows, batch.y, weights[batch.y], units)
        added = Factor(rows, targets)
        gram = torch.add(gram, symmetric_product(rows), alpha=sign, out=gram if fresh else None)
        cross = torch.add(cross, added.cross(), alpha=sign)
        fresh = True
    if group.size > 1:
        gram, cross = group.sum([gram, cross])
        if before is not None:
            gram, cross = gram + before.gram, cross + before.cross
    return Sums(gram, cross)


def among(gram: Tensor, rows: Tensor, total: Tensor | None = None) -> Tensor:
    """A copy of G among some features, which mostly stand side by side: run by run, since a gather is slow.

    With `total` it is added to that.
    """
    ends = torch.nonzero(rows.diff() != 1).reshape(-1).add(1).tolist()
    runs = list(itertools.pairwise([0, *ends, rows.numel()]))
    if len(runs) > FEW_RUNS:
        rows = rows.to(gram.device)
        found = gram[rows].index_select(1, rows)
        return found if total is None else total.add_(found)
    found = gram.new_empty(rows.numel(), rows.numel()) if total is None else total
    starts = [int(rows[first]) for first, _ in runs]
    for (top, bottom), row in zip(runs, starts):
        for (left, right), column in zip(runs, starts):
            part = gram[row : row + bottom - top, column : column + right - left]
            place = found[top:bottom, left:right]
            place.copy_(part) if total is None else place.add_(part)
    return found


def solutions(
    matrix: Tensor, ridges: Sequence[float], unit: float, targets: Tensor, error: float = EXACT
) -> Iterator[Tensor]:
    """(M + ridge · unit · I)⁻¹ targets for each ridge; the matrix's diagonal is written over."""
    try:
        yield from shifted_solutions(matrix, [ridge * unit for ridge in ridges], targets, error)
    except SingularError as singular:
        raise EvergraphError(
            f"ridge={singular.shift / unit:g} is too small for these features: their sums are singular to float64's "
            "precision; raise it, or use ridge=0 to choose one"
        ) from None


def solve(
    ridges: Sequence[float], sums: Sequence[Sums], rows: Tensor | None = None, error: float = EXACT
) -> list[Tensor]:
    """W = (G + ridge · mean diagonal / classes · I)⁻¹ B for each ridge, from the sums together.

    With `rows` only those features are read; the others' weights are zero. `error` is the relative one of a solution.
    """
    first = sums[0].gram
    rows = torch.arange(first.size(0), device=first.device) if rows is None else rows.to(first.device)
    gram = among(first, rows)
    for other in sums[1:]:
        among(other.gram, rows, gram)
    cross = torch.stack([part.cross for part in sums]).sum(0)
    if not is_finite([gram, cross]):
        raise DivergedError("the closed form's sums are not finite numbers; are the features finite?")
    classes = max(int((cross != 0).any(0).sum()), 1)
    diagonal = gram.diagonal()
    unit = float(diagonal[diagonal > 0].mean()) / classes  # a feature may be zero at every node
    heads = []
    for ridge, found in zip(ridges, solutions(gram, ridges, unit, cross[rows], error)):
        heads.append(torch.zeros_like(cross))
        heads[-1][rows] = found
        if not is_finite([found]):
            raise EvergraphError(f"ridge={ridge:g}: the closed form has no finite solution; are the features finite?")
    return heads
