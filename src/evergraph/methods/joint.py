"""Joint training: the upper reference of every comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from evergraph.data.tasks import Task, union
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, Context, Method
from evergraph.methods.state import count_bytes, state


@METHODS.register
@dataclass(repr=False)
class Joint(Method):
    """Train from scratch on all tasks so far, with all their data kept: what continual learning is measured against.

    A stream that still has its earlier tasks provides them (`Task.so_far`), on the graph used for testing. Tasks that
    arrive on their own are kept here, and their graphs are joined without edges between them.

    Args:
        learn_validation: train on the validation nodes too, for a comparison with methods that finally learn from
            them (`analytic` and `auto` do by default). Choose settings without it.
    """

    name = "joint"
    family = "baseline"
    reference = "training from scratch on all data so far"
    access = Access(keeps=("graphs",), old_labels=True, all_data=True)

    learn_validation: bool = False
    kept_: list[dict[str, Any]] = state(list, replaced=True)
    kept_by_stream_: int = state(int)  # bytes of all data so far, if a stream keeps it instead

    @property
    def no_validation(self) -> str:  # type: ignore[override]
        """Why there are no validation examples, if it trains on them."""
        return "joint trains on them too (learn_validation)" if self.learn_validation else ""

    @property
    def trains_on_validation(self) -> bool:  # type: ignore[override]
        """Whether it trains on validation examples, as a setting."""
        return self.learn_validation

    def start_task(self, context: Context) -> None:
        """Reset the parameters: each task is learned from scratch, together with all before it."""
        context.model.start_over()

    def training_data(self, context: Context) -> Task | None:
        """Return all data so far."""
        task = context.task
        everything = task.so_far() if task.so_far is not None else task
        if self.kept_:
            everything = union([*map(Task.unpack, self.kept_), everything])
        if len(everything.class_names) < context.num_seen:
            raise EvergraphError(
                "joint training: the data of some earlier classes is gone, it was kept by another stream; "
                "learn the tasks of one stream, or tasks of your own (Task.of), which are kept"
            )
        if self.learn_validation:
            none = everything.val[:0]
            everything = replace(everything, train=torch.cat([everything.train, everything.val]), val=none)
        return everything

    def end_task(self, context: Context) -> None:
        """Keep the task's data, unless its stream does."""
        assert context.arrived is not None
        if context.arrived.so_far is None:
            self.kept_ = [*self.kept_, context.arrived.pack()]
        else:
            self.kept_by_stream_ = count_bytes(context.task.pack())

    def kept_bytes(self) -> int:
        """Return the size in bytes of all data so far, whether kept here or by the stream."""
        return count_bytes(self.kept_) + self.kept_by_stream_
