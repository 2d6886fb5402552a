"""A closed form whose sums stay within a memory budget, over features that can be cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from evergraph.core import large
from evergraph.core.capabilities import capable
from evergraph.core.symmetric import full_rows, num_rows, packed_size, panels
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods.closed_form.analytic import Analytic
from evergraph.methods.closed_form.head import linear_head
from evergraph.methods.closed_form.two_forms import BOTH
from evergraph.methods.memory.budget import Budget
from evergraph.models.base import GraphModel
from evergraph.models.feature_blocks import Layout

NARROWEST = 64  # columns of a linear block below which it is not worth its place


class Room(NamedTuple):
    """What is left of a layout of features.

    Args:
        layout: the layout.
        keep: which of the blocks that there are.
        linear_width: columns of a linear block.
    """

    layout: Layout
    keep: list[bool]
    linear_width: int

    @property
    def linear(self) -> list[bool]:
        """Which of the blocks left are linear."""
        return [block.linear for block, kept in zip(self.layout.present, self.keep) if kept]

    @property
    def width(self) -> int:
        """The number of features left, the column of ones included."""
        left = [width for width, kept in zip(self.layout.widths, self.keep) if kept]
        return 1 + sum(self.linear_width if linear else width for width, linear in zip(left, self.linear))


@dataclass(repr=False)
class BudgetedAnalytic(Analytic):
    """`Analytic` with sums that take no more than `memory`.

    Where neither form of the sums fits, linear blocks of features are narrowed to a sketch (`Hashing`), and what was
    summed is folded to what it would be had the sketch been there from the first task on. Where that is not enough, the
    last of the other blocks are left behind.
    """

    memory: str = "1GB"

    def __post_init__(self) -> None:
        self.budget()

    def budget(self) -> int:
        """The budget in bytes."""
        limit = Budget.of(self.name, self.memory or "1GB", 0).num_bytes
        if limit is None:
            raise EvergraphError(
                f"{self.name}: memory={self.memory!r} must be an amount, e.g. 500MB; no share of nodes is kept"
            )
        return limit

    def _fits(self, width: int) -> bool:
        return self._gram_bytes(width) <= self.budget()

    def _room(self) -> int | None:
        return self.budget()

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Make room for the task: narrow the features where the sums would take more than the budget."""
        super().adapt_model(model, task)
        layout = capable(model, "feature_layout")
        if layout is None or capable(model, "narrow") is None:
            return
        nodes = {part: self._rows(part) + getattr(task, part).numel() for part in BOTH}
        now = wanted = Room(layout(), [True] * len(layout().present), layout().linear_width)
        size = self._factor_type(linear_head(model)[1]).itemsize
        while self._bytes(wanted.width, nodes, size) > self.budget():
            wanted = self._narrower(wanted)
        if wanted is not now:
            self._narrow(model, wanted.keep, wanted.linear_width)

    def _bytes(self, width: int, nodes: dict[str, int], size: int) -> int:
        """What the sums of so many nodes over so many features take, in the form that they would have."""
        dense = self._dense(width, nodes["train"])
        return self._gram_bytes(width) if dense else size * width * sum(nodes.values())

    def _gram_bytes(self, width: int) -> int:
        """What G of both parts takes while a task is learned: as it was, in case of a failure, and as it becomes."""
        return 2 * len(BOTH) * 8 * packed_size(width)

    def _narrower(self, room: Room) -> Room:
        """A little left behind: half of the columns of linear blocks, these blocks where they are few, or a block."""
        linear = [block.linear for block in room.layout.present]
        if any(room.linear) and room.linear_width > NARROWEST:
            return room._replace(linear_width=2 ** ((room.linear_width - 1).bit_length() - 1))
        if any(room.linear) and not all(room.linear):
            return room._replace(keep=[kept and not words for kept, words in zip(room.keep, linear)])
        if sum(room.keep) > 1:
            last = max(place for place, kept in enumerate(room.keep) if kept)
            return room._replace(keep=[kept and place != last for place, kept in enumerate(room.keep)])
        raise EvergraphError(
            f"{self.name}: memory={self.memory!r} cannot hold the sums of {room.width} features; "
            "give more, or a model with a smaller hidden"
        )

    def _narrow(self, model: GraphModel, keep: Sequence[bool], linear_width: int) -> Callable[[Tensor, int], Tensor]:
        """Drop blocks, narrow linear ones; the sums follow. Returns what takes other sums over features there."""
        fold = capable(model, "narrow")(keep, linear_width)  # type: ignore[misc]
        self.factor_ = {part: fold(rows, 1) for part, rows in self.factor_.items()}
        self.cross_ = {part: fold(cross, 0) for part, cross in self.cross_.items()}
        for computed in ("_heads", "_sums"):  # they hold the sums as they were
            self.__dict__.pop(computed, None)
        sums, self.gram_ = dict(self.gram_), {}
        for part in tuple(sums):  # one after the other leaves
            sums[part] = folded_twice(sums.pop(part), fold)
        self.gram_ = self._new_sums = sums
        self._fold_heads(fold)
        self.blocks_ = [read for read, kept in zip(self.blocks_, keep) if kept]
        self.block_widths_ = list(capable(model, "feature_layout")().widths)  # type: ignore[misc]
        folded: Callable[[Tensor, int], Tensor] = fold
        return folded

    def _fold_heads(self, fold: Callable[[Tensor, int], Tensor]) -> None:
        """Heads besides the model's keep its shape; where blocks were narrowed they are solved anew with the task."""
        self.vote_ = {name: fold(vote, 0) for name, vote in self.vote_.items()}


def folded_twice(gram: Tensor, fold: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Both sides of a packed Gram matrix folded, a panel of rows and then of columns at a time."""
    width = fold(gram.new_zeros(1, num_rows(gram)), 1).size(1)
    half = large.empty((num_rows(gram), width), gram.dtype, gram.device)
    for place, rows in full_rows(gram):
        half[place] = fold(rows, 1)
    found = large.empty((packed_size(width),), gram.dtype, gram.device)
    for panel in panels(found):
        panel.entries.copy_(fold(half[:, panel.start : panel.stop], 0)[: panel.stop].T)
    return found
