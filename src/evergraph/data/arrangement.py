"""Arrangement of examples: the order in which classes arrive, and the split into training, validation and test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evergraph.data.examples import first_of_pair
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError, no_such_class, tell, unknown

Order = str | Sequence[Any]
LEAST_TO_SPLIT = 5  # fewest labelled nodes of a class that can be split
ORDERS = ("labelled", "random", "random:SEED", "size", "a list of classes")


def split_nodes(graph: Graph, classes: Sequence[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the nodes of each class 60/20/20 into training, validation and test, by seed; return sorted node numbers.

    Every class has its own random numbers, so the split does not depend on which classes are requested,
    nor on their order. Shares are rounded down; the rest is for testing.
    """
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for position in classes:
        nodes = torch.nonzero(graph.y == position).reshape(-1)
        size = nodes.numel()
        if size < LEAST_TO_SPLIT:
            raise EvergraphError(
                f"{graph.name}: class {graph.class_names[position]!r} has {size} {graph.level}s, too few to split "
                f"60/20/20; leave small classes out with min_class_size (at least {LEAST_TO_SPLIT})"
            )
        generator = torch.Generator().manual_seed(1_000_003 * seed + position)
        mixed = nodes[torch.randperm(size, generator=generator)]
        train, val = 3 * size // 5, size // 5
        for part, piece in zip(parts, torch.tensor_split(mixed, [train, train + val])):
            part.append(piece)
    train_nodes, val_nodes, test_nodes = (torch.cat(part).sort().values for part in parts)
    return train_nodes, val_nodes, test_nodes


