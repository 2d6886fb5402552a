"""Parameters by name: what curvature functions and methods pass around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # within vmap nothing requires a gradient

from evergraph.core.capabilities import capability
from evergraph.core.displaced import against_anchors
from evergraph.core.row_pieces import fused_kernels

Params = dict[str, Tensor]
Direction = Mapping[str, Tensor]
"""A direction in parameter space: read by name, never written."""


def trained_params(model: nn.Module) -> Params:
    """Return the trained parameters: those that require a gradient, which frozen ones do not."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad or is_batchedtensor(value)}


def all_trained(model: nn.Module) -> bool:
    """Return whether no parameter of a model is frozen."""
    return all(value.requires_grad or is_batchedtensor(value) for value in model.parameters())


def copy_params(model: nn.Module) -> Params:
    """Return a copy of the parameters' current values."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def copy_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the buffers' current values, such as a normalization's running statistics."""
    return {name: value.clone() for name, value in model.named_buffers()}


def named_params(model: nn.Module) -> Params:
    """Return the parameters themselves, not copies."""
    return dict(model.named_parameters())


def named_numbers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters, and buffers such as a normalization's running statistics."""
    yield from model.named_parameters()
    yield from model.named_buffers()


class Displacement(Mapping[str, Tensor]):
    """D = count · θ − total, computed per parameter on demand.

    With `count` anchors θ_t whose sum is `total`, D = Σ_t (θ − θ_t).
    """

    def __init__(self, params: Params, count: int, total: Params) -> None:
        self.params, self.count, self.total = params, count, total
        self._computed, self._against = Params(), Params()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._computed:
            self._computed[name] = torch.sub(self.total[name], self.params[name].detach(), alpha=self.count).neg_()
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)

    @capability(rests_on=("__getitem__",))
    def parts(self, name: str) -> tuple[int, Tensor]:
        """Return (count, total) of one parameter.

        A model that already has a layer's product with θ needs only the product with `total`, which is constant as
        long as the anchors are.
        """
        return self.count, self.total[name]

    @capability(rests_on=("__getitem__",))
    def against(self, name: str) -> Tensor:
        """Return −D of one parameter, for products that read it negated; on a GPU, all are computed at once."""
        if name not in self._against:
            names = list(self.params) if fused_kernels(self.params[name].device) else [name]
            parts = [self.params[other] for other in names], self.count, [self.total[other] for other in names]
            self._against |= zip(names, against_anchors(*parts))
        return self._against[name]


class FirstLayerDisplacement(Displacement):
    """A displacement for methods that read only the first hidden layer's tangent (`Step.layers`).

    A model that supports this need not propagate the tangent further; the outputs' tangent is then zero.
    """

    @capability(rests_on=("__getitem__",))
    def first_layer_alone(self) -> bool:
        """Return whether nothing reads the outputs' tangent."""
        return True
