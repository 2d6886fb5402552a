"""Learning without forgetting (Li and Hoiem, ECCV 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from evergraph.core.capabilities import capability, capable
from evergraph.core.params import Params, copy_buffers, copy_params
from evergraph.core.settings import NonNegative, Positive, is_zero
from evergraph.core.shortcuts import fast
from evergraph.core.workers import workers
from evergraph.curvature import in_mode
from evergraph.data.batching import Batch
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, Step, search_over
from evergraph.methods.state import state
from evergraph.models.base import NODES_AT_ONCE, GraphModel

DEVICES = frozenset({"cpu"})  # on which the old network's outputs are computed once per task
TAUGHT = "the old network's outputs"  # cache key: one row per training example


@METHODS.register
@dataclass(repr=False)
class LwF(Method):
    """Penalty strength · KL(old outputs / T ‖ new outputs / T) over the old classes, on the new task's nodes.

    This is the paper's cross entropy minus the entropy of the old outputs, which has no gradient; so both the penalty
    and its gradient are zero at the old parameters. It is reduced over nodes as the loss is.

    Args:
        strength: λ; 1 in its paper, 1 to 10 in the paper of this package.
        temperature: T; 2 in its paper, 2 to 20 in the paper of this package.
        distillation: `seen` distils all old classes in one softmax; `per-task` sums one distillation for each old
            task, over the classes seen up to that task, as CGLB's class-incremental code does: the first task's
            classes then count once for every old task.
    """

    name = "lwf"
    family = "functional"
    besides = "the network as it was after the last task"
    reference = "Li and Hoiem: Learning without Forgetting, ECCV 2016"
    access = Access(keeps=("parameters",))
    search_space = search_over(strength=(0.1, 100.0), temperature=(1.0, 20.0))
    step_state = ("seen_", "teacher_", "_at_all")
    step_settings = ("strength", "temperature", "distillation")
    step_factors = ("strength",)
    _at_all = None  # type: Tensor | None
    """Outputs of the old network at all examples of the batch that a task's steps share; None if they share none."""

    strength: NonNegative = 1.0
    temperature: Positive = 2.0
    distillation: Literal["seen", "per-task"] = "seen"
    seen_: list[int] = state(list)
    teacher_: Params = state(dict, like="params", new="values")

    def for_many_steps(self, context: Context, batch: Batch) -> None:
        """Compute the old network's outputs once, since they are fixed unless neighbours are sampled."""
        stands = bool(self.teacher_) and context.batcher.fan_out is None and fast("structure")
        with torch.no_grad():
            self._at_all = self._outputs(context.model, batch) if stands else None

    def penalty(self, step: Step) -> Tensor | None:
        """Distillation from the parameters stored after the last task."""
        if not self.teacher_ or is_zero(self.strength) or not step.context.old.numel():
            return None
        teacher, cache = self.teach(step), step.context.cache
        key = ("distilled", self.distillation, *self.seen_)
        if key not in cache:  # once per task, so that no step waits for the device
            cache[key] = [step.problem.within(units) for units in self.distilled(step.context.old)]
        first, *others = (among.divergence(step.logits, teacher, self.temperature) for among in cache[key])
        return self.strength * step.context.reduced(sum(others, first))

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: a step runs one more forward pass, with other parameters."""
        return True

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_stacked(self, context: Context) -> bool:
        """Return True: the old networks are stacked like the new ones."""
        return True

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """Return the old network, once there is one, and the units distilled together, not the mode's name."""
        if not self.teacher_ or not self.strength or not context.old.numel():
            return []
        return ["lwf", self.strength, self.temperature, self.distilled(context.old), self.teacher_]

    def distilled(self, old: Tensor) -> list[Tensor]:
        """Return the output units of each distillation, a subset of the old classes' units."""
        if self.distillation == "seen":
            return [old]
        return [units for seen in self.seen_ if (units := old[old < seen]).numel()]

    @torch.no_grad()
    def teach(self, step: Step) -> Tensor:
        """Return the old network's logits at the batch, without dropout.

        Unless neighbours are sampled they are fixed, and are then computed once per task on a CPU, and wherever all
        steps of a task share a batch.
        """
        context, batch = step.context, step.batch
        if batch.lasting and self._at_all is not None:
            return batch.of_chosen(self._at_all)
        own = batch.source is context.batcher and context.batcher.fan_out is None and workers().size == 1
        if not (own and context.device.type in DEVICES and fast("structure")):
            return self._outputs(step.model, batch)
        if TAUGHT not in context.cache:
            context.cache[TAUGHT] = self._taught(context)
        table, row = context.cache[TAUGHT]
        rows = row.index_select(0, batch.asked_for)
        return table.index_select(0, rows) if int(rows.min()) >= 0 else self._outputs(step.model, batch)

    def _taught(self, context: Context) -> tuple[Tensor, Tensor]:
        """Return the old network's outputs at the training examples, and each graph example's row there, −1 for others.

        No example has a row if outputs depend on the other examples of a batch.
        """
        row = torch.full((context.batcher.y.size(0),), -1)
        alike = capable(context.model, "steps_can_be_captured")
        if alike is None or not alike(context.batcher, "rows"):
            return row.new_empty(0), row
        row[context.train] = torch.arange(context.num_train)
        pieces = context.batcher.batches(context.train, NODES_AT_ONCE)
        return torch.cat([self._outputs(context.model, piece) for piece in pieces]), row

    def _outputs(self, model: GraphModel, batch: Batch) -> Tensor:
        with in_mode(model, training=False):
            logits: Tensor = functional_call(model, self.teacher_, (batch,))
        return logits

    def end_task(self, context: Context) -> None:
        """Store the current network as the next task's teacher."""
        self.teacher_ = {**copy_params(context.model), **copy_buffers(context.model)}
        self.seen_ = [*self.seen_, context.num_seen]
        self._at_all = None
