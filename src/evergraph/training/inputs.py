"""Conversion of what users pass to a learner: tasks, nodes, classes. Anything else raises a one-line error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergraph.data import ClassName, Graph, Task, TaskStream
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphError, unknown

Tasks = TaskStream | Task | Sequence[Any]
"""A stream, or a list of tasks, PyG `Data` objects, graphs or paths of graph files."""


def as_task(task: Any, *, seed: int, index: int, numbers: bool = False) -> Task:
    """Return the task itself, or a task of a graph's labelled examples, split as a learner with this seed splits them.

    `numbers` is for a learner that predicts numbers, as in `Task.of`.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, TaskStream):
        raise EvergraphError(f"{task.name} is a stream of {len(task)} tasks; learn them all with learner.fit(stream)")
    if isinstance(task, (list, tuple)):
        raise EvergraphError(
            f"a list of {len(task)} is not a task; learn several with learner.fit([…]), one of many graphs with "
            "learner.learn(eg.Task.of([…]))"
        )
    return Task.of(task, seed=seed, index=index, numbers=numbers)


def as_tasks(tasks: Any, *, seed: int, numbers: bool = False) -> TaskStream | list[Task]:
    """Return the stream itself, or a list of tasks made from a list or from a single task."""
    if isinstance(tasks, TaskStream):
        return tasks
    if isinstance(tasks, (list, tuple, Iterator)):
        listed = [as_task(task, seed=seed, index=index, numbers=numbers) for index, task in enumerate(tasks)]
        if not listed:
            raise EvergraphError("the list of tasks is empty; give at least one task, graph or path")
        return listed
    return [as_task(tasks, seed=seed, index=0, numbers=numbers)]


def is_pairs(nodes: Any) -> bool:
    """Whether pairs of nodes are asked for, in the shape `(2, number)`."""
    try:
        shape = nodes.shape if isinstance(nodes, Tensor) else np.shape(nodes)
    except ValueError:  # ragged
        return False
    return len(shape) == 2 and shape[0] == 2


def example_ids(graph: Graph) -> list[Any] | None:
    """Return the ids of the examples; None if the graph has none."""
    known = graph.attributes.get("id")
    if known is None:
        return None
    return known.values.tolist() if known.names is None else [known.names[code] for code in known.values.tolist()]


def _names_in(nodes: Any, graph: Graph) -> list[Any] | None:
    """Return the examples asked for by name, as a list; None if indices or a mask are given."""
    if isinstance(nodes, (str, int, np.integer)):
        named = [nodes]
    elif isinstance(nodes, (list, tuple, range)):
        named = list(nodes)
    elif not isinstance(nodes, Tensor) and hasattr(nodes, "tolist"):  # numpy, pandas
        array = np.asarray(nodes)
        ids = example_ids(graph) if array.dtype.kind in "iu" else None
        if ids is not None and ids != list(range(len(ids))):
            raise EvergraphError(
                f"nodes={_short(nodes)}: ids of {graph.name}, or numbers of its rows? Give ids in a list "
                "(nodes.tolist()), numbers of rows as a tensor (torch.as_tensor(nodes))"
            )
        named = array.tolist() if array.dtype.kind in "OUS" and array.ndim == 1 else []
    else:
        return None
    if any(isinstance(node, str) for node in named):
        return named
    numbers = not named or any(isinstance(node, (bool, np.bool_, Tensor)) for node in named)
    return None if numbers or example_ids(graph) is None else named


def _by_id(given: Any, nodes: list[Any], graph: Graph) -> Tensor:
    """Return the indices of the examples with these ids; `given` is the user's argument, for error messages."""
    known = example_ids(graph)
    if known is None:
        raise EvergraphError(
            f"nodes={_short(given)} are not node numbers, and the {graph.level}s of {graph.name} have no ids; "
            "give whole numbers or a mask"
        )
    number = {str(name): position for position, name in enumerate(known)}
    for name in map(str, nodes):
        if name not in number:
            rows = "" if all(isinstance(node, str) for node in nodes) else "; a tensor asks for rows by their numbers"
            raise EvergraphError(f"{graph.name}: no {graph.level} has the id {name!r}; ids are like {known[0]!r}{rows}")
    if len(number) < len(known):
        twice = next((name for name in map(str, nodes) if list(map(str, known)).count(name) > 1), None)
        if twice is not None:
            raise EvergraphError(f"{graph.name}: several {graph.level}s have the id {twice!r}; ask by a tensor of rows")
    return torch.tensor([number[str(name)] for name in nodes], dtype=torch.long)


