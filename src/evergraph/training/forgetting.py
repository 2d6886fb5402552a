"""Forgetting on request: make a learner as if it had never learned some examples, for methods that can undo them.

Given the data of the task and of all tasks learned after it, those tasks are undone and learned again without the
examples: all that is kept equals what it would have been. If features were dropped since, this takes the data of the
tasks before it too. Otherwise the task's sums are replaced and the counts of its validation examples are recomputed;
the counts of later tasks' validation examples stand until a later call that has all these data.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.data import ClassName
from evergraph.errors import EvergraphError, tell
from evergraph.methods.forgetting import Forgetting
from evergraph.training.exchange import Exchange, drop_tests_of_forgotten, empty, remembered
from evergraph.training.inputs import chosen_examples
from evergraph.training.learned_data import LEFT, Learned, find_learned
from evergraph.training.learning import learn, make_context
from evergraph.training.requests import Request, Search, left_to_forget, not_searched, of_classes
from evergraph.training.task_names import tasks_named
from evergraph.training.transaction import restored_on_failure

if TYPE_CHECKING:
    from evergraph.training.learner import Learner

STANDING = "choices_stand"
"""Entry of a task's record: something was forgotten, and the choices from this task on are yet to be made again."""


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
    pieces = find_learned(learner, data, numbered=classes is None and not _nothing(nodes))
    known = {learned.number: learned for piece in pieces for learned in piece}
    if classes is not None:
        asked = of_classes(learner, known, classes)
    else:
        first = torch.unique(chosen_examples(nodes, pieces[0][0].given.graph))
        asked = {learned.number: first for learned in pieces[0]}
    request, search = Request(asked, keep_in_graph, classes is not None), Search(known)
    found = {number: learned for number, learned in known.items() if number >= 0}
    after, left = _after(learner, found, search, request)
    gone = {number: _new(after[number], found[number]) for number in found}
    gone = {number: examples for number, examples in gone.items() if examples.numel()}
    again = _to_learn_again(learner, forgetting, found, gone)
    if not gone and again is None:
        tell(
            f"nothing was forgotten: no {learner.problem.level} asked for was learned from these data, or all were "
            "forgotten before; check their ids or numbers"
        )
        for number, entries in left.items():
            _note_left(learner, number, entries)
        return 0
    unsearched = not_searched(learner, search, request)
    for number, sources in unsearched.items():
        left.setdefault(number, list(learner.records[number].get(LEFT, ())))
        entries = [request.entry(known[source]) for source in sources]
        left[number] += [entry for entry in entries if entry not in left[number]]
    place = _places(learner, after)
    with restored_on_failure(learner), torch.no_grad():
        if again is not None:
            _learn_again(learner, forgetting, found, after, again)
        else:
            start = _start(learner, forgetting, min(gone))
            Exchange(learner, forgetting, found, after, sorted(gone)).run()
            learner.records[start] = {**learner.records[start], STANDING: True}
        for number, entries in left.items():
            if number in place:
                _note_left(learner, place[number], entries)
    if again is None:
        tell(
            f"heads are as if these {learner.problem.level}s had never been learned, given the present choices "
            "(the ridge, which features are read, …); these and the calibration of other tasks stand until forget has "
            f"the data of {tasks_named(learner, range(start, learner.num_tasks))} in one list (--later)"
        )
    elif not gone:
        tell(
            f"no {learner.problem.level} asked for was left to forget in these data; the choices of "
            f"{tasks_named(learner, range(again, learner.num_tasks))}, which stood after an earlier forget, were made "
            "again"
        )
    _tell_of_unsearched(learner, {place[n]: n in found for n in unsearched if n in place}, keep_in_graph)
    return search.identities(gone).numel()


def is_open(learner: Learner) -> bool:
    """Whether earlier calls left something to forget, or choices to make again, for which data were missing."""
    return any(STANDING in record or LEFT in record for record in learner.records)


def _nothing(nodes: Any) -> bool:
    """Whether an empty list of nodes is given."""
    return isinstance(nodes, Sized) and not (isinstance(nodes, Tensor) and not nodes.dim()) and len(nodes) == 0


def _after(
    learner: Learner, found: dict[int, Learned], search: Search, request: Request
) -> tuple[dict[int, Learned], dict[int, list[dict[str, Any]]]]:
    """The tasks after forgetting what is asked for, and what earlier calls left; and what is left then, by task."""
    after, left = {}, {}
    for number, learned in found.items():
        earlier, left[number] = left_to_forget(learner, search, number)
        for one in (request, *earlier):
            examples = search.find(one, number)
            learned = learned.forgetting(examples, one.keep_in_graph) if examples.numel() else learned
        after[number] = learned
    return after, left


