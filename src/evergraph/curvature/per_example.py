"""Single-example gradients: exact diagonals of the Fisher matrix, and other sums of their powers.

The gradients of many examples come from one batched backward pass. The number of rows it carries at once is
limited by the memory it may take, so neither a large model nor a node with a thousand neighbours breaks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from evergraph.core.capabilities import capable
from evergraph.core.params import Params, trained_params
from evergraph.core.pulled import gradients
from evergraph.core.randomness import random_integers
from evergraph.curvature.labels import label_factors, pick_labels

if TYPE_CHECKING:
    from evergraph.data.batching import Batch
    from evergraph.problems.base import Problem

EXAMPLES_AT_ONCE = 32  # per batch: larger batches share little and only make the pass wider
MEMORY = 256 * 2**20  # bytes that a batched backward pass may take

Batches = Callable[[int], "Iterable[Batch]"]
"""The examples to measure over, in batches of the size asked for."""


@contextmanager
def counted_bytes() -> Iterator[list[int]]:
    """Within this context, list the sizes in bytes of all tensors that a forward pass keeps for its backward pass."""
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor.detach()  # an output held by its own graph would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


def batched_gradients(
    outputs: Tensor, inputs: list[Tensor], vectors: Tensor, kept: int, memory: int = MEMORY
) -> Iterator[tuple[Tensor, ...]]:
    """(∂z_v/∂input)ᵀ c for every example v and each of its vectors c, in chunks of rows.

    Args:
        outputs: `(examples, units)`, with their graph.
        inputs: tensors of that graph.
        vectors: `(examples, vectors, units)`.
        kept: bytes that the graph keeps; each row of the batched pass takes about as much again.
        memory: bytes that the pass may take.
    """

    def pulled(cotangent: Tensor) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(outputs, inputs, cotangent, retain_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(value) if grad is None else grad for value, grad in zip(inputs, grads))

    nodes, count, width = vectors.shape
    # a row's gradients briefly exist twice: as they come out, and reordered
    row_bytes = kept + sum(2 * value.numel() * value.element_size() for value in [outputs, *inputs])
    flat, owner = vectors.flatten(0, 1), torch.arange(nodes).repeat_interleave(count)
    for rows in torch.arange(nodes * count).split(max(1, memory // row_bytes)):
        cotangents = flat.new_zeros(rows.numel(), nodes, width)
        cotangents[torch.arange(rows.numel()), owner[rows]] = flat[rows]
        yield torch.vmap(pulled)(cotangents)


def sum_of_powers(
    model: nn.Module,
    batches: Batches,
    cotangents: Callable[[Batch, Tensor], Tensor],
    power: int,
    memory: int = MEMORY,
) -> Params:
    """Σ over examples and cotangent vectors of |J_vᵀ c|^power, entry by entry.

    Args:
        model: computes a batch's outputs.
        batches: the examples.
        cotangents: `(examples, vectors, units)` from a batch and its outputs.
        power: 2 for Fisher diagonals, 1 for absolute values.
        memory: bytes that a batched backward pass may take.
    """
    params = trained_params(model)
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    by_equations = capable(model, "example_powers")  # if the model's equations give the sums
    for batch in batches(EXAMPLES_AT_ONCE if by_equations is None else 4 * EXAMPLES_AT_ONCE):
        if by_equations is not None and (known := by_equations(batch, cotangents, power)) is not None:
            for name, sum_ in total.items():
                sum_ += known[name]
            continue
        with torch.enable_grad(), counted_bytes() as sizes:
            outputs = model(batch)
        vectors = cotangents(batch, outputs.detach())
        for grads in batched_gradients(outputs, list(params.values()), vectors, sum(sizes), memory):
            for sum_, grad in zip(total.values(), grads):
                sum_ += (grad.abs() if power == 1 else grad.square()).sum(0)
    return total


def fisher_diagonal(
    model: nn.Module,
    batches: Batches,
    problem: Problem,
    labels: str = "exact",
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
) -> Params:
    """The diagonal of the Fisher matrix, summed over examples: Σ_v Σ_k (J_vᵀ s_vk)².

    Args:
        model: computes a batch's outputs.
        batches: the examples.
        problem: what the outputs mean.
        labels: `empirical`, `sample`, `pred` or `exact`.
        generator: random numbers for `sample`.
        memory: bytes that a batched backward pass may take.
    """

    def cotangents(batch: Batch, outputs: Tensor) -> Tensor:
        return label_factors(problem, outputs, labels, batch.y, generator)

    return sum_of_powers(model, batches, cotangents, 2, memory)


def squared_batch_gradients(
    model: nn.Module,
    batches: Iterable[Batch],
    problem: Problem,
    labels: str = "empirical",
    generator: torch.Generator | None = None,
) -> Params:
    """The shortcut of much public code: Σ over batches of (gradient of the batch-mean log-likelihood)², times |B|.

    This is not the Fisher information: single-example gradients cancel before they are squared, and at a
    stationary point it vanishes. Provided to reproduce published results. The factor |B| makes batches of one
    example give the Fisher diagonal.
    """
    params = trained_params(model)
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for batch in batches:
        with torch.enable_grad():
            outputs = model(batch)
        fixed = outputs.detach()
        cotangent = problem.score(fixed, pick_labels(problem, fixed, labels, batch.y, generator))
        squares = squared_gradient(outputs, params, cotangent / batch.num_examples)
        for name, sum_ in total.items():
            sum_ += batch.num_examples * squares[name]
    return total


def squared_gradient(outputs: Tensor, params: Params, cotangent: Tensor) -> Params:
    """(Jᵀc)², entry by entry; the graph is retained."""
    grads = gradients(outputs, list(params.values()), cotangent)
    return {
        name: torch.zeros_like(value) if grad is None else grad.square()
        for (name, value), grad in zip(params.items(), grads)
    }


def random_sign_diagonal(
    outputs: Tensor, params: Params, cotangent: Tensor, generator: torch.Generator | None = None
) -> Params:
    """An unbiased estimate of Σ_v (J_vᵀ c_v)² from one backward pass.

    With independent random signs ε_v the square of Σ_v ε_v J_vᵀ c_v has that sum as its mean: the
    products of different examples cancel on average.
    """
    signs = random_integers(2, (cotangent.size(0), 1), cotangent.device, generator).to(cotangent.dtype) * 2 - 1
    return squared_gradient(outputs, params, cotangent * signs)
