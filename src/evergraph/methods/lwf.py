"""Learning without forgetting (Li and Hoiem, ECCV 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from evergraph.errors import EvergraphError
from evergraph.methods.base import Context, Method, Step
from evergraph.params import Params, copy_params


@dataclass(repr=False)
class LwF(Method):
    """strength · T² · KL(old outputs / T ‖ new outputs / T) over the old classes, on the new task's nodes.

    At the old parameters its gradient is zero.

    Args:
        strength: λ; the paper searches 1 to 10.
        temperature: T; the paper searches 2 to 20.
    """

    name = "lwf"
    family = "functional"
    reference = "Li and Hoiem: Learning without Forgetting, ECCV 2016"

    strength: float = 1.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise EvergraphError(f"lwf: temperature={self.temperature} must be above 0")
        self.teacher_: Params = {}

    def penalty(self, step: Step) -> Tensor | None:
        """Distillation from the parameters stored after the last task."""
        old = step.context.old
        if not self.teacher_ or not old.numel():
            return None
        with torch.no_grad():
            teacher = functional_call(step.model, self.teacher_, (step.batch,))[:, old] / self.temperature
        student = step.logits[:, old] / self.temperature
        per_node = F.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True).sum(1)
        total = per_node.sum() if step.context.reduction == "sum" else per_node.mean()
        return self.strength * self.temperature**2 * total

    def end_task(self, context: Context) -> None:
        """The present parameters are the next task's teacher."""
        self.teacher_ = copy_params(context.model)
