"""Binary labels: binary and multi-label problems, and link prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.randomness import uniform
from evergraph.data.graph import Graph
from evergraph.data.targets import ClassName, as_known
from evergraph.problems.base import PROBLEMS
from evergraph.problems.columns import Columns


class Labelling(Columns):
    """p(y | z) = Π_c Bernoulli(σ(z_c)) over the units in scope; H = diag(p(1 − p)) there, and zero elsewhere.

    If examples have one class of several, its unit is 1 and the others are 0, also those of classes that their graph
    does not know: one against the rest.
    """

    kind = "labels"
    metric = "roc-auc"

    def targets(self, graph: Graph, classes: Sequence[ClassName]) -> Tensor:
        """0, 1 or NaN by output unit."""
        if not graph.has_classes:
            return super().targets(graph, classes)
        unit_of = {name: unit for unit, name in enumerate(classes)}
        rows = torch.zeros(graph.num_classes + 1, len(classes))
        for position, name in enumerate(as_known(graph.class_names, classes)):
            if name in unit_of:
                rows[position, unit_of[name]] = 1
        rows[-1] = torch.nan  # for "no class"
        return rows[graph.y]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, summed over the known labels in scope."""
        y, known = self._known(outputs, targets)
        return (F.binary_cross_entropy_with_logits(self._scoped(outputs), y, reduction="none") * known).sum(1)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """y − p."""
        y, known = self._known(outputs, targets)
        return self._widened((y - self._scoped(outputs).sigmoid()) * known, outputs.size(1))

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """p (1 − p) ∘ u."""
        p = self._scoped(outputs).sigmoid()
        return self._widened(p * (1 - p) * self._scoped(tangents), outputs.size(1))

    def fisher_factors(self, outputs: Tensor) -> Tensor:
        """√(p_c (1 − p_c)) onehot(c), one vector per unit."""
        p = self._scoped(outputs).sigmoid()
        return self._widened(torch.diag_embed((p * (1 - p)).sqrt()), outputs.size(1))

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw labels from p; on a GPU with the device's own random numbers, so that nothing waits for Python."""
        p = outputs.sigmoid()
        return (uniform(tuple(p.shape), p.device, generator, p.dtype) < p).to(p.dtype)

    def most_probable(self, outputs: Tensor) -> Tensor:
        """1 where p > ½."""
        return (outputs > 0).to(outputs.dtype)

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        """KL divergence between two products of Bernoulli distributions at a temperature."""
        old, new = self._scoped(reference) / temperature, self._scoped(outputs) / temperature
        p = old.sigmoid()
        on = p * (F.logsigmoid(old) - F.logsigmoid(new))
        return (on + (1 - p) * (F.logsigmoid(-old) - F.logsigmoid(-new))).sum(1)

    def probabilities(self, outputs: Tensor, units: Sequence[int]) -> Tensor:
        """σ(z), label by label."""
        return outputs[:, list(units)].sigmoid()

    def read(self, outputs: Tensor, units: Sequence[int], names: Sequence[ClassName]) -> tuple[list[Any], Tensor]:
        """The labels that are more probable than not, and the probability of every label, one column each."""
        p = self.probabilities(outputs, units)
        return [[name for name, holds in zip(names, row) if holds] for row in (p > 0.5).tolist()], p


@PROBLEMS.register
class NodeLabelling(Labelling):
    """An example is a node with one or several binary labels."""

    name = "node-labelling"


@PROBLEMS.register
class GraphLabelling(Labelling):
    """An example is a graph with one or several binary labels."""

    name = "graph-labelling"
    level = "graph"


@PROBLEMS.register
class LinkLabelling(Labelling):
    """An example is a link with one or several binary labels."""

    name = "link-labelling"
    level = "link"


@PROBLEMS.register
class LinkPrediction(Labelling):
    """An example is a pair of nodes, linked or not. Pairs without a link are drawn when tasks are made."""

    name = "link-prediction"
    level = "link"
    metric = "hits@50"
