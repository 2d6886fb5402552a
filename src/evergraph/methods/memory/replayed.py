"""The memory as a model sees it: one graph, its batches, and the weights of its examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.capabilities import capable
from evergraph.core.features import block_diagonal
from evergraph.core.randomness import own_numbers, random_subset
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import ClassName, Graph
from evergraph.data.tasks import Task, stack_features
from evergraph.methods.base import Context
from evergraph.methods.memory.piece import Piece
from evergraph.methods.propagation import tell_if_summed
from evergraph.models.base import GraphModel
from evergraph.problems.base import Problem

Weighting = Literal["classes", "nodes", "sets", "examples"]
"""How replayed examples count relative to those of the task; see `Replayed.weights`."""


def joined(pieces: Sequence[Piece], model: GraphModel) -> tuple[Graph, Tensor, Tensor]:
    """Join the pieces into one graph; also return the examples to train on, and every example's unit (-1 for none).

    If the model reads neighbours apart from the node, a node that was kept without edges is its own neighbour: the
    weights of neighbours would otherwise multiply zeros, and never learn from the memory.
    """
    apart = capable(model.encoder, "reads_neighbours_apart") is not None
    if any(piece.edge_index is None and piece.level != "graph" for piece in pieces):
        tell_if_summed(
            model, "the memory keeps nodes without neighbours", "keep them (ssm, sem), or use gcn, sage or gat"
        )
    graphs = [piece.graph(own_neighbours=apart) for piece in pieces]
    x, adjacency = stack_features([graph.x for graph in graphs]), block_diagonal([graph.adjacency for graph in graphs])
    members = [graph.members for graph in graphs if graph.members is not None]
    starts = torch.tensor([0, *(graph.num_examples for graph in graphs)]).cumsum(0).tolist()
    units = torch.full((starts[-1],), -1)
    known = [piece.targets() for piece in pieces]
    examples = torch.cat([numbers + start for (numbers, _), start in zip(known, starts)])
    units[examples] = torch.cat([own for _, own in known])
    graph = Graph(x, adjacency, torch.full_like(units, -1), [0], "memory", level=pieces[0].level)
    return graph.altered(members=block_diagonal(members) if members else None), examples, units


def rows_of(pieces: Sequence[Piece], width: int) -> Tensor | None:
    """Return the labels or numbers of all examples, one column per output unit; None if examples have classes.

    Columns that a later task added are unknown (NaN) for earlier examples.
    """
    rows = [piece.rows for piece in pieces if piece.rows is not None]
    if not rows:
        return None
    return torch.cat([F.pad(part, (0, width - part.size(1)), value=torch.nan) for part in rows])


def memory_task(pieces: Sequence[Piece], model: GraphModel, names: Sequence[ClassName], like: Task) -> Task:
    """Return the memory as a task to train the model on in place of `like`; `names[unit]` are the class names."""
    graph, examples, units = joined(pieces, model)
    rows, none = rows_of(pieces, len(names)), examples[:0]
    graph = graph.altered(y=units if rows is None else rows, class_names=list(names))
    classes = sorted(set(units[examples].tolist())) if rows is None else list(range(len(names)))
    return Task(like.index, classes, graph, examples, none, none, like.num_classes)


@dataclass(eq=False)
class Replayed:
    """The memory as the model reads it during one task, on the model's device.

    Args:
        batcher: makes batches of the memory's examples.
        examples: which of the memory's nodes, graphs or links are examples.
        batch: all examples in one batch.
        units: output unit (or group) of each example.
        tasks: for each example, the piece, and so the task, that it comes from.
        stands_for: number of training examples that each example represents: those of its class, divided equally.
        problem: the task's problem, with old classes added if the label scope leaves them out.
    """

    batcher: Neighbourhoods
    examples: Tensor
    batch: Batch
    units: Tensor
    tasks: Tensor
    stands_for: Tensor
    problem: Problem

    @classmethod
    def of(cls, context: Context, pieces: Sequence[Piece], class_sizes: Sequence[int]) -> Replayed:
        """Build the memory for a task; `class_sizes[unit]` is the number of examples of the class trained on so far."""
        graph, examples, units = joined(pieces, context.model)
        targets = units
        if context.problem.kind != "classes":
            rows = rows_of(pieces, context.num_seen)
            targets = F.one_hot(units.clamp(min=0), context.num_seen).float() if rows is None else rows
        batcher = context.problem.batcher(
            context.model, graph, targets=targets.to(context.device), device=context.device
        )
        sizes = torch.tensor([piece.targets()[0].numel() for piece in pieces])
        examples, units = examples.to(context.device), units[examples].to(context.device)
        tasks = torch.repeat_interleave(torch.arange(len(pieces)), sizes)
        batch, dtype = batcher.batch(examples), next(context.model.parameters()).dtype
        if own_numbers(context.device):  # every step reads it
            batch = batch.for_many_steps()
        met = torch.tensor(list(class_sizes), dtype=dtype, device=context.device)
        stands_for = met[units] / torch.bincount(units)[units]
        problem = _widened(context, units if batch.y.dim() == 1 else torch.nonzero((~batch.y.isnan()).any(0))[:, 0])
        return cls(batcher, examples, batch, units, tasks.to(context.device), stands_for, problem)

    def drawn(self, number: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
        """Draw `number` examples without replacement; return their batch and their positions."""
        chosen = random_subset(number, self.examples.numel(), self.examples.device, generator)
        if own_numbers(self.examples.device):  # rows of one pass over all examples: the same shapes at every step
            return self.batch.choose(chosen, self.batch.y[chosen]), chosen
        return self.batcher.batch(self.examples[chosen]), chosen

    def weights(self, context: Context, weighting: Weighting) -> Tensor:
        """Return the weight of each example over an epoch, relative to 1 for a training example of the task.

        `classes`: every class in memory counts as much as one of the task's classes on average, |D|/(C n_c) for one of
        its n_c examples, with |D| the number of the task's examples and C of its classes. `nodes`: an example counts
        as many as it represents, N_c/n_c with N_c the training nodes of its class met so far; so the loss estimates
        that of joint training. `sets`: the memory as a whole counts as much as the task, |D|/|M|. `examples`: each
        counts 1.
        """
        if weighting == "nodes":
            return self.stands_for
        units, dtype = self.units, next(context.model.parameters()).dtype
        if weighting == "examples":
            return torch.ones(units.numel(), dtype=dtype, device=units.device)
        if weighting == "sets":
            return torch.full((units.numel(),), context.num_train / units.numel(), dtype=dtype, device=units.device)
        classes = unit_or_group(context).unique().numel()
        return context.num_train / (classes * torch.bincount(units)[units].to(dtype))


def unit_or_group(context: Context) -> Tensor:
    """Return the output unit of each training example's class, on the CPU.

    If examples have a row of targets and no class: the value of a single label, 0 or 1; otherwise 0 for all.
    """
    targets = context.batcher.y.cpu()[context.task.train]
    if targets.dim() == 1:
        return targets
    if context.task.graph.has_classes:  # one-versus-rest targets
        return targets.nan_to_num(0.0).argmax(1)
    if context.problem.kind == "labels" and targets.size(1) == 1:
        return (targets[:, 0] > 0).long()
    return torch.zeros(targets.size(0), dtype=torch.long)


def _widened(context: Context, units: Tensor) -> Problem:
    """Return the task's problem with the given units added to its scope."""
    outputs = torch.ones(1, int(context.model.out_channels or 0), device=units.device)
    inside = context.problem.in_scope(outputs)[0] > 0
    if bool(inside[units].all()):
        return context.problem
    inside[units] = True
    return context.problem.within(torch.nonzero(inside).reshape(-1))