def split_what_can_be(graph: Graph, classes: Sequence[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Like `split_nodes`, but classes with too few nodes to split are only trained on, with a warning."""
    sizes = graph.class_sizes().tolist()
    small = [position for position in classes if sizes[position] < LEAST_TO_SPLIT]
    if not small:
        return split_nodes(graph, classes, seed)
    listed = ", ".join(f"{graph.class_names[position]!r} ({sizes[position]})" for position in small[:8])
    more = f" and {len(small) - 8} more" if len(small) > 8 else ""
    tell(f"{graph.name}: too few labelled {graph.level}s to hold any out of {listed}{more}; trained on, not tested")
    whole = torch.nonzero(torch.isin(graph.y, torch.tensor(small))).reshape(-1)
    if len(small) == len(classes):
        return whole, whole[:0], whole[:0]
    train, val, test = split_nodes(graph, [position for position in classes if position not in small], seed)
    return torch.cat([train, whole]).sort().values, val, test


def group_classes(graph: Graph, order: Order, classes_per_task: int, min_class_size: int, seed: int) -> list[list[int]]:
    """Group the classes by task, in order of arrival; see `TaskStream` for the arguments."""
    kept = _large_classes(graph, min_class_size)
    if isinstance(order, str):
        arranged = _arrange(graph, kept, order, seed)
    elif order and all(isinstance(group, (list, tuple)) for group in order):
        return _named_groups(graph, kept, order)
    else:
        arranged = _positions(graph, kept, order)
        left_out = [str(graph.class_names[position]) for position in kept if position not in arranged]
        if left_out:
            names = ", ".join(left_out[:5]) + (" and others" if len(left_out) > 5 else "")
            tell(f"{graph.name}: order names {len(arranged)} of {len(kept)} classes; {names} will be in no task")
    if not 1 <= classes_per_task <= len(arranged):
        raise EvergraphError(
            f"classes_per_task={classes_per_task} is impossible with {len(arranged)} classes; "
            f"choose 1 to {len(arranged)}"
        )
    return [arranged[i : i + classes_per_task] for i in range(0, len(arranged), classes_per_task)]


def _large_classes(graph: Graph, min_class_size: int) -> list[int]:
    """Return the classes with enough nodes, in label order."""
    sizes = graph.class_sizes().tolist()
    if not any(sizes):
        raise no_labels(graph)
    kept = [position for position, size in enumerate(sizes) if size >= max(min_class_size, 1)]
    if not kept:
        raise EvergraphError(
            f"{graph.name}: no class has {min_class_size} {graph.level}s or more (the largest has {max(sizes)}); "
            "lower min_class_size"
        )
    return kept


def no_labels(graph: Graph) -> EvergraphError:
    """Return the error for a graph without labels, which says how to give some."""
    fix = {
        "node": "give y, or name a table's column of classes (label=COLUMN)",
        "graph": "give each graph a y",
        "link": "give each link an edge_label",
    }[graph.level]
    return EvergraphError(f"{graph.name}: no {graph.level} has a label: {fix}")


def _arrange(graph: Graph, kept: list[int], order: str, seed: int) -> list[int]:
    """Order the kept classes by a named rule."""
    rule, colon, number = order.partition(":")
    if order == "labelled":
        return kept
    if order == "size":
        sizes = graph.class_sizes().tolist()
        return sorted(kept, key=lambda position: (-sizes[position], position))
    if rule == "random" and (number.isdecimal() if colon else True):
        generator = torch.Generator().manual_seed(int(number) if colon else seed)
        return [kept[i] for i in torch.randperm(len(kept), generator=generator).tolist()]
    raise unknown("class order", order, ORDERS)


def _named_groups(graph: Graph, kept: list[int], order: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Return the tasks given as a list of lists of names; a class may occur again in a later task."""
    if not all(order):
        raise EvergraphError(
            f"task {list(map(len, order)).index(0) + 1} of the order has no class; give it one or drop it"
        )
    return [_positions(graph, kept, group) for group in order]


def _positions(graph: Graph, kept: list[int], names: Sequence[Any]) -> list[int]:
    """Return the positions of classes given by name, without repeats."""
    if not names:
        raise EvergraphError("the class order is empty; name at least one class, or use 'labelled'")
    position_of = {str(graph.class_names[position]): position for position in kept}
    for name, count in Counter(map(str, names)).items():
        if name not in position_of:
            raise unknown("class in the order", name, position_of)
        if count > 1:
            raise EvergraphError(
                f"class {name!r} is given twice; give each class once (a list of tasks may have it in several)"
            )
    return [position_of[str(name)] for name in names]


def chosen_positions(graph: Graph, present: list[int], names: Sequence[Any] | None) -> list[int]:
    """Return the positions of the named classes, in the order of the names and each once; all present ones if None.

    Args:
        graph: the graph.
        present: positions of the classes that can be named.
        names: names of classes.
    """
    if names is None:
        return present
    position_of = {str(graph.class_names[position]): position for position in present}
    for name in names:
        if str(name) not in position_of:
            raise no_such_class(graph.name, graph.level, name, position_of)
    return list(dict.fromkeys(position_of[str(name)] for name in names))


def given_split(graph: Graph, seed: int) -> Tensor | None:
    """Return the part of each example in the data's own split; if there are several splits, the seed selects one."""
    return None if graph.splits is None else graph.splits[:, seed % graph.splits.size(1)].clone()


def trained_classes(graph: Graph, classes: Sequence[int], sizes: Tensor) -> list[int]:
    """Return the classes that have training examples, counted per class in `sizes`; warn about the others."""
    without = [graph.class_names[position] for position in classes if not sizes[position]]
    if without and len(without) < len(classes):  # without any, nothing can be learned, which is an error
        listed = ", ".join(map(repr, without[:8])) + (f" and {len(without) - 8} more" if len(without) > 8 else "")
        tell(
            f"{graph.name}: its split has no training {graph.level}s of class {listed}: not learned; validation "
            f"{graph.level}s of it are left aside, and test {graph.level}s are of a class that is not known"
        )
    return [position for position in classes if sizes[position]]


def split_within_tasks(graph: Graph, task_of: Tensor, seed: int) -> Tensor:
    """Split each task's examples 60/20/20, within each class if there are classes; return the part of each example.

    Shares are rounded down, but at least one example is for training; the rest is for testing. Links that exist stay
    in one part with all others between the same two nodes, in either direction and whatever their tasks: such a pair
    counts once, in the task of its first link.
    """
    part = torch.full((graph.num_examples,), -1)
    kinds = graph.y if graph.has_classes else torch.zeros(graph.num_examples, dtype=torch.long)
    usable = torch.nonzero((task_of >= 0) & graph.labelled).reshape(-1)
    first = first_of_pair(graph, usable) if graph.positives_only else usable
    counted = torch.unique(first)
    for task, kind in torch.unique(torch.stack([task_of, kinds], 1)[counted], dim=0).tolist():
        chosen = counted[(task_of[counted] == task) & (kinds[counted] == kind)]
        generator = torch.Generator().manual_seed(1_000_003 * seed + 7919 * task + kind)
        mixed = chosen[torch.randperm(chosen.numel(), generator=generator)]
        train, val = max(3 * mixed.numel() // 5, 1), mixed.numel() // 5
        part[mixed[:train]], part[mixed[train : train + val]], part[mixed[train + val :]] = 0, 1, 2
    part[usable] = part[first]
    return part


def tasks_of_classes(graph: Graph, groups: Sequence[Sequence[int]], part: Tensor, seed: int) -> Tensor:
    """Return the task of each example by its class; examples of a class in several tasks are divided evenly."""
    owners: dict[int, list[int]] = {}
    for task, group in enumerate(groups):
        for position in group:
            owners.setdefault(position, []).append(task)
    first = torch.full((graph.num_classes + 1,), -1)
    for position, tasks in owners.items():
        first[position] = tasks[0]
    task_of = first[graph.y]  # -1 (no label) indexes the last entry, also -1
    for position, tasks in owners.items():
        if len(tasks) < 2:
            continue
        for number in (-1, 0, 1, 2):
            chosen = torch.nonzero((graph.y == position) & (part == number)).reshape(-1)
            generator = torch.Generator().manual_seed(1_000_003 * seed + position)
            mixed = chosen[torch.randperm(chosen.numel(), generator=generator)]
            for task, piece in zip(tasks, torch.tensor_split(mixed, len(tasks))):
                task_of[piece] = task
    return task_of
