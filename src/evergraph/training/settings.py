"""How a task is trained: the settings of the loop."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from evergraph.errors import EvergraphError, one_of

LABEL_SCOPES = ("seen", "current", "all")
OPTIMIZERS = {"adam": "Adam", "sgd": "SGD, momentum 0.9"}
"""By name: what a protocol calls them."""


@dataclass(frozen=True)
class Training:
    """How a task is trained; a number means little without it.

    Args:
        epochs: passes over the training nodes.
        lr: the optimizer's learning rate.
        weight_decay: the optimizer's L2 term.
        batch_size: seed nodes in a batch; 0 for all of them at once (full batch).
        label_scope: classes in the training softmax: those `seen` so far, the `current` task's, or `all`.
        reduction: `sum` or `mean` of the loss over a batch. Adam does not mind the scale of a loss, but
            every penalty is weighed against it.
        class_balanced: weigh classes inversely to their number of training nodes.
        patience: stop after so many epochs without a lower loss on the current task's validation nodes,
            and go back to the best; 0 trains all epochs.
        fan_out: neighbours to sample at each hop, e.g. (10, 25); None takes exact neighbourhoods.
        optimizer: `adam`, or `sgd` with momentum 0.9 for methods that precondition gradients themselves.
        keep_optimizer: go on with the optimizer's averages from task to task, as code does that makes its optimizer
            once. A parameter whose shape has changed starts afresh.
    """

    epochs: int = 50
    lr: float = 1e-3
    weight_decay: float = 5e-4
    batch_size: int = 128
    label_scope: str = "current"
    reduction: str = "sum"
    class_balanced: bool = False
    patience: int = 0
    fan_out: tuple[int, ...] | None = None
    keep_optimizer: bool = False
    optimizer: str = "adam"

    def __post_init__(self) -> None:
        one_of("label scope", self.label_scope, LABEL_SCOPES)
        one_of("reduction", self.reduction, ("sum", "mean"))
        one_of("optimizer", self.optimizer, tuple(OPTIMIZERS))
        for name, low in (("epochs", 0), ("batch_size", 0), ("patience", 0), ("weight_decay", 0)):
            if not low <= getattr(self, name) < float("inf"):
                raise EvergraphError(f"{name}={getattr(self, name)} must be a number of at least {low}")
        if not 0 < self.lr < float("inf"):
            raise EvergraphError(f"lr={self.lr} must be a number above 0")
        if self.fan_out is not None:
            object.__setattr__(self, "fan_out", tuple(int(number) for number in self.fan_out))
            if min(self.fan_out, default=0) < 1:
                raise EvergraphError(f"fan_out={list(self.fan_out)} must be positive numbers, one per hop")

    def protocol(self) -> dict[str, Any]:
        """The settings as plain values."""
        fan_out = list(self.fan_out) if self.fan_out else None
        return {**asdict(self), "fan_out": fan_out, "optimizer": OPTIMIZERS[self.optimizer]}
