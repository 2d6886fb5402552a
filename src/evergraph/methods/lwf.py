"""Learning without forgetting (Li and Hoiem, ECCV 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from evergraph.core.params import Params, copy_params
from evergraph.curvature import in_mode
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, Context, Method, Step
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class LwF(Method):
    """strength · KL(old outputs / T ‖ new outputs / T) over the old classes, on the new task's nodes.

    The paper's cross entropy less the old outputs' own entropy, which no gradient sees; so the penalty is
    zero at the old parameters, and its gradient too. It is reduced over nodes as the loss is.

    Args:
        strength: λ; 1 in its paper; the paper of this package takes 1 to 10.
        temperature: T; 2 in its paper; the paper of this package takes 2 to 20.
    """

    name = "lwf"
    family = "functional"
    reference = "Li and Hoiem: Learning without Forgetting, ECCV 2016"
    access = Access(keeps=("parameters",))

    strength: float = 1.0
    temperature: float = 2.0
    teacher_: Params = state(dict, like="params", new="values")

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise EvergraphError(f"lwf: temperature={self.temperature} must be above 0")

    def penalty(self, step: Step) -> Tensor | None:
        """Distillation from the parameters stored after the last task."""
        old = step.context.old
        if not self.teacher_ or not self.strength or not old.numel():
            return None
        per_example = step.problem.within(old).divergence(step.logits, self.teach(step), self.temperature)
        return self.strength * step.context.reduced(per_example)

    @torch.no_grad()
    def teach(self, step: Step) -> Tensor:
        """The old network's logits at the batch, without dropout."""
        with in_mode(step.model, training=False):
            logits: Tensor = functional_call(step.model, self.teacher_, (step.batch,))
        return logits

    def end_task(self, context: Context) -> None:
        """The present network is the next task's teacher."""
        buffers = {name: value.clone() for name, value in context.model.named_buffers()}
        self.teacher_ = {**copy_params(context.model), **buffers}
