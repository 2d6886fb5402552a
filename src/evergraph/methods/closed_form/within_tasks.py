"""Which class of a task a node has, told by other heads than which task it is from.

A linear head is the mean of the columns of each task's classes plus the differences between them. The means decide
between tasks, the differences between the classes of one task, and the best features for the two differ: neighbours
reveal a node's task, but mixing a node with them hides what tells its class from the others of the task.
"""

from __future__ import annotations

import torch
from torch import Tensor


def with_class_differences(head: Tensor, other: Tensor, task_of_unit: Tensor) -> Tensor:
    """Return `head` with the differences between the classes of each task taken from `other`.

    Args:
        head: features × units.
        other: likewise.
        task_of_unit: the task that brought each unit; -1 for unused units, which are left as they are.
    """
    used = torch.nonzero(task_of_unit >= 0).reshape(-1)
    tasks, place = torch.unique(task_of_unit[used], return_inverse=True)
    moved = (other - head)[:, used]
    sums = moved.new_zeros(moved.size(0), tasks.numel()).index_add_(1, place, moved)
    found = head.clone()
    found[:, used] += moved - (sums / torch.bincount(place).to(sums))[:, place]
    return found
