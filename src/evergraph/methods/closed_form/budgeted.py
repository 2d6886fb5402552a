"""A closed form whose sums stay within a memory budget: if necessary, its features are narrowed."""

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
from evergraph.methods.base import Context
from evergraph.methods.closed_form.analytic import Analytic
from evergraph.methods.closed_form.head import linear_head
from evergraph.methods.closed_form.two_forms import PARTS
from evergraph.methods.memory.budget import Budget
from evergraph.models.base import GraphModel, known_inputs
from evergraph.models.feature_blocks import Layout

WITH_GRAPH = 0.125  # share of the budget up to which a task's features stay in its graph's cache
NARROWEST = 64  # columns of a linear block; narrower ones are not worth keeping


class Room(NamedTuple):
    """A layout of features, and the part of it that is kept.

    Args:
        layout: the layout.
        keep: which of its present blocks are kept.
        linear_width: columns of a linear block.
    """

    layout: Layout
    keep: list[bool]
    linear_width: int

    @property
    def linear(self) -> list[bool]:
        """Which of the kept blocks are linear."""
        return [block.linear for block, kept in zip(self.layout.present, self.keep) if kept]

    @property
    def width(self) -> int:
        """Number of features kept, including the column of ones."""
        left = [width for width, kept in zip(self.layout.widths, self.keep) if kept]
        return 1 + sum(self.linear_width if linear else width for width, linear in zip(left, self.linear))


@dataclass(repr=False)
class BudgetedAnalytic(Analytic):
    """`Analytic` with sums that take no more than `memory`.

    If neither form of the sums fits, linear blocks of features are narrowed to a sketch (`Hashing`), and the sums are
    folded to what they would be had the sketch been used from the first task on. If that is not enough, the linear
    blocks are dropped, and then the last of the others.
    """

    memory: str = "1GB"

    def __post_init__(self) -> None:
        self.budget()

    def budget(self) -> int:
        """Return the budget in bytes."""
        limit = Budget.of(self.name, self.memory or "1GB", 0).num_bytes
        if limit is None:
            raise EvergraphError(
                f"{self.name}: memory={self.memory!r} must be an amount, e.g. 500MB; no share of nodes is kept"
            )
        return limit

    def _fits(self, width: int) -> bool:
        return self._gram_bytes(width) <= self.budget()

    def _room(self, features: int) -> int | None:
        return max(self.budget() - features, 0)

    def release(self, context: Context) -> None:
        """Drop the task's features, unless they are small: its graph would hold them for later tests."""
        features = known_inputs(context.model, context.task.graph, context.device)
        if isinstance(features, Tensor) and features.nbytes > WITH_GRAPH * self.budget():
            context.task.graph.cache.clear()

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Narrow the features if the sums with this task would exceed the budget."""
        super().adapt_model(model, task)
        layout = capable(model, "feature_layout")
        if layout is None or capable(model, "narrow") is None:
            return
        nodes = {part: self._rows(part) + getattr(task, part).numel() for part in PARTS}
        now = wanted = Room(layout(), [True] * len(layout().present), layout().linear_width)
        size = self._factor_type(linear_head(model)[1]).itemsize
        while self._bytes(wanted.width, nodes, size) > self.budget():
            wanted = self._narrower(wanted)
        if wanted is not now:
            self._narrow(model, wanted.keep, wanted.linear_width)

    def _bytes(self, width: int, nodes: dict[str, int], size: int) -> int:
        """Return the bytes of the sums over `width` features, before a task and with it, in the form they would have.

        `nodes` are the rows of the factors with the task, by part.
        """
        dense = self._dense(width, nodes["train"])
        return self._gram_bytes(width) if dense else size * width * (sum(nodes.values()) + self._rows(*PARTS))

    def _gram_bytes(self, width: int) -> int:
        """Return the bytes of G of both parts while a task is learned: the old G, in case of failure, and the new."""
        return 2 * len(PARTS) * 8 * packed_size(width)

    def _narrower(self, room: Room) -> Room:
        """Return a smaller room: half the columns of linear blocks, none of these blocks, or one block fewer."""
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
        """Drop blocks and narrow linear ones, in the model and the sums; return the function that folds other sums."""
        fold = capable(model, "narrow")(keep, linear_width)  # type: ignore[misc]
        self.factor_ = {part: fold(rows, 1) for part, rows in self.factor_.items()}
        self.cross_ = {part: fold(cross, 0) for part, cross in self.cross_.items()}
        for computed in ("_heads", "_sums"):  # they hold the old sums
            self.__dict__.pop(computed, None)
        sums, self.gram_ = dict(self.gram_), {}
        for part in tuple(sums):  # one at a time, so that each old G is freed before the next is folded
            sums[part] = folded_twice(sums.pop(part), fold)
        self.gram_ = self._new_sums = sums
        self._fold_heads(fold)
        self.blocks_ = [read for read, kept in zip(self.blocks_, keep) if kept]
        self.block_widths_ = list(capable(model, "feature_layout")().widths)  # type: ignore[misc]
        folded: Callable[[Tensor, int], Tensor] = fold
        return folded

    def _fold_heads(self, fold: Callable[[Tensor, int], Tensor]) -> None:
        """Fold stored heads to the model's new shape; on narrowed blocks they are solved again with the task."""
        self.vote_ = {name: fold(vote, 0) for name, vote in self.vote_.items()}


def folded_twice(gram: Tensor, fold: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Fold both sides of a packed Gram matrix, a panel of rows and then a panel of columns at a time."""
    width = fold(gram.new_zeros(1, num_rows(gram)), 1).size(1)
    half = large.empty((num_rows(gram), width), gram.dtype, gram.device)
    for place, rows in full_rows(gram):
        half[place] = fold(rows, 1)
    found = large.empty((packed_size(width),), gram.dtype, gram.device)
    for panel in panels(found):
        panel.entries.copy_(fold(half[:, panel.start : panel.stop], 0)[: panel.stop].T)
    return found
