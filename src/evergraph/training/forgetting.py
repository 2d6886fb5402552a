"""Forgetting on request: make a learner as if it had never learned some examples, for methods that can undo them.

Given the data of the task and of all tasks learned after it, those tasks are undone and learned again without the
examples: all that is kept equals what it would have been. If features were dropped since, this takes the data of the
tasks before it too. Otherwise the task's sums are replaced and the counts of its validation examples are recomputed;
the counts of later tasks' validation examples stand until a later call that has all these data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.data import ClassName
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphError, in_a_list, tell
from evergraph.methods.forgetting import Forgetting
from evergraph.training.exchange import Exchange, drop_tests_of_forgotten, empty, remembered
from evergraph.training.inputs import chosen_examples
from evergraph.training.learned_data import Identities, Learned, find_learned, identities, task_numbers
from evergraph.training.learning import learn, make_context
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
    pieces = find_learned(learner, data)
    found = {learned.number: learned for piece in pieces for learned in piece}
    if classes is not None:
        asked = _of_classes(learner, found, classes)
    else:
        first = torch.unique(chosen_examples(nodes, pieces[0][0].given.graph))
        asked = {learned.number: first for learned in pieces[0]}
    known = dict(zip(found, identities([learned.given for learned in found.values()])))
    gone = _everywhere(found, asked, known, keep_in_graph, classes is not None)
    again = _to_learn_again(learner, forgetting, found, gone)
    if not gone and again is None:
        tell(
            f"nothing was forgotten: no {learner.problem.level} asked for was learned from these data, or all were "
            "forgotten before; check their ids or numbers"
        )
        return 0
    after = {
        number: learned.forgetting(gone[number], keep_in_graph) if number in gone else learned
        for number, learned in found.items()
    }
    others = [] if keep_in_graph or not gone else _others_that_may_hold(learner, found, asked)
    with restored_on_failure(learner), torch.no_grad():
        if again is not None:
            _learn_again(learner, forgetting, found, after, again)
        else:
            start = _start(learner, forgetting, min(gone))
            Exchange(learner, forgetting, found, after, sorted(gone)).run()
            learner.records[start] = {**learner.records[start], STANDING: True}
    if again is None:
        tell(
            f"heads are as if these {learner.problem.level}s had never been learned, given the present choices "
            "(the ridge, which features are read, …); these and the calibration of other tasks stand until forget has "
            f"the data of {_span(start, learner.num_tasks)} in one list (--later)"
        )
    elif not gone:
        tell(
            f"no {learner.problem.level} asked for was left to forget in these data; the choices of "
            f"{_span(again, learner.num_tasks)}, which stood after an earlier forget, were made again"
        )
    if others:
        tell(
            f"the data of task {', '.join(others)} are not given: where they hold these {learner.problem.level}s too, "
            "as examples or neighbours, what was learned from them stands; give them in the list (--later) to undo it"
        )
    return sum(numbers.numel() for numbers in _by_identity(gone, known).values())


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


def _span(first: int, total: int) -> str:
    """The tasks from one to the last, as messages tell them."""
    return f"task {total}" if first + 1 == total else f"tasks {first + 1} to {total}"


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
        f"{task_numbers(number)} ({record.get('graph', 'unknown')})"
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
                f"class {next(iter(wanted & set(entry['classes'])))!r} was learned in task {task_numbers(number)} too; "
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
        empty(learner)
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
        forgetting.write(learner.problem, learner.model.eval())
    learner.classes_ = list(dict.fromkeys(name for entry in learner.history for name in entry["classes"]))
    for number in range(first, total):
        task = after[number].task()
        if task.train.numel():
            learn(learner, task, None)
            learner.records[-1] = {**learner.records[-1], **remembered(records[number], after[number])}
    drop_tests_of_forgotten(learner)
