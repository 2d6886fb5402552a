"""Which class of a task a node has, told by other heads than which task it is from.

A linear head is the mean of the columns of each task's classes plus the differences between them. The means decide
between tasks, the differences between the classes of one task, and the best features for the two differ: neighbours
reveal a node's task, but mixing a node with them hides what tells its class from the others of the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from evergraph.methods.closed_form.between_tasks import VOICES, BetweenTasks
from evergraph.methods.closed_form.block_sets import OWN
from evergraph.methods.closed_form.two_forms import TRAIN_ONLY
from evergraph.models.base import GraphModel

WITHIN_TASKS = 0.5  # share of the head in telling the classes of one task apart, where other heads have a say


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


@dataclass(repr=False)
class WithinTasks(BetweenTasks):
    """`BetweenTasks` whose head has help in telling the classes of one task apart.

    The heads that decide where edges join tasks do it about as well as the head, on any graph.
    """

    def _refined(self, model: GraphModel, head: Tensor, parts: Sequence[str]) -> Tensor:
        """Return the head with a say for other heads in the differences between the classes of one task.

        The head has the set of blocks with most hits, most of which decide between tasks, by what neighbours reveal.
        The heads that decide where edges join tasks do not rely on that, and are at least as good at telling the
        classes of a task apart. Each is stretched to probabilities in units of the head's scores.
        """
        trained = self._beside_within(model, TRAIN_ONLY)
        factors = [self._stretch(each, rows) / self.stretch_ for each, rows in trained]
        if not factors:
            return head
        stretched = [factor * each for factor, (each, _) in zip(factors, self._beside_within(model, parts))]
        told = torch.lerp(torch.stack(stretched).mean(0), head, WITHIN_TASKS)
        tasks = torch.tensor(self.task_of_unit_, device=head.device)
        return with_class_differences(head, told, pad(tasks, (0, head.size(1) - tasks.numel()), value=-1))

    def _beside_within(self, model: GraphModel, parts: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
        """Return the heads that tell classes of a task apart beside the head itself, and the features that each reads.

        They are solved from the sums of `parts`: own features where they or the vote decide where edges join tasks,
        and the vote of the voices where the vote does.
        """
        way, found = self.elsewhere(), list[tuple[Tensor, Tensor]]()
        if way in (VOICES, OWN):
            own = self._own_request(model, parts)
            found.append((self._own_head(model, parts), own.rows))  # type: ignore[arg-type]
        if way == VOICES:
            voices = self.voices(model)
            read = [any(blocks) for blocks in zip(*voices)]
            together = self._vote_of_voices(model, parts) / len(voices)
            found.append((together, self._rows_of(model, {VOICES: read})[VOICES]))
        return found
