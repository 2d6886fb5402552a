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
from evergraph.errors import EvergraphError, unknown

SCENARIOS: registry.Registry[Scenario] = registry.scenarios
MOST_TASKS = 200  # when each value of an attribute is a task


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
    Scenario(
        "time", "examples arrive in the order of time, cut into intervals with equally many", by_attribute=True, bins=5
    )
)


def find_attribute(graph: Graph, by: str | None, scenario: str) -> tuple[str, Attribute]:
    """Return the attribute that defines the tasks: as named, else the one named like the scenario, else the only one.

    Ids, which are unique to each example, define no tasks unless they are named.
    """
    known = graph.attributes
    others = [name for name in known if name != "id"]
    if by is None:
        by = scenario if scenario in known else others[0] if len(others) == 1 else None
    if by is None:
        advice = f"name one of {', '.join(others)} with by= (--by)" if others else "it has none to make tasks of"
        raise EvergraphError(f"{graph.name}: scenario {scenario} needs an attribute; {advice}")
    if by not in known:
        raise unknown(f"attribute of {graph.name}", by, known)
    return by, known[by]


def tasks_by_attribute(attribute: Attribute, bins: int, name: str) -> tuple[Tensor, list[str]]:
    """Return the task of each example, and the tasks' names.

    With `bins`, tasks are intervals with equally many examples (as far as equal values, which stay together, allow);
    otherwise each value is a task, in ascending order (or that of the names).
    """
    values = attribute.values.contiguous()
    if missing := int(values.isnan().sum()):
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
        names = attribute.names or [f"{value:g}" for value in present.tolist()]
        chosen = [names[int(value)] for value in present] if attribute.names else names
        return torch.searchsorted(present, values), chosen
    ordered = values.sort().values
    cuts = torch.unique(ordered[[len(ordered) * number // bins for number in range(1, bins)]])
    cuts = cuts[cuts > ordered[0]]
    task_of = torch.searchsorted(cuts, values, right=True)
    spans = [values[task_of == task] for task in range(cuts.numel() + 1)]
    return task_of, [f"{_shown(span.min().item())}–{_shown(span.max().item())}" for span in spans]


def _shown(value: float) -> str:
    """Format a number for display; seconds since 1970 become a date."""
    if 5e8 < value < 5e9:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d")
    return f"{value:g}"


def blurred(task_of: Tensor, part: Tensor, share: float, seed: int) -> Tensor:
    """Blur task boundaries: move a share of each task's training examples to other tasks, drawn uniformly."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 17)
    tasks = int(task_of.max()) + 1
    moved = (task_of >= 0) & (part == 0) & (torch.rand(task_of.shape, generator=generator) < share)
    if tasks < 2:
        return task_of
    step = torch.randint(1, tasks, task_of.shape, generator=generator)
    return torch.where(moved, (task_of + step) % tasks, task_of)
