"""Forgetting on request: make a learner as if it had never learned some examples, for methods that can undo them.

Given the data of the task and of all tasks learned after it, those tasks are undone and learned again without the
examples: all that is kept equals what it would have been. Given the data of the task alone, its sums are replaced and
the counts of its validation examples are recomputed; the counts of later tasks' validation examples are left as is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.data import ClassName, Task
from evergraph.data.arrays import as_known
from evergraph.errors import EvergraphError, in_a_list, tell
from evergraph.methods import Context
from evergraph.methods.closed_form.forgetting import (
    Forgetting,
    add_counts,
    arrange_units,
    without_task,
)
from evergraph.training.card import task_card
from evergraph.training.evidence import AFTER, BEFORE, after_learning
from evergraph.training.inputs import chosen_examples
from evergraph.training.learned_data import Identities, Learned, find_learned, identities
from evergraph.training.learning import learn, make_context
from evergraph.training.predicting import tested
from evergraph.training.transaction import remembered

if TYPE_CHECKING:
    from evergraph.training.learner import Learner

PLAIN = ("classes_", "first_accuracies", "history", "records", "num_tasks", "num_classes", "random_state", "progress",
         "task_mark", "optimizer_state")  # fmt: skip


def forget(
    learner: Learner,
    nodes: Any,
    data: Any,
    classes: Sequence[ClassName] | ClassName | None,
    keep_in_graph: bool,
) -> int:
    """See `Learner.forget`."""
    forgetting = _forgetting(learner)
    if data is None:
        raise EvergraphError("forget needs the data that the examples were learned from: forget(nodes, data)")
    if (nodes is None) == (classes is None):
        raise EvergraphError("say what to forget: nodes of the data, or classes")
    pieces = find_learned(learner, data)
    found = {learned.number: learned for piece in pieces for learned in piece}
    if classes is not None:
        asked = _of_classes(learner, found, classes)
    else:
        first = torch.unique(chosen_examples(nodes, pieces[0][0].given.graph))
        asked = {learned.number: first for learned in pieces[0]}
    known = dict(zip(found, identities([learned.given for learned in found.values()])))
    gone = _everywhere(found, asked, known, keep_in_graph, classes is not None)
    if not gone:
        tell(
            f"nothing was forgotten: no {learner.problem.level} asked for was learned from these data, or all were "
            "forgotten before; check their ids or numbers"
        )
        return 0
    after = {
        number: learned.forgetting(gone[number], keep_in_graph) if number in gone else learned
        for number, learned in found.items()
    }
    earliest, others = min(gone), [] if keep_in_graph else _others_that_may_hold(learner, found, asked)
    with _all_or_nothing(learner), torch.no_grad():
        if set(range(earliest, learner.num_tasks)) <= set(found) and _same_features(learner, earliest):
            _learn_again(learner, forgetting, found, after, earliest)
        else:
            _Exchange(learner, forgetting, found, after, sorted(gone)).run()
    if others:
        tell(
            f"the data of task {', '.join(others)} are not given: where they hold these {learner.problem.level}s too, "
            "as examples or neighbours, what was learned from them stands; give them in the list (--later) to undo it"
        )
    return sum(numbers.numel() for numbers in _by_identity(gone, known).values())


def _same_features(learner: Learner, number: int) -> bool:
    """Whether features are the same as before a task, apart from scales measured since; always for the first task."""
    before, now = learner.records[number]["layout"], learner.model.hyperparameters()
    return not number or all(before.get(key) == now.get(key) for key in {*before, *now} - {"scales"})


def _forgetting(learner: Learner) -> Forgetting:
    """Return how the learner's method forgets; if it cannot, raise an error that says what is possible."""
    if learner.in_mid_task:
        raise EvergraphError("the learner is in the middle of a task; finish it before anything is forgotten")
    if learner.problem.kind != "classes":
        raise EvergraphError(
            f"{learner.method.title} forgets examples with classes, and those of {learner.problem.name} have "
            f"{learner.problem.kind}; learn anew without them"
        )
    claim = capable(learner.method, "forgetting")
    found: Forgetting | str = (
        claim() if claim is not None else learner.method.access.how_to_forget(learner.method.title)
    )
    if isinstance(found, str):
        raise EvergraphError(found if claim is None else f"{learner.method.title} cannot forget: {found}")
    if any("before" not in record for record in learner.records):
        raise EvergraphError(
            "this learner was saved by an earlier version, which kept too little to forget; learn anew"
        )
    return found


