"""Per-node gradients: exact diagonals of the Fisher matrix, and other sums of powers of single-node gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from evergraph.curvature.labels import label_factors, pick_labels, score
from evergraph.data.batches import Batch
from evergraph.params import Params, named_params

MEMORY = 256 * 2**20  # bytes of per-node gradients held at once


def nodes_at_once(model: nn.Module, vectors: int = 1, memory: int = MEMORY) -> int:
    """How many nodes' gradients (times `vectors` a node) fit into `memory` bytes."""
    size = sum(value.numel() * value.element_size() for value in model.parameters())
    return max(1, memory // max(size * vectors, 1))


def sum_of_powers(
    model: nn.Module, batches: Iterable[Batch], cotangents: Callable[[Batch, Tensor], Tensor], power: int
) -> Params:
    """Σ over nodes and cotangent vectors of |J_vᵀ c|^power, entry by entry.

    Args:
        model: computes a batch's logits.
        batches: the nodes, in batches small enough for memory (`nodes_at_once`).
        cotangents: `(num_nodes, num_vectors, num_outputs)` from a batch and its logits.
        power: 2 for Fisher diagonals, 1 for absolute values.
    """
    params = named_params(model)
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for batch in batches:
        with torch.enable_grad():
            logits = model(batch)
        vectors = cotangents(batch, logits.detach())
        nodes, count, width = vectors.shape
        # row (v, k) of the batched cotangent is vector k at node v and zero at all others
        rows = vectors.new_zeros(nodes, count, nodes, width)
        rows[torch.arange(nodes), :, torch.arange(nodes)] = vectors
        grads = torch.autograd.grad(
            logits, list(params.values()), rows.flatten(0, 1), is_grads_batched=True, allow_unused=True
        )
        for sum_, grad in zip(total.values(), grads):
            if grad is not None:
                sum_ += grad.abs_().sum(0) if power == 1 else grad.square_().sum(0)
    return total


def fisher_diagonal(
    model: nn.Module,
    batches: Iterable[Batch],
    classes: Tensor,
    labels: str = "exact",
    targets: Callable[[Batch], Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Params:
    """The diagonal of the Fisher matrix, summed over nodes: Σ_v Σ_k (J_vᵀ s_vk)².

    Args:
        model: computes a batch's logits.
        batches: the nodes.
        classes: the output units that the softmax runs over.
        labels: `empirical`, `sample`, `pred` or `exact`.
        targets: true labels of a batch as positions in `classes`; for `empirical`.
        generator: random numbers for `sample`.
    """

    def cotangents(batch: Batch, logits: Tensor) -> Tensor:
        factors = label_factors(logits[:, classes], labels, targets(batch) if targets else None, generator)
        wide = factors.new_zeros(*factors.shape[:2], logits.size(1))
        wide[:, :, classes] = factors
        return wide

    return sum_of_powers(model, batches, cotangents, power=2)


def squared_batch_gradients(
    model: nn.Module,
    batches: Iterable[Batch],
    classes: Tensor,
    labels: str = "empirical",
    targets: Callable[[Batch], Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Params:
    """The shortcut of much public code: Σ over batches of (gradient of the batch-mean log-likelihood)², times |B|.

    This is not the Fisher information: single-node gradients cancel before they are squared, and at a
    stationary point it vanishes. Here to reproduce published rows. The factor |B| makes batches of one
    node give the Fisher diagonal.
    """
    params = named_params(model)
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for batch in batches:
        with torch.enable_grad():
            logits = model(batch)
        scoped = logits[:, classes].detach()
        picked = pick_labels(scoped, labels, targets(batch) if targets else None, generator)
        cotangent = torch.zeros_like(logits)
        cotangent[:, classes] = score(scoped, picked) / batch.num_seeds
        grads = torch.autograd.grad(logits, list(params.values()), cotangent, allow_unused=True)
        for sum_, grad in zip(total.values(), grads):
            if grad is not None:
                sum_ += batch.num_seeds * grad.square()
    return total


def random_sign_diagonal(
    logits: Tensor, params: Params, cotangent: Tensor, generator: torch.Generator | None = None
) -> Params:
    """An unbiased estimate of Σ_v (J_vᵀ c_v)² from one backward pass.

    With independent random signs ε_v the square of Σ_v ε_v J_vᵀ c_v has that sum as its mean: the
    products of different nodes cancel on average.
    """
    signs = torch.randint(0, 2, (cotangent.size(0), 1), generator=generator).to(cotangent) * 2 - 1
    grads = torch.autograd.grad(logits, list(params.values()), cotangent * signs, retain_graph=True, allow_unused=True)
    return {
        name: torch.zeros_like(value) if grad is None else grad.square()
        for (name, value), grad in zip(params.items(), grads)
    }
