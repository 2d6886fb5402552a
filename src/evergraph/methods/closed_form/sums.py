"""The sums that a closed-form head is solved from: G = Σ w φ φᵀ and B = Σ w φ yᵀ, and the solution.

y is one-hot where examples have classes; else their row of labels or numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evergraph.core.finite import is_finite
from evergraph.core.workers import workers
from evergraph.data.batching import Batch
from evergraph.errors import DivergedError, EvergraphError
from evergraph.methods.base import Context
from evergraph.models.base import NODES_AT_ONCE

PANEL = 1024  # columns of a symmetric product that are computed at once
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
    """
    width, units = head.shape
    group = workers()
    nodes = context.own(nodes)
    if before is None or group.size > 1:
        gram = torch.zeros(width, width, dtype=torch.float64, device=head.device)
        cross = torch.zeros(width, units, dtype=torch.float64, device=head.device)
    else:
        gram, cross = before.gram.clone(), before.cross.clone()
    for batch in context.batcher.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ():
        rows = features(batch)
        if exact:
            rows = rows.double()
        if weights is None:
            gram += symmetric_product(rows, rows)
            cross[:, : batch.y.size(1)] += rows.T.double() @ batch.y.double()
            continue
        weighted = rows * weights[batch.y].unsqueeze(1).to(rows.dtype)
        gram += symmetric_product(weighted, rows)
        cross.index_add_(1, batch.y, weighted.T.double())
    if group.size > 1:
        gram, cross = group.sum([gram, cross])
        if before is not None:
            gram, cross = gram + before.gram, cross + before.cross
    return Sums(gram, cross)


def symmetric_product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right where it is symmetric: the panels on and above the diagonal are computed, those below are copies."""
    width = left.size(1)
    product = left.new_empty(width, width)
    for start in range(0, width, PANEL):
        stop = min(start + PANEL, width)
        torch.mm(left[:, start:stop].T, right[:, start:], out=product[start:stop, start:])
        product[stop:, start:stop] = product[start:stop, stop:].T
    return product


def among(gram: Tensor, rows: Tensor) -> Tensor:
    """A copy of G among some features, which mostly stand side by side: run by run, since a gather is slow."""
    ends = torch.nonzero(rows.diff() != 1).reshape(-1).add(1).tolist()
    runs = list(itertools.pairwise([0, *ends, rows.numel()]))
    if len(runs) > FEW_RUNS:
        rows = rows.to(gram.device)
        return gram[rows].index_select(1, rows)
    found, starts = gram.new_empty(rows.numel(), rows.numel()), [int(rows[first]) for first, _ in runs]
    for (top, bottom), row in zip(runs, starts):
        for (left, right), column in zip(runs, starts):
            found[top:bottom, left:right] = gram[row : row + bottom - top, column : column + right - left]
    return found


def factorized(matrix: Tensor, ridges: Sequence[float], unit: float) -> Iterator[tuple[float, Tensor]]:
    """Each ridge, and the Cholesky factor of the matrix plus ridge · unit · I; its diagonal is written over."""
    diagonal = matrix.diagonal().clone()
    for ridge in ridges:
        matrix.diagonal().copy_(diagonal + ridge * unit)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            raise EvergraphError(
                f"ridge={ridge:g} is too small for these features: their sums are singular to float64's precision; "
                "raise it, or use ridge=0 to choose one"
            )
        yield ridge, factor


def solve(ridges: Sequence[float], sums: Sequence[Sums], rows: Tensor | None = None) -> list[Tensor]:
    """W = (G + ridge · mean diagonal / classes · I)⁻¹ B for each ridge, from the sums together.

    With `rows` only those features are read; the others' weights are zero.
    """
    first = sums[0].gram
    rows = torch.arange(first.size(0), device=first.device) if rows is None else rows.to(first.device)
    gram = among(first, rows)
    for other in sums[1:]:
        gram += among(other.gram, rows)
    cross = torch.stack([part.cross for part in sums]).sum(0)
    if not is_finite([gram, cross]):
        raise DivergedError("the closed form's sums are not finite numbers; are the features finite?")
    classes = max(int((cross != 0).any(0).sum()), 1)
    diagonal = gram.diagonal()
    unit = float(diagonal[diagonal > 0].mean()) / classes  # a feature may be zero at every node
    heads = []
    for ridge, factor in factorized(gram, ridges, unit):
        heads.append(torch.zeros_like(cross))
        heads[-1][rows] = torch.cholesky_solve(cross[rows], factor)
        if not bool(torch.isfinite(heads[-1]).all()):
            raise EvergraphError(f"ridge={ridge:g}: the closed form has no finite solution; are the features finite?")
    return heads