def _everywhere(
    found: dict[int, Learned],
    asked: dict[int, Tensor],
    known: dict[int, Identities],
    keep_in_graph: bool,
    of_classes: bool,
) -> dict[int, Tensor]:
    """Examples to forget in each task: those asked for, in every task that holds them.

    An example may be one of the task's own (unless classes are forgotten, and it has another class there), or a
    neighbour of the task's own examples, which is removed unless nodes stay in the graph.
    """
    wanted, gone = _by_identity(asked, known), {}
    if keep_in_graph:  # whatever is an example of none of the tasks stays as it is
        own = _by_identity({number: learned.own for number, learned in found.items()}, known)
        wanted = {by: some[torch.isin(some, own.get(by, some[:0]))] for by, some in wanted.items()}
    for number, learned in found.items():
        by, numbers = known[number]
        chosen, named = torch.isin(numbers, wanted.get(by, numbers[:0])), _mask(numbers, asked.get(number))
        if keep_in_graph:
            chosen &= torch.where(named, learned.given.graph.labelled, _mask(numbers, learned.own))
        if of_classes:
            chosen &= named | ~learned.given.graph.labelled
        chosen[learned.done(keep_in_graph)] = False
        if chosen.any():
            gone[number] = torch.nonzero(chosen).reshape(-1)
    return gone


def _mask(numbers: Tensor, examples: Tensor | None) -> Tensor:
    """Mask of some of the numbered examples; None for none of them."""
    mask = torch.zeros(numbers.numel(), dtype=torch.bool)
    if examples is not None:
        mask[examples] = True
    return mask


def _by_identity(examples: dict[int, Tensor], known: dict[int, Identities]) -> dict[Any, Tensor]:
    """Identity numbers of examples of several tasks, grouped by what identifies them, without duplicates."""
    numbers: dict[Any, list[Tensor]] = {}
    for number, some in examples.items():
        by, every = known[number]
        numbers.setdefault(by, []).append(every[some])
    return {by: torch.unique(torch.cat(some)) for by, some in numbers.items()}


def _others_that_may_hold(learner: Learner, found: dict[int, Learned], asked: dict[int, Tensor]) -> list[str]:
    """Describe the tasks whose data are not given and that may hold the same nodes."""
    some = [found[number].given for number, examples in asked.items() if examples.numel()]
    by_id = any("id" in task.graph.attributes for task in some)
    joined = min((number for number in asked if found[number].given.origin is not None), default=learner.num_tasks)
    return [
        f"{number + 1} ({record.get('graph', 'unknown')})"
        for number, record in enumerate(learner.records)
        if number not in found and ((by_id and record.get("ids")) or (record.get("joined") and number > joined))
    ]


def _of_classes(
    learner: Learner, found: dict[int, Learned], classes: Sequence[ClassName] | ClassName
) -> dict[int, Tensor]:
    """Examples of the given classes, in every task that had any."""
    named = [classes] if isinstance(classes, (str, int)) else list(classes)
    by_name = {str(name): name for name in learner.classes_}
    for name in named:
        if str(name) not in by_name:
            raise EvergraphError(f"the learner knows no class {name!r}; it knows: {', '.join(map(in_a_list, by_name))}")
    wanted = {by_name[str(name)] for name in named}
    for number, entry in enumerate(learner.history):
        if wanted & set(entry["classes"]) and number not in found:
            raise EvergraphError(
                f"class {next(iter(wanted & set(entry['classes'])))!r} was learned in task {number + 1} too; "
                "give the data of all tasks that had it, in a list (--later GRAPH)"
            )
    gone = {}
    for number, learned in found.items():
        graph = learned.given.graph
        known = as_known(graph.class_names, learner.classes_)
        places = [place for place, name in enumerate(known) if name in wanted]
        gone[number] = torch.nonzero(torch.isin(graph.y, torch.tensor(places, dtype=torch.long))).reshape(-1)
    return gone


def _learn_again(
    learner: Learner, forgetting: Forgetting, found: dict[int, Learned], after: dict[int, Learned], first: int
) -> None:
    """Undo all tasks from `first` on, then learn what is left of them."""
    total, records, history = learner.num_tasks, learner.records, learner.history
    if first:
        for number in reversed(range(first, total)):
            forgetting.rewind(
                number, make_context(learner, found[number].task(), found[number].task()), records[number]["before"]
            )
    else:
        _empty(learner)
        lay_out = capable(learner.model, "lay_out")
        layout = records[0]["layout"]
        if lay_out is not None and layout != learner.model.hyperparameters():
            kept = layout.get("kept") or [True] * len(layout["blocks"])
            lay_out(kept, layout.get("linear_width", 0))
    if (set_scaling := capable(learner.model, "set_scaling")) is not None:
        set_scaling(records[first]["layout"], anew=not first)
    learner.num_tasks, learner.records, learner.history = first, records[:first], history[:first]
    learner.first_accuracies = learner.first_accuracies[:first]
    if first:
        forgetting.method.write(learner.problem, learner.model.eval())
    learner.classes_ = list(dict.fromkeys(name for entry in learner.history for name in entry["classes"]))
    for number in range(first, total):
        task = after[number].task()
        if task.train.numel():
            learn(learner, task, None)
            learner.records[-1] = {**learner.records[-1], **_remembered(records[number], after[number])}
    _drop_tests_of_forgotten(learner)


