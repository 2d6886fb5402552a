"""Scenarios: which examples belong to which task, and what is known at test time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import torch
from torch import Tensor

from evergraph import registry
from evergraph.core.settings import Checked
from evergraph.data.attributes import Attribute
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError, tell, unknown

SCENARIOS: registry.Registry[Scenario] = registry.scenarios
MOST_TASKS = 200  # when each value of an attribute is a task
MOST_LISTED = 30  # names of attributes in an error
NO_NAME = {"", "None", "nan", "NaN", "NaT"}  # what text and dates are where they are missing
WHOLE = 1e16  # numbers below it are written in full if they are whole


@dataclass(frozen=True)
class Scenario(metaclass=Checked):
    """What defines a task, and what is known at prediction time.

    Args:
        name: the value of `--scenario`.
        about: one-line description.
        by_attribute: tasks are values of an attribute and share their classes; otherwise classes define the tasks.
        bins: default number of intervals that the attribute is cut into; 0 makes each value a task.
        task_known: the task is known at prediction time, which chooses only among its classes.
    """

    name: str
    about: str
    by_attribute: bool = False
    bins: int = 0
    task_known: bool = False


SCENARIOS.accept(instances_of=Scenario)
SCENARIOS.register(Scenario("class", "new classes arrive; prediction is among all classes met"))
SCENARIOS.register(
    Scenario(
        "task", "new classes arrive; the task is known at test time, prediction is among its classes", task_known=True
    )
)
SCENARIOS.register(
    Scenario("domain", "the same classes in another domain (a country, a shop): a task for each", by_attribute=True)
)
SCENARIOS.register(
    Scenario("time", "examples arrive in the order of time, in intervals of equal size", by_attribute=True, bins=5)
)


def find_attribute(graph: Graph, by: str | None, scenario: str) -> tuple[Graph, str, Attribute]:
    """Return the attribute that defines the tasks: as named, else the one named like the scenario, else the only one.

    A feature with a name will do, too: the graph that is returned is without it, since it would tell the tasks apart.
    Ids, which are unique to each example, define no tasks unless they are named.
    """
    known, columns = graph.attributes, _named_columns(graph)
    others = [name for name in known if name != "id"]
    if by is None:
        by = scenario if scenario in (*known, *columns) else others[0] if len(others) == 1 else None
    if by is None:
        some = [*others, *columns][:MOST_LISTED]
        advice = f"name one of {', '.join(some)} with by= (--by)" if some else "it has none to make tasks of"
        raise EvergraphError(f"{graph.name}: scenario {scenario} needs an attribute; {advice}")
    if by not in known and by not in columns:
        raise unknown(f"attribute of {graph.name}", by, [*known, *columns][:MOST_LISTED])
    if by not in columns:
        return graph, by, known[by]
    place = columns.index(by)
    assert isinstance(graph.x, Tensor)
    attribute = known[by] if by in known else Attribute(graph.x[:, place])
    left = [number for number in range(graph.num_features) if number != place]
    if not left:
        raise EvergraphError(f"{graph.name}: {by!r} is its only feature; tasks cannot be made of it")
    tell(f"{graph.name}: {by!r} defines the tasks and is no feature in this stream")
    return graph.altered(x=graph.x[:, left], feature_names=[columns[number] for number in left]), by, attribute


def _named_columns(graph: Graph) -> list[str]:
    """Return the names of the features, if their columns can define tasks: those of nodes, in memory and dense."""
    usable = graph.level == "node" and not graph.on_disk and isinstance(graph.x, Tensor)
    return list(graph.feature_names or ()) if usable else []


def tasks_by_attribute(attribute: Attribute, bins: int, name: str) -> tuple[Tensor, list[str]]:
    """Return the task of each example, and the tasks' names.

    With `bins`, tasks are intervals with equally many examples (as far as equal values, which stay together, allow);
    otherwise each value is a task, in ascending order (or that of the names).
    """
    values = attribute.values.contiguous()
    empty = [code for code, known in enumerate(attribute.names or ()) if known in NO_NAME]
    if missing := int((values.isnan() | torch.isin(values, torch.tensor(empty, dtype=values.dtype))).sum()):
        raise EvergraphError(
            f"{name} is missing at {missing:,} of {len(values):,} examples; give it, or leave them out"
        )
    present = torch.unique(values)
    if not bins or present.numel() <= bins:
        if present.numel() > MOST_TASKS:
            raise EvergraphError(
                f"{name} has {present.numel()} values, and each would be a task; say how many with bins= (--bins 8)"
            )
        if present.numel() < 2 and bins:
            raise EvergraphError(f"{name} has one value; it cannot be cut into tasks")
        return torch.searchsorted(present, values), [_shown(value, attribute) for value in present.tolist()]
    ordered = values.sort().values
    cuts = torch.unique(ordered[[len(ordered) * number // bins for number in range(1, bins)]])
    cuts = cuts[cuts > ordered[0]]
    task_of = torch.searchsorted(cuts, values, right=True)
    spans = [values[task_of == task] for task in range(cuts.numel() + 1)]
    ends = ((_shown(end.item(), attribute, in_time=True) for end in (span.min(), span.max())) for span in spans)
    return task_of, ["–".join(pair) for pair in ends]


def _shown(value: float, attribute: Attribute, *, in_time: bool = False) -> str:
    """Format a value of an attribute for display: its name, if it has one, else the number, in full if it is whole.

    With `in_time`, seconds and milliseconds since 1970 become a date.
    """
    if attribute.names is not None:
        return attribute.names[int(value)]
    for seconds in (value, value / 1000) if in_time else ():
        if 5e8 < seconds < 5e9:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    return f"{value:.0f}" if value == round(value) and abs(value) < WHOLE else f"{value:g}"


def blurred(task_of: Tensor, part: Tensor, share: float, seed: int) -> Tensor:
    """Blur task boundaries: move a share of each task's training examples to other tasks, drawn uniformly."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 17)
    tasks = int(task_of.max()) + 1
    moved = (task_of >= 0) & (part == 0) & (torch.rand(task_of.shape, generator=generator) < share)
    if tasks < 2:
        return task_of
    step = torch.randint(1, tasks, task_of.shape, generator=generator)
    return torch.where(moved, (task_of + step) % tasks, task_of)
