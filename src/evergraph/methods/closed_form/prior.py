"""Which classes are decided for when they are not equally likely: what a hit counts, against what a class weighs.

Least squares with weights estimates p(class | features) in a world where classes are as frequent as their weights. What
a decision is measured by may count them otherwise: AP is the mean over tasks, so that a node of a task of one small
class counts more than one of a task of three large ones. Where the shares are π in place of Ω, the classes are best
decided by p π / Ω (Saerens, Latinne and Decaestecker, Neural Computation 2002).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Prior = Literal["tasks", "classes", "nodes", "weights"]
DIFFERS = 1e-3  # as a share of a weight: more than rounding
MOST = 5.0  # that scores are stretched by, and one over it the least
ROUNDING = 1e-6  # as a share of the scores' squares: what is left of scores that are the same at every node


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


def came_again(weights: Tensor, sizes: Tensor, balance: float) -> bool:
    """Whether a class has come with several tasks: its nodes then differ in weight, by the size that it had reached.

    Without weights (`balance` of zero) it cannot be told, and the answer is no.
    """
    once = sizes.clamp(min=0).to(weights.dtype) ** (1 - balance)
    return bool(((weights - once).abs() > DIFFERS * once)[sizes > 0].any())


def stretch(head: Tensor, cross: Tensor, energy: Callable[[Tensor], float]) -> float:
    """By what the scores of a head of the training nodes fall short of probabilities at the validation nodes.

    A large ridge draws scores towards their mean. With z the scores less their mean and π the classes' shares, π + γ z
    is nearest to the labels at γ = Σ w z · (y − π) / Σ w z · z, the sums over all tasks' validation nodes. It needs no
    node. Scores that are the same at every node are left as they are: their quotient would be one of roundings.

    Args:
        head: features × classes; the last feature is one at every node.
        cross: B = Σ w φ yᵀ of the validation nodes.
        energy: from a head W to Σ w ‖φ W‖² over them.
    """
    total = cross[-1].sum().clamp(min=1e-12)
    mean = head.T @ cross.sum(1) / total
    whole = energy(head)
    length = whole - float(total * mean.square().sum())
    wanted = float((head * cross).sum() - mean @ cross[-1])
    return min(max(wanted / length, 1 / MOST), MOST) if length > ROUNDING * whole else 1.0
