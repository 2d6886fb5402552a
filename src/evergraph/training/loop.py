"""The training loop, shared by all methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from evergraph.core.allocator import keep_freed_memory
from evergraph.core.capabilities import capable
from evergraph.core.finite import nan_unless_finite
from evergraph.core.params import Direction, named_numbers
from evergraph.core.pulled import pull_back, pulled_along
from evergraph.core.recording import noted_layers
from evergraph.core.settings import NonNegativeInt, check_setting
from evergraph.core.shortcuts import full_precision, tensor_cores
from evergraph.curvature import forward, in_mode
from evergraph.data.batching import Batch
from evergraph.errors import DivergedError, EvergraphError, first_line, tell
from evergraph.methods.base import Context, Method, Replay, Step
from evergraph.methods.state import copied
from evergraph.models.base import MEASURED_AT_ONCE, GraphModel
from evergraph.problems.base import Problem
from evergraph.training.adam import WideAdam, pulled_while_moving, wide_adam_suits
from evergraph.training.compiled_adam import CompiledAdam, compiled_adam_suits
from evergraph.training.executors import EXECUTORS, Executor, executor_for
from evergraph.training.executors.cuda_graphs import renew_generator
from evergraph.training.known_trainings import awaited, keep, place_of, recalled
from evergraph.training.member import Member, OnEpoch, OptimizerState, Progress, shuffled
from evergraph.training.settings import MOMENTUM, Training
from evergraph.training.side_by_side import NotTogetherError, clock, device_numbers, give_way, meet
from evergraph.training.stacked import Stack, StackedExecutor, sort_of

Forward = Callable[[GraphModel, Batch, Sequence[Direction]], tuple[Tensor, list[Tensor]]]
"""From a model, a batch and directions d to the outputs and J d: `evergraph.curvature.forward`, or an executor's."""


def make_optimizer(model: nn.Module, settings: Training) -> torch.optim.Optimizer:
    """Make an optimizer that updates parameters in one fused pass; on a GPU it can be part of a CUDA graph."""
    params, decay = list(model.parameters()), settings.weight_decay
    if not any(value.requires_grad for value in params):
        raise EvergraphError("all parameters of the model are frozen; let one require a gradient, or train 0 epochs")
    rate = torch.tensor(settings.lr, device=params[0].device)  # a captured step reads changes from it
    lr = rate if settings.rate_varies else settings.lr
    if settings.optimizer == "sgd":
        descent = torch.optim.SGD(params, lr=lr, momentum=MOMENTUM, weight_decay=decay, fused=True)
        for value in params:  # the fused kernel needs all velocities, even of parameters that get a gradient later
            descent.state[value]["momentum_buffer"] = torch.zeros_like(value)
        return descent
    if wide_adam_suits(params):
        return WideAdam(params, rate, decay)
    if compiled_adam_suits(params):
        return CompiledAdam(params, lr, decay)
    return torch.optim.Adam(params, lr=lr, weight_decay=decay, fused=True, capturable=params[0].is_cuda)


def optimizer_state(model: GraphModel, optimizer: torch.optim.Optimizer) -> OptimizerState:
    """Return the optimizer's state by parameter name; the tensors are the optimizer's own, not copies."""
    states = {name: optimizer.state[value] for name, value in model.named_parameters() if value in optimizer.state}
    # a parameter that had no gradient yet may have entries of None
    return {name: dict(kept) for name, kept in states.items() if all(value is not None for value in kept.values())}


