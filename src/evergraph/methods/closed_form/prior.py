"""Which classes are decided for when they are not equally likely: what a hit counts, against what a class weighs.

Least squares with weights estimates p(class | features) in a world where classes are as frequent as their weights. What
a decision is measured by may count them otherwise: AP is the mean over tasks, so that a node of a task of one small
class counts more than one of a task of three large ones. Where the shares are π in place of Ω, the classes are best
decided by p π / Ω (Saerens, Latinne and Decaestecker, Neural Computation 2002).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Prior = Literal["tasks", "classes", "nodes", "weights"]


def log_worth(prior: Prior, weights: Tensor, sizes: Tensor, tasks: Tensor) -> Tensor:
    """log π / Ω of each output unit, with a mean of zero over the units that have met a node; zero at the others.

    Args:
        prior: what counts alike: `tasks` (the nodes of all classes that arrived together share what the task counts),
            `classes` or `nodes`; with `weights` nothing is corrected.
        weights: Ω, the weight of all training nodes of each unit in the sums.
        sizes: training nodes of each unit.
        tasks: the task that brought each unit; -1 for units not in use.
    """
    met, found = (weights > 0) & (sizes > 0) & (tasks >= 0), torch.zeros_like(weights)
    if prior == "weights" or not bool(met.any()):
        return found
    share = sizes[met].to(weights.dtype)
    if prior == "classes":
        share = torch.ones_like(share)
    elif prior == "tasks":
        together = share.new_zeros(int(tasks.max()) + 1).index_add_(0, tasks[met], share)
        share = share / together[tasks[met]]
    worth = (share / weights[met]).log()
    found[met] = worth - worth.mean()
    return found
