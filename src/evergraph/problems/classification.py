"""Classification: an example has one class of several; its outputs are the logits of a softmax over classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core import fused_softmax
from evergraph.core.capabilities import capability, capable
from evergraph.core.fused_softmax import fused_softmax_suits
from evergraph.core.randomness import own_numbers, uniform
from evergraph.core.row_pieces import fused_kernels
from evergraph.data.graph import Graph
from evergraph.data.targets import ClassName, as_known
from evergraph.errors import EvergraphError
from evergraph.problems.base import PROBLEMS, Problem


class Classification(Problem):
    """p(y | z) = softmax over the units in scope; H = diag(p) − p pᵀ there, and zero at all other units.

    Args:
        scope: output units that compete, in ascending order; None for all.
    """

    kind = "classes"

    def __init__(self, scope: Tensor | Sequence[int] | None = None) -> None:
        super().__init__(scope)
        self._position: Tensor | None = None
        self._mask: Tensor | None = None

    def targets(self, graph: Graph, classes: Sequence[ClassName]) -> Tensor:
        """The output unit of each example's class."""
        if not graph.has_classes:
            raise EvergraphError(
                f"{graph.name}: its examples have several labels or numbers, and {self.name} needs one class for each"
            )
        unit_of = {name: unit for unit, name in enumerate(classes)}
        names = as_known(graph.class_names, classes)
        units = torch.tensor([*(unit_of.get(name, -1) for name in names), -1])  # the last is for "no label"
        return units[graph.y]

    # the output distribution

    def _positions(self, targets: Tensor) -> Tensor:
        """Convert units to positions in the scope."""
        if self.scope is None:
            return targets
        if self._position is None or self._position.device != targets.device:
            position = torch.full((int(self.scope.max()) + 1,), -1, dtype=torch.long)
            position[self.scope.cpu()] = torch.arange(self.scope.numel())
            self._position = position.to(targets.device)
        return self._position[targets]

    def _masked(self, outputs: Tensor) -> Tensor:
        """All outputs, with minus infinity at units outside the scope; selecting units would take more operations."""
        mask = self._mask_of(outputs)
        return outputs if mask is None else outputs + mask

    def _mask_of(self, outputs: Tensor) -> Tensor | None:
        """Minus infinity for units outside the scope, zero for all others; None where all are in scope."""
        if self.scope is None:
            return None
        mask = self._mask
        if mask is None or (mask.numel(), mask.device, mask.dtype) != (outputs.size(1), outputs.device, outputs.dtype):
            mask = torch.full((outputs.size(1),), -torch.inf, dtype=outputs.dtype, device=outputs.device)
            mask[self.scope.to(outputs.device)] = 0
            self._mask = mask
        return mask

    def _units(self, positions: Tensor) -> Tensor:
        return positions if self.scope is None else self.scope.to(positions.device)[positions]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy."""
        if fused_softmax_suits(outputs):
            return fused_softmax.cross_entropy(outputs, targets, self._mask_of(outputs))
        return F.cross_entropy(self._masked(outputs), targets, reduction="none")

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """onehot(y) − p."""
        score = -self._scoped(outputs).softmax(1)
        hit = self._positions(targets).unsqueeze(1)
        score = score.scatter_add(1, hit, torch.ones_like(hit, dtype=score.dtype))
        return self._widened(score, outputs.size(1))

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """p ∘ u − p (p · u)."""
        if fused_softmax_suits(outputs) and not outputs.requires_grad and not tangents.requires_grad:
            return self.scaled_fisher_product(outputs, tangents, 1.0)
        p = self._masked(outputs).softmax(1)  # zero at units outside the scope
        weighted = p * tangents
        return torch.addcmul(weighted, p, weighted.sum(1, keepdim=True), value=-1)

    @capability(rests_on=("fisher_product",))
    def scaled_fisher_product(self, outputs: Tensor, tangents: Tensor, scale: float) -> Tensor:
        """scale · H u, at no extra cost where a fused kernel computes it; no gradient is recorded."""
        if fused_softmax_suits(outputs):
            return fused_softmax.fisher_product(outputs, tangents, self._mask_of(outputs), scale)
        return scale * self.fisher_product(outputs.detach(), tangents.detach())

    def fisher_factors(self, outputs: Tensor) -> Tensor:
        """√p_c (onehot(c) − p), one vector per class."""
        p = self._scoped(outputs).softmax(1)
        centred = torch.eye(p.size(1), dtype=p.dtype, device=p.device) - p.unsqueeze(1)
        return self._widened(p.sqrt().unsqueeze(2) * centred, outputs.size(1))

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw a class from p; on a GPU with the device's own random numbers, so that nothing waits for Python."""
        p = self._scoped(outputs).softmax(1)
        if own_numbers(p.device):  # multinomial would wait for the device
            threshold = uniform((p.size(0), 1), p.device, generator, p.dtype, like=outputs)
            return self._units((p.cumsum(1) < threshold).sum(1).clamp(max=p.size(1) - 1))
        return self._units(torch.multinomial(p.double(), 1, generator=generator).reshape(-1))

    def sampled_score(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """onehot(y) − p at a class drawn from p."""
        fused = capable(self, "fused_draw") if fused_softmax_suits(outputs) else None
        return super().sampled_score(outputs, generator) if fused is None else fused(outputs, generator)

    @capability(rests_on=("sample", "score"))
    def fused_draw(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """`sampled_score` by one fused kernel."""
        threshold = uniform((outputs.size(0), 1), outputs.device, generator, outputs.dtype, like=outputs)
        return fused_softmax.sampled_score(outputs, threshold, self._mask_of(outputs))

    @capability(rests_on=("sampled_score", "sample", "score"))
    def draws_scores_for_several(self, device: torch.device) -> bool:
        """Whether `sampled_score`, as a fused kernel, works under `vmap` with each member's own random numbers."""
        return fused_kernels(device)

    def most_probable(self, outputs: Tensor) -> Tensor:
        """The class with the highest output."""
        return self._units(self._scoped(outputs).argmax(1))

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        """KL divergence between two softmax distributions at a temperature."""
        if fused_softmax_suits(outputs) and not reference.requires_grad:
            return fused_softmax.divergence(outputs, reference, self._mask_of(outputs), temperature)
        old, new = self._scoped(reference) / temperature, self._scoped(outputs) / temperature
        log_old = old.log_softmax(1)  # written out, since torch has no batched form of `kl_div` for stacked seeds
        return (log_old.exp() * (log_old - new.log_softmax(1))).sum(1)

    def balancing_weights(self, targets: Tensor) -> Callable[[Tensor], Tensor]:
        """Weights n / (C n_y): all classes count the same, and the weights have mean one over the examples."""
        counts = torch.bincount(targets).double()
        present = counts > 0
        weights = present * targets.numel() / (present.sum() * counts.clamp(min=1))
        return lambda chosen: weights[chosen]

    # how a prediction is read

    def probabilities(self, outputs: Tensor, units: Sequence[int]) -> Tensor:
        """Softmax over the units."""
        return outputs[:, list(units)].softmax(1)

    def read(self, outputs: Tensor, units: Sequence[int], names: Sequence[ClassName]) -> tuple[list[Any], Tensor]:
        """The most probable class, and its probability."""
        best = self.probabilities(outputs, units).max(1)
        return [names[position] for position in best.indices.tolist()], best.values


@PROBLEMS.register
class NodeClassification(Classification):
    """An example is a node with one class."""

    name = "node-classification"


@PROBLEMS.register
class GraphClassification(Classification):
    """An example is a graph with one class."""

    name = "graph-classification"
    level = "graph"


@PROBLEMS.register
class LinkClassification(Classification):
    """An example is a link with one class: a rating, a kind of relation."""

    name = "link-classification"
    level = "link"
