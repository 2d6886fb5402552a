"""Prior correction of decisions: what a hit in a class counts, over what the class weighs in the sums.

Weighted least squares estimates p(class | features) as if classes were as frequent as their weights. The measure of a
decision may count them differently: AP is the mean over tasks, so a node of a task with one small class counts more
than a node of a task with three large ones. If the shares of the classes are π instead of Ω, the best decision is by
p π / Ω (Saerens, Latinne and Decaestecker, Neural Computation 2002).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Prior = Literal["tasks", "classes", "nodes", "weights"]
DIFFERS = 1e-3  # relative difference between weights that is more than rounding
MOST = 5.0  # largest factor by which scores are stretched; its inverse is the smallest
ROUNDING = 1e-6  # share of the scores' squares up to which their variation is rounding: they are the same at every node


def log_worth(prior: Prior, weights: Tensor, sizes: Tensor, tasks: Tensor) -> Tensor:
    """Return log π / Ω of each output unit, with mean zero over the units that have nodes; zero for other units.

    Args:
        prior: what counts equally: `tasks` (the nodes of all classes that arrived together share the task's weight),
            `classes` or `nodes`; `weights` corrects nothing.
        weights: Ω, the total weight of each unit's training nodes in the sums.
        sizes: number of training nodes of each unit.
        tasks: the task that brought each unit; -1 for unused units.
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


def seen_in_several_tasks(weights: Tensor, sizes: Tensor, balance: float) -> bool:
    """Return whether a class came with several tasks, so that its nodes differ in weight by the size it had reached.

    Without weights (`balance` of zero) this cannot be detected, and the answer is no.
    """
    once = sizes.clamp(min=0).to(weights.dtype) ** (1 - balance)
    return bool(((weights - once).abs() > DIFFERS * once)[sizes > 0].any())


def stretch(head: Tensor, cross: Tensor, energy: Callable[[Tensor], float]) -> float:
    """Return the factor γ that stretches a training head's scores to probabilities at the validation nodes.

    A large ridge shrinks scores towards their mean. With z the scores less their mean and π the classes' shares,
    π + γ z is nearest to the labels at γ = Σ w z · (y − π) / Σ w z · z, summed over all tasks' validation nodes. No
    node is needed. Scores that are the same at every node are not stretched: γ would be a quotient of rounding errors.

    Args:
        head: features × classes, solved from the training nodes; the last feature is one at every node.
        cross: B = Σ w φ yᵀ of the validation nodes.
        energy: returns Σ w ‖φ W‖² over the validation nodes for a head W.
    """
    total = cross[-1].sum().clamp(min=1e-12)
    mean = head.T @ cross.sum(1) / total
    whole = energy(head)
    length = whole - float(total * mean.square().sum())
    wanted = float((head * cross).sum() - mean @ cross[-1])
    return min(max(wanted / length, 1 / MOST), MOST) if length > ROUNDING * whole else 1.0
