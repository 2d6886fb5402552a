"""Base class of problems: what an example is, its loss, output distribution and metric, and how to read predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergraph import registry
from evergraph.data.batching import Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.data.targets import ClassName
from evergraph.errors import EvergraphError, lacks
from evergraph.models.base import GraphModel, neighbourhoods
from evergraph.models.readout import Paired, Pooled

PROBLEMS: registry.Registry[type[Problem]] = registry.problems
SHORT = 1e-2  # change of the outputs over which H hardly changes


class Problem:
    """Everything that the loop, the curvature functions and the evaluation need to know about a problem.

    A model's outputs z of an example are the parameters of a distribution p(y | z). The loss is −log p(y | z). Its
    Fisher matrix over the outputs, H = E_ŷ[s sᵀ] with the score s = ∂ log p(ŷ | z)/∂z, is all that curvature methods
    need: the Fisher matrix over the parameters is Jᵀ H J.

    Outputs have a row per example and a column per output unit, as do scores and products with H. Targets have an
    entry per example, or a row if an example has several.

    Args:
        scope: output units that take part, in ascending order; None for all.
    """

    name: ClassVar[str] = ""
    level: ClassVar[str] = "node"
    """What an example is: `node`, `graph` or `link`."""
    kind: ClassVar[str] = "classes"
    """What the target of an example is: one of several `classes`, binary `labels`, or `numbers`."""
    metric: ClassVar[str] = "accuracy"
    """Name of the default metric."""

    def __init__(self, scope: Tensor | Sequence[int] | None = None) -> None:
        self.scope = None if scope is None else torch.as_tensor(scope, dtype=torch.long)

    # what an example is

    def adapt(self, model: GraphModel) -> GraphModel:
        """Turn a model of nodes into one of examples: pooled over a graph's nodes, or of a link's two ends."""
        if model.level == self.level:
            return model
        if model.level != "node":
            raise EvergraphError(
                f"{self.name} is about {self.level}s, and {type(model).__name__} computes outputs of {model.level}s"
            )
        return {"graph": Pooled, "link": Paired}[self.level](model)

    def batcher(
        self,
        model: GraphModel,
        graph: Graph,
        *,
        targets: Tensor | None = None,
        fan_out: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        show_edges: bool = False,
    ) -> Neighbourhoods:
        """Make a batcher of a graph's examples, as the model reads them; `show_edges` asks for every layer's edges."""
        if graph.level != self.level:
            raise EvergraphError(f"{graph.name} has {graph.level}s as examples, and {self.name} is about {self.level}s")
        propagate = False if show_edges else None
        return neighbourhoods(model, graph, y=targets, fan_out=fan_out, device=device, propagate=propagate)

    def targets(self, graph: Graph, classes: Sequence[ClassName]) -> Tensor:
        """Target of every example of a graph, for a learner that knows the given classes; -1 if it has none."""
        raise lacks(self, "targets")

    def within(self, units: Tensor | Sequence[int]) -> Problem:
        """The same problem, with outputs that compete among these units only."""
        return type(self)(units)

    def _scoped(self, outputs: Tensor) -> Tensor:
        """The columns of the units in scope."""
        return outputs if self.scope is None else outputs.index_select(1, self.scope.to(outputs.device))

    def _widened(self, scoped: Tensor, width: int) -> Tensor:
        """A tensor over the units in scope, with zeros at all other units of its last dimension."""
        if self.scope is None:
            return scoped
        wide = scoped.new_zeros(*scoped.shape[:-1], width)
        wide[..., self.scope.to(scoped.device)] = scoped
        return wide

    # the output distribution

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(y | z) of each example."""
        raise lacks(self, "loss")

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """s = ∂ log p(y | z) / ∂z of each example."""
        raise lacks(self, "score")

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """H u of each example, in expectation over all targets."""
        raise lacks(self, "fisher_product")

    def mean_fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """H̄ u of each example, H̄ = ∫₀¹ H(z − s u) ds: the mean of H over the segment from z − u to z.

        If p is an exponential family whose natural parameters are linear in the outputs, the scores of the same target
        at both ends differ by H̄ u. For a short segment, that would be a difference of nearly equal numbers; there, H
        at the midpoint equals the mean to 1e-5. A problem with another distribution overrides this.
        """
        same = self.most_probable(outputs)
        difference = self.score(outputs - tangents, same) - self.score(outputs, same)
        half_way = self.fisher_product(outputs - 0.5 * tangents, tangents)
        return torch.where((tangents.abs() < SHORT).all(1, keepdim=True), half_way, difference)

    def fisher_factors(self, outputs: Tensor) -> Tensor:
        """Vectors whose outer products add up to H: `(examples, vectors, units)`."""
        raise lacks(self, "fisher_factors")

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A target drawn from p(y | z) for each example."""
        raise lacks(self, "sample")

    def sampled_score(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The score at a target drawn from p(y | z), of each example."""
        return self.score(outputs, self.sample(outputs, generator))

    def most_probable(self, outputs: Tensor) -> Tensor:
        """The most probable target of each example."""
        raise lacks(self, "most_probable")

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        """KL(p(· | reference / T) ‖ p(· | outputs / T)) of each example."""
        raise lacks(self, "divergence")

    def in_scope(self, outputs: Tensor) -> Tensor:
        """The outputs that take part in the distribution, with zeros at all others."""
        return self._widened(self._scoped(outputs), outputs.size(1))

    def balancing_weights(self, targets: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function that weights examples, so that rare targets count as much as frequent ones of `targets`."""
        raise EvergraphError(f"class_balanced weighs classes, and the examples of {self.name} have none; leave it out")

    # how a prediction is read

    def probabilities(self, outputs: Tensor, units: Sequence[int]) -> Tensor:
        """Probabilities over the given units, one row per example."""
        raise lacks(self, "probabilities")

    def read(self, outputs: Tensor, units: Sequence[int], names: Sequence[ClassName]) -> tuple[list[Any], Tensor]:
        """Predicted target of each example, in terms of the user's names, and how probable it is."""
        raise lacks(self, "read")


PROBLEMS.accept(subclasses_of=Problem)