def load_optimizer(model: GraphModel, optimizer: torch.optim.Optimizer, state: OptimizerState) -> None:
    """Load an optimizer state; a parameter that it lacks, or has in another shape, starts afresh."""
    known = {
        position: state[name]
        for position, (name, value) in enumerate(model.named_parameters())
        if name in state and all(kept.shape in (value.shape, ()) for kept in state[name].values())
    }
    fresh = optimizer.state_dict()
    optimizer.load_state_dict({**fresh, "state": {**fresh["state"], **known}})


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the coming steps; a rate that is a plain number never changes."""
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
    """Train one task from its current `progress` to its end, with the first executor that suits it.

    Concurrent jobs that differ only in their numbers are stacked and trained together.
    """
    planned = method.epochs(context, settings.epochs)
    epochs = check_setting(method.title, "epochs", planned, NonNegativeInt)
    if not epochs:
        return progress
    if settings.patience and not context.task.val.numel():
        whose = "the task" if context.task is context.arrived else f"what {method.title} trains on"
        raise EvergraphError(f"patience={settings.patience} needs validation examples, and {whose} has none; use 0")
    if context.device.type == "cpu":
        keep_freed_memory()
    member = Member(context, method, settings, progress, on_epoch, epochs)
    member.place = place_of(member)
    with awaited(member):
        if not recalled(member):
            _train(member, executors)
    return progress


def _train(member: Member, executors: Sequence[type[Executor]]) -> None:
    """Train a task whose result is not known yet, and keep the result where other runs look for it."""
    context, method, settings, progress = member.context, member.method, member.settings, member.progress
    began = clock()
    if (sort := sort_of(member) if executors is EXECUTORS else None) is not None:
        member.keep_numbers()
        member.device_numbers = device_numbers(context.device)
    before = None if member.device_numbers is None else member.device_numbers.get_state()
    if meet(context.index, sort, member, _train_stacked) and member.numbers is not None:
        torch.set_rng_state(member.numbers.get_state())
        return
    member.numbers = member.device_numbers = None
    if recalled(member):  # stacked with a job that is the same as this one
        return
    if member.spoilt and before is not None:
        renew_generator(context.device, before)
    optimizer = make_optimizer(context.model, settings)
    if progress.optimizer is not None:
        load_optimizer(context.model, optimizer, progress.optimizer)
    weigh = None
    if settings.class_balanced:
        weigh = context.problem.balancing_weights(context.batcher.y[context.train])
    step = partial(train_step, context, method, optimizer=optimizer, weigh=weigh)
    executor = executor_for(context, method, step, executors)
    (error,) = _train_members([member], optimizer, executor, lambda one: optimizer_state(context.model, optimizer))
    if error is not None:
        raise error
    keep(member, clock() - began)


def _train_stacked(members: list[Member]) -> list[BaseException | None]:
    """Train members of one sort together; returns the error of each. If that is impossible, each is trained alone.

    Of members that are the same job, one is trained, and the others load its result.
    """
    first_of = {member.place or id(member): member for member in reversed(members)}
    if len(first_of) < len(members):
        chosen = [member for member in members if first_of[member.place or id(member)] is member]
        outcome = dict(zip(map(id, chosen), _train_stacked(chosen)))
        return [outcome.get(id(member), NotTogetherError()) for member in members]
    began = clock()
    try:
        stack = Stack(members)
        optimizer = make_optimizer(stack, members[0].settings)
        executor = StackedExecutor(stack, optimizer, objective)
        errors = _train_members(members, optimizer, executor, stack.taken_out(optimizer))
    except Exception as error:
        if any(member.progress.epoch for member in members):
            raise
        for member in members:
            member.spoilt = True
        tell(f"{len(members)} trainings do not train as one ({first_line(error)}); they take turns")
        raise NotTogetherError from error
    for member, ended_in in zip(members, errors):  # at once: other processes may be waiting for it
        if ended_in is None:
            keep(member, (clock() - began) / len(members))
    return errors


def _train_members(
    members: list[Member],
    optimizer: torch.optim.Optimizer,
    executor: Executor,
    optimizer_state_of: Callable[[int], OptimizerState],
) -> list[BaseException | None]:
    """Run the epochs of one member, or of several stacked ones; returns the error that each ended in, or None.

    Args:
        members: the members; if several, all of one sort.
        optimizer: updates the parameters of all members.
        executor: carries out the steps of all members.
        optimizer_state_of: brings a member's parameters up to date, if they are held in a stack, and returns its part
            of the optimizer's state.
    """
    errors: list[BaseException | None] = [None] * len(members)
    settings, epochs = members[0].settings, members[0].epochs
    device = members[0].context.device
    with closing(executor):
        while None in errors and members[errors.index(None)].goes_on():
            epoch = members[errors.index(None)].progress.epoch
            for member in members:
                member.context.model.train()
                member.context.epoch = epoch
            _set_rate(optimizer, settings.rate(epoch, epochs))
            seeds = shuffled(members) if executor.stacked else shuffled(members)[0]
            total = torch.zeros(seeds.shape[:-1], dtype=torch.float64, device=device)
            with tensor_cores(device):
                for batch in executor.batches(seeds):
                    total += executor.step(batch)
            give_way(settled=executor.settled)
            losses = total.reshape(-1).tolist()
            for number, (member, loss) in enumerate(zip(members, losses)):
                if errors[number] is None:
                    try:
                        taken_out, alone = partial(optimizer_state_of, number), len(members) == 1
                        _end_epoch(member, loss, executor.how(), taken_out, alone)
                    except BaseException as error:
                        errors[number] = error
    for number, member in enumerate(members):
        if errors[number] is None:
            member.progress.optimizer = optimizer_state_of(number)
            _end_in_best(member)
    return errors


@torch.no_grad()
def _end_in_best(member: Member) -> None:
    """Restore the best or averaged parameters and the state that goes with them, unless the last epoch's are final."""
    progress, own = member.progress, dict(named_numbers(member.context.model))
    for name, value in progress.best_params.items():
        own[name].copy_(value)
    if progress.best_state:
        member.method.load_state_dict(progress.best_state)
    progress.optimizer = progress.best_optimizer or progress.optimizer