def is_id(name: str, graph: Graph) -> bool:
    """Whether one of the examples has this id."""
    return name in map(str, example_ids(graph) or ())


def chosen_examples(nodes: Any, graph: Graph) -> Tensor:
    """Return the indices of the nodes, graphs or links asked for; all for None.

    A list holds ids if the graph has ids, else indices. A tensor always holds indices, as a task's `train` does; a mask
    covers all examples.
    """
    count, what = graph.num_examples, f"{graph.level}s"
    if nodes is None:
        return torch.arange(count)
    if (named := _names_in(nodes, graph)) is not None:
        return _by_id(nodes, named, graph)
    try:
        chosen = nodes.detach().cpu() if isinstance(nodes, Tensor) else torch.as_tensor(np.array(nodes))
    except (TypeError, ValueError, RuntimeError):  # a set, a slice, a generator, objects
        what, each = ("node numbers", "whole numbers") if example_ids(graph) is None else ("a list of ids", "ids")
        raise EvergraphError(f"nodes={_short(nodes)} are not {what}; give a list of {each}, or a mask") from None
    chosen = chosen.reshape(1) if chosen.ndim == 0 else chosen
    if chosen.ndim != 1:
        raise EvergraphError(f"nodes have shape {tuple(chosen.shape)}; give a list of node numbers, or a mask")
    if isinstance(nodes, (list, tuple)) and len({isinstance(node, (bool, np.bool_)) for node in nodes}) > 1:
        raise EvergraphError(
            f"nodes={_short(nodes)} mix numbers and truth values; give numbers, or a mask of all nodes"
        )
    if chosen.dtype == torch.uint8 and chosen.shape == (count,) and count > 2 and int(chosen.max()) <= 1:
        raise EvergraphError("nodes are 0 and 1 as uint8: a mask or numbers? Give mask.bool(), or numbers as int64")
    if chosen.dtype == torch.bool:
        if chosen.shape != (count,):
            raise EvergraphError(f"{graph.name}: a mask of shape {tuple(chosen.shape)} does not fit {count} {what}")
        return torch.nonzero(chosen).reshape(-1)
    if chosen.numel() and (chosen.is_floating_point() or chosen.is_complex()):
        raise EvergraphError(f"nodes={_short(nodes)} are not whole numbers; give node numbers, or a mask")
    chosen = chosen.long()
    if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < count:
        raise EvergraphError(f"{graph.name}: {what} run from 0 to {count - 1}; one asked for is outside")
    return chosen


def chosen_units(classes: Any, known: Sequence[ClassName]) -> list[int]:
    """Return the output units of the named classes; of all known classes for None."""
    if classes is None:
        return list(range(len(known)))
    if isinstance(classes, (str, int)) or not isinstance(classes, Iterable):
        raise EvergraphError(f"classes={classes!r} is not a list; give names in a list, e.g. [{classes!r}]")
    named = list(classes)
    if not named:
        raise EvergraphError("classes=[] leaves nothing to choose from; name at least one, or leave it out for all")
    units = {name: unit for unit, name in enumerate(known)}
    for name in named:
        if not isinstance(name, (str, int)) or as_known([name], known)[0] not in units:
            raise unknown("class", name, map(str, known))
    return [units[name] for name in as_known(named, known)]


def new_names(known: Sequence[ClassName], task: Task) -> list[ClassName]:
    """Return the task's classes that were not met before; raises if two of them have one name, as 10 and '10' have."""
    names = list(map(str, task.class_names))
    if twice := [name for name in names if names.count(name) > 1]:
        raise EvergraphError(
            f"{task.graph.name}: two classes are called {twice[0]!r}, one by text and one by a number; give every "
            "class a name of its own"
        )
    return [name for name in as_known(task.class_names, known) if name not in known]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
