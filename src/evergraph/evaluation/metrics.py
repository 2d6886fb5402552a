"""Metrics of one task: how well outputs fit the truth. Each is defined here, once, and registered by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph import registry

METRICS: registry.Registry[Metric] = registry.metrics


@dataclass(frozen=True)
class Metric:
    """A number for the outputs on some examples.

    Args:
        name: what `--metric` takes.
        title: what tables and figures call it, with its unit.
        function: from outputs `(examples, units)`, true units and the units that prediction chooses from.
        higher_is_better: False for an error.
    """

    name: str
    title: str
    function: Callable[[Tensor, Tensor, Sequence[int]], float]
    higher_is_better: bool = True

    def __call__(self, outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
        """The number."""
        return self.function(outputs, targets, candidates)


def _hits(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> Tensor:
    """1 for each example whose highest output among the candidate units is the true one, else 0."""
    columns = torch.tensor(candidates)
    return (columns[outputs[:, columns].argmax(1)] == targets).double()


def accuracy(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
    """Percent of examples whose highest output among the candidate units is the true one."""
    return 100 * float(_hits(outputs, targets, candidates).mean())


def balanced_accuracy(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
    """Mean over the classes present of the percent of their examples that are right."""
    hits = _hits(outputs, targets, candidates)
    return 100 * float(torch.stack([hits[targets == unit].mean() for unit in targets.unique()]).mean())


METRICS.register(Metric("accuracy", "accuracy (%)", accuracy))
METRICS.register(Metric("balanced-accuracy", "balanced accuracy (%)", balanced_accuracy))
