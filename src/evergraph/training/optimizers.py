"""Optimizers, their learning rates, and their state by parameter name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergraph.errors import EvergraphError
from evergraph.models.base import GraphModel
from evergraph.training.adam import WideAdam, wide_adam_suits
from evergraph.training.compiled_adam import CompiledAdam, compiled_adam_suits
from evergraph.training.member import OptimizerState
from evergraph.training.settings import MOMENTUM, Training


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


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the coming steps; a rate that is a plain number never changes."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)


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
