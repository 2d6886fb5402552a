"""Parameter isolation (Zhang, Yan, Li, Wang and Zhang, SIGIR 2023): rectify and freeze old parameters, add new ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from evergraph.core.capabilities import capability, capable
from evergraph.core.features import Features
from evergraph.core.params import copy_params, named_params
from evergraph.core.randomness import own_numbers, random_subset
from evergraph.core.settings import NonNegative, NonNegativeInt, PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Replay, Step, search_over
from evergraph.methods.memory import MemoryMethod, Piece, joined
from evergraph.methods.memory.subgraphs import seen_by_model
from evergraph.methods.state import state
from evergraph.models.base import GraphModel


@METHODS.register
@dataclass(repr=False)
class PIGNN(MemoryMethod):
    """Rectify and then freeze old parameters; new hidden units, which read the old ones, learn the new task.

    From the second task on every hidden layer gets `expansion` units, which old units do not read. Then

    1. rectification: for `rectify_epochs` only the old parameters are trained, to minimize the mean loss of stable
       nodes of the memory minus `unstable_weight` · that of unstable ones in their old neighbourhoods. A kept node is
       unstable if it has other neighbours in the new task's graph (streams with `edges_between_tasks`).
    2. isolation: only the new parameters (new hidden units, their weights to the outputs, and output units of classes
       met for the first time) are trained, to minimize the mean loss of the task's nodes + `memory_weight` · that of
       the memory, with unstable nodes in their new neighbourhoods.

    With a summed loss, both are multiplied by the number of examples of the step.

    The memory is a uniform random sample of the nodes of all tasks, with the subgraph that the model sees of them, at
    whose rim nodes have the degrees that they have within it.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
            Neighbours count only towards a budget in bytes.
        per_class: if `memory` is empty, this many nodes times the number of classes are kept; 64 to 128 in all in the
            paper. Their neighbours are not counted.
        expansion: units added to each hidden layer per task; 12 in the paper, where layers start with 12.
        neighbours: how many neighbours are kept for each node of the previous hop, drawn at random, from the kept nodes
            outwards; empty for all, as in the paper. If some are left out, every kept node that the new task's graph
            contains is unstable.
        rectify_epochs: epochs of rectification before those of a task; 10 there.
        unstable_weight: β₁ of rectification, of all unstable nodes relative to all stable ones; 0.01 in the
            paper's code.
        memory_weight: β₂ of isolation, of the whole memory relative to the task's nodes; 0.1 there.
    """

    name = "pi-gnn"
    family = "architecture"
    besides = "the graph of the memory"
    reference = "Zhang et al.: Continual Learning on Dynamic Graphs via Parameter Isolation, SIGIR 2023"
    access = Access(keeps=("real nodes", "graphs"), old_labels=True)
    alone = "the parameters of learned tasks stand still and their shapes grow, so there is nothing to hold"
    training = MappingProxyType({"label_scope": "seen", "weight_decay": 0.0})
    search_space = search_over(memory_weight=(0.01, 10.0), expansion=[12, 32, 64])
    hold = ("memory_weight",)
    by_chance = True

    per_class: PositiveInt = 12
    expansion: PositiveInt = 32
    neighbours: tuple[NonNegativeInt, ...] = ()
    rectify_epochs: NonNegativeInt = 10
    unstable_weight: NonNegative = 0.01
    memory_weight: NonNegative = 1.0
    tasks_: int = state(int)
    expanded_: int = state(int)  # number of tasks the model has been widened for
    units_: list[int] = state(list)  # output units trained so far
    width_: int = state(int)  # hidden units of earlier tasks

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Widen the hidden layers, unless a resumed run has done so already."""
        widen = capable(model, "widen")
        if widen is None:
            raise EvergraphError("pi-gnn adds hidden units, which gcn alone can; use --model gcn")
        if self.expanded_ < self.tasks_:
            self.width_ = widen(self.expansion)
            self.expanded_ = self.tasks_

    def prepare(self, context: Context) -> None:
        """Determine which entries of the parameters are new, and which kept nodes are unstable."""
        if not self.tasks_:
            return
        units = context.batcher.y[context.train].unique().tolist()
        fresh = [unit for unit in units if unit not in self.units_]
        context.cache["new"] = new_entries(context, self.width_, self.expansion, fresh)
        graph, examples, targets = joined(self.pieces(), context.model)
        seeds, moved = unstable_nodes(graph, examples, context.task.graph, whole=not self.neighbours)
        batcher = context.problem.batcher(context.model, graph, targets=targets, device=context.device)
        stable = examples[~torch.isin(examples, seeds)]
        context.cache["parts"] = (batcher, stable.to(context.device), seeds.to(context.device))
        context.cache["moved"] = (moved.to(context.device), targets[seeds].to(context.device))

    def epochs(self, context: Context, planned: int) -> int:
        """Return the planned epochs plus those of rectification, which come first."""
        return planned + (self.rectify_epochs if self.tasks_ else 0)

    def rectifies(self, context: Context) -> bool:
        """Return whether the old parameters are being rectified."""
        return self.tasks_ > 0 and context.epoch < self.rectify_epochs

    def loss(self, step: Step) -> Tensor | None:
        """Return the loss of stable minus unstable nodes while rectifying, scaled to a batch of the step's size."""
        if not self.rectifies(step.context):
            return None
        batcher, stable, unstable = step.context.cache["parts"]
        memory = self.replayed(step.context)
        assert memory is not None
        total = step.logits.new_zeros(())
        for nodes, weight in ((stable, 1.0), (unstable, -self.unstable_weight)):
            if nodes.numel():
                batch = cut_once(step.context, batcher, nodes)
                total = total + weight * memory.problem.loss(step.model(batch), batch.y).mean()
        return total * (step.batch.num_examples if step.context.reduction == "sum" else 1)

    def replay(self, step: Step) -> list[Replay]:
        """Return nodes of the memory while isolating: stable ones as they were kept, unstable ones as they are now.

        All count the same. If the step has fewer examples than the memory, as many are drawn as it has, in proportion
        from both.
        """
        if not self.tasks_ or self.rectifies(step.context) or not self.memory_weight:
            return []
        memory = self.replayed(step.context)
        assert memory is not None
        batcher, stable, _ = step.context.cache["parts"]
        moved, units = step.context.cache["moved"]
        kept, number = stable.numel() + moved.numel(), step.batch.num_examples
        scale = self.memory_weight * (number if step.context.reduction == "sum" else 1)
        replays = []
        for source, nodes, targets in ((batcher, stable, None), (step.context.batcher.exact(), moved, units)):
            if nodes.numel():
                some = min(nodes.numel(), max(1, round(number * nodes.numel() / kept)))
                batch = drawn_nodes(step.context, source, nodes, some, targets)
                weights = step.logits.new_full((some,), scale * nodes.numel() / (kept * some))
                replays.append(Replay(batch, weights=weights, problem=memory.problem))
        return replays

    def replayed_weight(self, context: Context) -> Tensor | None:
        """Return the total weight of each class's kept nodes: together as much as the task, times `memory_weight`."""
        memory = self.replayed(context) if self.tasks_ and self.memory_weight else None
        if memory is None:
            return None
        dtype = next(context.model.parameters()).dtype
        total = torch.zeros(context.model.out_channels or 0, dtype=dtype, device=memory.units.device)
        each = self.memory_weight * context.num_train / memory.units.numel()
        return total.index_add(0, memory.units, torch.full_like(memory.units, 1, dtype=dtype) * each)

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: batches of the memory are built once, and rows are drawn by the device's own random numbers."""
        return True

    def phase(self, context: Context) -> bool:
        """Return whether the epoch is one of rectification."""
        return self.rectifies(context)

    def epoch_counts(self, context: Context) -> bool:
        """Return whether rectification is over."""
        return not self.rectifies(context)

    def observe(self, step: Step) -> None:
        """At the first step of a phase, store the parameters to restore what is frozen during it."""
        if self.tasks_ and step.context.cache.get("held", (None,))[0] != self.rectifies(step.context):
            step.context.cache["held"] = (self.rectifies(step.context), copy_params(step.model))

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        """Restore what is frozen: all but the old entries while rectifying, all but the new ones while isolating."""
        if not self.tasks_:
            return
        rectifies, held = step.context.cache["held"]
        for name, value in step.model.named_parameters():
            old, new = step.context.cache["new"][name]
            torch.where(old if rectifies else new, value, held[name], out=value)

    def store(self, context: Context, nodes: Tensor) -> Piece:
        """Keep the nodes with what the model sees of their surroundings."""
        return seen_by_model(context, nodes, self.neighbours)

    def end_task(self, context: Context) -> None:
        """Fill the memory, and record which output units have been trained."""
        super().end_task(context)
        self.units_ = sorted({*self.units_, *context.batcher.y[context.train].unique().tolist()})
        self.tasks_ += 1


