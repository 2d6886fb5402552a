"""The training loop. There is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from evergraph.core.params import Direction, Params, copy_params
from evergraph.core.shortcuts import tensor_cores
from evergraph.curvature import forward, in_mode
from evergraph.data.batching import Batch
from evergraph.errors import DivergedError, EvergraphError
from evergraph.methods.base import Context, Method, Replay, Step
from evergraph.models.base import GraphModel
from evergraph.training.executors import EXECUTORS, Executor, executor_for
from evergraph.training.settings import Training
from evergraph.training.side_by_side import give_way

OptimizerState = dict[str, dict[str, Tensor]]
"""The optimizer's averages (and number of steps) of each parameter, under the parameter's name."""

Forward = Callable[[GraphModel, Batch, Sequence[Direction]], tuple[Tensor, list[Tensor]]]
"""From a model, a batch and directions d to the outputs and J d: `evergraph.curvature.forward`, or an executor's."""

OnEpoch = Callable[["Progress", int], None]
"""Called after every epoch with the progress and the number of epochs planned."""


@dataclass
class Progress:
    """Where the training of a task stands between two epochs: all that is needed to go on."""

    epoch: int = 0
    optimizer: OptimizerState | None = None
    best_loss: float = float("inf")
    best_params: Params = field(default_factory=dict)
    waited: int = 0
    log: list[dict[str, float]] = field(default_factory=list)
    steps: str = ""
    """How steps are carried out: `captured`, or `eager` and why."""


MOMENTUM = 0.9  # of plain gradient descent


def make_optimizer(model: GraphModel, settings: Training) -> torch.optim.Optimizer:
    """The optimizer in one fused pass over the parameters; on a GPU it can be part of a CUDA graph."""
    params, decay = list(model.parameters()), settings.weight_decay
    # a rate that changes is a tensor, which a captured step reads anew
    lr = settings.lr if settings.schedule == "constant" else torch.tensor(settings.lr, device=params[0].device)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(params, lr=lr, momentum=MOMENTUM, weight_decay=decay, fused=True)
    return torch.optim.Adam(params, lr=lr, weight_decay=decay, fused=True, capturable=params[0].is_cuda)


def optimizer_state(model: GraphModel, optimizer: torch.optim.Optimizer) -> OptimizerState:
    """The optimizer's state by parameter; the tensors are the optimizer's own."""
    states = {name: optimizer.state[value] for name, value in model.named_parameters() if value in optimizer.state}
    # a parameter that had no gradient yet may have entries of None
    return {name: dict(kept) for name, kept in states.items() if all(value is not None for value in kept.values())}


