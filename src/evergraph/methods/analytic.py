"""A closed-form head: learning task after task gives the solution of learning all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from evergraph.data.batches import Batch
from evergraph.errors import EvergraphError, one_of
from evergraph.methods.base import Context, Method, state
from evergraph.models.base import NODES_AT_ONCE
from evergraph.params import Params, copy_params

RIDGES = (1e-3, 1e-2, 1e-1)


@dataclass(repr=False)
class Analytic(Method):
    """min over W of Σ_v w_v ‖φ_v W − onehot(y_v)‖² + ridge · (mean diagonal of G) ‖W‖², over all tasks' nodes.

    φ are the inputs of the model's output layer. The loss is quadratic in W with the constant curvature
    G = Σ_v w_v φ_v φ_vᵀ, so the framework's penalty with the full Fisher of each past task is exact:
    the sums G and Σ_v w_v φ_v onehot(y_v)ᵀ are all that past tasks have to leave behind, in float64. The
    solution, by Cholesky, is the one of joint training on the same features.

    Args:
        ridge: relative ridge strength; 0 chooses among 1e-3, 1e-2, 1e-1: the largest whose accuracy on the
            validation nodes met so far, each measured when its task was the current one, is within one
            standard error of the best.
        balance: node weights are (size of the node's class)^(−balance): 0 counts nodes, 1 counts classes.
        encoder: `frozen` never trains the encoder; `first` trains it on the first task by the usual loop;
            `continual` trains it on every task (protect it with another method in `Compose`) and carries
            the sums over to the new features by the linear map that fits best on the current task's nodes.
    """

    name = "analytic"
    family = "closed form"
    reference = "ridge regression by accumulated statistics (recursive least squares); see docs/analytic.md"
    model = "random-features"

    ridge: float = 0.0
    balance: float = 0.5
    encoder: str = "frozen"
    gram_: Tensor | None = state(lambda: None)
    cross_: Tensor | None = state(lambda: None)
    hits_: list[int] = state(list)
    validated_: int = state(int)
    tasks_: int = state(int)
    previous_: Params = state(dict)

    def __post_init__(self) -> None:
        one_of("encoder", self.encoder, ("frozen", "first", "continual"))
        if self.ridge < 0 or self.balance < 0:
            raise EvergraphError(f"analytic: ridge={self.ridge} and balance={self.balance} must not be negative")

    def epochs(self, context: Context, planned: int) -> int:
        """A frozen encoder needs no training."""
        trained = self.encoder == "continual" or (self.encoder == "first" and context.index == 0)
        return planned if trained else 0

    def start_task(self, context: Context) -> None:
        """Keep the encoder's parameters, to see how far it drifts."""
        self.previous_ = copy_params(context.model) if self.encoder == "continual" and self.tasks_ else {}

    @torch.no_grad()
    def end_task(self, context: Context) -> None:
        """Add the task to the sums, choose the ridge, solve, and write the head."""
        context.model.eval()
        if self.previous_:
            self._follow_drift(context)
        self._accumulate(context)
        ridges = [self.ridge] if self.ridge else list(RIDGES)
        heads = [self.solve(ridge) for ridge in ridges]
        best = self._choose(context, heads) if len(heads) > 1 else 0
        head = context.model.output_weight()
        head.copy_(heads[best].to(head))
        groups = getattr(context.model, "task_of_unit", None)
        if groups is not None:
            units = torch.unique(context.neighbourhoods.y[context.task.train.to(groups.device)])
            groups[units[groups[units] < 0]] = self.tasks_
        self.tasks_ += 1
        self.previous_ = {}

    def solve(self, ridge: float) -> Tensor:
        """W = (G + ridge · mean diagonal · I)⁻¹ B, in float64."""
        assert self.gram_ is not None
        assert self.cross_ is not None
        damped = self.gram_.clone()
        damped.diagonal().add_(ridge * float(self.gram_.diagonal().mean()))
        return torch.cholesky_solve(self.cross_, torch.linalg.cholesky(damped))

    def _accumulate(self, context: Context) -> None:
        """G += Σ w φ φᵀ and B += Σ w φ onehotᵀ, a batch of nodes at a time."""
        head = context.model.output_weight()
        if self.gram_ is None or self.cross_ is None:
            self.gram_ = torch.zeros(head.size(0), head.size(0), dtype=torch.float64, device=head.device)
            self.cross_ = torch.zeros(head.shape, dtype=torch.float64, device=head.device)
        y = context.neighbourhoods.y
        sizes = torch.bincount(y[context.task.train.to(y.device)], minlength=head.size(1)).double()
        weights = sizes.clamp(min=1) ** -self.balance
        for batch in context.batches(NODES_AT_ONCE):
            features = context.model.features(batch).double()
            weighted = features * weights[batch.y].unsqueeze(1)
            self.gram_.addmm_(weighted.T, features)
            self.cross_.index_add_(1, batch.y, weighted.T)

    def _validation(self, context: Context) -> Iterator[Batch]:
        nodes = context.task.val.to(context.neighbourhoods.y.device)
        return context.neighbourhoods.batches(nodes, NODES_AT_ONCE)

    def _choose(self, context: Context, heads: list[Tensor]) -> int:
        """Count each head's hits on the current validation nodes; the largest ridge within one error of the best."""
        hits = self.hits_ or [0] * len(heads)
        for batch in self._validation(context):
            features = context.model.features(batch).double()
            hits = [h + int(((features @ head).argmax(1) == batch.y).sum()) for h, head in zip(hits, heads)]
        self.hits_ = hits
        self.validated_ += context.task.val.numel()
        rates = torch.tensor(hits, dtype=torch.float64) / max(self.validated_, 1)
        error = float((rates.max() * (1 - rates.max()) / max(self.validated_, 1)).sqrt())
        return max(i for i, rate in enumerate(rates.tolist()) if rate >= float(rates.max()) - error)

    def _follow_drift(self, context: Context) -> None:
        """G ← TᵀGT and B ← TᵀB, with φ_before T ≈ φ_after in least squares on the current task's nodes."""
        assert self.gram_ is not None
        assert self.cross_ is not None
        old = {f"model.{name}": value for name, value in self.previous_.items()}
        before_before = torch.zeros_like(self.gram_)
        before_after = torch.zeros_like(self.gram_)
        for batch in context.batches(NODES_AT_ONCE):
            after = context.model.features(batch).double()
            before = functional_call(_Features(context.model), old, (batch,)).double()
            before_before.addmm_(before.T, before)
            before_after.addmm_(before.T, after)
        damping = 1e-3 * float(before_before.diagonal().mean())
        eye = torch.eye(self.gram_.size(0), dtype=torch.float64, device=before_before.device)
        # damped towards the identity: directions that the task does not show are taken not to drift
        factor = torch.linalg.cholesky(before_before + damping * eye)
        change = torch.cholesky_solve(before_after + damping * eye, factor)
        self.gram_ = change.T @ self.gram_ @ change
        self.cross_ = change.T @ self.cross_


class _Features(torch.nn.Module):
    """A model's features as a module's forward, for calls with other parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        features: Tensor = self.model.features(batch)  # type: ignore[operator]
        return features
