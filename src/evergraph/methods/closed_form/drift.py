"""A trained encoder under a closed-form head: the sums follow its features, and training has a head of its own."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call

from evergraph.core.params import Params, copy_params
from evergraph.core.symmetric import pack, unpack
from evergraph.data.batching import Batch
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError, tell
from evergraph.methods.base import Context, Method
from evergraph.methods.closed_form.head import linear_head
from evergraph.models.base import GraphModel

DAMPINGS = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)  # as multiples of the mean diagonal of the kept examples' Gram matrix
ALIKE = 0.85  # cosine between that matrix and G below which the examples do not represent the nodes
KEPT = "what is kept of earlier tasks, before this one is added"  # in a context's cache: examples and their weights


class MovingEncoder(Method):
    """Support for an encoder that is trained under a closed form: on the first task only, or on every task.

    Two heads take turns in the model: the trained head while a task is learned, through which other methods protect
    the encoder, and the solved head between tasks. Sums over earlier tasks' features belong to the encoder of that
    time. Their nodes are gone, and the current task's nodes move differently. But what other methods keep of earlier
    tasks (a memory, prototypes) shows how features moved: the sums follow by the linear map T from the old to the new
    features of these examples. They stay unchanged if the examples look unlike the nodes that they represent (nodes
    kept without neighbours, to a model that reads neighbours separately), or if no map fits left-out examples better
    than no change does.
    """

    ends_last = True

    encoder: Literal["frozen", "first", "continual"]
    tasks_: int
    gram_: dict[str, Tensor]
    cross_: dict[str, Tensor]
    encoder_before_: Params
    trained_head_: Params
    drift_: list[float]

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Restore the head that training left."""
        for name, value in self.trained_head_.items():
            model.get_parameter(name).data.copy_(value)
        self.trained_head_ = {}
        super().adapt_model(model, task)

    def epochs(self, context: Context, planned: int) -> int:
        """Return `planned` if the encoder is trained on this task, else 0."""
        trained = self.encoder == "continual" or (self.encoder == "first" and context.index == 0)
        return planned if trained else 0

    def start_task(self, context: Context) -> None:
        """Refuse a model without a linear head, or with no encoder to train; copy the encoder if it will drift."""
        _, head = linear_head(context.model)
        if self.encoder != "frozen" and all(value is head for value in context.model.parameters()):
            kind = type(context.model).__name__
            raise EvergraphError(
                f"encoder={self.encoder}: {kind} has nothing to train below its head; take analytic with a model that "
                "has, e.g. --method ssm+analytic --model sage"
            )
        drifts = self.encoder == "continual" and self.tasks_
        self.encoder_before_ = copy_params(context.model) if drifts else {}

    def prepare(self, context: Context) -> None:
        """Fetch what other methods keep of earlier tasks, before they add anything of this one."""
        if self.encoder_before_:
            context.cache[KEPT] = kept_examples(context)

    def follow(self, context: Context) -> None:
        """Map the sums to the encoder's current features, and remember the trained head."""
        features, head = linear_head(context.model)
        if self.encoder == "continual":
            name = next(name for name, value in context.model.named_parameters() if value is head)
            self.trained_head_ = {name: head.detach().clone()}
        if not self.encoder_before_:
            return
        old = {f"model.{name}": value for name, value in self.encoder_before_.items()}
        self.encoder_before_ = {}
        if context.cache[KEPT] is None:
            tell(
                "analytic: nothing is kept of earlier tasks that shows how the encoder moved, and their sums stay as "
                "they were; compose it with a method that keeps examples or prototypes, e.g. ssm+analytic"
            )
            return
        batch, weights = context.cache[KEPT]
        before = functional_call(_Features(context.model), old, (batch,)).double()
        if likeness(before, weights.double(), unpack(self.gram_["train"])) < ALIKE:
            tell(
                f"analytic: what is kept of earlier tasks looks to {type(context.model).__name__} unlike the nodes it "
                "stands for, and their sums stay as they were; keep examples with their neighbours, e.g. ssm+analytic"
            )
            return
        change, missed = linear_change(before, features(batch).double(), weights.double())
        self.drift_ = [*self.drift_, missed]
        if missed < 1:
            self.gram_ = {part: pack(change.T @ unpack(sums) @ change) for part, sums in self.gram_.items()}
            self.cross_ = {part: change.T @ sums for part, sums in self.cross_.items()}


def kept_examples(context: Context) -> tuple[Batch, Tensor] | None:
    """Return examples of earlier tasks that a composed method keeps, and how many nodes each represents; else None."""
    for name in ("stand_ins", "own_stand_ins"):
        claim = context.capability_of_a_part(name)
        found: tuple[Batch, Tensor] | None = claim(context) if claim is not None else None
        if found is not None:
            return found
    return None


def likeness(rows: Tensor, weights: Tensor, gram: Tensor) -> float:
    """Return the cosine between the examples' weighted Gram matrix and that of all nodes."""
    own = rows.T @ (weights.unsqueeze(1) * rows)
    return float((own * gram).sum() / (own.norm() * gram.norm()))


def linear_change(before: Tensor, after: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """Return T with before · T ≈ after in weighted least squares, and the share of the change that it misses.

    T is damped towards the identity: directions that no example shows are assumed not to move. What T misses is the
    leave-one-out error: residual i of the full fit over 1 − h_i, with h_i the weight of example i in its own
    prediction, which is exact for least squares. A share of 1 is no better than no map at all. The damping is the one
    of `DAMPINGS` that misses least.
    """
    moved, weigh = after - before, weights.unsqueeze(1)
    total = float((weigh * moved.square()).sum())
    gram = before.T @ (weigh * before)
    values, vectors = torch.linalg.eigh(gram)
    rows, pulled = before @ vectors, vectors.T @ (before.T @ (weigh * moved))
    found = []
    for damping in DAMPINGS:
        inverse = 1 / (values.clamp(min=0) + damping * float(gram.diagonal().mean()))
        correction = inverse.unsqueeze(1) * pulled
        left = 1 - (rows.square() @ inverse) * weights
        missed = (moved - rows @ correction) / left.clamp(min=1e-12).unsqueeze(1)
        found.append((float((weigh * missed.square()).sum()) / total if total else 0.0, damping, vectors @ correction))
    share, _, correction = min(found, key=lambda fit: fit[:2])
    return correction + torch.eye(gram.size(0), dtype=gram.dtype, device=gram.device), share


class _Features(torch.nn.Module):
    """A module whose forward computes a model's features, for calls with other parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        features: Tensor = self.model.features(batch)  # type: ignore[operator]
        return features