def load_optimizer(model: GraphModel, optimizer: torch.optim.Optimizer, state: OptimizerState) -> None:
    """Take up a state; a parameter that is not in it, or in another shape, starts afresh."""
    known = {
        position: state[name]
        for position, (name, value) in enumerate(model.named_parameters())
        if name in state and all(kept.shape in (value.shape, ()) for kept in state[name].values())
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": known})


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the steps to come; a number stays as it was made."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)


def train(
    context: Context,
    method: Method,
    settings: Training,
    progress: Progress,
    on_epoch: OnEpoch | None = None,
    executors: Sequence[type[Executor]] = EXECUTORS,
) -> Progress:
    """Train one task from wherever `progress` stands to its end, by the first executor that suits it."""
    model, seeds = context.model, context.train
    epochs = method.epochs(context, settings.epochs)
    if not epochs:
        return progress
    optimizer = make_optimizer(model, settings)
    if progress.optimizer is not None:
        load_optimizer(model, optimizer, progress.optimizer)
    weigh = context.problem.balancing_weights(context.batcher.y[seeds]) if settings.class_balanced else None
    step = partial(train_step, context, method, optimizer=optimizer, weigh=weigh)
    executor = executor_for(context, method, step, executors)
    with closing(executor):
        while progress.epoch < epochs and not (settings.patience and progress.waited >= settings.patience):
            model.train()
            context.epoch = progress.epoch
            _set_rate(optimizer, settings.rate(progress.epoch, epochs))
            total = torch.zeros((), dtype=torch.float64, device=seeds.device)
            order = torch.randperm(seeds.numel()).to(seeds.device)
            with tensor_cores(seeds.device):
                for batch in executor.batches(seeds[order]):
                    total += executor.step(batch)
            give_way(settled=executor.settled)
            progress.epoch += 1
            progress.steps = executor.how()
            row = {"epoch": progress.epoch, "loss": float(total) / seeds.numel()}
            if not math.isfinite(row["loss"]):
                raise diverged(context, settings, progress)
            stop = bool(settings.patience) and _early_stop(context, settings, progress, row)
            progress.log.append(row)
            if on_epoch is not None:
                progress.optimizer = optimizer_state(model, optimizer)
                on_epoch(progress, epochs)
            if stop:
                break
    progress.optimizer = optimizer_state(model, optimizer)
    with torch.no_grad():
        for name, value in progress.best_params.items():
            model.get_parameter(name).copy_(value)
    return progress


def train_step(
    context: Context,
    method: Method,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    weigh: Callable[[Tensor], Tensor] | None = None,
    forward: Forward = forward,
) -> Tensor:
    """One step: forward with the method's tangents, one backward, one move; returns the summed loss.

    An executor may bring a forward pass of its own, with the same results.
    """
    logits, tangents = forward(context.model, batch, method.directions(context))
    per_example = context.problem.loss(method.loss_outputs(context, logits), batch.y)
    if weigh is not None:
        per_example = weigh(batch.y).to(per_example.dtype) * per_example
    step = Step(context, batch, logits, context.reduced(per_example), tangents)
    objective = step.loss if (own := method.loss(step)) is None else own
    if (penalty := method.penalty(step)) is not None:
        objective = objective + penalty
    if (cotangent := method.logit_cotangent(step)) is not None:
        # a term whose gradient at the outputs is the cotangent itself: both go back in one pass
        objective = objective + (logits * cotangent.detach()).sum()
    for replay in method.replay(step):
        objective = objective + _replayed(context, method, replay)
    method.observe(step)
    optimizer.zero_grad(set_to_none=True)
    objective.backward()
    method.edit_grads(step)
    optimizer.step()
    method.after_step(step)
    return per_example.detach().sum()


def _replayed(context: Context, method: Method, replay: Replay) -> Tensor:
    """The term that further examples add to the objective."""
    with in_mode(context.model, replay.training):
        outputs, tangents = forward(context.model, replay.batch, replay.directions)
    term = outputs.new_zeros(())
    if replay.weights is not None:
        problem = replay.problem or context.problem
        per_example = problem.loss(method.loss_outputs(context, outputs), replay.batch.y)
        term = term + (replay.weights * per_example).sum()
    if replay.cotangent is not None:
        term = term + (outputs * replay.cotangent(outputs.detach(), tangents).detach()).sum()
    return term


def diverged(context: Context, settings: Training, progress: Progress) -> DivergedError:
    """The error for a model that is no longer made of finite numbers."""
    return DivergedError(
        f"task {context.index}, epoch {progress.epoch}: the model diverged (its loss or parameters are no longer "
        f"finite numbers); lower lr (now {settings.lr:g}) or the method's strength"
    )


def _early_stop(context: Context, settings: Training, progress: Progress, row: dict[str, float]) -> bool:
    """Loss on the current task's validation examples, with all their neighbours; whether patience has run out."""
    context.model.eval()
    total, seeds = 0.0, context.task.val.to(context.device)
    if not seeds.numel():
        raise EvergraphError(f"patience={settings.patience} needs validation examples, and the task has none; use 0")
    with torch.no_grad():
        for batch in context.batcher.exact().batches(seeds, 2048):
            total += float(context.problem.loss(context.model(batch), batch.y).sum())
    row["validation_loss"] = total / seeds.numel()
    if row["validation_loss"] < progress.best_loss:
        progress.best_loss, progress.waited = row["validation_loss"], 0
        progress.best_params = copy_params(context.model)
    else:
        progress.waited += 1
    return progress.waited >= settings.patience
