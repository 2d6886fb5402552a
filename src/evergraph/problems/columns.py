"""Targets with a column for each label or number, where some may be unknown."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergraph.data.graph import Graph
from evergraph.data.targets import ClassName, as_known
from evergraph.problems.base import Problem


class Columns(Problem):
    """A problem whose targets have a column per output unit, NaN where a target is not known.

    Unknown targets take no part in the loss and have a score of zero. The Fisher matrix H is an expectation over
    targets drawn from the model, so it covers all units in scope.
    """

    def targets(self, graph: Graph, classes: Sequence[ClassName]) -> Tensor:
        """The targets of each example by output unit."""
        unit_of = {name: unit for unit, name in enumerate(classes)}
        names = as_known(graph.class_names, classes)
        known = [(column, unit_of[name]) for column, name in enumerate(names) if name in unit_of]
        wide = graph.y.new_full((graph.num_examples, len(classes)), torch.nan)
        wide[:, [unit for _, unit in known]] = graph.y[:, [column for column, _ in known]]
        return wide

    def _known(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Targets of the units in scope, with zeros for unknown ones, and the mask of known ones."""
        missing = outputs.size(1) - targets.size(1)
        if missing > 0:  # units of targets still to come
            targets = torch.nn.functional.pad(targets, (0, missing), value=torch.nan)
        scoped = self._scoped(targets)
        return scoped.nan_to_num(0.0).to(outputs.dtype), ~scoped.isnan()
