"""Kronecker factors of the Fisher matrix, layer by layer (K-FAC; Martens and Grosse, ICML 2015)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.curvature.labels import label_factors
from evergraph.data.batches import Batch
from evergraph.models.base import GraphModel, recorded_products
from evergraph.sparse import SparseMatrix


@dataclass
class KroneckerFactor:
    """F ≈ inputs ⊗ outputs for one weight matrix W `(in, out)`: F·vec(D) is inputs D outputs."""

    inputs: Tensor
    outputs: Tensor

    def apply(self, direction: Tensor) -> Tensor:
        """The product with a direction of W's shape."""
        return self.inputs @ direction @ self.outputs


def kronecker_factors(
    model: GraphModel,
    batches: Iterable[Batch],
    classes: Tensor,
    labels: str = "exact",
    targets: Callable[[Batch], Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, KroneckerFactor]:
    """The factors of the Fisher matrix averaged over nodes, for every weight that multiplies rows of inputs.

    A weight is applied at several rows u of a node's neighbourhood (weight sharing). As in K-FAC's
    «expand» form, `inputs` is the mean over rows of x_u x_uᵀ and `outputs` the mean over nodes v of
    Σ_u g_uv g_uvᵀ, with g_uv the gradient of v's score at row u. Exact for one layer and one node.
    """
    names = {id(value): name for name, value in model.named_parameters()}
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    num_nodes = 0
    for batch in batches:
        with torch.enable_grad(), recorded_products() as products:
            logits = model(batch)
        factors = label_factors(logits[:, classes].detach(), labels, targets(batch) if targets else None, generator)
        nodes, count, _ = factors.shape
        cotangents = logits.new_zeros(nodes, count, nodes, logits.size(1))
        cotangents[torch.arange(nodes)[:, None], :, torch.arange(nodes)[:, None], classes] = factors.transpose(1, 2)
        grads = torch.autograd.grad(
            logits, [out for _, _, out in products], cotangents.flatten(0, 1), is_grads_batched=True
        )
        for (weight, x, _), grad in zip(products, grads):
            name = names[id(weight)]
            gram = (x.t() @ x.dense()) if isinstance(x, SparseMatrix) else x.T @ x
            flat = grad.flatten(0, 1)
            inputs[name] = inputs.get(name, 0) + gram.detach()
            outputs[name] = outputs.get(name, 0) + flat.T @ flat
            rows[name] = rows.get(name, 0) + x.size(0)
        num_nodes += nodes
    return {name: KroneckerFactor(inputs[name] / rows[name], outputs[name] / num_nodes) for name in inputs}
