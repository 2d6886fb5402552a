"""One of everything, registered by being imported. Nothing but Evergraph's public names is used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evergraph as eg


@eg.registry.methods.register
@dataclass(repr=False)
class Sticky(eg.Method):
    """strength/2 ‖θ − θ_{t−1}‖².

    Args:
        strength: weight of the penalty; 0 is fine-tuning.
    """

    name = "sticky"
    family = "parameter distance"
    reference = "an example"
    access = eg.Access(keeps=("parameters",))

    strength: float = 1.0
    anchor_: dict[str, Tensor] = eg.state(dict, like="params", new="values")

    def penalty(self, step: eg.Step) -> Tensor | None:
        """The distance to the last task's parameters."""
        if not self.anchor_ or not self.strength:
            return None
        gaps = [(value - self.anchor_[name]).square().sum() for name, value in step.model.named_parameters()]
        return self.strength / 2 * torch.stack(gaps).sum()

    def end_task(self, context: eg.Context) -> None:
        """Remember where the task ended."""
        self.anchor_ = {name: value.detach().clone() for name, value in context.model.named_parameters()}


@eg.registry.models.register(name="sgc")
class SGC(eg.GraphModel):
    """(D⁻¹(A + I))^steps X W.

    Args:
        steps: propagation steps.
    """

    def __init__(self, steps: int = 2) -> None:
        super().__init__()
        self.steps = steps

    def setup(self, in_channels: int, out_channels: int) -> None:
        """A Glorot-uniform weight matrix."""
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform."""
        nn.init.xavier_uniform_(self.weight)

    def inputs(self, graph: eg.Graph, operator: object, propagate: bool | None = None) -> tuple[Tensor, int]:
        """Features propagated once per graph, so that a batch needs no neighbours."""
        degree = operator.row_sums().unsqueeze(1) + 1
        x = graph.x if isinstance(graph.x, Tensor) else graph.x.dense()
        for _ in range(self.steps):
            x = (operator @ x + x) / degree
        return x, 0

    def logits(self, batch: object) -> Tensor:
        """A linear map."""
        return batch.x @ self.weight


@eg.registry.problems.register
class OneVersusRest(eg.NodeClassification):
    """One Bernoulli output per class: loss Σ_c BCE(z_c, [y = c]), H = diag(p (1 − p))."""

    name = "one-versus-rest"
    metric = "top-2"

    def _onehot(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.one_hot(targets, outputs.size(1)).to(outputs.dtype)

    def within(self, units: Tensor) -> OneVersusRest:
        """The same outputs with other units in scope."""
        return OneVersusRest(units)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over the units in scope."""
        terms = F.binary_cross_entropy_with_logits(outputs, self._onehot(outputs, targets), reduction="none")
        return self.in_scope(terms).sum(1)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """onehot(y) − p."""
        return self.in_scope(self._onehot(outputs, targets) - outputs.sigmoid())

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """p (1 − p) u."""
        p = outputs.sigmoid()
        return self.in_scope(p * (1 - p) * tangents)


def _top_2(outputs: Tensor, targets: Tensor, candidates: list[int]) -> float:
    columns = torch.tensor(list(candidates))
    best = columns[outputs[:, columns].topk(min(2, columns.numel()), dim=1).indices]
    return 100 * float((best == targets.unsqueeze(1)).any(1).double().mean())


eg.registry.metrics.register(eg.Metric("top-2", "top-2 accuracy (%)", _top_2))


def _ring(data_root: object, nodes: int = 120, seed: int = 0) -> eg.Graph:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) % 6
    x = F.one_hot(y, 6) + 0.3 * torch.randn(nodes, 6, generator=generator)
    edges = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 6) % nodes])
    return eg.make_graph(x, edges, y, undirected=True)


eg.registry.datasets.register(
    eg.Dataset("ring", _ring, classes_per_task=2, about="a ring of six classes", problem="one-versus-rest")
)
