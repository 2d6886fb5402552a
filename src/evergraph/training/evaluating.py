"""Evaluation of a learner on the test examples of a stream's tasks, or of a list of tasks (months, say)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.data import TEST_GRAPHS, Graph, Part, Task, TaskStream
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphError, one_of, tell
from evergraph.evaluation import METRICS, Evaluation, Metric
from evergraph.training.inputs import Tasks, as_tasks
from evergraph.training.learned_data import learned_altered, learned_from, trained_on, without_forgotten
from evergraph.training.predicting import check_features, check_learned, tell_of_directions

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


def evaluate(
    learner: Learner,
    stream: Tasks,
    metric: str | None,
    test_graph: str | None,
    part: Part,
    after: int | None = None,
) -> Evaluation:
    """See `Learner.evaluate`."""
    check_learned(learner)
    tasks = as_tasks(stream, seed=learner.seed, numbers=learner.problem.kind == "numbers")
    name = learner.problem.metric if metric is None else metric
    METRICS[name].check(learner.problem.kind)
    if after is not None and not isinstance(tasks, TaskStream):
        raise EvergraphError(f"after={after} counts the tasks of a stream; leave it out for a list")
    if test_graph is not None:
        one_of("test graph", test_graph, TEST_GRAPHS)
        if not isinstance(tasks, TaskStream) and not TEST_GRAPHS[test_graph].one_task:
            raise EvergraphError(
                f"test_graph={test_graph!r} joins the tasks of a stream; tasks of a list are tested on their own graphs"
            )
    if part == "test" and not isinstance(tasks, TaskStream):
        _tell_of_trained(learner, tasks)
    values, names = _measured(learner, tasks, METRICS[name], test_graph, part, after)
    for task, value in enumerate(values):
        if not math.isfinite(value):  # outputs were found to be finite before
            raise EvergraphError(
                f"metric {name!r} is {value} on task {task + 1}; let it return a number where it is undefined, or "
                "choose another with --metric"
            )
    # values measured right after learning are of this kind only; tasks learned in pieces were not measured then
    comparable = name == learner.problem.metric and part == "test" and after is None
    if isinstance(tasks, TaskStream):
        own_graphs = not TEST_GRAPHS[test_graph or tasks.test_graph].joins_tasks
        comparable = comparable and own_graphs and not tasks.task_incremental
    numbers: list[int | None] = [None] * len(values)
    if comparable:
        numbers = [_number_of(learner, tasks, index) for index in range(len(values))]
        _remember(learner, numbers, values)
    return Evaluation(
        values,
        [None if number is None else learner.first_accuracies[number] for number in numbers],
        names,
        latest=[number == learner.num_tasks - 1 for number in numbers] if comparable else [],
        rows=[
            [*values] if _is_now(learner, row) else [_tested(learner, row, number) for number in numbers]
            for row in numbers
        ],
        higher_is_better=METRICS[name].higher_is_better,
        unit=METRICS[name].unit,
    )


def _tell_of_trained(learner: Learner, tasks: list[Task]) -> None:
    """Warn if test examples were trained on: they only measure how well the learner remembers."""
    for task in tasks:
        if count := trained_on(learner, task):
            tests = without_forgotten(learner, task).test.numel()
            tell(
                f"{task.graph.name}: {count:,} of {tests:,} test {task.graph.level}s were trained on, "
                "since it was learned with others, or none, held out; accuracy on them says little about new ones"
            )
        elif learned_from(learner, task) is None and (before := learned_altered(learner, task)) is not None:
            tell(
                f"{before.how_altered(task.graph)}; test nodes may have been trained on, and accuracy on those says "
                "little about new ones"
            )


def _measured(
    learner: Learner,
    tasks: TaskStream | list[Task],
    measure: Metric,
    test_graph: str | None,
    part: Part,
    last: int | None,
) -> tuple[list[float], list[str]]:
    """Return the metric on each task, and the tasks' names."""
    unit_of = {name: unit for unit, name in enumerate(learner.classes_)}
    listed: Iterable[tuple[Graph, Tensor]]
    apart = False  # whether every task has a graph of its own
    if isinstance(tasks, TaskStream):
        if last is not None and not -len(tasks) <= last < len(tasks):
            raise EvergraphError(f"after={last} is impossible with {len(tasks)} tasks; choose 0 to {len(tasks) - 1}")
        after = min(learner.num_tasks, len(tasks)) - 1 if last is None else range(len(tasks))[last]
        titles, known = tasks.task_names, as_known(tasks.graph.class_names, learner.classes_)
        listed = (_tests(learner, tasks, after, index, test_graph, part) for index in range(after + 1))
        apart = TEST_GRAPHS[test_graph or tasks.test_graph].one_task
        own = [[known[p] for p in tasks.tasks_classes[index]] for index in range(after + 1)]
        among = [[known[p] for p in tasks.candidates(after, index)] for index in range(after + 1)]
    else:
        left = [without_forgotten(learner, task) for task in tasks]
        listed = [(task.graph, getattr(task, part)) for task in left]
        own = [as_known(task.class_names, learner.classes_) for task in left]
        among = [learner.classes_ for _ in tasks]
        titles = [", ".join(map(str, names)) for names in own]
    for index, names in enumerate(own):
        if missing := [name for name in names if name not in unit_of]:
            which = f"task {index + 1}" if isinstance(tasks, TaskStream) else tasks[index].graph.name
            listed_names = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
            raise EvergraphError(
                f"{which} has classes the learner does not know: {listed_names}; learn them first, or leave them out"
            )
    values: list[float] = []
    # examples of one graph are evaluated together, and graphs one after another: all at once may not fit in memory
    for pairs in map(_alone, listed) if apart else _by_graph(listed):
        graph, numbers = pairs[0][0], range(len(values), len(values) + len(pairs))
        for number, (_, nodes) in zip(numbers, pairs):
            if not nodes.numel():
                raise EvergraphError(
                    f"task {number + 1} ({graph.name}) has no {part} {graph.level}s; leave it out, or hold some out"
                )
        values += _on_graph(learner, pairs, measure, [[unit_of[name] for name in among[n]] for n in numbers])
        del graph, pairs, _  # free a graph read from disk before the next one is read
    return values, titles[: len(values)]


