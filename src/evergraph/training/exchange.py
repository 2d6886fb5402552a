"""Forgetting with only the data of the affected tasks: what they have added is exchanged for what is left of them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.data import ClassName, Task
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphError
from evergraph.methods import Context
from evergraph.methods.forgetting import Forgetting, Small
from evergraph.training.card import task_card
from evergraph.training.evidence import AFTER, BEFORE, after_learning
from evergraph.training.learned_data import Learned
from evergraph.training.learning import make_context
from evergraph.training.predicting import tested
from evergraph.training.task_names import tasks_named

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


class Exchange:
    """Forgetting with only the data of the affected tasks, without those of later tasks."""

    def __init__(
        self,
        learner: Learner,
        forgetting: Forgetting,
        found: dict[int, Learned],
        after: dict[int, Learned],
        gone: Sequence[int],
    ) -> None:
        self.learner, self.forgetting, self.gone = learner, forgetting, gone
        self.old = {number: learned.task() for number, learned in found.items()}
        self.new = {number: after[number].task() for number in found}
        self.found, self.after = found, after
        learner.records = [{**record, "before": copy.deepcopy(record["before"])} for record in learner.records]

    def run(self) -> None:
        """Replace the tasks' sums, subtract counts of validation examples, drop empty classes and tasks, and solve."""
        learner, tasks = self.learner, self._tasks_to_exchange()
        removed = {n: self._sizes(self.old[n]) - self._sizes(self.new[n]) for n in self.gone}
        unvalidated = {number: self._validation_lost(number) for number in self.gone}
        counted = {number: self.forgetting.count(self._context(task)) for number, task in unvalidated.items()}
        self._drop_evidence([number for number, task in unvalidated.items() if task.val.numel()])
        sizes = {number: self._sizes_after(number) for number in tasks}
        for number in self.gone:
            self.forgetting.subtract(number, self._before(), removed[number].tolist(), counted[number])
        for number in tasks:
            some = self.new[number].train.numel() or self.new[number].val.numel()
            new = (self._context(self.new[number]), self._sizes_after(number)) if some else None
            self.forgetting.exchange(number, (self._context(self.old[number]), sizes[number]), new)
        self.forgetting.reassign_units(self.gone, self._before(), self._has)
        self._arrange_classes()
        left = [number for number in self.gone if self.new[number].train.numel()]
        for number in reversed(self.gone):
            self._drop_task(number) if number not in left else None
        if not learner.num_tasks:
            empty(learner)
            return
        self.forgetting.conclude(learner.problem, learner.model.eval())
        for number in left:
            self._describe(number)
        drop_tests_of_forgotten(learner)

    def _validation_lost(self, number: int) -> Task:
        """The task with only those validation examples that are to be forgotten, or whose class is gone from it."""
        old, learned, before = self.old[number], self.after[number], self.found[number]
        gone = learned.forgotten
        left = torch.tensor(self.new[number].class_positions, dtype=torch.long)
        classes = [place for place in old.class_positions if place not in left]
        forgotten = torch.zeros(old.graph.num_examples, dtype=torch.bool)
        forgotten[before.numbers_now(gone[~torch.isin(gone, before.forgotten)])] = True
        lost = forgotten[old.val] | torch.isin(old.graph.y[old.val], torch.tensor(classes, dtype=torch.long))
        return dataclasses.replace(old, val=old.val[lost])

    def _drop_evidence(self, lost: Sequence[int]) -> None:
        """Drop what was measured on forgotten examples, or on others whose neighbours they were.

        What is measured after learning is measured again at the end. What was measured before, how new classes stood
        out from the validation examples of earlier tasks, cannot be: it goes, for later tasks too.

        Args:
            lost: the tasks that lose validation examples.
        """
        left = [n for n in self.gone if self.after[n].removed.numel() > self.found[n].removed.numel()]
        for number, record in enumerate(self.learner.records):
            before = number in left or any(task <= number for task in lost)
            gone = (BEFORE if before else ()) + (AFTER if number in self.gone else ())
            self.learner.records[number] = {key: value for key, value in record.items() if key not in gone}

    # the sums

    def _tasks_to_exchange(self) -> list[int]:
        """Tasks with something to forget, and later ones whose examples change weight because of it."""
        names = {name for number in self.gone for name in self._lost_names(number)}
        again = [
            number
            for number in range(min(self.gone) + 1, self.learner.num_tasks)
            if self.forgetting.weighs_by_size and names & set(self.learner.history[number]["classes"])
        ]
        if missing := [number for number in again if number not in self.old]:
            raise EvergraphError(
                f"{tasks_named(self.learner, missing)} had examples of the same classes, whose weights depend on "
                "these; give the data of all such tasks too, in a list behind the first (--later GRAPH)"
            )
        return sorted({*self.gone, *again})

    def _lost_names(self, number: int) -> list[ClassName]:
        """Classes of which a task has lost training examples."""
        lost = self._sizes(self.old[number]) - self._sizes(self.new[number])
        return [self.learner.classes_[unit] for unit, count in enumerate(lost.tolist()) if count]

    def _context(self, task: Task) -> Context:
        return make_context(self.learner, task, task)

    def _sizes(self, task: Task) -> Tensor:
        """Number of training examples of a task, by output unit."""
        targets = self.learner.problem.targets(task.graph, self.learner.classes_)[task.train]
        return torch.bincount(targets, minlength=self.learner.model.out_channels or 0)

    def _sizes_after(self, number: int) -> list[int]:
        """Class sizes right after a task."""
        return self.forgetting.sizes_after(number, self._before(), self.learner.model.out_channels or 0)

    def _before(self) -> list[Small]:
        """The method's small state before each task, for editing."""
        return [record["before"] for record in self.learner.records]

    # empty classes and tasks

    def _has(self, number: int, unit: int) -> bool:
        """Whether a task still has training examples of an output unit."""
        if number in self.new:
            return bool(self._sizes(self.new[number])[unit])
        return self.learner.classes_[unit] in self.learner.history[number]["classes"]

    def _arrange_classes(self) -> None:
        """Drop classes that no task has any more, and give the others the output units in which they would come now.

        A class that has lost its examples in the task that introduced it comes with a later task, behind others.
        """
        learner, known = self.learner, self.learner.classes_
        brought = [
            as_known(self.new[number].class_names, known) if number in self.new else entry["classes"]
            for number, entry in enumerate(learner.history)
        ]
        names = list(dict.fromkeys(name for some in brought for name in some))
        if names == known:
            return
        self.forgetting.arrange_units([known.index(name) for name in names], self._before())
        learner.classes_ = names
        learner.history = [{**entry, "classes": some} for entry, some in zip(learner.history, brought)]

    def _drop_task(self, number: int) -> None:
        """Remove a task; what was before it is now before the next one."""
        learner = self.learner
        self.forgetting.drop_task(number, self._before())
        for later in learner.records[number + 1 : number + 2]:
            later.update({key: learner.records[number][key] for key in ("before", "layout")})
        for values in ("history", "records", "first_accuracies"):
            listed = getattr(learner, values)
            setattr(learner, values, [*listed[:number], *listed[number + 1 :]])
        learner.num_tasks -= 1

    # records of the tasks

    def _describe(self, number: int) -> None:
        """Update the record of a task that has lost examples, measured with the present heads."""
        learner, task, place = self.learner, self.new[number], self._place(number)
        record, context = learner.records[place], self._context(task)
        self.forgetting.count(context)  # caches heads that have not learned from its validation examples
        changed = {**record, "mark": task.mark(), **task_card(task), **after_learning(learner, task, context)}
        learner.records[place] = {**changed, **remembered(record, self.after[number])}
        learner.first_accuracies[place] = tested(learner, task)
        trained = {"classes": as_known(task.class_names, learner.classes_), "nodes": task.train.numel()}
        learner.history[place] = {**learner.history[place], **trained}

    def _place(self, number: int) -> int:
        """Position of a task after empty ones are dropped."""
        return number - sum(other < number and not self.new[other].train.numel() for other in self.gone)


def remembered(record: dict[str, Any], learned: Learned) -> dict[str, Any]:
    """Entries of a task's record that survive relearning: when it was learned, and from which data."""
    lost = learned.unlabelled.numel() or learned.removed.numel()
    note = learned.note() if lost else {}
    return {**note, **({"learned": record["learned"]} if "learned" in record else {})}


def drop_tests_of_forgotten(learner: Learner) -> None:
    """Drop the test results of tasks that have changed."""
    marks = {record["mark"] for record in learner.records}
    for number, record in enumerate(learner.records):
        tests = {mark: value for mark, value in record["tested"].items() if mark in marks}
        learner.records[number] = {**record, "tested": tests}


def empty(learner: Learner) -> None:
    """Reset the method to its initial state, when nothing is left to remember."""
    learner.method.load_state_dict(dataclasses.replace(learner.method).state_dict())  # type: ignore[type-var]
    learner.classes_, learner.feature_names = [], None
