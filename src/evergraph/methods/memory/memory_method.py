"""Base class of methods with a memory: examples of earlier tasks within a budget, chosen at the end of each task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.features import take_rows
from evergraph.core.settings import PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import Context, Method, search_over
from evergraph.methods.memory.budget import Budget
from evergraph.methods.memory.piece import Piece, smaller_form
from evergraph.methods.memory.replayed import Replayed, memory_task, unit_or_group
from evergraph.methods.state import count_bytes, state


@dataclass(repr=False)
class MemoryMethod(Method):
    """A method that keeps examples of earlier tasks.

    At the end of a task `collect` offers examples in order of priority, and as many are kept as the budget allows:
    classes take turns, so that when new classes arrive all old ones give up the same number of examples. A subclass
    defines which examples are kept (`rank`), what is kept of each (`store`), or both at once (`collect`); and how the
    memory is used.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: examples kept per class if `memory` is empty; if examples have no classes, the number kept in all
            (with a single label, the number of positive and of negative examples each).
    """

    family = "replay"
    access = Access(keeps=("real nodes",), old_labels=True)
    training = MappingProxyType({"label_scope": "seen", "batch_size": 0, "epochs": 50, "lr": 1e-3, "weight_decay": 0.0})
    search_space = search_over()
    levels: ClassVar[tuple[str, ...]] = ("node",)
    kinds: ClassVar[tuple[str, ...]] = ("classes",)

    by_chance: ClassVar[bool] = False
    """Whether examples are kept purely at random; otherwise classes take turns."""

    memory: str | PositiveInt = ""
    per_class: PositiveInt = 20
    memory_: list[dict[str, Any]] = state(list, replaced=True)  # packed pieces, one per task with examples left
    nodes_met_: int = state(int)
    class_sizes_: list[int] = state(list)  # training examples met, by output unit

    def __post_init__(self) -> None:
        self.budget()

    def budget(self) -> Budget:
        """Return the limit set by `memory` or `per_class`."""
        return Budget.of(self.name, self.memory, self.per_class)

    def pieces(self) -> list[Piece]:
        """Return what is kept, one piece per task."""
        return [Piece.unpack(packed) for packed in self.memory_]

    def kept_bytes(self) -> int:
        """Return the bytes of the examples, which the budget limits; per-class names and counts are extra."""
        return count_bytes(self.memory_)

    # filling the memory

    def end_task(self, context: Context) -> None:
        """Add the task's examples, and drop what exceeds the budget."""
        self.meet(context)
        self.keep([*self.pieces(), self.collect(context)])

    def meet(self, context: Context) -> None:
        """Count the task's nodes, and the training examples of each of its classes."""
        counts = torch.bincount(self.units(context), minlength=len(self.class_sizes_))
        counts[: len(self.class_sizes_)] += torch.tensor(self.class_sizes_, dtype=torch.long)
        self.nodes_met_ += context.task.num_new_nodes
        self.class_sizes_ = counts.tolist()

    def units(self, context: Context) -> Tensor:
        """Return the training examples' output units; if they have no classes, the groups they are counted in."""
        return unit_or_group(context)

    def memory_task(self, context: Context) -> Task:
        """Return the memory as a task, for methods that train only on it."""
        return memory_task(self.pieces(), context.model, context.class_names, context.task)

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Keep as much of the pieces as the budget holds."""
        kept = self.budget().fit(self.name, pieces, self.nodes_met_, self.classes_met)
        self.memory_ = [piece.pack() for piece in kept]

    @property
    def classes_met(self) -> int:
        """Number of classes met; if examples have no classes, of the groups they are counted in."""
        return sum(met > 0 for met in self.class_sizes_)

    @torch.no_grad()
    def collect(self, context: Context) -> Piece:
        """Return examples of the task in order of priority, at least as many as the budget could hold."""
        if self.by_chance:
            return self.collect_by_chance(context)
        units = self.units(context)
        ranked: list[Tensor] = []
        for unit in units.unique().tolist():
            nodes = context.task.train[units == unit]
            chosen = self.rank(context, nodes, min(self.most_examples(context), nodes.numel()))
            listed = isinstance(chosen, Tensor) and chosen.dim() == 1 and chosen.dtype == nodes.dtype
            if not listed or not bool(torch.isin(chosen, nodes).all()):
                raise EvergraphError(f"{self.name}: rank must return a tensor of some of the nodes it is given")
            ranked.append(chosen)
        return self.store(context, in_turns(ranked))

    def collect_by_chance(self, context: Context) -> Piece:
        """Return the training examples with the smallest random keys, which are later compared with other tasks' keys.

        For a memory of fixed size this is a reservoir (Vitter, 1985; Li, 1994): every example met is equally likely to
        be in it.
        """
        key = torch.rand(context.task.train.numel(), generator=context.generator, dtype=torch.float64)
        most = self.most_examples(context) * (self.classes_met if self.budget().per_class is not None else 1)
        order = key.argsort()[:most]
        dtype = next(context.model.parameters()).dtype
        return dataclasses.replace(self.store(context, context.task.train[order]), key=key[order].to(dtype))

    def most_examples(self, context: Context) -> int:
        """Return how many examples of one class the budget could hold if there were nothing else."""
        x, size = context.task.graph.x, next(context.model.parameters()).element_size()
        entries = x.counts() if isinstance(x, SparseMatrix) else torch.count_nonzero(x, dim=1)
        if context.problem.level == "node":
            sizes = entries[context.task.train] * size
        else:  # a graph has at least one node; links may share their ends
            smallest = int(entries.min()) * size if context.problem.level == "graph" else 8
            sizes = torch.full((context.num_train,), smallest)
        return self.budget().most_examples(self.nodes_met_, sizes)

    def rank(self, context: Context, nodes: Tensor, number: int) -> Tensor:
        """Return the `number` examples of one class with the highest priority, in order; by default at random."""
        return nodes[torch.randperm(nodes.numel(), generator=context.generator)[:number]]

    def store(self, context: Context, examples: Tensor) -> Piece:
        """Return what is kept of the examples: only the features of nodes, whole graphs, or the two ends of links.

        For links, the edges of the task's graph between the kept ends are kept too, since messages pass along them.
        """
        graph, dtype = context.task.graph, next(context.model.parameters()).dtype
        place = torch.full((graph.num_examples,), -1)
        place[context.task.train] = torch.arange(context.num_train)
        units, rows = self.units(context)[place[examples]], None
        if not graph.has_classes:
            rows = context.batcher.y.cpu()[examples].to(dtype)
        if graph.members is None:
            return Piece(smaller_form(take_rows(graph.x, examples).to(dtype)), units, rows=rows)
        members = graph.members.rows(examples)
        nodes, ends = members.indices, None
        if graph.level == "link":
            nodes, places = torch.unique(nodes, return_inverse=True)
            ends = places.view(-1, 2).T
        around = graph.subgraph(nodes)
        weights = around.adjacency.values
        return Piece(
            smaller_form(around.x.to(dtype)),
            units,
            edge_index=around.edge_index,
            edge_weight=None if bool((weights == 1).all()) else weights.to(dtype),
            rows=rows,
            sizes=members.counts() if ends is None else None,
            ends=ends,
        )

    # reading the memory

    def replayed(self, context: Context) -> Replayed | None:
        """Return the memory as the model reads it, built once per task; None while it is empty."""
        if not self.memory_:
            return None
        key = self.memory_[-1]["units"]  # a new tensor after every task
        if key not in context.cache:
            context.cache[key] = Replayed.of(context, self.pieces(), self.class_sizes_)
        made: Replayed = context.cache[key]
        return made

    @capability(rests_on=("replayed",))
    def stand_ins(self, context: Context) -> tuple[Batch, Tensor] | None:
        """Return a batch of all kept examples and how many training examples each represents; None if empty."""
        replayed = self.replayed(context)
        return None if replayed is None else (replayed.batch, replayed.stands_for)


def in_turns(ranked: Sequence[Tensor]) -> Tensor:
    """Interleave lists of nodes: the first of each, then the second of each, and so on."""
    rank = torch.cat([torch.arange(nodes.numel()) for nodes in ranked])
    return torch.cat(list(ranked))[rank.argsort(stable=True)]
