"""What is to be forgotten, and in which tasks: examples are searched for in all data given.

What was asked for while the data of some task were not given, or could not be searched, is written into that task's
record, and is done when they come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.data import ClassName
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphError, in_a_list
from evergraph.training.identities import Identities
from evergraph.training.learned_data import LEFT, Learned
from evergraph.training.task_names import tasks_named

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


@dataclass
class Request:
    """Examples to forget.

    Args:
        asked: their numbers in the data of some tasks; negative numbers of tasks stand for data wholly forgotten.
        keep_in_graph: whether they stay in the graph as unlabelled neighbours.
        of_classes: whether classes are forgotten, so that an example stays in tasks where it has another class.
    """

    asked: Mapping[int, Tensor]
    keep_in_graph: bool
    of_classes: bool

    def entry(self, learned: Learned) -> dict[str, Any]:
        """What a record says about the examples asked for in one task's data, so that it can be done later."""
        return {
            "given": learned.given.mark(),
            "given_classes": list(learned.given.class_positions),
            "examples": self.asked[learned.number].tolist(),
            "keep_in_graph": self.keep_in_graph,
            "of_classes": self.of_classes,
        }


class Search:
    """The search for examples in the data of several tasks.

    Args:
        known: the tasks by number, and data that were wholly forgotten before by negative numbers.
    """

    def __init__(self, known: Mapping[int, Learned]) -> None:
        self.known = known
        self._place = {number: place for place, number in enumerate(known)}
        self._identities = Identities([learned.given for learned in known.values()])

    def numbers(self, number: int) -> Tensor:
        """A number for every example of a task's data; the same example has the same one in all of them."""
        return self._identities.numbers[self._place[number]]

    def identities(self, examples: Mapping[int, Tensor]) -> Tensor:
        """The numbers of examples of several tasks, without duplicates."""
        some = [self.numbers(number)[rows] for number, rows in examples.items()]
        return torch.unique(torch.cat(some)) if some else torch.empty(0, dtype=torch.long)

    @cached_property
    def _own(self) -> Tensor:
        """The numbers of all tasks' own examples."""
        return self.identities({number: learned.own for number, learned in self.known.items()})

    def tells_apart(self, one: int, other: int) -> bool:
        """Whether it is known which examples of one task's data are which of another one's."""
        return one == other or self._identities.tell_apart(self._place[one], self._place[other])

    def find(self, request: Request, number: int) -> Tensor:
        """Examples of a task to forget.

        An example may be one of the task's own (unless classes are forgotten, and it has another class there), or a
        neighbour of the task's own examples, which is removed unless nodes stay in the graph.
        """
        learned, numbers = self.known[number], self.numbers(number)
        wanted, keep_in_graph = self.identities(request.asked), request.keep_in_graph
        if keep_in_graph:  # whatever is an example of none of the tasks stays as it is
            wanted = wanted[torch.isin(wanted, self._own)]
        chosen, named = torch.isin(numbers, wanted), _mask(numbers, request.asked.get(number))
        if keep_in_graph:
            chosen &= torch.where(named, learned.given.graph.labelled, _mask(numbers, learned.own))
        if request.of_classes:
            chosen &= named | ~learned.given.graph.labelled
        chosen[learned.done(keep_in_graph)] = False
        return torch.nonzero(chosen).reshape(-1)

    def source(self, entry: Mapping[str, Any]) -> int | None:
        """Number of the data that an entry of a record is about; None if they are not given."""
        return next((n for n, learned in self.known.items() if learned.given.mark() == entry["given"]), None)


def _mask(numbers: Tensor, examples: Tensor | None) -> Tensor:
    """Mask of some of the numbered examples; None for none of them."""
    mask = torch.zeros(numbers.numel(), dtype=torch.bool)
    if examples is not None:
        mask[examples] = True
    return mask


def left_to_forget(learner: Learner, search: Search, number: int) -> tuple[list[Request], list[dict[str, Any]]]:
    """What earlier calls left to forget in a task: what can be done with the data given, and entries of what cannot."""
    requests, entries = [], []
    for entry in learner.records[number].get(LEFT, ()):
        source = search.source(entry)
        if source is None or not search.tells_apart(source, number):
            entries.append(entry)
        else:
            asked = {source: torch.tensor(entry["examples"], dtype=torch.long)}
            requests.append(Request(asked, entry["keep_in_graph"], entry["of_classes"]))
    return requests, entries


def not_searched(learner: Learner, search: Search, request: Request) -> dict[int, list[int]]:
    """Tasks that may hold examples asked for although their data are not given, or cannot be searched for them.

    With each comes the list of those tasks whose examples it may hold.
    """
    found: dict[int, list[int]] = {}
    for number, record in enumerate(learner.records):
        for source, examples in request.asked.items():
            if number in search.known:
                open_ = not search.tells_apart(source, number)
            else:
                open_ = _may_hold(search.known[source], examples, number, record, request.keep_in_graph)
            if open_ and examples.numel():
                found.setdefault(number, []).append(source)
    return found


def _may_hold(learned: Learned, examples: Tensor, number: int, record: Mapping[str, Any], keep_in_graph: bool) -> bool:
    """Whether another task may hold examples of a task's data, as far as is known without its data.

    Among tasks of one stream, each example is one of a single task; where they are joined, all later tasks have it in
    their graphs too.
    """
    task = learned.given
    if task.origin is None or record.get("stream") != task.origin[0]:
        return True
    own = bool(torch.isin(examples, learned.own).all())
    return task.joined and not (own and (keep_in_graph or number < learned.number))


def of_classes(
    learner: Learner, known: Mapping[int, Learned], classes: Sequence[ClassName] | ClassName
) -> dict[int, Tensor]:
    """Examples of the given classes, in every task that had any.

    The learner need not know a class whose examples were forgotten in the data given: other data may hold them too.
    """
    wanted = {str(name) for name in ([classes] if isinstance(classes, (str, int)) else classes)}
    asked, before = {}, set()
    for number, learned in known.items():
        graph = learned.given.graph
        names = list(map(str, as_known(graph.class_names, learner.classes_)))
        places = [place for place, name in enumerate(names) if name in wanted]
        asked[number] = torch.nonzero(torch.isin(graph.y, torch.tensor(places, dtype=torch.long))).reshape(-1)
        before |= {names[place] for place in graph.y[learned.forgotten].tolist() if place >= 0}
    _check_classes(learner, known, wanted, before)
    return asked


def _check_classes(learner: Learner, known: Collection[int], wanted: set[str], before: set[str]) -> None:
    """Raise unless the classes are known or were forgotten `before`, and the data of all tasks with any are given."""
    names = list(map(str, learner.classes_))
    if unknown := sorted(wanted - {*names, *before}):
        raise EvergraphError(f"the learner knows no class {unknown[0]!r}; it knows: {', '.join(map(in_a_list, names))}")
    having = {number: wanted & set(map(str, entry["classes"])) for number, entry in enumerate(learner.history)}
    if missing := [number for number, some in having.items() if some and number not in known]:
        raise EvergraphError(
            f"class {min(having[missing[0]])!r} was learned in {tasks_named(learner, missing)} too; "
            "give the data of all tasks that had it, in a list (--later GRAPH)"
        )
