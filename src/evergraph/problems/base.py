"""What is to be learned: an example, its loss, its output distribution, its metric, and how a prediction is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from evergraph import registry

if TYPE_CHECKING:
    from evergraph.data.batching import Neighbourhoods
    from evergraph.data.graph import ClassName, Graph
    from evergraph.models.base import GraphModel

PROBLEMS: registry.Registry[type[Problem]] = registry.problems


class Problem:
    """One object for all that the loop, the curvature functions and the evaluation have to know of a problem.

    A model's outputs z of an example are the parameters of a distribution p(y | z). The loss is −log p(y | z). Its
    Fisher matrix over the outputs, H = E_ŷ[s sᵀ] with the score s = ∂ log p(ŷ | z)/∂z, is all that curvature methods
    need: the Fisher matrix over the parameters is Jᵀ H J.

    Outputs have a row per example and a column per output unit; so have scores and products with H. Targets have an
    entry per example.
    """

    name: ClassVar[str] = ""
    metric: ClassVar[str] = "accuracy"
    """The metric that results are reported in where no other is asked for."""

    # what an example is

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
        """Makes batches of examples of a graph as the model reads it; `show_edges` asks for every layer's edges."""
        raise NotImplementedError

    def targets(self, graph: Graph, classes: Sequence[ClassName]) -> Tensor:
        """The target of every example of a graph, for a learner that knows the given classes; -1 where it has none."""
        raise NotImplementedError

    def within(self, units: Tensor | Sequence[int]) -> Problem:
        """The same problem with outputs that compete among these units alone."""
        raise NotImplementedError

    # the output distribution

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(y | z) of each example."""
        raise NotImplementedError

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """s = ∂ log p(y | z) / ∂z of each example."""
        raise NotImplementedError

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """H u of each example, in expectation over all targets."""
        raise NotImplementedError

    def fisher_factors(self, outputs: Tensor) -> Tensor:
        """Vectors whose outer products add up to H: `(examples, vectors, units)`."""
        raise NotImplementedError

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A target drawn from p(y | z) for each example."""
        raise NotImplementedError

    def most_probable(self, outputs: Tensor) -> Tensor:
        """The most probable target of each example."""
        raise NotImplementedError

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        """KL(p(· | reference / T) ‖ p(· | outputs / T)) of each example."""
        raise NotImplementedError

    def in_scope(self, outputs: Tensor) -> Tensor:
        """The outputs that take part in the distribution, with zeros at all others."""
        return outputs

    def balancing_weights(self, targets: Tensor) -> Callable[[Tensor], Tensor]:
        """From targets to example weights that make rare targets count as much as frequent ones among `targets`."""
        raise NotImplementedError

    # how a prediction is read

    def probabilities(self, outputs: Tensor, units: Sequence[int]) -> Tensor:
        """Probabilities over some units, one row per example."""
        raise NotImplementedError