def _remembered(record: dict[str, Any], learned: Learned) -> dict[str, Any]:
    """Entries of a task's record that survive relearning: when it was learned, and from which data."""
    classes = record.get("given_classes") or [[name, 0] for name in learned.given.class_names]
    lost = learned.unlabelled.numel() or learned.removed.numel()
    note = {**learned.note(), "given_classes": classes} if lost else {}
    return {**note, **({"learned": record["learned"]} if "learned" in record else {})}


def _drop_tests_of_forgotten(learner: Learner) -> None:
    """Drop the test results of tasks that have changed."""
    marks = {record["mark"] for record in learner.records}
    for number, record in enumerate(learner.records):
        tests = {mark: value for mark, value in record["tested"].items() if mark in marks}
        learner.records[number] = {**record, "tested": tests}


class _Exchange:
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
            for small in self._states_after(number):
                lost = removed[number].tolist()
                small["class_sizes_"] = [size - less for size, less in zip(small["class_sizes_"], lost)]
                add_counts(small, counted[number], -1)
        for number in tasks:
            some = self.new[number].train.numel() or self.new[number].val.numel()
            new = (self._context(self.new[number]), self._sizes_after(number)) if some else None
            self.forgetting.exchange(number, (self._context(self.old[number]), sizes[number]), new)
        self._find_tasks_of_classes()
        self._arrange_classes()
        left = [number for number in self.gone if self.new[number].train.numel()]
        for number in reversed(self.gone):
            self._drop_task(number) if number not in left else None
        if not learner.num_tasks:
            _empty(learner)
            return
        self.forgetting.method.conclude(learner.model)
        self.forgetting.method.write(learner.problem, learner.model.eval())
        for number in left:
            self._describe(number)
        _drop_tests_of_forgotten(learner)

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
                f"task {missing[0] + 1} had examples of the same classes, whose weights depend on these; give its data "
                "too, in a list behind the first (--later GRAPH)"
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
        width = self.learner.model.out_channels or 0
        later = number + 1 < self.learner.num_tasks
        state = self.learner.records[number + 1]["before"] if later else self.forgetting.small_state()
        return [*state["class_sizes_"], *[0] * (width - len(state["class_sizes_"]))]

    def _states_after(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the small states after a task for editing: those in the records of later ones, and the present one."""
        yield from (record["before"] for record in self.learner.records[number + 1 :])
        present = self.forgetting.small_state()
        yield present
        for key, value in present.items():
            setattr(self.forgetting.method, key, value)

    # empty classes and tasks

    def _find_tasks_of_classes(self) -> None:
        """Reassign classes without examples left in the task that introduced them to the next task that has some."""
        tasks = range(self.learner.num_tasks)
        brought = self.forgetting.method.task_of_unit_
        for unit, number in enumerate(brought):
            if number in self.gone and not self._has(number, unit):
                later = next((other for other in tasks[number + 1 :] if self._has(other, unit)), len(tasks))
                for after, small in enumerate(self._states_after(number), start=number):
                    if unit < len(small["task_of_unit_"]):
                        small["task_of_unit_"][unit] = later if later <= after else -1

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
        units = [known.index(name) for name in names]
        self.forgetting.arrange_units(units)
        for small in self._states_after(-1):
            arrange_units(small, units)
        learner.classes_ = names
        learner.history = [{**entry, "classes": some} for entry, some in zip(learner.history, brought)]

    def _drop_task(self, number: int) -> None:
        learner = self.learner
        for small in self._states_after(number):
            without_task(small, number)
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
        learner.records[place] = {**changed, **_remembered(record, self.after[number])}
        learner.first_accuracies[place] = tested(learner, task)
        trained = {"classes": as_known(task.class_names, learner.classes_), "nodes": task.train.numel()}
        learner.history[place] = {**learner.history[place], **trained}

    def _place(self, number: int) -> int:
        """Position of a task after empty ones are dropped."""
        return number - sum(other < number and not self.new[other].train.numel() for other in self.gone)


def _empty(learner: Learner) -> None:
    """Reset the method to its initial state, when nothing is left to remember."""
    learner.method.load_state_dict(dataclasses.replace(learner.method).state_dict())  # type: ignore[type-var]
    learner.classes_ = []


@contextmanager
def _all_or_nothing(learner: Learner) -> Iterator[None]:
    """Restore the learner if anything within this context raises."""
    before = {name: copy.copy(getattr(learner, name)) for name in PLAIN}
    restore_model, state = remembered(learner.model), learner.method.copied_state()
    try:
        yield
    except BaseException:
        for name, value in before.items():
            setattr(learner, name, value)
        restore_model()
        learner.method.load_state_dict(state)
        raise
