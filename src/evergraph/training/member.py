"""A training job as the loop sees it: what is trained, how, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evergraph.core.params import Params
from evergraph.methods.base import Context, Method
from evergraph.training.settings import Training

OptimizerState = dict[str, dict[str, Tensor]]
"""The optimizer's averages (and number of steps) for each parameter, by parameter name."""

OnEpoch = Callable[["Progress", int], None]
"""Called after every epoch with the progress and the number of epochs planned.

When several jobs are trained as a stack, a model's own parameters may be out of date: `progress.catch_up()` copies them
out of the stack. Predicting and saving do so themselves.
"""


@dataclass
class Progress:
    """State of a task's training between two epochs: everything needed to resume it."""

    epoch: int = 0
    optimizer: OptimizerState | None = None
    best_loss: float = float("inf")
    best_params: Params = field(default_factory=dict)
    """Final parameters and buffers if they are not the last epoch's: those of the best epoch, or means over epochs."""
    best_state: dict[str, Any] = field(default_factory=dict)
    """The method's state at the best epoch, if its steps write to it."""
    best_optimizer: OptimizerState = field(default_factory=dict)
    """The optimizer's state at the best epoch, if the next task continues with it."""
    waited: int = 0
    """Epochs since the best one."""
    averaged: int = 0
    """Number of epochs in the means."""
    log: list[dict[str, float]] = field(default_factory=list)
    steps: str = ""
    """How steps are carried out: `captured`, or `eager` and why."""
    taken_out: Callable[[], OptimizerState] | None = field(default=None, repr=False, compare=False)
    """Set while `on_epoch` is called for a stacked member: updates its model and returns its optimizer state."""

    def catch_up(self) -> None:
        """Bring the model and the optimizer's state up to date, if that was deferred."""
        if self.taken_out is not None:
            self.optimizer, self.taken_out = self.taken_out(), None

    def state(self) -> dict[str, Any]:
        """Return the fields to save, up to date."""
        self.catch_up()
        return {name: value for name, value in vars(self).items() if name != "taken_out"}

    def __getstate__(self) -> dict[str, Any]:
        """Return a state without callbacks, so that a copy is self-contained."""
        return {**self.state(), "taken_out": None}


@dataclass(eq=False)
class Member:
    """The training of one task, alone or stacked with others that take their steps together.

    Args:
        context: the task.
        method: the method.
        settings: the training settings.
        progress: the progress so far.
        on_epoch: called after every epoch.
        epochs: number of epochs planned.
        numbers: the member's own generator of random numbers on the host; None to use the global one as it is.
        device_numbers: the device's generator, if it has one, while the member is one of several.
        spoilt: whether a failed attempt at stacked training may have left the device's generator unusable.
        place: where the result is kept for other runs; None if it is not kept.
    """

    context: Context
    method: Method
    settings: Training
    progress: Progress
    on_epoch: OnEpoch | None
    epochs: int
    numbers: torch.Generator | None = None
    device_numbers: torch.Generator | None = None
    spoilt: bool = False
    place: Path | None = None

    def goes_on(self) -> bool:
        """Whether epochs are left and patience has not run out."""
        patience = self.settings.patience
        return self.progress.epoch < self.epochs and not (patience and self.progress.waited >= patience)

    def keep_numbers(self) -> None:
        """Give the member a generator of its own, in the current state of the host's."""
        self.numbers = torch.Generator()
        self.numbers.set_state(torch.get_rng_state())

    @contextmanager
    def own_numbers(self) -> Iterator[None]:
        """Within this context, the host's random numbers are the member's own."""
        if self.numbers is None:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self.numbers.get_state())
        try:
            yield
        finally:
            self.numbers.set_state(torch.get_rng_state())
            torch.set_rng_state(before)


def shuffled(members: Sequence[Member]) -> Tensor:
    """Training examples of each member in the random order of its next epoch, `(members, examples)`."""
    orders = torch.stack([torch.randperm(member.context.num_train, generator=member.numbers) for member in members])
    examples = torch.stack([member.context.train for member in members])
    if examples.is_cuda:  # pinned memory is copied while the device does other work
        orders = orders.pin_memory().to(examples.device, non_blocking=True)
    return examples.gather(1, orders)
