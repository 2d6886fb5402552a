"""Kronecker factors of the Fisher matrix, layer by layer (K-FAC; Martens and Grosse, ICML 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from evergraph.core.features import Features, take_rows
from evergraph.core.params import trained_params
from evergraph.core.recording import recorded_products
from evergraph.core.sparse import SparseMatrix
from evergraph.curvature.labels import label_factors
from evergraph.curvature.per_example import MEMORY, Batches, batched_gradients, counted_bytes

if TYPE_CHECKING:
    from evergraph.problems.base import Problem

SEEDS_AT_ONCE = 8  # seeds whose output factors are measured together: most pairs of a row and a seed are zero
ROWS_AT_ONCE = 4096  # seeds whose input rows are gathered together


@dataclass
class KroneckerFactor:
    """F ≈ inputs ⊗ outputs for one weight matrix W `(in, out)`: F·vec(D) is inputs D outputs."""

    inputs: Tensor
    outputs: Tensor

    def apply(self, direction: Tensor) -> Tensor:
        """The product with a direction of W's shape."""
        return self.inputs @ direction @ self.outputs


def kronecker_factors(
    model: nn.Module,
    batches: Batches,
    problem: Problem,
    labels: str = "exact",
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
) -> dict[str, KroneckerFactor]:
    """The factors of the Fisher matrix averaged over nodes, for every trained weight that multiplies rows of inputs.

    A weight is applied at several rows u of a node's neighbourhood (weight sharing). As in K-FAC's
    "expand" form, `inputs` is the mean of x_u x_uᵀ over the rows that the nodes read, each row once, and
    `outputs` the mean over nodes v of Σ_u g_uv g_uvᵀ, with g_uv the gradient of v's score at row u.
    Exact for one layer and one node. Neither factor depends on how the nodes are split into batches.

    Args:
        model: must apply its weights by `evergraph.core.recording.linear`; a foreign module does not show its products.
        batches: the nodes.
        problem: what the outputs mean.
        labels: `empirical`, `sample`, `pred` or `exact`.
        generator: random numbers for `sample`.
        memory: bytes that a batched backward pass may take.
    """
    names = {id(value): name for name, value in trained_params(model).items()}
    input_factors = _input_factors(model, batches, names)
    output_sums: dict[str, Tensor] = {}
    num_nodes = 0
    for batch in batches(SEEDS_AT_ONCE):
        with torch.enable_grad(), counted_bytes() as sizes, recorded_products() as products:
            outputs = model(batch)
        trained = [product for product in products if id(product.weight) in names]
        vectors = label_factors(problem, outputs.detach(), labels, batch.y, generator)
        rows = [product.out for product in trained]
        for grads in batched_gradients(outputs, rows, vectors, sum(sizes), memory):
            for product, grad in zip(trained, grads):
                flat, name = grad.flatten(0, 1), names[id(product.weight)]
                output_sums[name] = output_sums.get(name, 0) + flat.T @ flat
        num_nodes += batch.num_examples
    return {name: KroneckerFactor(input_factors[name], total / num_nodes) for name, total in output_sums.items()}


def _input_factors(model: nn.Module, batches: Batches, names: dict[int, str]) -> dict[str, Tensor]:
    """The mean of x xᵀ over the distinct rows that each weight multiplies."""
    total: dict[str, Tensor] = {}
    counted: dict[str, Tensor] = {}  # the graph's nodes (or examples) whose rows are included
    for batch in batches(ROWS_AT_ONCE):
        with torch.no_grad(), recorded_products() as products:
            model(batch)
        for weight, x, _, of_examples in products:
            if id(weight) not in names:  # frozen
                continue
            owners = batch.examples if of_examples else batch.nodes
            assert owners is not None
            name, nodes = names[id(weight)], owners[: x.size(0)]  # a product's rows are a prefix of the nodes
            new = torch.nonzero(~torch.isin(nodes, counted[name])).reshape(-1) if name in counted else None
            total[name] = total.get(name, 0) + _gram(x if new is None else take_rows(x, new))
            counted[name] = nodes if new is None else torch.cat([counted[name], nodes[new]])
    return {name: value / counted[name].numel() for name, value in total.items()}


def _gram(x: Features) -> Tensor:
    return x.t() @ x.dense() if isinstance(x, SparseMatrix) else x.T @ x