def _end_epoch(
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


def objective(
    context: Context,
    method: Method,
    batch: Batch,
    weigh: Callable[[Tensor], Tensor] | None = None,
    forward: Forward = forward,
) -> tuple[Tensor, Tensor, Step]:
    """Return the value that a step minimizes, the loss of each example, and the step itself, with its tangents."""
    with noted_layers(method.reads_layers) as layers:
        logits, tangents = forward(context.model, batch, method.directions(context))
    per_example = _losses(context.problem, method.loss_outputs(context, logits), batch.y)
    if weigh is not None:
        per_example = weigh(batch.y).to(per_example.dtype) * per_example
    step = Step(context, batch, logits, context.reduced(per_example), tangents, layers)
    value = step.loss if (own := method.loss(step)) is None else own
    if (penalty := method.penalty(step)) is not None:
        value = value + penalty
    if (cotangent := method.logit_cotangent(step)) is not None:
        value = pulled_along(value, logits, cotangent)
    for replay in method.replay(step):
        value = value + _replayed(context, method, replay)
    return value, per_example, step


def train_step(
    context: Context,
    method: Method,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    weigh: Callable[[Tensor], Tensor] | None = None,
    forward: Forward = forward,
) -> Tensor:
    """One step: forward with the method's tangents, one backward pass, one update; returns the summed loss.

    An executor may pass a forward function of its own, with the same results.
    """
    value, per_example, step = objective(context, method, batch, weigh, forward)
    method.observe(step)
    optimizer.zero_grad(set_to_none=True)
    pull_back(value)
    if not pulled_while_moving(context, method, optimizer):
        with full_precision(context.device):
            method.edit_grads(step)
    optimizer.step()
    method.after_step(step)
    summed = weigh is None and context.reduction == "sum"
    return nan_unless_finite(value, step.loss.detach() if summed else per_example.detach().sum())


def _losses(problem: Problem, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example, which a problem must not have reduced."""
    if not outputs.is_floating_point():
        raise EvergraphError(f"the model's outputs are whole numbers ({outputs.dtype}); they must be floating-point")
    per_example = problem.loss(outputs, targets)
    if per_example.shape != outputs.shape[:1]:
        raise EvergraphError(
            f"the loss of {problem.name} has shape {tuple(per_example.shape)} for {outputs.size(0)} examples; there "
            "must be one number for each"
        )
    return per_example


def _replayed(context: Context, method: Method, replay: Replay) -> Tensor:
    """The term that replayed examples add to the objective."""
    with in_mode(context.model, replay.training):
        outputs, tangents = forward(context.model, replay.batch, replay.directions)
    term = outputs.new_zeros(())
    if replay.weights is not None:
        problem = replay.problem or context.problem
        per_example = _losses(problem, method.loss_outputs(context, outputs), replay.batch.y)
        if replay.weights.dim() > 1 or replay.weights.numel() not in (1, per_example.numel()):
            raise EvergraphError(
                f"{method.title}: replay gives weights of shape {tuple(replay.weights.shape)} for "
                f"{per_example.numel()} examples; there must be one for each"
            )
        term = term + (replay.weights * per_example).sum()
    if replay.cotangent is not None:
        term = pulled_along(term, outputs, replay.cotangent(outputs.detach(), tangents))
    return term


def diverged(context: Context, settings: Training, progress: Progress) -> DivergedError:
    """Return the error for a model whose numbers are no longer finite."""
    return DivergedError(
        f"task {context.index}, epoch {progress.epoch}: the model diverged (its loss, what the method adds to it, or "
        f"its parameters are no longer finite numbers); lower lr (now {settings.lr:g}) or the method's strength"
    )


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


def _early_stop(member: Member, row: dict[str, float], optimizer_state: Callable[[], OptimizerState]) -> None:
    """Log the loss on the current task's validation examples, with exact neighbourhoods, and keep the best epoch."""
    context, progress = member.context, member.progress
    context.model.eval()
    total, seeds = 0.0, context.task.val.to(context.device)
    with torch.no_grad():
        for batch in context.batcher.exact().batches(seeds, MEASURED_AT_ONCE):
            total += float(_losses(context.problem, context.model(batch), batch.y).sum())
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
