"""Base class of methods with Kronecker factors of past tasks: how the factors are measured, merged and grown."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.core.params import Params, copy_params
from evergraph.core.recording import recorded_products
from evergraph.curvature import KroneckerFactor, fisher_diagonal, kronecker_factors, measuring
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import Context, Method
from evergraph.methods.state import state


@dataclass(repr=False)
class KroneckerMemory(Method):
    """A method that keeps the Fisher of past tasks as A ⊗ G in every layer, and the parameters after the last task.

    After each task the factors are merged with the running ones (A as a mean and G as a sum over tasks, which gives
    the sum of the tasks' products if they share A), and the anchor moves to the current parameters. Parameters that
    are not weight matrices (attention vectors) get the Fisher diagonal; frozen parameters get none.
    """

    access = Access(keeps=("parameters",))
    labels = "exact"

    factors_: dict[str, Params] = state(dict)
    diagonal_: Params = state(dict, like="params")
    anchor_: Params = state(dict, like="params", new="values")
    num_tasks_: int = state(int)

    def start_task(self, context: Context) -> None:
        """Raise if the model does not expose its layers' inputs and outputs, which the factors need."""
        require_shown_layers(context, self.name, "online-ewc")

    def end_task(self, context: Context) -> None:
        """Measure the factors over the task's training nodes and merge them."""
        over = (context.problem, self.labels, context.generator)
        with measuring(context.model, next(context.batches(1))):
            factors = kronecker_factors(context.model, context.batches, *over)
            rest = [name for name in context.params if name not in factors]
            diagonal = fisher_diagonal(context.model, context.batches, *over) if rest else {}
        self.num_tasks_ += 1
        for name, new in factors.items():
            old = self.factors_.get(name)
            if old is None:
                self.factors_[name] = {"inputs": new.inputs, "outputs": new.outputs, "tasks": torch.tensor(1)}
                continue
            tasks = old.get("tasks", torch.tensor(self.num_tasks_ - 1)) + 1  # a layer may stand still for a while
            mean = old["inputs"] + (new.inputs - old["inputs"]) / int(tasks)
            self.factors_[name] = {"inputs": mean, "outputs": old["outputs"] + new.outputs, "tasks": tasks}
        for name in rest:
            self.diagonal_[name] = self.diagonal_.get(name, 0) + diagonal[name] / context.num_train
        now = copy_params(context.model)
        self.anchor_ = {name: now[name] for name in (*self.factors_, *self.diagonal_)}

    def factor(self, name: str) -> KroneckerFactor:
        """Return the factors of a weight matrix: the inputs' as a mean over the tasks it was measured in."""
        return KroneckerFactor(self.factors_[name]["inputs"], self.factors_[name]["outputs"])

    def grow(self, before: Params, after: Params) -> None:
        """New output units have no curvature yet: pad the output factors with zeros."""
        super().grow(before, after)
        for name, factor in self.factors_.items():
            wide = factor["outputs"].new_zeros(after[name].size(1), after[name].size(1))
            size = factor["outputs"].size(0)
            wide[:size, :size] = factor["outputs"]
            self.factors_[name] = {**factor, "outputs": wide}


def require_shown_layers(context: Context, name: str, instead: str) -> None:
    """Raise if the model does not expose what its weight matrices multiply."""
    with torch.no_grad(), recorded_products() as products:
        context.model(next(context.batches(1)))
    if not products:
        raise EvergraphError(f"{name} needs gcn, sage or gat; a foreign module does not show its layers: use {instead}")


ITERATIONS = 4  # of the subspace; each shrinks an eigenvalue's error by the square of the spectrum's decay


def leading_eigenvectors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the `rank` largest eigenvalues of a positive semi-definite matrix and their eigenvectors, or all if fewer.

    Uses subspace iteration from a fixed start, so that a resumed task gets the same result as before.
    """
    if matrix.size(0) <= rank:
        values, vectors = torch.linalg.eigh(matrix.double())
        return values, vectors
    start = torch.randn(matrix.size(0), rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    subspace = torch.linalg.qr(start.to(matrix.device)).Q
    for _ in range(ITERATIONS):
        subspace = torch.linalg.qr((matrix @ subspace.to(matrix.dtype)).double()).Q
    small = subspace.T @ (matrix @ subspace.to(matrix.dtype)).double()
    values, vectors = torch.linalg.eigh((small + small.T) / 2)
    return values, subspace @ vectors
