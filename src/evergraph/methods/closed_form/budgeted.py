"""A closed form whose sums stay within a memory budget: if necessary, its features are narrowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

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
from evergraph.methods.state import state
from evergraph.models.base import GraphModel, known_inputs
from evergraph.models.block_width import USUAL, Limits
from evergraph.models.feature_blocks import Layout
from evergraph.models.random_features import AT_HAND

WITH_GRAPH = 0.125  # share of the budget up to which a task's features stay in its graph's cache
AT_FIRST = 0.25  # share of the budget up to which the first task keeps all sets: one task says little about them
LARGEST = 12_000  # features over which G is formed of blocks that are wider than they are meant to be
NARROWEST = 64  # columns of a linear block; narrower ones are not worth keeping


class Room(NamedTuple):
    """A layout of features, and the part of it that is kept.

    Args:
        layout: the layout.
        keep: which of its present blocks are kept.
        linear_width: columns of a linear block.
        block_width: features of a random block.
    """

    layout: Layout
    keep: list[bool]
    linear_width: int
    block_width: int

    @property
    def linear(self) -> list[bool]:
        """Which of the kept blocks are linear."""
        return [block.linear for block, kept in zip(self.layout.present, self.keep) if kept]

    @property
    def width(self) -> int:
        """Number of features kept, including the column of ones."""
        return 1 + sum(self.linear_width if linear else self.block_width for linear in self.linear)


@dataclass(repr=False)
class BudgetedAnalytic(Analytic):
    """`Analytic` with sums that take no more than `memory`.

    If neither form of the sums fits, random blocks that are wider than usual are narrowed, then linear blocks to a
    sketch (`Hashing`), and the sums are folded to what they would be had the blocks been narrow from the first task on.
    If that is not enough, the linear blocks are dropped, and then the last of the others.
    """

    memory: str = "1GB"
    wider_: float = state(lambda: 1.0)  # width of a random block over the usual one, if it is wider
    _lasting: ClassVar[float] = 1.0  # set per instance: share of the features that remain with many nodes

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
        """Choose the features' width at the first task; narrow them if the sums would exceed the budget."""
        choose_width = capable(model, "choose_width")
        if choose_width is not None and not self.cross_:
            number = sum(getattr(task, part).numel() for part in PARTS)
            size = self._factor_type(linear_head(model)[1]).itemsize
            room = AT_FIRST * self.budget()
            choose_width(task.graph, Limits(lambda width: size * width * number <= room, self._fits))
        super().adapt_model(model, task)
        layout = capable(model, "feature_layout")
        if layout is None or capable(model, "narrow") is None:
            return
        self._note(layout())
        nodes = {part: self._rows(part) + getattr(task, part).numel() for part in PARTS}
        now = wanted = Room(layout(), [True] * len(layout().present), layout().linear_width, layout().block_width)
        size = self._factor_type(linear_head(model)[1]).itemsize
        while self._bytes(wanted.width, nodes, size) > self.budget() or self._too_wide(wanted, nodes, task, size):
            wanted = self._narrower(wanted)
        if wanted is not now:
            self._narrow(model, wanted.keep, wanted.linear_width, wanted.block_width)

    def _note(self, layout: Layout) -> None:
        """Note how wide the blocks are, and which share of their features is meant to last."""
        self.block_widths_, self.wider_ = list(layout.widths), layout.wider
        self.__dict__["_lasting"] = (1 + sum(layout.lasting_widths)) / layout.width

    def _too_wide(self, room: Room, nodes: dict[str, int], task: Task, size: int) -> bool:
        """Return whether blocks that are wider than they are meant to be with many nodes have to be narrowed.

        That is so with so many nodes that factors do not pay, or if the task's features would not be at hand.
        """
        if room.block_width <= room.layout.lasting_width:
            return False
        many = sum(nodes.values()) > 1 + sum(room.layout.lasting_widths)
        dear = many and (room.width > LARGEST or not self._fits(room.width))
        return dear or task.graph.num_nodes * room.width * size > AT_HAND

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
        """Return a smaller room: narrower random blocks, hashed linear blocks or none, or one block fewer."""
        linear = [block.linear for block in room.layout.present]
        if room.layout.narrowable and room.block_width > USUAL and not all(room.linear):
            return room._replace(block_width=max(room.block_width // 2, USUAL))
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

    def _narrow(
        self, model: GraphModel, keep: Sequence[bool], linear_width: int, block_width: int = 0
    ) -> Callable[[Tensor, int], Tensor]:
        """Drop blocks and narrow others, in the model and the sums; return the function that folds other sums."""
        fold = capable(model, "narrow")(keep, linear_width, block_width)  # type: ignore[misc]
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
        layout: Layout = capable(model, "feature_layout")()  # type: ignore[misc]
        self._note(layout)
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
