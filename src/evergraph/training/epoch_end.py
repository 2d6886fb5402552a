"""What happens when an epoch ends: its loss is logged, training may stop early, parameters are averaged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from evergraph.core.capabilities import capable
from evergraph.core.params import named_numbers
from evergraph.core.workers import workers
from evergraph.errors import DivergedError
from evergraph.methods.base import Context, Method
from evergraph.methods.state import copied
from evergraph.models.base import MEASURED_AT_ONCE
from evergraph.training.member import Member, OptimizerState, Progress
from evergraph.training.settings import Training
from evergraph.training.step import losses_of


def end_epoch(
    member: Member, loss: float, how: str, optimizer_state: Callable[[], OptimizerState], alone: bool
) -> None:
    """Log an epoch with this summed loss, update early stopping and averages, and call the hook."""
    progress, settings, context = member.progress, member.settings, member.context
    progress.epoch += 1
    progress.steps = how
    row = {"epoch": progress.epoch, "loss": loss / context.num_train}
    if not math.isfinite(row["loss"]):
        raise diverged(context, settings, progress)
    if member.method.epoch_counts(context):
        if settings.patience:
            _early_stop(member, row, optimizer_state)
        if progress.epoch > member.epochs - round(settings.average_last * member.epochs):
            _average(context, progress)
    progress.log.append(row)
    if member.on_epoch is None:
        return
    progress.taken_out = optimizer_state
    if alone:  # nothing has to be copied out of a stack
        progress.catch_up()
    try:
        with member.own_numbers():
            member.on_epoch(progress, member.epochs)
    except BaseException:
        progress.catch_up()  # so that it can be saved or resumed in its current state
        raise
    finally:
        progress.taken_out = None


def _early_stop(member: Member, row: dict[str, float], optimizer_state: Callable[[], OptimizerState]) -> None:
    """Log the loss on the current task's validation examples, with exact neighbourhoods, and keep the best epoch."""
    context, progress = member.context, member.progress
    context.model.eval()
    total, seeds = 0.0, context.task.val.to(context.device)
    with torch.no_grad():
        for batch in context.batcher.exact().batches(seeds, MEASURED_AT_ONCE):
            total += float(losses_of(context.problem, context.model(batch), batch.y).sum())
    total = workers().everywhere(total)  # processors that round differently would stop in different epochs
    row["validation_loss"] = total / seeds.numel()
    if row["validation_loss"] < progress.best_loss:
        progress.best_loss, progress.waited = row["validation_loss"], 0
        progress.best_params = {name: value.detach().clone() for name, value in named_numbers(context.model)}
        progress.best_state = _measured(context, member.method)
        progress.best_optimizer = copied(optimizer_state()) if member.settings.keep_optimizer else {}
    else:
        progress.waited += 1


def _measured(context: Context, method: Method) -> dict[str, Any]:
    """Copy the method's state if its steps may write to it (`Method.steps_depend_on`); else return an empty one."""
    claim = capable(method, "steps_depend_on")
    untouched = claim is not None and claim(context) is not None
    return {} if untouched else method.copied_state()


def _average(context: Context, progress: Progress) -> None:
    """Add an epoch's parameters and running statistics to their mean over the last epochs; counters are not averaged.

    What the method measured during steps stays as the last step left it: no step is taken at a mean.
    """
    progress.averaged += 1
    for name, value in named_numbers(context.model):
        mean = progress.best_params.get(name)
        if mean is None or not mean.is_floating_point():
            progress.best_params[name] = value.detach().clone()
        else:
            mean.lerp_(value.detach(), 1 / progress.averaged)


@torch.no_grad()
def end_in_best(member: Member) -> None:
    """Restore the best or averaged parameters and the state that goes with them, unless the last epoch's are final."""
    progress, own = member.progress, dict(named_numbers(member.context.model))
    for name, value in progress.best_params.items():
        own[name].copy_(value)
    if progress.best_state:
        member.method.load_state_dict(progress.best_state)
    progress.optimizer = progress.best_optimizer or progress.optimizer


def diverged(context: Context, settings: Training, progress: Progress) -> DivergedError:
    """Return the error for a model whose numbers are no longer finite."""
    return DivergedError(
        f"task {context.index + 1}, epoch {progress.epoch}: the model diverged (its loss, what the method adds to it, "
        f"or its parameters are no longer finite numbers); lower lr (now {settings.lr:g}) or the method's strength"
    )
