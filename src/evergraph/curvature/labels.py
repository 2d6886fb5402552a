"""Which labels a Fisher matrix is taken over, and its action on the logits.

The Fisher matrix of node v is J_vᵀ H_v J_v with J_v = ∂z_v/∂θ. Only H_v depends on the labels:

- `empirical`: H = s sᵀ with s = onehot(y) − p at the node's true label y,
- `sample`: the same at one label drawn from p,
- `pred`: the same at the most probable label,
- `exact`: the expectation over all labels, H = diag(p) − p pᵀ.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.errors import EvergraphError, one_of

Labels = Literal["empirical", "sample", "pred", "exact"]
LABELS: tuple[Labels, ...] = ("empirical", "sample", "pred", "exact")


def pick_labels(
    logits: Tensor, labels: str, targets: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """One label a node, by the rule `empirical`, `sample` or `pred`."""
    one_of("kind of labels", labels, LABELS[:3])
    if labels == "pred":
        return logits.argmax(1)
    if labels == "sample":
        probabilities = logits.softmax(1).to("cpu", torch.float64)
        return torch.multinomial(probabilities, 1, generator=generator).reshape(-1).to(logits.device)
    if targets is None:
        raise EvergraphError("empirical Fisher needs the true labels: pass targets")
    return targets


def score(logits: Tensor, picked: Tensor) -> Tensor:
    """∂ log p[ŷ] / ∂z = onehot(ŷ) − p, a row a node."""
    return F.one_hot(picked, logits.size(1)).to(logits.dtype) - logits.softmax(1)


def label_factors(
    logits: Tensor, labels: str, targets: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Vectors whose outer products add up to H_v: `(num_nodes, num_vectors, num_classes)`.

    One vector s for a picked label; for `exact` one a class: √p_c (onehot(c) − p).
    """
    one_of("kind of labels", labels, LABELS)
    if labels != "exact":
        return score(logits, pick_labels(logits, labels, targets, generator)).unsqueeze(1)
    p = logits.softmax(1)
    return p.sqrt().unsqueeze(2) * (torch.eye(p.size(1), dtype=p.dtype, device=p.device) - p.unsqueeze(1))


def apply_output_fisher(
    logits: Tensor,
    tangent: Tensor,
    labels: str,
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """H_v u_v for every node v: the cotangent on the logits that the curvature regularizer adds."""
    one_of("kind of labels", labels, LABELS)
    if labels == "exact":
        weighted = logits.softmax(1) * tangent
        return weighted - logits.softmax(1) * weighted.sum(1, keepdim=True)
    s = score(logits, pick_labels(logits, labels, targets, generator))
    return s * (s * tangent).sum(1, keepdim=True)
