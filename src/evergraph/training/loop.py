"""The training loop, shared by all methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import torch

from evergraph.core.allocator import keep_freed_memory
from evergraph.core.settings import NonNegativeInt, check_setting
from evergraph.core.shortcuts import tensor_cores
from evergraph.errors import EvergraphError, first_line, tell
from evergraph.methods.base import Context, Method
from evergraph.training.epoch_end import end_epoch, end_in_best
from evergraph.training.executors import EXECUTORS, Executor, executor_for
from evergraph.training.executors.cuda_graphs import renew_generator
from evergraph.training.known_trainings import awaited, keep, place_of, recalled
from evergraph.training.member import Member, OnEpoch, OptimizerState, Progress, shuffled
from evergraph.training.optimizers import load_optimizer, make_optimizer, optimizer_state, set_rate
from evergraph.training.settings import Training
from evergraph.training.side_by_side import NotTogetherError, clock, device_numbers, give_way, meet
from evergraph.training.stacked import Stack, StackedExecutor, sort_of
from evergraph.training.step import objective, train_step


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
            set_rate(optimizer, settings.rate(epoch, epochs))
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
                        end_epoch(member, loss, executor.how(), taken_out, alone)
                    except BaseException as error:
                        errors[number] = error
    for number, member in enumerate(members):
        if errors[number] is None:
            member.progress.optimizer = optimizer_state_of(number)
            end_in_best(member)
    return errors
