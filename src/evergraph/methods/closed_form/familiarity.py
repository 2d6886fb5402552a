"""How strange a node looks to a closed form: its largest score, and its leverage on what was learned."""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core import lapack
from evergraph.core.capabilities import capable
from evergraph.core.dense_algebra import by_blas, product
from evergraph.core.side_by_side import ONE, blas_threads
from evergraph.methods.base import View
from evergraph.methods.closed_form.hits import rows_of
from evergraph.models.base import NODES_AT_ONCE, GraphModel

MOST_FEATURES = 1024  # over which the leverage is computed: an even choice from all of them
DAMPING = 0.2  # of the leverage, in units of the mean diagonal entry per class


def evenly(rows: Tensor) -> Tensor:
    """Return at most 1,024 evenly spaced features."""
    return rows[torch.linspace(0, rows.numel() - 1, min(rows.numel(), MOST_FEATURES)).long()]


def dense_rows(model: GraphModel, width: int) -> Tensor:
    """Return those of `width` features that are seldom zero: the random ones, if there are any."""
    layout, blocks = capable(model, "feature_layout"), capable(model, "feature_blocks")
    if layout is None or blocks is None or all(block.linear for block in layout().present):
        return torch.arange(width)
    return rows_of(blocks()[1], [not block.linear for block in layout().present])


def damped_factor(gram: Tensor, classes: int) -> Tensor:
    """Return the Cholesky factor L of G + r I, with r a fifth of the mean diagonal entry per class; overwrites G."""
    diagonal = gram.diagonal().clone()
    gram.diagonal().add_(DAMPING * float(diagonal[diagonal > 0].mean()) / max(classes, 1))
    with blas_threads(ONE):
        if by_blas(gram) and gram.is_contiguous():
            if not lapack.factorize(gram.numpy()):
                raise torch.linalg.LinAlgError("G + r I has no Cholesky factor")
            return gram.tril_()
    factor: Tensor = torch.linalg.cholesky(gram)
    return factor


@torch.no_grad()
def strangeness(view: View, head: Tensor, rows: Tensor, factor: Tensor, classes: int) -> Tensor:
    """Return two numbers per example, larger if it is stranger: −(largest score) and log10 of φ (G + r I)⁻¹ φᵀ.

    With least squares the largest score is near 1 for an example of a known class, and near 1/C with C classes for an
    uninformative example. It is rescaled to 1 and 0 there, so that its meaning does not change as classes arrive. The
    second number, the leverage, is large if the features point in a direction that few learned examples have; it is
    computed over at most 1,024 evenly spaced features (`evenly`).

    Args:
        view: the graph and the examples.
        head: the head that gives the scores, without unused units.
        rows: the features over which the leverage is computed.
        factor: `damped_factor` of G over these features, from training examples alone, so that validation examples
            are as new to it as any others.
        classes: number of classes in G.
    """
    features = capable(view.model, "features")
    assert features is not None
    chance = 1 / classes if classes > 1 else 0.0
    batcher = view.problem.batcher(view.model, view.graph, device=view.device)
    found = [torch.empty(0, 2, dtype=torch.float64)]
    for batch in batcher.batches(view.nodes.to(view.device), NODES_AT_ONCE) if view.nodes.numel() else ():
        phi = features(batch)
        score = product(phi, head.to(phi.dtype)).max(1).values.double()
        score = (score - chance) / (1 - chance)
        whitened = torch.linalg.solve_triangular(factor, phi[:, rows].double().T, upper=False)
        leverage = whitened.square().sum(0).clamp(min=1e-12).log10()
        found.append(torch.stack([-score, leverage], dim=1).cpu())
    return torch.cat(found)
