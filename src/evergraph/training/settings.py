"""How a task is trained: the settings of the loop."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, get_args

from evergraph.core.settings import (
    Checked,
    Fraction,
    NonNegative,
    NonNegativeInt,
    NotEmpty,
    Positive,
    PositiveInt,
    settings_of,
)
from evergraph.errors import EvergraphError, shown

LabelScope = Literal["seen", "current", "all"]
LABEL_SCOPES: tuple[str, ...] = get_args(LabelScope)
MOMENTUM = 0.9  # of SGD
OPTIMIZERS = {"adam": "Adam", "sgd": f"SGD, momentum {MOMENTUM}"}
"""What a protocol calls each optimizer, by name."""


@dataclass(frozen=True)
class Training(metaclass=Checked):
    """Training settings for a task; a reported result means little without them.

    Args:
        epochs: passes over the training nodes.
        lr: the optimizer's learning rate.
        weight_decay: the optimizer's L2 term.
        batch_size: seed nodes in a batch; 0 for all of them at once (full batch).
        label_scope: classes in the training softmax: those `seen` so far, the `current` task's, or `all`.
        reduction: `sum` or `mean` of the loss over a batch. Adam is insensitive to the scale of the loss, but
            every penalty is weighed against it.
        class_balanced: weight classes inversely to their number of training nodes.
        patience: stop after this many epochs without a lower loss on the current task's validation nodes,
            and restore the best epoch: its parameters, running statistics, what the method measured during steps, and
            the optimizer's averages if they are kept. Epochs of pretraining and the like do not count
            (`Method.epoch_counts`). 0 trains all epochs.
        fan_out: neighbours to sample at each hop, e.g. (10, 25); None takes exact neighbourhoods.
        optimizer: `adam`, or `sgd` with momentum for methods that precondition gradients themselves.
        keep_optimizer: carry the optimizer's averages over from task to task, as code that creates its optimizer
            once does. A parameter whose shape has changed starts afresh.
        schedule: the learning rate over a task's epochs: `constant`, or `cosine`, which falls to zero along half a
            cosine (Loshchilov & Hutter, ICLR 2017, without restarts within a task). With a stiff penalty, training at
            a constant rate ends wherever its last oscillation happened to be.
        warm_up: share of a task's epochs over which the learning rate first rises to the scheduled value. Adam's
            first steps are as long as any, whatever the gradient; with a penalty that is zero at the start of a task,
            they follow the new task alone, and the pull back then inflates Adam's average of squares.
        average_last: share of a task's last epochs whose parameters are averaged; the mean becomes the task's result
            (Polyak & Juditsky, 1992; Izmailov et al., UAI 2018). This removes the last oscillations without the
            smaller steps of a falling rate. Running statistics of normalization layers are averaged too; what a method
            measured during steps stays as the last step left it. Not with `patience`, which restores the best epoch.
    """

    epochs: NonNegativeInt = 50
    lr: Positive = 1e-3
    weight_decay: NonNegative = 5e-4
    batch_size: NonNegativeInt = 128
    label_scope: LabelScope = "current"
    reduction: Literal["sum", "mean"] = "sum"
    class_balanced: bool = False
    patience: NonNegativeInt = 0
    fan_out: Annotated[tuple[PositiveInt, ...], NotEmpty()] | None = None
    keep_optimizer: bool = False
    optimizer: Literal["adam", "sgd"] = "adam"
    schedule: Literal["constant", "cosine"] = "constant"
    warm_up: Fraction = 0.0
    average_last: Fraction = 0.0

    def __post_init__(self) -> None:
        if self.patience and self.average_last:
            raise EvergraphError("Training: patience and average_last both say where a task ends; set one of them to 0")

    def rate(self, epoch: int, epochs: int) -> float:
        """Learning rate of an epoch, counted from 0, out of `epochs`."""
        falling = 0.5 * (1.0 + math.cos(math.pi * epoch / epochs)) if self.schedule == "cosine" else 1.0
        rising = min(1.0, (epoch + 1) / (self.warm_up * epochs)) if self.warm_up else 1.0
        return self.lr * falling * rising

    @property
    def rate_varies(self) -> bool:
        """Whether epochs have different learning rates."""
        return self.schedule != "constant" or self.warm_up > 0

    def protocol(self) -> dict[str, Any]:
        """The settings as plain values."""
        fan_out = list(self.fan_out) if self.fan_out else None
        return {**asdict(self), "fan_out": fan_out, "optimizer": OPTIMIZERS[self.optimizer]}


def unknown_setting(name: str, value: Any, model: tuple[Any, Any], method: tuple[Any, Any]) -> EvergraphError:
    """Return the error for a keyword of a learner that is no training setting; it says so if it is one of its parts.

    Args:
        name: the keyword.
        value: what was given for it.
        model: the model, as it was given and as it was built.
        method: the method, likewise.
    """
    (given_model, built_model), (given_method, built_method) = model, method
    parts = built_method.parts()
    if any(name in settings_of(type(part)) for part in parts):
        before = [] if given_model is None else [_as_given(given_model)]
        calls = ", ".join(_with(part, name, value) for part in parts)
        kind, call = "method", [*before, calls if len(parts) == 1 else f"eg.Compose({calls})"]
    elif name in settings_of(type(built_model)):
        after = [] if given_method is None else [_as_given(given_method)]
        kind, call = "model", [_with(built_model, name, value), *after]
    else:
        return EvergraphError(f"unknown setting {name!r}; choose from {', '.join(Training.__dataclass_fields__)}")
    return EvergraphError(f"{name!r} is a setting of the {kind}; give it there: eg.Learner({', '.join(call)})")


def _as_given(part: Any) -> str:
    return repr(part) if isinstance(part, str) else "…"


def _with(part: Any, name: str, value: Any) -> str:
    """The call that makes a method or model, with a setting if it has that one."""
    package = "eg." if type(part).__module__.startswith("evergraph.") else ""
    setting = f"{name}={shown(value)}" if name in settings_of(type(part)) else ""
    return f"{package}{type(part).__name__}({setting})"
