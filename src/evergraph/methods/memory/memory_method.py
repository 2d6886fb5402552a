"""What methods with a memory share: examples of earlier tasks within a budget, chosen at the end of each task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.settings import PositiveInt
from evergraph.core.sparse import SparseMatrix, take_rows
from evergraph.data.batching import Batch
from evergraph.data.graph import ClassName
from evergraph.data.tasks import Task
from evergraph.methods.access import Access
from evergraph.methods.base import Context, Method, search_over
from evergraph.methods.memory.budget import Budget
from evergraph.methods.memory.piece import Piece, smaller_form
from evergraph.methods.memory.replayed import Replayed, memory_task
from evergraph.methods.state import count_bytes, state


@dataclass(repr=False)
class MemoryMethod(Method):
    """A method that keeps examples of earlier tasks.

    At the end of a task `collect` offers examples, the most wanted first, and the budget takes as many as it holds:
    classes take turns, so that when new classes arrive all old ones give up the same number of examples. A subclass
    says which examples (`rank`), what is kept of each (`store`), or both at once (`collect`); and what the memory is
    good for.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples of each class that are kept where `memory` is empty.
    """

    family = "replay"
    access = Access(keeps=("real nodes",), old_labels=True)
    training = MappingProxyType({"label_scope": "seen", "batch_size": 0, "epochs": 50, "lr": 1e-3, "weight_decay": 0.0})
    search_space = search_over()
    levels = ("node",)
    kinds = ("classes",)

    by_chance: ClassVar[bool] = False
    """Whether chance alone decides which examples stay; otherwise classes take turns."""

    memory: str | PositiveInt = ""
    per_class: PositiveInt = 20
    memory_: list[dict[str, Any]] = state(list, replaced=True)  # packed pieces, one of each task that has any left
    nodes_met_: int = state(int)
    class_names_: list[ClassName] = state(list)  # by output unit
    class_sizes_: list[int] = state(list)  # training nodes met, by output unit

    def __post_init__(self) -> None:
        self.budget()

    def budget(self) -> Budget:
        """The limit that `memory` or `per_class` sets."""
        return Budget.of(self.name, self.memory, self.per_class)

    def pieces(self) -> list[Piece]:
        """What is kept, task by task."""
        return [Piece.unpack(packed) for packed in self.memory_]

    def kept_bytes(self) -> int:
        """The examples, which the budget limits; a name and a count for each class come on top."""
        return count_bytes(self.memory_)

    # filling the memory

    def end_task(self, context: Context) -> None:
        """Add the task's examples, and let go of what the budget does not hold."""
        self.meet(context)
        self.keep([*self.pieces(), self.collect(context)])

    def meet(self, context: Context) -> None:
        """Take note of what arrived: its nodes and its classes."""
        task, units = context.task, context.batcher.y.cpu()[context.task.train]
        self.nodes_met_ += task.graph.num_nodes
        missing = int(units.max()) + 1 - len(self.class_names_)
        self.class_names_, self.class_sizes_ = (
            [*self.class_names_, *[""] * missing],
            [*self.class_sizes_, *[0] * missing],
        )
        positions = task.graph.y.cpu()[task.train]
        for unit, position in torch.stack([units, positions]).unique(dim=1).T.tolist():
            self.class_names_[unit] = task.graph.class_names[position]
            self.class_sizes_[unit] += int((units == unit).sum())

    def memory_task(self, context: Context) -> Task:
        """The memory as a task, for methods that train on it alone."""
        return memory_task(self.pieces(), self.class_names_, context.task)

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Keep as much of the pieces as the budget holds."""
        self.memory_ = [piece.pack() for piece in self.budget().fit(self.name, pieces, self.nodes_met_)]

    @torch.no_grad()
    def collect(self, context: Context) -> Piece:
        """Examples of the task, in the order in which they are wanted: at least as many as the budget could hold."""
        if self.by_chance:
            return self.collect_by_chance(context)
        units = context.batcher.y.cpu()[context.task.train]
        ranked: list[Tensor] = []
        for unit in units.unique().tolist():
            nodes = context.task.train[units == unit]
            ranked.append(self.rank(context, nodes, min(self.most_examples(context), nodes.numel())))
        return self.store(context, in_turns(ranked))

    def collect_by_chance(self, context: Context) -> Piece:
        """Training nodes with the smallest random numbers; those of all tasks are compared as long as they stay.

        For a memory of fixed size that is a reservoir (Vitter, 1985; Li, 1994): every node met is equally likely in it.
        """
        key = torch.rand(context.task.train.numel(), generator=context.generator, dtype=torch.float64)
        classes = context.old.numel() + len(context.task.class_names)
        most = self.most_examples(context) * (classes if self.budget().per_class is not None else 1)
        order = key.argsort()[:most]
        dtype = next(context.model.parameters()).dtype
        return dataclasses.replace(self.store(context, context.task.train[order]), key=key[order].to(dtype))

    def most_examples(self, context: Context) -> int:
        """How many examples of one class the budget could hold if there were nothing else."""
        x, size = context.task.graph.x, next(context.model.parameters()).element_size()
        entries = x.counts() if isinstance(x, SparseMatrix) else torch.count_nonzero(x, dim=1)
        target = 4  # bytes
        return self.budget().most_examples(self.nodes_met_, entries[context.task.train] * size + target)

    def rank(self, context: Context, nodes: Tensor, number: int) -> Tensor:
        """The `number` most wanted of the nodes of one class, in order; by default at random."""
        return nodes[torch.randperm(nodes.numel(), generator=context.generator)[:number]]

    def store(self, context: Context, nodes: Tensor) -> Piece:
        """What is kept of the nodes: by default their features alone."""
        x = take_rows(context.task.graph.x, nodes).to(next(context.model.parameters()).dtype)
        return Piece(smaller_form(x), context.batcher.y.cpu()[nodes])

    # reading it

    def replayed(self, context: Context) -> Replayed | None:
        """The memory as the model reads it, made once per task; None while there is none."""
        if not self.memory_:
            return None
        key = self.memory_[-1]["units"]  # another tensor after every end of a task
        if key not in context.cache:
            context.cache[key] = Replayed.of(context, self.pieces(), self.class_sizes_)
        made: Replayed = context.cache[key]
        return made

    @capability(rests_on=("replayed",))
    def stand_ins(self, context: Context) -> tuple[Batch, Tensor] | None:
        """A batch of all examples, and how many training nodes each stands for; None while there are none."""
        replayed = self.replayed(context)
        return None if replayed is None else (replayed.batch, replayed.stands_for)


def in_turns(ranked: Sequence[Tensor]) -> Tensor:
    """Lists of nodes as one: the first of each, then the second of each, and so on."""
    rank = torch.cat([torch.arange(nodes.numel()) for nodes in ranked])
    return torch.cat(list(ranked))[rank.argsort(stable=True)]
