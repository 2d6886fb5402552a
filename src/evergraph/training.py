"""The training loop. There is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.acceleration import padded_steps
from evergraph.curvature.forward import forward
from evergraph.data.batches import Batch
from evergraph.errors import EvergraphError, one_of
from evergraph.methods.base import Context, Method, Step
from evergraph.models.base import GraphModel
from evergraph.params import Params, copy_params

LABEL_SCOPES = ("seen", "current", "all")


@dataclass(frozen=True)
class Training:
    """How a task is trained; a number means little without it.

    Args:
        epochs: passes over the training nodes.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 term.
        batch_size: seed nodes in a batch; 0 for all of them at once (full batch).
        label_scope: classes in the training softmax: those `seen` so far, the `current` task's, or `all`.
        reduction: `sum` or `mean` of the loss over a batch. Adam does not mind the scale of a loss, but
            every penalty is weighed against it.
        class_balanced: weigh classes inversely to their number of training nodes.
        patience: stop after so many epochs without a lower loss on the current task's validation nodes,
            and go back to the best; 0 trains all epochs.
        fan_out: neighbours to sample at each hop, e.g. (10, 25); None takes exact neighbourhoods.
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

    def __post_init__(self) -> None:
        one_of("label scope", self.label_scope, LABEL_SCOPES)
        one_of("reduction", self.reduction, ("sum", "mean"))
        for name, low in (("epochs", 0), ("batch_size", 0), ("patience", 0), ("weight_decay", 0)):
            if not low <= getattr(self, name) < float("inf"):
                raise EvergraphError(f"{name}={getattr(self, name)} must be a number of at least {low}")
        if not 0 < self.lr < float("inf"):
            raise EvergraphError(f"lr={self.lr} must be a number above 0")
        if self.fan_out is not None:
            object.__setattr__(self, "fan_out", tuple(int(number) for number in self.fan_out))
            if min(self.fan_out, default=0) < 1:
                raise EvergraphError(f"fan_out={list(self.fan_out)} must be positive numbers, one a hop")

    def protocol(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {**asdict(self), "fan_out": list(self.fan_out) if self.fan_out else None, "optimizer": "Adam"}


@dataclass
class Progress:
    """Where the training of a task stands between two epochs: all that is needed to go on."""

    epoch: int = 0
    optimizer: dict[str, Any] | None = None
    best_loss: float = float("inf")
    best_params: Params = field(default_factory=dict)
    waited: int = 0
    log: list[dict[str, float]] = field(default_factory=list)


def make_optimizer(model: GraphModel, settings: Training) -> torch.optim.Adam:
    """Adam in one fused pass over the parameters; on a GPU it can be part of a CUDA graph."""
    on_gpu = next(model.parameters()).is_cuda
    return torch.optim.Adam(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True, capturable=on_gpu
    )


def train(
    context: Context,
    method: Method,
    settings: Training,
    progress: Progress,
    on_epoch: Callable[[Progress, int], None] | None = None,
) -> Progress:
    """Train one task from wherever `progress` stands to its end."""
    model, seeds = context.model, context.task.train.to(context.classes.device)
    epochs = method.epochs(context, settings.epochs)
    if not epochs:
        return progress
    optimizer = make_optimizer(model, settings)
    if progress.optimizer is not None:
        optimizer.load_state_dict(progress.optimizer)
        optimizer.param_groups[0]["capturable"] = seeds.is_cuda  # the state may come from another device
    class_weights = _class_weights(context) if settings.class_balanced else None
    plain = partial(train_step, context, method, optimizer=optimizer, class_weights=class_weights)
    replayed = padded_steps(context, method, plain)  # the same steps on a GPU; None where they cannot be captured
    cut, step = (replayed, replayed) if replayed else (context.neighbourhoods, plain)
    while progress.epoch < epochs and not (settings.patience and progress.waited >= settings.patience):
        model.train()
        total = torch.zeros((), dtype=torch.float64, device=seeds.device)
        order = torch.randperm(seeds.numel()).to(seeds.device)
        for batch in cut.batches(seeds[order], context.batch_size):
            total += step(batch)  # type: ignore[arg-type]
        progress.epoch += 1
        row = {"epoch": progress.epoch, "loss": float(total) / seeds.numel()}
        stop = bool(settings.patience) and _early_stop(context, settings, progress, row)
        progress.log.append(row)
        if on_epoch is not None:
            progress.optimizer = optimizer.state_dict()
            on_epoch(progress, epochs)
        if stop:
            break
    with torch.no_grad():
        for name, value in progress.best_params.items():
            model.get_parameter(name).copy_(value)
    return progress


def train_step(
    context: Context,
    method: Method,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    class_weights: Tensor | None = None,
) -> Tensor:
    """One step: forward with the method's tangents, one backward, one move; returns the summed loss."""
    logits, tangents = forward(context.model, batch, method.directions(context))
    per_node = F.cross_entropy(
        logits.index_select(1, context.classes), context.targets(batch), weight=class_weights, reduction="none"
    )
    loss = per_node.sum() if context.reduction == "sum" else per_node.mean()
    step = Step(context, batch, logits, loss, tangents)
    objective = loss
    if (penalty := method.penalty(step)) is not None:
        objective = objective + penalty
    if (cotangent := method.logit_cotangent(step)) is not None:
        # a term whose gradient at the logits is the cotangent itself: both go back in one pass
        objective = objective + (logits * cotangent.detach()).sum()
    optimizer.zero_grad(set_to_none=True)
    objective.backward()
    method.edit_grads(step)
    optimizer.step()
    method.after_step(step)
    return per_node.detach().sum()


def _class_weights(context: Context) -> Tensor:
    """Weights inverse to the classes' numbers of training nodes, with mean one over the nodes."""
    y = context.neighbourhoods.y[context.task.train.to(context.classes.device)]
    counts = torch.stack([(y == unit).sum() for unit in context.classes]).double()
    present = counts > 0
    weights = torch.where(present, y.numel() / (present.sum() * counts.clamp(min=1)), torch.zeros_like(counts))
    return weights.to(next(context.model.parameters()).dtype)


def _early_stop(context: Context, settings: Training, progress: Progress, row: dict[str, float]) -> bool:
    """Loss on the current task's validation nodes, with all their neighbours; whether patience has run out."""
    context.model.eval()
    total, seeds = 0.0, context.task.val.to(context.classes.device)
    if not seeds.numel():
        raise EvergraphError(f"patience={settings.patience} needs validation nodes, and the task has none; use 0")
    with torch.no_grad():
        for batch in context.neighbourhoods.exact().batches(seeds, 2048):
            logits = context.model(batch)[:, context.classes]
            total += float(F.cross_entropy(logits, context.targets(batch), reduction="sum"))
    row["validation_loss"] = total / seeds.numel()
    if row["validation_loss"] < progress.best_loss:
        progress.best_loss, progress.waited = row["validation_loss"], 0
        progress.best_params = copy_params(context.model)
    else:
        progress.waited += 1
    return progress.waited >= settings.patience