def _tests(
    learner: Learner, stream: TaskStream, after: int, index: int, test_graph: str | None, part: Part
) -> tuple[Graph, Tensor]:
    """Return the graph and the examples on which a task of a stream is tested, without those forgotten since."""
    graph, examples = stream.tests(after, index, test_graph, part)
    if not any("forgotten" in record for record in learner.records):
        return graph, examples
    learned = learned_from(learner, stream[index])
    if learned is None or not learned.forgotten.numel():
        return graph, examples
    if graph is learned.given.graph:
        now = learned.task()
        return now.graph, getattr(now, part)
    given: Tensor = getattr(learned.given, part)  # in the same order as in a graph of several tasks
    return graph, examples[~torch.isin(given, learned.forgotten)]


def _on_graph(
    learner: Learner, pairs: list[tuple[Graph, Tensor]], measure: Metric, among: list[list[int]]
) -> list[float]:
    """Return the metric on several sets of examples of one graph, each among its own candidate output units."""
    graph, parts = pairs[0][0], [nodes for _, nodes in pairs]
    check_features(learner, graph)
    tell_of_directions(learner, graph)
    truth = learner.problem.targets(graph, learner.classes_)
    outputs = learner.outputs(graph, torch.cat(parts))
    if measure.of_probabilities:
        outputs = outputs / learner.temperature
    rows = outputs.split([nodes.numel() for nodes in parts])
    return [measure(own, truth[nodes], units) for own, nodes, units in zip(rows, parts, among)]


def _alone(pair: tuple[Graph, Tensor]) -> list[tuple[Graph, Tensor]]:
    return [pair]


def _by_graph(listed: Iterable[tuple[Graph, Tensor]]) -> Iterator[list[tuple[Graph, Tensor]]]:
    """Group consecutive entries with the same graph; the next graph is read before the previous one is yielded."""
    for _, group in groupby(listed, key=lambda pair: id(pair[0])):
        yield list(group)


def _number_of(learner: Learner, tasks: TaskStream | list[Task], index: int) -> int | None:
    """Number under which the task to be tested was learned; None if it was not one of the tasks learned."""
    if isinstance(tasks, TaskStream) and tasks.graph.on_disk:  # do not read its tasks again to compare them
        names = [tasks.graph.class_names[position] for position in tasks.tasks_classes[index]]
        return index if learner.history[index]["classes"] == as_known(names, learner.classes_) else None
    return learner.learned_as(tasks[index])


def _remember(learner: Learner, numbers: list[int | None], values: list[float]) -> None:
    """Keep the values measured after the last task, for later matrices."""
    if not learner.in_mid_task:
        last, records = learner.records[-1], learner.records
        now = {records[number]["mark"]: value for number, value in zip(numbers, values) if number is not None}
        learner.records = [*records[:-1], {**last, "tested": {**last["tested"], **now}}]


def _is_now(learner: Learner, after: int | None) -> bool:
    """Whether the learner is unchanged since right after a task, so that values measured now belong to its row."""
    return after == learner.num_tasks - 1 and not learner.in_mid_task


def _tested(learner: Learner, after: int | None, number: int | None) -> float | None:
    """Value measured on one task right after another was learned; None if it was not measured."""
    if after is None or number is None:
        return None
    value: float | None = learner.records[after]["tested"].get(learner.records[number]["mark"])
    return value
