"""The memory as a model sees it: one graph, its batches, and the weights of its examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evergraph.core.randomness import own_numbers, random_subset
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import ClassName, Graph
from evergraph.data.tasks import Task, block_diagonal, stack_features
from evergraph.methods.base import Context
from evergraph.methods.memory.piece import Piece
from evergraph.problems.base import Problem

Weighting = Literal["classes", "nodes", "sets", "examples"]
"""How replayed examples count against those of the task; see `Replayed.weights`."""


def joined(pieces: Sequence[Piece]) -> tuple[Graph, Tensor, Tensor]:
    """The pieces side by side as one graph; the nodes to train on, and the target of every node (-1 for none)."""
    graphs = [piece.graph() for piece in pieces]
    x, adjacency = stack_features([graph.x for graph in graphs]), block_diagonal([graph.adjacency for graph in graphs])
    targets = torch.full((x.size(0),), -1)
    starts = torch.tensor([0, *(graph.num_nodes for graph in graphs)]).cumsum(0).tolist()
    known = [piece.targets() for piece in pieces]
    examples = torch.cat([nodes + start for (nodes, _), start in zip(known, starts)])
    targets[examples] = torch.cat([units for _, units in known])
    return Graph(x, adjacency, torch.full_like(targets, -1), [0], "memory"), examples, targets


def memory_task(pieces: Sequence[Piece], names: Sequence[ClassName], like: Task) -> Task:
    """The memory as a task of its own, to be trained on in the place of `like`; `names[unit]` are the classes."""
    graph, examples, targets = joined(pieces)
    graph = Graph(graph.x, graph.adjacency, targets, list(names), "memory")
    none = examples[:0]
    return Task(like.index, sorted(set(targets[examples].tolist())), graph, examples, none, none, like.num_classes)


@dataclass(eq=False)
class Replayed:
    """A memory as one task's model reads it, on the model's device.

    Args:
        batcher: makes batches of its examples.
        examples: the nodes that are examples.
        batch: all examples in one batch.
        tasks: for each example the piece, that is the task, that it comes from.
        stands_for: the number of training nodes that each example stands for: those of its class, shared out.
        problem: the task's; where the label scope leaves old classes out, with these in its scope too.
    """

    batcher: Neighbourhoods
    examples: Tensor
    batch: Batch
    tasks: Tensor
    stands_for: Tensor
    problem: Problem

    @classmethod
    def of(cls, context: Context, pieces: Sequence[Piece], class_sizes: Sequence[int]) -> Replayed:
        """The memory in the context of a task; `class_sizes[unit]` is how many training nodes of a class were met."""
        graph, examples, targets = joined(pieces)
        batcher = context.problem.batcher(context.model, graph, targets=targets, device=context.device)
        sizes = torch.tensor([piece.targets()[0].numel() for piece in pieces])
        examples = examples.to(context.device)
        tasks = torch.repeat_interleave(torch.arange(len(pieces)), sizes)
        batch, dtype = batcher.batch(examples), next(context.model.parameters()).dtype
        met = torch.tensor(list(class_sizes), dtype=dtype, device=context.device)
        stands_for = met[batch.y] / torch.bincount(batch.y)[batch.y]
        return cls(batcher, examples, batch, tasks.to(context.device), stands_for, _widened(context, batch.y))

    def drawn(self, number: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
        """A batch of so many examples, drawn without replacement; and which they are."""
        chosen = random_subset(number, self.examples.numel(), self.examples.device, generator)
        if own_numbers(
            self.examples.device
        ):  # rows of one pass over all examples: a step then has the same shapes every time
            return self.batch.choose(chosen, self.batch.y[chosen]), chosen
        return self.batcher.batch(self.examples[chosen]), chosen

    def weights(self, context: Context, weighting: Weighting) -> Tensor:
        """The weight of each example against 1 for a training example of the task, over an epoch.

        `classes`: every class in memory counts as much as one of the task's classes does on average, |D|/(C n_c) for
        one of n_c examples, with |D| the task's examples and C its classes. `nodes`: an example counts as many as it
        stands for, N_c/n_c with N_c the training nodes of its class that were met; so the loss estimates that of joint
        training. `sets`: the memory as a whole counts as much as the task, |D|/|M|. `examples`: each counts 1.
        """
        if weighting == "nodes":
            return self.stands_for
        units, dtype = self.batch.y, next(context.model.parameters()).dtype
        if weighting == "examples":
            return torch.ones(units.numel(), dtype=dtype, device=units.device)
        if weighting == "sets":
            return torch.full((units.numel(),), context.num_train / units.numel(), dtype=dtype, device=units.device)
        classes = context.batcher.y[context.train].unique().numel()
        return (context.num_train / (classes * torch.bincount(units)[units])).to(dtype)


def _widened(context: Context, units: Tensor) -> Problem:
    """The task's problem, with the given units in its scope."""
    outputs = torch.ones(1, int(context.model.out_channels or 0), device=units.device)
    inside = context.problem.in_scope(outputs)[0] > 0
    if bool(inside[units].all()):
        return context.problem
    inside[units] = True
    return context.problem.within(torch.nonzero(inside).reshape(-1))
