"""Regression: an example has one or several numbers to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evergraph.core.randomness import normal
from evergraph.data.graph import Graph
from evergraph.data.targets import ClassName
from evergraph.errors import EvergraphError
from evergraph.problems.base import PROBLEMS
from evergraph.problems.columns import Columns


class Regression(Columns):
    """p(y | z) = N(z, I) over the units in scope; H = I there, and zero elsewhere."""

    kind = "numbers"
    metric = "mae"

    def targets(self, graph: Graph, classes: Sequence[ClassName]) -> Tensor:
        """The numbers of each example by output unit."""
        if graph.has_classes:
            raise EvergraphError(
                f"{graph.name}: its examples have classes, and {self.name} predicts numbers; whole numbers are read as "
                "such by Task.of(graph, numbers=True)"
            )
        return super().targets(graph, classes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """½ ‖y − z‖² over the known numbers in scope; the constant of −log p is left out."""
        return 0.5 * self._residual(outputs, targets).square().sum(1)

    def _residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        y, known = self._known(outputs, targets)
        return (y - self._scoped(outputs)) * known

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """y − z."""
        return self._widened(self._residual(outputs, targets), outputs.size(1))

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """u at the units in scope."""
        return self.in_scope(tangents)

    def fisher_factors(self, outputs: Tensor) -> Tensor:
        """onehot(c), one vector per unit."""
        scoped = self._scoped(outputs)
        return self._widened(torch.diag_embed(torch.ones_like(scoped)), outputs.size(1))

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """z plus standard Gaussian noise; on a GPU from the device's own random numbers."""
        return outputs + normal(tuple(outputs.shape), outputs.device, generator, outputs.dtype)

    def most_probable(self, outputs: Tensor) -> Tensor:
        """z itself."""
        return outputs.clone()

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        """½ ‖z − z_reference‖² / T²."""
        return 0.5 * ((self._scoped(outputs) - self._scoped(reference)) / temperature).square().sum(1)

    def probabilities(self, outputs: Tensor, units: Sequence[int]) -> Tensor:
        """Raise: numbers have no probabilities."""
        raise EvergraphError(f"{self.name} predicts numbers, which have no probabilities; use predict")

    def read(self, outputs: Tensor, units: Sequence[int], names: Sequence[ClassName]) -> tuple[list[Any], Tensor]:
        """The predicted numbers, one per example or a list of several, and the same as a matrix."""
        values = outputs[:, list(units)]
        return values.squeeze(1).tolist() if len(units) == 1 else values.tolist(), values


@PROBLEMS.register
class NodeRegression(Regression):
    """An example is a node with one number or several."""

    name = "node-regression"


@PROBLEMS.register
class GraphRegression(Regression):
    """An example is a graph with one number or several."""

    name = "graph-regression"
    level = "graph"


@PROBLEMS.register
class LinkRegression(Regression):
    """An example is a link with one number or several."""

    name = "link-regression"
    level = "link"
