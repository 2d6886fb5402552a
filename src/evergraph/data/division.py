"""Divide the examples of a graph into tasks and parts: by classes, target columns or an attribute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.data.arrangement import Order, group_classes, split_nodes, split_within_tasks, tasks_of_classes
from evergraph.data.attributes import Attribute
from evergraph.data.examples import repeated
from evergraph.data.graph import Graph
from evergraph.data.scenarios import tasks_by_attribute
from evergraph.errors import EvergraphError

AS_GIVEN = "as the data came"


@dataclass(frozen=True)
class Division:
    """Assignment of examples to tasks and parts.

    Args:
        classes: positions of the kept classes, in order of arrival.
        task_of: task of each example; -1 if it is left out.
        part: part of each example: 0 for training, 1 for validation, 2 for testing, -1 for none.
        names: names of the tasks; None if they are named after their classes.
        split: how the parts were chosen, in words.
    """

    classes: list[int]
    task_of: Tensor
    part: Tensor
    names: list[str] | None
    split: str


def divided_by_classes(
    graph: Graph, order: Order, classes_per_task: int, min_class_size: int, part: Tensor | None, seed: int
) -> Division:
    """Make tasks of classes, split as given by `part`, else 60/20/20 within each class."""
    groups = group_classes(graph, order, classes_per_task, min_class_size, seed)
    classes = list(dict.fromkeys(position for group in groups for position in group))
    split = AS_GIVEN
    if part is None:
        split = "60/20/20 per class"
        part = torch.full((graph.num_examples,), -1)
        for number, chosen in enumerate(split_nodes(graph, classes, seed)):
            part[chosen] = number
    task_of = tasks_of_classes(graph, groups, part, seed)
    return Division(classes, task_of, torch.where(task_of >= 0, part, -1), None, split)


def divided_by_columns(
    graph: Graph, order: Order, columns_per_task: int, min_size: int, part: Tensor | None, seed: int
) -> tuple[Graph, Division]:
    """Make tasks of target columns: every example is in every task, with different labels or numbers.

    It is trained on in all of them, or tested on in all. Columns known for fewer than `min_size` examples are left out.

    Returns:
        the graph with each example once per task, with only the task's columns known; and its division.
    """
    if graph.num_classes < 2 or graph.positives_only:
        raise EvergraphError(
            f"{graph.name}: its examples have one label or number each, and no class; make tasks of an attribute with "
            "by= (--by), or use --scenario domain or time"
        )
    groups = group_classes(graph, order, columns_per_task, min_size, seed)
    split = AS_GIVEN
    if part is None:
        split = "60/20/20"
        part = split_within_tasks(graph, torch.zeros(graph.num_examples, dtype=torch.long), seed)
    whole = repeated(graph, len(groups))
    task_of = torch.arange(len(groups)).repeat_interleave(graph.num_examples)
    for task, group in enumerate(groups):
        others = [column for column in range(graph.num_classes) if column not in group]
        rows = slice(task * graph.num_examples, (task + 1) * graph.num_examples)
        whole.y[rows, others] = torch.nan
    part = torch.where(whole.labelled, part.repeat(len(groups)), -1)
    columns = list(dict.fromkeys(column for group in groups for column in group))
    return whole, Division(columns, task_of, part, None, split)


def divided_by_attribute(
    graph: Graph, by: str, attribute: Attribute, bins: int, min_class_size: int, part: Tensor | None, seed: int
) -> Division:
    """Make tasks of an attribute's values, split as given by `part`, else 60/20/20 within each task and class."""
    task_of, names = tasks_by_attribute(attribute, bins, f"{graph.name}: {by!r}")
    classes = list(range(graph.num_classes))
    if graph.has_classes:
        sizes = graph.class_sizes().tolist()
        classes = [position for position in classes if sizes[position] >= max(min_class_size, 1)]
        dropped = torch.ones(graph.num_classes + 1, dtype=torch.bool)
        dropped[[*classes, -1]] = False  # keep unlabelled examples, which other nodes read as neighbours
        task_of = torch.where(dropped[graph.y], -1, task_of)
    split = AS_GIVEN
    if part is None:
        split = "60/20/20 per task and class" if graph.has_classes else "60/20/20 per task"
        part = split_within_tasks(graph, task_of, seed)
    part = torch.where((task_of >= 0) & graph.labelled, part, -1)
    for task, name in enumerate(names):
        if not bool(((task_of == task) & (part == 0)).any()):
            raise EvergraphError(f"{graph.name}: task {task + 1} ({by} {name}) has nothing to train on")
    return Division(classes, task_of, part, names, split)


def validated_where_known(graph: Graph, task_of: Tensor, part: Tensor) -> Tensor:
    """Return `part` without validation examples whose class has no training example up to their task."""
    used = (task_of >= 0) & (graph.y >= 0)
    train, val = (torch.nonzero(used & (part == number)).reshape(-1) for number in (0, 1))
    begins = torch.full((graph.num_classes,), int(task_of.max()) + 1)
    begins.scatter_reduce_(0, graph.y[train], task_of[train], "amin")
    early = val[task_of[val] < begins[graph.y[val]]]
    return part.index_fill(0, early, -1)