def cut_once(context: Context, batcher: Neighbourhoods, nodes: Tensor) -> Batch:
    """Return the batch of nodes that are the same at every step of a task, built once."""
    if nodes not in context.cache:
        context.cache[nodes] = batcher.batch(nodes)
    batch: Batch = context.cache[nodes]
    return batch


def drawn_nodes(context: Context, batcher: Neighbourhoods, nodes: Tensor, number: int, units: Tensor | None) -> Batch:
    """Return a batch of `number` of the nodes, drawn at random, or of all of them.

    Args:
        context: the task.
        batcher: makes batches of the graph that the nodes are in.
        nodes: nodes that are the same at every step of the task.
        number: how many of them.
        units: their targets; None for those that the batcher knows.
    """
    if number == nodes.numel():
        whole = cut_once(context, batcher, nodes)
        return whole if units is None else whole.choose(torch.arange(number, device=nodes.device), units)
    chosen = random_subset(number, nodes.numel(), nodes.device, context.generator)
    if units is None and not own_numbers(nodes.device):
        return batcher.batch(nodes[chosen])
    whole = cut_once(context, batcher, nodes)  # rows of one pass over all of them: the same shapes at every step
    return whole.choose(chosen, (whole.y if units is None else units)[chosen])


def new_entries(context: Context, width: int, expansion: int, fresh: list[int]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return masks of the old and the new entries of each weight matrix; weights from new to old units are neither.

    Args:
        context: the task.
        width: number of hidden units of earlier tasks.
        expansion: number of hidden units added for this task.
        fresh: output units of classes met for the first time.
    """
    masks = {}
    params = named_params(context.model)
    last = len(params) - 1
    for number, (name, value) in enumerate(params.items()):
        new_row = torch.zeros(value.size(0), 1, dtype=torch.bool, device=value.device)
        new_column = torch.zeros(1, value.size(1), dtype=torch.bool, device=value.device)
        if number:
            new_row[width : width + expansion] = True
        if number == last:
            new_column[:, fresh] = True
            masks[name] = (~(new_row | new_column), new_row | new_column)
        else:
            new_column[:, width:] = True
            masks[name] = (~(new_row | new_column), new_column.expand_as(value))
    return masks


def unstable_nodes(memory: Graph, seeds: Tensor, graph: Graph, *, whole: bool = True) -> tuple[Tensor, Tensor]:
    """Return kept nodes that have another number of neighbours in a graph, and their indices there.

    Graphs renumber their nodes, so a node is identified by its features; features shared by several nodes identify
    none. Unless the memory holds `whole` neighbourhoods, all kept nodes in the graph are returned.
    """
    place: dict[bytes, int] = {}
    for node, key in enumerate(_row_keys(graph.x.to(memory.x.dtype))):
        place[key] = -1 if key in place else node
    keys, degree, there = _row_keys(memory.x), memory.adjacency.counts(), graph.adjacency.counts()
    pairs = [(seed, place.get(keys[seed], -1)) for seed in seeds.tolist()]
    moved = [(seed, node) for seed, node in pairs if node >= 0 and (not whole or degree[seed] != there[node])]
    found = torch.tensor(moved, dtype=torch.long).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _row_keys(x: Features) -> list[bytes]:
    """Return each node's features as bytes."""
    rows = x if isinstance(x, SparseMatrix) else SparseMatrix.from_dense(x)
    ends, columns, values = rows.indptr.tolist(), rows.indices.numpy(), rows.values.numpy()
    return [columns[a:b].tobytes() + values[a:b].tobytes() for a, b in itertools.pairwise(ends)]
