"""A training as the loop sees it: what is trained, how, and where it stands."""

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
"""The optimizer's averages (and number of steps) of each parameter, under the parameter's name."""

OnEpoch = Callable[["Progress", int], None]
"""Called after every epoch with the progress and the number of epochs planned.

Of several trainings as one, a model's own parameters are those of the last time that somebody asked for them:
`progress.catch_up()` brings them up to date, as predicting and saving do by themselves.
"""


@dataclass
class Progress:
    """Where the training of a task stands between two epochs: all that is needed to go on."""

    epoch: int = 0
    optimizer: OptimizerState | None = None
    best_loss: float = float("inf")
    best_params: Params = field(default_factory=dict)
    """What the task ends in where that is not its last epoch: parameters and buffers of the best one, or means."""
    best_state: dict[str, Any] = field(default_factory=dict)
    """The method's state of the best epoch, where its steps write any."""
    best_optimizer: OptimizerState = field(default_factory=dict)
    """The optimizer's, where the next task goes on with it."""
    waited: int = 0
    """Epochs since the best one."""
    averaged: int = 0
    """Epochs in the means."""
    log: list[dict[str, float]] = field(default_factory=list)
    steps: str = ""
    """How steps are carried out: `captured`, or `eager` and why."""
    taken_out: Callable[[], OptimizerState] | None = field(default=None, repr=False, compare=False)
    """While the end of an epoch of several trainings as one is looked at: brings the model up to date, and returns the
    optimizer's state."""

    def catch_up(self) -> None:
        """Bring the model and the optimizer's state up to date, where that was put off."""
        if self.taken_out is not None:
            self.optimizer, self.taken_out = self.taken_out(), None

    def state(self) -> dict[str, Any]:
        """What is saved of it."""
        self.catch_up()
        return {name: value for name, value in vars(self).items() if name != "taken_out"}

    def __getstate__(self) -> dict[str, Any]:
        """A copy stands by itself."""
        return {**self.state(), "taken_out": None}


@dataclass(eq=False)
class Member:
    """One training of a task, alone or one of several that take their steps as one.

    Args:
        context: the task.
        method: the method.
        settings: how it is trained.
        progress: where it stands.
        on_epoch: called after every epoch.
        epochs: how many are planned.
        numbers: the host's random numbers that are its own; None where these are at work as they are.
        device_numbers: the device's, where it has any, while the member is one of several.
        spoilt: whether an attempt to train several as one may have left those unusable.
        place: where what comes of it is kept for other runs; None where it is not.
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
        """Whether there are epochs left, and patience."""
        patience = self.settings.patience
        return self.progress.epoch < self.epochs and not (patience and self.progress.waited >= patience)

    def keep_numbers(self) -> None:
        """From now on the host's random numbers, as they stand, are its own."""
        self.numbers = torch.Generator()
        self.numbers.set_state(torch.get_rng_state())

    @contextmanager
    def own_numbers(self) -> Iterator[None]:
        """Within it, the host's random numbers are its own."""
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
    """The training examples of each in the order of its next epoch, `(members, examples)`, drawn from its numbers."""
    orders = torch.stack([torch.randperm(member.context.num_train, generator=member.numbers) for member in members])
    examples = torch.stack([member.context.train for member in members])
    if examples.is_cuda:  # what is pinned is copied while the device does something else
        orders = orders.pin_memory().to(examples.device, non_blocking=True)
    return examples.gather(1, orders)
