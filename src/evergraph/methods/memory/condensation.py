"""Condensation: a few synthetic nodes, without edges, that affect a network like many real ones.

The features of the synthetic nodes are variables with their own optimizer; their targets are fixed. Random networks
are drawn one after another, and under each the synthetic nodes take some steps towards the real ones. The `Matching`
defines what is compared: the mean embedding of each class (`DistributionMatching`), or its gradient
(`GradientMatching`). Features of real nodes are already propagated over their graph, since synthetic nodes have no
neighbours to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.features import Features
from evergraph.core.sparse import SparseMatrix

Loss = Callable[[Tensor], Tensor]
"""Function from the features of the synthetic nodes to a scalar that is small if they match the real ones."""

FEW_ENTRIES = (
    0.1  # share of non-zero features up to which products with a sparse matrix are faster than with a dense one
)


@dataclass(eq=False)
class Matching:
    """What synthetic nodes should have in common with real ones, under a random network.

    Args:
        real: propagated features of the real nodes.
        real_targets: output units of the real nodes.
        targets: output units of the synthetic nodes; each is also the target of a real node.
        width: hidden units of a random network.
    """

    real: Features
    real_targets: Tensor
    targets: Tensor
    width: int

    def __post_init__(self) -> None:
        self.classes = self.targets.unique()
        if isinstance(self.real, SparseMatrix) and self.real.nnz > FEW_ENTRIES * math.prod(self.real.shape):
            self.real = self.real.dense()

    def draw(self, generator: torch.Generator) -> Loss:
        """Draw a network and return its matching loss."""
        raise NotImplementedError

    def scale(self) -> Tensor:
        """Return the standard deviation of each feature over the real nodes: the unit of a synthetic node's steps."""
        real = self.real
        if isinstance(real, Tensor):
            return real.std(0, correction=0)
        ones = torch.ones(real.size(0), 1, dtype=torch.float64, device=real.device)

        def means(values: Tensor) -> Tensor:
            """Return the mean of each column with other stored values."""
            return (real.with_values(values).t() @ ones / ones.size(0)).reshape(-1)

        values = real.values.double()
        mean, stored = means(values), means(torch.ones_like(values))
        gaps = values - mean[real.indices]
        return (means(gaps.square()) + (1 - stored) * mean.square()).sqrt().to(real.dtype)

    def weight(self, rows: int, columns: int, generator: torch.Generator) -> Tensor:
        """Draw a Glorot-uniform weight matrix."""
        bound = math.sqrt(6 / (rows + columns))
        uniform = torch.rand(rows, columns, generator=generator, dtype=self.real.dtype)
        return ((2 * uniform - 1) * bound).to(self.real.device)


class DistributionMatching(Matching):
    """Σ_c r_c ‖mean of e(x_v) over class c − mean of e(x̃_s) over class c‖², with e(x) = σ(xW) / ‖σ(xW)‖.

    W is random and σ the ReLU; r_c is the share of real nodes that are of class c. (Liu et al., CaT, ICDM 2023: a
    maximum mean discrepancy in the space of random encoders.)
    """

    def draw(self, generator: torch.Generator) -> Loss:
        """Draw an encoder; the mean embeddings of the real nodes are computed once."""
        weight = self.weight(self.real.size(1), self.width, generator)
        real_means = _averaging(self.real_targets, self.classes, self.real.dtype) @ embed(self.real, weight)
        average = _averaging(self.targets, self.classes, self.real.dtype)
        of_class = (self.real_targets.unsqueeze(0) == self.classes.unsqueeze(1)).sum(1).to(self.real.dtype)
        share = of_class / of_class.sum()

        def loss(x: Tensor) -> Tensor:
            return (share * (average @ embed(x, weight) - real_means).square().sum(1)).sum()

        return loss


class GradientMatching(Matching):
    """Σ_c ‖g_c(real) − g_c(synthetic)‖² with g_c the gradient of the mean cross entropy over the nodes of class c.

    The gradient is that of a random two-layer network z = σ(xW₁)W₂, whose softmax is over the classes present, with
    respect to both of its weight matrices. (Niu et al., DeLoMe, ECAI 2024; gradient matching is due to Zhao et al.,
    ICLR 2021.)
    """

    def draw(self, generator: torch.Generator) -> Loss:
        """Draw a network; the gradients of the real nodes are computed once."""
        first = self.weight(self.real.size(1), self.width, generator)
        second = self.weight(self.width, self.classes.numel(), generator)
        real = class_gradients(self.real, self.real_targets, self.classes, first, second)

        def loss(x: Tensor) -> Tensor:
            synthetic = class_gradients(x, self.targets, self.classes, first, second)
            return torch.stack([(ours - theirs).square().sum() for ours, theirs in zip(synthetic, real)]).sum()

        return loss


def condense(
    x: Tensor,
    matching: Matching,
    *,
    networks: int,
    updates: int,
    lr: float,
    generator: torch.Generator,
    held: Tensor | None = None,
) -> tuple[Tensor, list[float]]:
    """Move synthetic nodes towards the real ones with Adam.

    Adam's steps have one size for all features. They are taken in units of each feature's standard deviation, so that
    features that hardly vary, such as most words of a large vocabulary, are not drowned in noise.

    Args:
        x: initial features, one row per synthetic node.
        matching: what to match.
        networks: number of random networks to draw.
        updates: number of steps under each network.
        lr: Adam's learning rate, in standard deviations.
        generator: draws the networks.
        held: mask of synthetic nodes that stay where they are; none by default. If all of them do, no network is drawn.

    Returns:
        The optimized features, and the matching loss before the first step under each network.
    """
    if held is not None and bool(held.all()):
        return x.detach(), []
    with torch.enable_grad():
        start, scale = x.detach(), matching.scale()
        if held is not None:
            scale = scale * (~held).unsqueeze(1)
        moved = torch.zeros_like(start, requires_grad=True)
        optimizer = torch.optim.Adam([moved], lr=lr)
        losses = []
        for _ in range(networks):
            with torch.no_grad():
                loss_of = matching.draw(generator)
            for update in range(updates):
                loss = loss_of(start + scale * moved)
                if not update:
                    losses.append(loss.detach())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return start + scale * moved.detach(), torch.stack(losses).tolist() if losses else []


def embed(x: Features, weight: Tensor) -> Tensor:
    """Return σ(xW) with rows scaled to length one (rows of zeros stay zero)."""
    return F.normalize(F.relu(x @ weight))


def class_gradients(x: Features, targets: Tensor, classes: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
    """Return the gradients of each class's mean cross entropy at z = σ(xW₁)W₂: every class's for W₁, then for W₂.

    Written out explicitly, so that they can be differentiated with respect to x at the cost of one backward pass.
    """
    before = x @ first
    hidden = F.relu(before)
    probabilities = (hidden @ second).softmax(1)
    onehot = (targets.unsqueeze(1) == classes).to(hidden.dtype)
    average = _averaging(targets, classes, hidden.dtype)
    at_logits = probabilities - onehot  # ∂ loss_v / ∂ z_v
    at_hidden = (at_logits @ second.T) * (before > 0)  # ∂ loss_v / ∂ (x_v W₁)
    for_first = [x.t() @ (at_hidden * share.unsqueeze(1)) for share in average]
    for_second = [hidden.t() @ (at_logits * share.unsqueeze(1)) for share in average]
    return for_first + for_second


def _averaging(targets: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix that averages over each class: one row per class, 1 / (nodes of the class) at its nodes."""
    member = (targets.unsqueeze(0) == classes.unsqueeze(1)).to(dtype)
    return member / member.sum(1, keepdim=True)