def _new(after: Learned, before: Learned) -> Tensor:
    """Examples that were forgotten now, or that leave the graph now."""
    removed = after.removed[~torch.isin(after.removed, before.removed)]
    return torch.cat([removed, after.unlabelled[~torch.isin(after.unlabelled, before.unlabelled)]])


def _places(learner: Learner, after: dict[int, Learned]) -> dict[int, int]:
    """New numbers of the tasks: those without anything left to train on go."""
    left = [n for n in range(learner.num_tasks) if n not in after or after[n].task().train.numel()]
    return {number: place for place, number in enumerate(left)}


def _note_left(learner: Learner, number: int, entries: list[dict[str, Any]]) -> None:
    """Write into a task's record what is left to forget in it."""
    record = {key: value for key, value in learner.records[number].items() if key != LEFT}
    learner.records[number] = {**record, LEFT: entries} if entries else record


def _tell_of_unsearched(learner: Learner, given: dict[int, bool], keep_in_graph: bool) -> None:
    """Warn of tasks that may hold the same examples; `given` says whether their data were given and told nothing."""
    level = learner.problem.level
    how = "as examples" if keep_in_graph else "as examples or neighbours"
    if missing := [number for number, known in given.items() if not known]:
        tell(
            f"the data of {tasks_named(learner, missing)} are not given: where they hold these {level}s too, {how}, "
            "what was learned from them stands; give them in the list (--later) to undo it"
        )
    if strange := [number for number, known in given.items() if known]:
        tell(
            f"{tasks_named(learner, strange)}: where the data hold these {level}s too, {how}, what was learned from "
            f"them stands, since nothing tells which {level}s are the same; give each an id in all data (ids may be "
            "added to the data as they were learned), and forget them by id"
        )


def _to_learn_again(
    learner: Learner, forgetting: Forgetting, found: dict[int, Learned], gone: dict[int, Tensor]
) -> int | None:
    """Return the first task to undo and learn again; None if data that this takes are not given.

    It is the first that has something to forget or, if possible, an earlier one from which choices still stand.
    """
    last = min(gone, default=learner.num_tasks)
    standing = [number for number, record in enumerate(learner.records[:last]) if record.get(STANDING)]
    starts = [_start(learner, forgetting, number) for number in [*standing, *([last] if gone else [])]]
    return next((start for start in starts if set(range(start, learner.num_tasks)) <= set(found)), None)


def _start(learner: Learner, forgetting: Forgetting, number: int) -> int:
    """Return the last task, up to the given one, that can be learned again as it was; the first one always can."""
    return next(start for start in reversed(range(number + 1)) if not start or _as_then(learner, forgetting, start))


def _as_then(learner: Learner, forgetting: Forgetting, number: int) -> bool:
    """Whether features are the same as before a task, apart from scales measured since, and the sums are kept alike."""
    record, now = learner.records[number], learner.model.hyperparameters()
    before = record["layout"]
    same = all(before.get(key) == now.get(key) for key in {*before, *now} - {"scales"})
    return same and forgetting.keeps_alike(record["before"])


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
        empty(learner)
        lay_out = capable(learner.model, "lay_out")
        layout = records[0]["layout"]
        if (set_width := capable(learner.model, "set_width")) is not None:
            set_width(layout)
        if lay_out is not None and layout != learner.model.hyperparameters():
            kept = layout.get("kept") or [True] * len(layout["blocks"])
            lay_out(kept, layout.get("linear_width", 0), layout.get("block_width", 0))
    if (set_scaling := capable(learner.model, "set_scaling")) is not None:
        set_scaling(records[first]["layout"], anew=not first)
    learner.num_tasks, learner.records, learner.history = first, records[:first], history[:first]
    learner.first_accuracies = learner.first_accuracies[:first]
    if first:
        forgetting.write(learner.problem, learner.model.eval())
    learner.classes_ = list(dict.fromkeys(name for entry in learner.history for name in entry["classes"]))
    for number in range(first, total):
        task = after[number].task()
        if task.train.numel():
            learn(learner, task, None)
            learner.records[-1] = {**learner.records[-1], **remembered(records[number], after[number])}
    drop_tests_of_forgotten(learner)
